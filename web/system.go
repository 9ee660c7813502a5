package web

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"time"

	"example.org/slipway/oci"
)

// System is what the pages for who manages the registry are about. Each part is nil, or
// empty, where there is none.
type System struct {
	Storage Storage
	Caches  Caches
	// Hot returns the manifests that were asked for most of late, at most n, and since when
	// they were counted.
	Hot      func(n int) ([]HotImage, time.Time)
	Mirrors  Mirrors
	Nodes    Nodes
	Settings func() Settings
	// Reports is a directory whose reports are shown.
	Reports string
}

// Fact is a name with a value, as pages list them.
type Fact struct{ Name, Value string }

// timing is how often the live parts do what.
type timing struct{ every, beat, life, sample time.Duration }

// openSystem adds the pages of System, and begins what they do in the background.
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

// begin does work in the background until Close, unless that was called.
func (h *Handler) begin(work func(context.Context)) bool {
	h.beginning.Lock()
	defer h.beginning.Unlock()
	if h.ctx.Err() != nil {
		return false
	}
	h.background.Go(func() { work(h.ctx) })
	return true
}

// here is the entry of the navigation that a page belongs to: of those of the system, the
// one that leads to it.
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

// Close ends streams and work under way, and waits for the work. The handler answers
// requests after that too, but begins no work.
func (h *Handler) Close() {
	h.EndStreams()
	h.jobs.close()
	h.beginning.Lock()
	h.stop()
	h.beginning.Unlock()
	h.background.Wait()
}

// share is a part of a whole, from 0 to 1.
func share(part, whole int64) float64 {
	if whole <= 0 {
		return 0
	}
	return min(1, max(0, float64(part)/float64(whole)))
}

// percent writes a share for people.
func percent(v float64) string {
	if v > 0.995 && v < 1 || v > 0 && v < 0.095 {
		return strconv.FormatFloat(v*100, 'f', 1, 64) + " %"
	}
	return strconv.FormatFloat(v*100, 'f', 0, 64) + " %"
}

// formatCount writes a number for people, with thin spaces between thousands.
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

// formatTook writes a duration for people: at most two units, none below a second but
// alone.
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

// linkRef is REPOSITORY@DIGEST, which has no character that an address must escape, or
// empty where the digest is none.
func linkRef[D ~string](repo string, digest D) string {
	if !oci.ValidDigest(oci.Digest(digest)) || !oci.ValidName(repo) {
		return ""
	}
	return repo + "@" + string(digest)
}
