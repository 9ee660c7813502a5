package web

import (
	"cmp"
	"context"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	gearregistry "example.org/slipway/gear/service"
	"example.org/slipway/internal/chart"
	"example.org/slipway/registry"
	"example.org/slipway/registry/check"
	"example.org/slipway/registry/quota"
	"example.org/slipway/registry/retention"
	"example.org/slipway/web/format"
	"example.org/slipway/web/manage"
)

// Storage gives access to what the registry keeps, and to the work on it. Methods that
// change something fail if that is not allowed.
type Storage interface {
	// Survey returns the last survey, or nil if there is none yet, and whether the next
	// one is being made. It does not wait. If begin is set, it starts a new survey in the
	// background if the last one is out of date.
	Survey(begin bool) (s *Survey, pending bool)
	Gear(ctx context.Context) (gearregistry.Status, error)
	Collect(ctx context.Context, dry bool, progress func(registry.CollectReport)) (registry.CollectReport, error)
	// Check is the quick check, which does not read the contents.
	Check(ctx context.Context, progress func(check.Report)) (check.Report, error)
	Retain(ctx context.Context, dry bool) (retention.Report, error)
}

// Survey describes what is stored at one moment. Sizes are in bytes.
type Survey struct {
	Time time.Time
	Took time.Duration
	// Blobs is the number of stored contents, and Bytes is their size. ImageBytes would
	// be their size if each image had its own copy.
	Manifests, Tags, Blobs   int64
	Bytes, ImageBytes        int64
	LayerBytes, PackBytes    int64 // of the layers that have an index, and of their files; each counts once
	Packs, Files, Indexes    int64
	FreeBytes, DiskBytes     int64 // of the data directory's file system; DiskBytes is 0 if unknown
	MirrorBytes, MirrorsOnly int64 // of content in mirrors, and of content in mirrors alone
	Repositories             []RepositorySize
	// Growth is what earlier surveys found, the oldest first.
	Growth []GrowthPoint
}

// RepositorySize is the size of a repository. OnlyBytes is the size of what no other
// repository has.
type RepositorySize struct {
	Name             string
	Manifests        int64
	Bytes, OnlyBytes int64
}

// GrowthPoint is how much was stored at a time.
type GrowthPoint struct {
	Time             time.Time
	Bytes, PackBytes int64
}

// sizesPage is how many repositories are listed on a page.
const sizesPage = 50

// storageData is what the page shows.
type storageData struct {
	Survey  *Survey
	Pending bool
	// Repositories are the repositories on the page. From is the number of the first.
	// Next is where the next page begins, or 0.
	Repositories []RepositorySize
	From, Next   int
	Sort         string
	Gear         *gearregistry.Status
	Quotas       []quota.Status
	Growth       template.HTML
	Dedup        []dedupRow
	Job          *Job
}

// dedupRow is a row for a way to store the same images.
type dedupRow struct {
	Name  string
	Bytes int64
	Share float64
}

// gearState returns the state of the conversion.
func (q *request) gearState() (*gearregistry.Status, error) {
	if q.h.opts.System.Storage == nil {
		return nil, noStorage()
	}
	st, err := q.h.opts.System.Storage.Gear(q.ctx())
	if err != nil {
		return nil, err
	}
	return &st, nil
}

func noStorage() error { return notFound("The storage is not looked after here.") }

// storage shows the page of what is stored, or the page of an action.
func (q *request) storage() error {
	if q.h.opts.System.Storage == nil {
		return noStorage()
	}
	if q.rest != "" {
		if a, ok := q.action(); ok {
			return q.showAction(a, http.StatusOK, "")
		}
		return notFound("There is no page of that name.")
	}
	d := &storageData{Job: q.h.jobs.current(), Sort: q.r.FormValue("sort"), Quotas: q.h.quotas("")}
	d.Survey, d.Pending = q.h.opts.System.Storage.Survey(true)
	if d.Survey != nil {
		d.page(q.r.FormValue("from"))
		d.Growth = growth(d.Survey)
		d.Dedup = dedup(d.Survey)
	}
	var err error
	if d.Gear, err = q.gearState(); err != nil {
		return err
	}
	q.show(http.StatusOK, "storage", "Storage", d)
	return nil
}

// page selects the repositories to show.
func (d *storageData) page(from string) {
	list := d.Survey.Repositories // sorted by size
	if d.Sort == "only" {
		list = slices.Clone(list)
		slices.SortFunc(list, func(a, b RepositorySize) int {
			return cmp.Or(cmp.Compare(b.OnlyBytes, a.OnlyBytes), cmp.Compare(a.Name, b.Name))
		})
	} else {
		d.Sort = ""
	}
	d.From, _ = strconv.Atoi(from)
	d.From = max(0, min(d.From, len(list)))
	list = list[d.From:]
	if len(list) > sizesPage {
		list, d.Next = list[:sizesPage], d.From+sizesPage
	}
	d.Repositories = list
}

// dedup compares the stored size with the sizes under other ways of storing.
func dedup(s *Survey) []dedupRow {
	rows := []dedupRow{
		{"Each image with layers of its own", s.ImageBytes, 1},
		{"Each layer once", s.Bytes, format.Share(s.Bytes, s.ImageBytes)},
	}
	if s.Indexes > 0 {
		// This assumes that the layers with an index were stored only as files.
		files := max(0, s.Bytes-s.LayerBytes) + s.PackBytes
		rows = append(rows, dedupRow{"Each file once", files, format.Share(files, s.ImageBytes)})
	}
	return rows
}

// growth draws what was stored over time.
func growth(s *Survey) template.HTML {
	if len(s.Growth) < 2 {
		return ""
	}
	blobs, packs := chart.Series{Name: "blobs"}, chart.Series{Name: "Gear packs"}
	for _, p := range s.Growth {
		hours := p.Time.Sub(s.Time).Hours()
		blobs.Points = append(blobs.Points, chart.Point{X: hours, Y: float64(p.Bytes)})
		packs.Points = append(packs.Points, chart.Point{X: hours, Y: float64(p.PackBytes)})
	}
	c := chart.XY{Title: "Stored bytes", Desc: "Bytes of blobs and of Gear packs over the last hours.",
		X: chart.Axis{Title: "hours from now"}, Y: chart.Axis{Title: "stored", Unit: chart.Bytes}, Series: []chart.Series{blobs, packs}}
	return template.HTML(c.SVG(&chart.Options{Inline: true})) // which escapes all text
}

func storageActions() []action {
	return []action{
		{page: "storage", name: "gc", title: "Collect garbage", verb: "Collect garbage", preview: true, danger: true, text: []string{
			"Removes what nothing needs any more: contents that no image names, and, if storage.gc.untagged says so, manifests without a tag. What has not yet waited out its grace period stays. Pushes and pulls go on.",
			"The server does the same by itself at each storage.gc.interval. What was removed cannot be brought back."},
			work: func(h *Handler, _ url.Values, dry bool) (work, error) { return h.collectWork(dry), nil }},
		{page: "storage", name: "check", title: "Check the storage", verb: "Check", text: []string{
			"Compares the catalogue with itself and with the object store, and changes nothing. The contents are not read: slipway fsck does that, and can repair."},
			work: func(h *Handler, _ url.Values, _ bool) (work, error) { return h.checkWork(), nil }},
		{page: "storage", name: "retention", title: "Apply the retention rules", verb: "Remove tags", preview: true, danger: true, text: []string{
			"Removes the tags that the rules in storage.retention do not keep, and what only they needed. The server does the same by itself at each storage.retention_interval."},
			work: func(h *Handler, _ url.Values, dry bool) (work, error) { return h.retainWork(dry), nil }},
	}
}

func (h *Handler) collectWork(dry bool) work {
	return func(ctx context.Context, progress func(string)) (*manage.Outcome, error) {
		rep, err := h.opts.System.Storage.Collect(ctx, dry, func(r registry.CollectReport) {
			progress(fmt.Sprintf("%s examined, %s contents of %s", format.Count(int64(r.Examined)), format.Count(int64(r.Contents)), format.Bytes(r.Bytes)))
		})
		if err != nil {
			return nil, err
		}
		o := &manage.Outcome{Facts: manage.Facts("Examined", format.Count(int64(rep.Examined)), "Manifests", format.Count(int64(rep.Manifests)),
			"Blobs out of repositories", format.Count(int64(rep.Blobs)), "Contents deleted", format.Count(int64(rep.Contents)), "Space freed", format.Bytes(rep.Bytes))}
		switch {
		case rep.Elsewhere:
			o.Text, o.Facts = "Another server is collecting, so nothing was done.", nil
		case dry:
			o.Text = "A preview: nothing was changed. A collection now would do this."
			later := format.Bytes(rep.FreedBytes)
			if rep.AtLeast {
				later = "at least " + later
			}
			o.Facts = append(o.Facts, manage.Facts("A grace period later", later+" in "+format.Count(int64(rep.FreedContents))+" contents")...)
			o.Head = []string{"Content that would go"}
			for _, d := range rep.Digests {
				o.Row(string(d))
			}
		case rep.Examined == 0:
			o.Text = "There was nothing to collect."
		default:
			o.Text = "Collected."
		}
		return o, nil
	}
}

func (h *Handler) checkWork() work {
	return func(ctx context.Context, progress func(string)) (*manage.Outcome, error) {
		rep, err := h.opts.System.Storage.Check(ctx, func(r check.Report) {
			progress(fmt.Sprintf("%s of %s contents, %s of %s manifests", format.Count(r.Contents), format.Count(r.ContentsTotal), format.Count(r.Manifests), format.Count(r.ManifestsTotal)))
		})
		if err != nil {
			return nil, err
		}
		o := &manage.Outcome{Text: "No problem was found.", Facts: manage.Facts("Contents", format.Count(rep.Contents), "Manifests", format.Count(rep.Manifests), "Objects", format.Count(rep.Objects))}
		if rep.Clean() {
			return o, nil
		}
		o.Text, o.Head = "Problems were found. slipway fsck --repair repairs what can be repaired.", []string{"Problem", "Where", "What"}
		for _, p := range rep.Problems {
			o.Row(string(p.Kind), cmp.Or(string(p.Digest), p.Key, p.Repo), p.Detail)
		}
		return o, nil
	}
}

func (h *Handler) retainWork(dry bool) work {
	return func(ctx context.Context, _ func(string)) (*manage.Outcome, error) {
		rep, err := h.opts.System.Storage.Retain(ctx, dry)
		if err != nil {
			return nil, err
		}
		o := &manage.Outcome{Facts: manage.Facts("Rules", format.Count(int64(rep.Rules)), "Repositories", format.Count(int64(rep.Repositories)), "Tags kept", format.Count(int64(rep.Kept)), "Tags removed", format.Count(int64(rep.Removed)),
			"Manifests removed", format.Count(int64(rep.Manifests)))}
		switch {
		case rep.Elsewhere:
			o.Text, o.Facts = "Another server is at it, so nothing was done.", nil
			return o, nil
		case rep.Rules == 0:
			o.Text = "There are no rules: storage.retention of the configuration is empty."
		case dry:
			o.Text = "A preview: nothing was changed. The rules would do this now."
		default:
			o.Text = "Done."
		}
		o.Head = []string{"Tag that goes", "Why"}
		for _, d := range rep.Decisions {
			if d.Removed {
				o.Row(d.Repo+":"+d.Tag, d.Reason)
			}
		}
		return o, nil
	}
}
