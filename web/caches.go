package web

import (
	"context"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"example.org/slipway/internal/chart"
	"example.org/slipway/oci"
	"example.org/slipway/web/format"
	"example.org/slipway/web/images"
	"example.org/slipway/web/manage"
)

// Caches gives access to the server's cache of blobs.
type Caches interface {
	// Cache returns the state of the cache. It is cheap.
	Cache() CacheState
	// Drop drops the layers of an image, or everything if image is "". It returns how
	// many contents it dropped.
	Drop(ctx context.Context, image string) (int, error)
	// Warm fetches the layers of an image.
	Warm(ctx context.Context, image string, progress func(CacheWarmth)) (CacheWarmth, error)
}

// CacheTier is a tier of a cache: memory or disk. Sizes are in bytes, and counts are
// since the server's start.
type CacheTier struct {
	Limit, Bytes, Pinned              int64
	Entries                           int
	Hits, HitBytes, Misses, Evictions int64
}

// CacheState is the state of a cache. Sizes are in bytes, and counts are since the
// server's start.
type CacheState struct {
	RAM, SSD CacheTier
	// Fetching is how many contents are being fetched now. Fetched, Shared, Failed and
	// Damaged are counts.
	Fetching                         int
	Fetched, Shared, Failed, Damaged int64
	// Written is how many bytes were written to the disk. Budget is how many more may be
	// written now, or -1 without a limit. Usable reports whether the disk is written to.
	Written, Budget int64
	Usable          bool
	// Servers are the servers that read from each other.
	Servers  []string
	Prefetch *PrefetchState
}

// HotImage says how often a manifest was requested by a name.
type HotImage struct {
	// Repo and Ref are what was requested. Ref is a tag or a digest.
	Repo, Ref string
	Pulls     int64
}

// ByDigest reports whether the manifest was requested by digest.
func (i HotImage) ByDigest() bool { return oci.IsDigest(i.Ref) }

// Link returns the rest of the address of the image's page.
func (i HotImage) Link() string {
	if i.ByDigest() {
		return images.DigestLink(i.Repo, i.Ref)
	}
	return i.Repo + ":" + i.Ref
}

// PrefetchState says how useful prefetching was.
type PrefetchState struct {
	Fetched, Used, Cancelled, Failed int64
	Bytes, UsedBytes, WastedBytes    int64
	// Precision is the share of the prefetched content that was requested. Recall is the
	// share of the requested content that had been prefetched.
	Precision, Recall float64
}

// CacheWarmth is the progress of warming an image.
type CacheWarmth struct {
	Layers, Total            int
	Bytes, TotalBytes        int64
	Held, NotKept, NotLoaded int
}

const (
	// sampleEvery is how often the cache is sampled for the graph, which shows the given
	// number of samples.
	sampleEvery = 5 * time.Second
	samples     = 180
)

// cacheSample is the state of a cache at a moment.
type cacheSample struct {
	at       time.Time
	ram, ssd int64 // requests served by each since the start
	misses   int64
	bytes    int64
}

// cacheRing has the last samples.
type cacheRing struct {
	mu   sync.Mutex
	list []cacheSample
}

func (r *cacheRing) add(at time.Time, c *CacheState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.list) == samples {
		copy(r.list, r.list[1:])
		r.list = r.list[:samples-1]
	}
	r.list = append(r.list, cacheSample{at: at, ram: c.RAM.Hits, ssd: c.SSD.Hits, misses: c.misses(), bytes: c.RAM.Bytes + c.SSD.Bytes})
}

// misses returns the number of requests that no tier served.
func (c *CacheState) misses() int64 {
	if c.SSD.Limit > 0 {
		return c.SSD.Misses
	}
	return c.RAM.Misses
}

// lately returns the graph, and the hit ratio of the last minute or -1 if there were no
// requests.
func (r *cacheRing) lately(now time.Time) (ratio float64, graph template.HTML) {
	r.mu.Lock()
	list := append([]cacheSample(nil), r.list...)
	r.mu.Unlock()
	ratio = -1
	for i := range list {
		if now.Sub(list[i].at) <= time.Minute {
			ratio = hitRatio(list[i], list[len(list)-1])
			break
		}
	}
	if len(list) < 3 {
		return ratio, ""
	}
	s := chart.Series{Name: "hits of requests"}
	const step = 3 // how many samples make a point
	for i := step; i < len(list); i += step {
		if v := hitRatio(list[i-step], list[i]); v >= 0 {
			s.Points = append(s.Points, chart.Point{X: list[i].at.Sub(now).Minutes(), Y: v})
		}
	}
	if len(s.Points) < 2 { // no line
		return ratio, ""
	}
	c := chart.XY{Title: "Hit ratio", Desc: "Share of the requests that the cache served, over the last minutes.", X: chart.Axis{Title: "minutes from now"},
		Y: chart.Axis{Title: "served by the cache", Unit: chart.Share, Full: true}, Series: []chart.Series{s}}
	return ratio, template.HTML(c.SVG(&chart.Options{Inline: true})) // which escapes all text
}

// hitRatio returns the hit ratio of the requests between two samples, or -1 if there were
// none.
func hitRatio(a, b cacheSample) float64 {
	hits, misses := b.ram-a.ram+b.ssd-a.ssd, b.misses-a.misses
	if hits+misses <= 0 {
		return -1
	}
	return format.Share(hits, hits+misses)
}

// sampleCache adds samples to the ring until the handler is closed.
func (h *Handler) sampleCache(ctx context.Context) {
	tick := time.NewTicker(h.timing.sample)
	defer tick.Stop()
	for {
		c := h.opts.System.Caches.Cache()
		h.ring.add(h.opts.Clock(), &c)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// cachesData is what the page shows.
type cachesData struct {
	CacheState
	Tiers []tierRow
	// Now and Overall are hit ratios, or -1 if there were no requests.
	Now, Overall float64
	Graph        template.HTML
	Job          *Job
	// Hot lists the manifests that were requested most since HotSince, the most requested
	// first.
	Hot      []HotImage
	HotSince time.Time
}

// hotImages is how many hot images are shown.
const hotImages = 20

// OfMost returns the requests for an image as a share of the requests for the first.
func (d *cachesData) OfMost(i HotImage) float64 { return format.Share(i.Pulls, d.Hot[0].Pulls) }

// tierRow is a row of the table of the cache's tiers.
type tierRow struct {
	Name string
	CacheTier
	Fill, Ratio float64
}

// cachesData returns what the page shows now.
func (q *request) cachesData() *cachesData {
	d := &cachesData{Job: q.h.jobs.current()}
	if hot := q.h.opts.System.Hot; hot != nil {
		d.Hot, d.HotSince = hot(hotImages)
	}
	if q.h.opts.System.Caches == nil {
		return d
	}
	d.CacheState = q.h.opts.System.Caches.Cache()
	for i, t := range []CacheTier{d.RAM, d.SSD} {
		if t.Limit == 0 {
			continue
		}
		row := tierRow{[]string{"Memory", "Disk"}[i], t, format.Share(t.Bytes, t.Limit), -1}
		if n := t.Hits + t.Misses; n > 0 {
			row.Ratio = format.Share(t.Hits, n)
		}
		d.Tiers = append(d.Tiers, row)
	}
	d.Overall = hitRatio(cacheSample{}, cacheSample{ram: d.RAM.Hits, ssd: d.SSD.Hits, misses: d.misses()})
	d.Now, d.Graph = q.h.ring.lately(q.h.opts.Clock())
	return d
}

// caches shows the page of the cache, or the page of an action.
func (q *request) caches() error {
	if q.rest != "" {
		if a, ok := q.action(); ok {
			return q.showAction(a, http.StatusOK, "")
		}
		return notFound("There is no page of that name.")
	}
	q.show(http.StatusOK, "caches", "Caches", q.cachesData())
	return nil
}

func hasCaches(h *Handler) string {
	if h.opts.System.Caches == nil {
		return "This server has no cache of blobs; storage.blob_cache of the configuration gives it one."
	}
	return ""
}

func cacheActions() []action {
	image := input{Name: "image", Label: "Image", Help: "REPOSITORY:TAG or REPOSITORY@DIGEST", Type: "text", Required: true}
	optional := image
	optional.Required, optional.Help = false, image.Help+"; empty for everything in the cache"
	return []action{
		{page: "caches", name: "warm", title: "Warm an image", verb: "Fetch it", there: hasCaches, inputs: []input{image}, text: []string{
			"Fetches the layers of an image into the cache of this server, so that the next pull is served from it."},
			work: func(h *Handler, form url.Values, _ bool) (work, error) { return h.warmWork(form.Get("image")) }},
		{page: "caches", name: "drop", title: "Drop from the cache", verb: "Drop", danger: true, there: hasCaches, inputs: []input{optional}, text: []string{
			"Gives up what the cache of this server has of an image. Nothing is lost: the next pull reads the object store again, which is slower. Other images that have the same layers lose them, too."},
			work: func(h *Handler, form url.Values, _ bool) (work, error) { return h.dropWork(form.Get("image")), nil }},
	}
}

func (h *Handler) warmWork(image string) (work, error) {
	if image = strings.TrimSpace(image); image == "" {
		return nil, errors.New("Name an image.")
	}
	return func(ctx context.Context, progress func(string)) (*manage.Outcome, error) {
		w, err := h.opts.System.Caches.Warm(ctx, image, func(w CacheWarmth) {
			progress(fmt.Sprintf("%d of %d layers, %s of %s", w.Layers, w.Total, format.Bytes(w.Bytes), format.Bytes(w.TotalBytes)))
		})
		if err != nil {
			return nil, err
		}
		return &manage.Outcome{Text: image + " is in the cache, as far as there is room.", Facts: manage.Facts("Layers", fmt.Sprint(w.Layers), "Bytes", format.Bytes(w.Bytes),
			"There before", fmt.Sprint(w.Held), "No room for", fmt.Sprint(w.NotKept))}, nil
	}, nil
}

func (h *Handler) dropWork(image string) work {
	image = strings.TrimSpace(image)
	return func(ctx context.Context, _ func(string)) (*manage.Outcome, error) {
		n, err := h.opts.System.Caches.Drop(ctx, image)
		if err != nil {
			return nil, err
		}
		return &manage.Outcome{Text: "Dropped.", Facts: manage.Facts("Contents", format.Count(int64(n)))}, nil
	}
}
