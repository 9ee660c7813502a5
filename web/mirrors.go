package web

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/mirror"
	"example.org/slipway/web/format"
	"example.org/slipway/web/images"
	"example.org/slipway/web/manage"
)

// Mirrors are the mirrored registries.
type Mirrors interface {
	// Mirrors returns the state of the mirrors. It is cheap.
	Mirrors() MirrorState
	// MirrorImages lists at most n mirrored images that are here. after is the position
	// at which the previous page ended.
	MirrorImages(ctx context.Context, after string, n int) (images []registry.MirrorImage, next string, err error)
	// PruneMirrors removes images that nobody has pulled for the given time, or all
	// images if it is 0. It removes them from the repositories that match the pattern, or
	// from all if it is "".
	PruneMirrors(ctx context.Context, unused time.Duration, pattern string, dry bool) (images []registry.MirrorImage, bytes int64, err error)
}

// MirrorState is the state of mirrors. MaxBytes is their limit, or 0 for none.
type MirrorState struct {
	mirror.Status
	MaxBytes int64
}

// mirrorsPage is how many images are listed on a page.
const mirrorsPage = 100

// mirrorsData is what the page shows.
type mirrorsData struct {
	MirrorState
	None      bool
	Upstreams []upstreamRow
	// Survey says what mirrors take, if that is known.
	Survey *Survey
	Job    *Job
}

// upstreamRow is an upstream with the sums of its counts.
type upstreamRow struct {
	mirror.SourceStatus
	Hits, Misses, Stale, Errs int64
	// Saved is how many bytes went to clients without coming from the upstream.
	Saved int64
}

// mirrorsData returns what the page shows now. Loading the page may begin a survey. Its
// live part, which is rendered every other second, may not.
func (q *request) mirrorsData(begin bool) *mirrorsData {
	d := &mirrorsData{None: q.h.opts.System.Mirrors == nil, Job: q.h.jobs.current()}
	if d.None {
		return d
	}
	if s := q.h.opts.System.Storage; s != nil {
		d.Survey, _ = s.Survey(begin)
	}
	d.MirrorState = q.h.opts.System.Mirrors.Mirrors()
	for _, s := range d.Sources {
		row := upstreamRow{SourceStatus: s, Saved: max(0, s.PushedBytes-s.PulledBytes)}
		for _, of := range s.Requests {
			row.Hits += of["hit"]
			row.Misses += of["miss"]
			row.Stale += of["stale"]
			row.Errs += of["error"]
		}
		d.Upstreams = append(d.Upstreams, row)
	}
	return d
}

// mirrors shows the upstreams, the mirrored images, or an action.
func (q *request) mirrors() error {
	switch a, ok := q.action(); {
	case ok:
		return q.showAction(a, http.StatusOK, "")
	case q.rest == "images":
		return q.mirrorImages()
	case q.rest != "":
		return notFound("There is no page of that name.")
	}
	q.show(http.StatusOK, "mirrors", "Mirrors", q.mirrorsData(true))
	return nil
}

// mirrorImages lists the images of upstreams that are here.
func (q *request) mirrorImages() error {
	m := q.h.opts.System.Mirrors
	if m == nil {
		return notFound("No registry is mirrored here.")
	}
	list, next, err := m.MirrorImages(q.ctx(), q.r.FormValue("after"), mirrorsPage)
	if oci.HasCode(err, oci.CodePaginationNumber) {
		return &problem{status: http.StatusBadRequest, text: "This page of the list is not there. Begin again.", err: err}
	}
	if err != nil {
		return err
	}
	type row struct {
		registry.MirrorImage
		Ref string
	}
	d := struct {
		Images []row
		Next   string
	}{Next: next}
	for _, i := range list {
		d.Images = append(d.Images, row{i, images.DigestLink(i.Repo, string(i.Digest))})
	}
	q.show(http.StatusOK, "mirrorimages", "Mirrored images", d)
	return nil
}

func mirrorActions() []action {
	return []action{{page: "mirrors", name: "prune", title: "Remove mirrored images", verb: "Remove images", preview: true, danger: true,
		there: func(h *Handler) string {
			if h.opts.System.Mirrors == nil {
				return "No registry is mirrored here; proxy.upstreams of the configuration names them."
			}
			return ""
		},
		inputs: []input{{Name: "days", Label: "Not pulled for, in days", Type: "number", Value: "30", Required: true, Help: "0 takes all"},
			{Name: "pattern", Label: "Repositories", Type: "text", Help: "a pattern such as docker.io/**; empty for all"}},
		text: []string{"Removes copies of images that nobody has pulled for a while. Whoever asks for one again gets it from the upstream, if that still has it."},
		work: func(h *Handler, form url.Values, dry bool) (work, error) {
			days, err := strconv.Atoi(form.Get("days"))
			const most = 36500
			if err != nil || days < 0 || days > most {
				return nil, errors.New("The number of days must be a whole number, from 0 on.")
			}
			pattern := form.Get("pattern")
			if days == 0 && pattern == "" {
				pattern = "**"
			}
			return h.pruneWork(time.Duration(days)*24*time.Hour, pattern, dry), nil
		}}}
}

func (h *Handler) pruneWork(unused time.Duration, pattern string, dry bool) work {
	return func(ctx context.Context, _ func(string)) (*manage.Outcome, error) {
		images, bytes, err := h.opts.System.Mirrors.PruneMirrors(ctx, unused, pattern, dry)
		if err != nil {
			return nil, err
		}
		o := &manage.Outcome{Text: "Done.", Facts: manage.Facts("Images", format.Count(int64(len(images))), "Space freed", format.Bytes(bytes)), Head: []string{"Image", "Tags", "Size", "Last pull"}}
		if dry {
			o.Text = "A preview: nothing was changed. This would go."
		}
		for _, i := range images {
			o.Row(i.Repo+"@"+format.ShortDigest(string(i.Digest)), strings.Join(i.Tags, " "), format.Bytes(i.Size), format.Time(i.LastPull))
		}
		return o, nil
	}
}
