package web

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"time"

	"example.org/slipway/oci"
)

// System is what the pages for administrators show. A part that does not exist is nil or
// empty.
type System struct {
	Storage Storage
	Caches  Caches
	// Hot returns at most n of the manifests that were requested most of late, and since
	// when they were counted.
	Hot      func(n int) ([]HotImage, time.Time)
	Mirrors  Mirrors
	Nodes    Nodes
	Settings func() Settings
	// Reports is the directory of the reports to show.
	Reports string
}

// Fact is a name with a value, as pages list them.
type Fact struct{ Name, Value string }

// timing is how often the live parts do their regular work, and how long they live.
type timing struct{ every, beat, life, sample time.Duration }

// openSystem adds the pages of System and begins their work in the background.
func (h *Handler) openSystem() {
	maps.Copy(h.pages, map[string]page{
		"storage":  {get: (*request).storage, post: (*request).doAction, admin: true},
		"caches":   {get: (*request).caches, post: (*request).doAction, admin: true},
		"mirrors":  {get: (*request).mirrors, post: (*request).doAction, admin: true},
		"nodes":    {get: (*request).nodes, admin: true},
		"reports":  {get: (*request).reports, admin: true},
		"settings": {get: (*request).settings, admin: true, exact: true},
		"events":   {get: (*request).events, admin: true, exact: true},
	})
	h.jobs, h.actions = newJobs(h.opts.Clock), actions()
	h.streams, h.streamsEnd = make(chan struct{}, maxStreams), make(chan struct{})
	h.timing = timing{streamEvery, beatEvery, streamLife, sampleEvery}
	h.ctx, h.stop = context.WithCancel(context.Background())
	if h.opts.System.Caches != nil {
		h.begin(h.sampleCache)
	}
}

// begin runs work in the background until Close. It reports false if Close was already
// called.
func (h *Handler) begin(work func(context.Context)) bool {
	h.beginning.Lock()
	defer h.beginning.Unlock()
	if h.ctx.Err() != nil {
		return false
	}
	h.background.Go(func() { work(h.ctx) })
	return true
}

// here returns the navigation entry to which a page belongs. For a page of the system, it
// is the entry that leads to that page.
func (q *request) here(name string) string {
	switch p := q.pageName(); p {
	case "repo", "image", "tree", "diff", "delete":
		return "home"
	default:
		if q.h.pages[p].admin {
			return p
		}
	}
	return name
}

// Close ends streams and work under way, and waits for the work. The handler still
// answers requests after that, but begins no work.
func (h *Handler) Close() {
	h.EndStreams()
	h.jobs.close()
	h.beginning.Lock()
	h.stop()
	h.beginning.Unlock()
	h.background.Wait()
}

// share returns a part's share of a whole, from 0 to 1.
func share(part, whole int64) float64 {
	if whole <= 0 {
		return 0
	}
	return min(1, max(0, float64(part)/float64(whole)))
}

// percent formats a share for people.
func percent(v float64) string {
	if v > 0.995 && v < 1 || v > 0 && v < 0.095 {
		return strconv.FormatFloat(v*100, 'f', 1, 64) + " %"
	}
	return strconv.FormatFloat(v*100, 'f', 0, 64) + " %"
}

// formatCount formats a number for people, with thin spaces between thousands.
func formatCount(n int64) string {
	s := strconv.FormatInt(n, 10)
	head := len(s) % 3
	if s[0] == '-' {
		return s
	}
	out := s[:head]
	for i := head; i < len(s); i += 3 {
		if out != "" {
			out += "\u202f"
		}
		out += s[i : i+3]
	}
	return out
}

// formatTook formats a duration for people, in at most two units. Units below a second
// appear only alone.
func formatTook(d time.Duration) string {
	switch {
	case d < 0:
		return "0 s"
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}

// linkRef returns REPOSITORY@DIGEST, in which an address need not escape any character.
// It returns "" if the digest is invalid.
func linkRef[D ~string](repo string, digest D) string {
	if !oci.ValidDigest(oci.Digest(digest)) || !oci.ValidName(repo) {
		return ""
	}
	return repo + "@" + string(digest)
}
