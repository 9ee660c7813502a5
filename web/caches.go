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
)

// Caches is the server's cache of blobs.
type Caches interface {
	// Cache returns how it stands. It is cheap.
	Cache() CacheState
	// Drop drops the layers of an image, or with "" everything, and tells how many
	// contents that were.
	Drop(ctx context.Context, image string) (int, error)
	// Warm fetches the layers of an image.
	Warm(ctx context.Context, image string, progress func(CacheWarmth)) (CacheWarmth, error)
}

// CacheTier is memory's, or the disk's, part of a cache. Sizes are in bytes, counts since
// the server's start.
type CacheTier struct {
	Limit, Bytes, Pinned              int64
	Entries                           int
	Hits, HitBytes, Misses, Evictions int64
}

// CacheState is how a cache stands.
type CacheState struct {
	RAM, SSD CacheTier
	// Fetching contents now. Fetched, Shared, Failed and Damaged are counts.
	Fetching                         int
	Fetched, Shared, Failed, Damaged int64
	// Written bytes on the disk, and Budget that may be written now, or -1. Usable tells
	// whether the disk is written.
	Written, Budget int64
	Usable          bool
	// Servers that read from each other.
	Servers  []string
	Prefetch *PrefetchState
}

// HotImage is how often a manifest was asked for by a name.
type HotImage struct {
	// Repo and Ref, a tag or digest, are what was asked for.
	Repo, Ref string
	Pulls     int64
}

// ByDigest reports whether the manifest was asked for by digest.
func (i HotImage) ByDigest() bool { return oci.IsDigest(i.Ref) }

// Link is the rest of the image page's address.
func (i HotImage) Link() string {
	if i.ByDigest() {
		return linkRef(i.Repo, i.Ref)
	}
	return i.Repo + ":" + i.Ref
}

// PrefetchState is what fetching ahead was good for.
type PrefetchState struct {
	Fetched, Used, Cancelled, Failed int64
	Bytes, UsedBytes, WastedBytes    int64
	// Precision is the share of what was fetched that was asked for, Recall the share of
	// what was asked for that had been fetched ahead.
	Precision, Recall float64
}

// CacheWarmth is how far the warming of an image is.
type CacheWarmth struct {
	Layers, Total            int
	Bytes, TotalBytes        int64
	Held, NotKept, NotLoaded int
}

const (
	// sampleEvery is how often the cache is looked at for the graph, which has samples.
	sampleEvery = 5 * time.Second
	samples     = 180
)

// cacheSample is a moment of a cache.
type cacheSample struct {
	at       time.Time
	ram, ssd int64 // requests served by each, so far
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

// misses are the requests that no tier served.
func (c *CacheState) misses() int64 {
	if c.SSD.Limit > 0 {
		return c.SSD.Misses
	}
	return c.RAM.Misses
}

// lately returns the hit ratio of the last minute, or -1 without requests, and the graph.
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
	const step = 3 // samples to a point
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

// hitRatio is that of the requests between two samples, -1 without any.
func hitRatio(a, b cacheSample) float64 {
	hits, misses := b.ram-a.ram+b.ssd-a.ssd, b.misses-a.misses
	if hits+misses <= 0 {
		return -1
	}
	return share(hits, hits+misses)
}

// sampleCache fills the ring until the handler is closed.
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
	// Now and Overall are hit ratios; -1 without requests.
	Now, Overall float64
	Graph        template.HTML
	Job          *Job
	// Hot are the manifests that were asked for most since HotSince, the most first.
	Hot      []HotImage
	HotSince time.Time
}

// hotImages is how many of them are shown.
const hotImages = 20

// OfMost is the part of what the first was asked for.
func (d *cachesData) OfMost(i HotImage) float64 { return share(i.Pulls, d.Hot[0].Pulls) }

// tierRow is a part of the cache.
type tierRow struct {
	Name string
	CacheTier
	Fill, Ratio float64
}

// cachesData is what the page shows now.
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
		row := tierRow{[]string{"Memory", "Disk"}[i], t, share(t.Bytes, t.Limit), -1}
		if n := t.Hits + t.Misses; n > 0 {
			row.Ratio = share(t.Hits, n)
		}
		d.Tiers = append(d.Tiers, row)
	}
	d.Overall = hitRatio(cacheSample{}, cacheSample{ram: d.RAM.Hits, ssd: d.SSD.Hits, misses: d.misses()})
	d.Now, d.Graph = q.h.ring.lately(q.h.opts.Clock())
	return d
}

// caches shows the page of the cache, or that of an action.
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
	return func(ctx context.Context, progress func(string)) (*outcome, error) {
		w, err := h.opts.System.Caches.Warm(ctx, image, func(w CacheWarmth) {
			progress(fmt.Sprintf("%d of %d layers, %s of %s", w.Layers, w.Total, formatBytes(w.Bytes), formatBytes(w.TotalBytes)))
		})
		if err != nil {
			return nil, err
		}
		return &outcome{Text: image + " is in the cache, as far as there is room.", Facts: []Fact{{"Layers", fmt.Sprint(w.Layers)}, {"Bytes", formatBytes(w.Bytes)},
			{"There before", fmt.Sprint(w.Held)}, {"No room for", fmt.Sprint(w.NotKept)}}}, nil
	}, nil
}

func (h *Handler) dropWork(image string) work {
	image = strings.TrimSpace(image)
	return func(ctx context.Context, _ func(string)) (*outcome, error) {
		n, err := h.opts.System.Caches.Drop(ctx, image)
		if err != nil {
			return nil, err
		}
		return &outcome{Text: "Dropped.", Facts: []Fact{{"Contents", formatCount(int64(n))}}}, nil
	}
}
