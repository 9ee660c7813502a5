package dataroot

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"example.org/slipway/internal/policy"
	"example.org/slipway/oci"
	"example.org/slipway/registry/cache/tier"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/prefetch"
	"example.org/slipway/registry/storage"
)

// CacheTier is the state of one tier of a server's cache: memory or disk. Counts are
// since the server's start.
type CacheTier struct {
	// Limit is how many bytes the tier may take. Bytes is the size of its contents, and
	// Pinned is the size of the contents that are never evicted.
	Limit   int64 `json:"limit"`
	Bytes   int64 `json:"bytes"`
	Pinned  int64 `json:"pinned"`
	Entries int   `json:"entries"`
	// Hits and HitBytes count the requests that were served. Misses counts the requests
	// that were not served. Evictions counts the contents that were evicted.
	Hits      int64 `json:"hits"`
	HitBytes  int64 `json:"hit_bytes"`
	Misses    int64 `json:"misses"`
	Evictions int64 `json:"evictions"`
}

// CacheStatus is the state of a server's cache.
type CacheStatus struct {
	RAM CacheTier `json:"ram"`
	SSD CacheTier `json:"ssd"`
	// Fetching is how many contents are being fetched from the object store. Fetched
	// counts all fetches, and Shared counts the requests that joined a fetch. Failed
	// counts the fetches that failed, and Damaged counts the files whose content was
	// wrong.
	Fetching int   `json:"fetching"`
	Fetched  int64 `json:"fetched"`
	Shared   int64 `json:"shared"`
	Failed   int64 `json:"failed"`
	Damaged  int64 `json:"damaged"`
	// Written is how many bytes were written to the disk. Budget is how many more may be
	// written now, or -1 without a limit. Usable reports whether the disk is currently
	// written to.
	Written int64 `json:"written"`
	Budget  int64 `json:"budget"`
	Usable  bool  `json:"usable"`
	// Prefetch is nil if nothing is prefetched.
	Prefetch *prefetch.Stats `json:"prefetch,omitempty"`
	// Servers lists the servers that read from each other, including this one.
	Servers []string `json:"servers,omitempty"`
}

// CacheDropArgs are the arguments of [Root.DropCached]: the contents to drop, or all.
type CacheDropArgs struct {
	Digests []oci.Digest
	All     bool
}

// CacheDropReport says how many contents were dropped.
type CacheDropReport struct {
	Dropped int `json:"dropped"`
}

// CacheWarmArgs are the arguments of [Root.WarmCache].
type CacheWarmArgs struct {
	// Images are written REPOSITORY[:TAG|@DIGEST]. The default tag is latest.
	Images []string
	// Platform selects a platform of an index, OS/ARCHITECTURE[/VARIANT]. If it is empty,
	// all platforms are warmed.
	Platform string
}

// CacheWarmReport is the progress of warming a cache. Layers and Bytes are the amounts
// done, out of the totals.
type CacheWarmReport struct {
	Layers      int   `json:"layers"`
	LayersTotal int   `json:"layers_total"`
	Bytes       int64 `json:"bytes"`
	BytesTotal  int64 `json:"bytes_total"`
	// Held counts layers that were cached before. NotKept counts layers that the cache
	// has no room for, and Failed counts layers that could not be fetched.
	Held    int           `json:"held"`
	NotKept int           `json:"not_kept"`
	Failed  int           `json:"failed"`
	Took    time.Duration `json:"took"`
}

// needCache returns an error if there is no cache.
func (r *Root) needCache() error {
	if r.Cache == nil {
		return errors.New("the server has no cache of blobs; storage.blob_cache gives it one")
	}
	return nil
}

// CacheStatus returns the state of the cache.
func (r *Root) CacheStatus() (CacheStatus, error) {
	if err := r.needCache(); err != nil {
		return CacheStatus{}, err
	}
	s := r.Cache.Status()
	st := CacheStatus{
		RAM: cacheTier(&s.RAM), SSD: cacheTier(&s.SSD), Fetching: s.Fills, Fetched: s.Fetched, Shared: s.Shared,
		Failed: s.FetchErrors, Damaged: s.Damaged, Written: s.SSDWritten, Budget: s.SSDBudget, Usable: s.SSDUsable,
	}
	if r.Prefetch != nil {
		p := r.Prefetch.Stats()
		st.Prefetch = &p
	}
	if r.Cluster != nil {
		st.Servers = r.Cluster.Members()
	}
	return st, nil
}

func cacheTier(t *tier.TierStatus) CacheTier {
	return CacheTier{Limit: t.Limit, Bytes: t.Bytes, Pinned: t.PinnedBytes, Entries: t.Entries,
		Hits: t.Hits, HitBytes: t.HitBytes, Misses: t.Misses, Evictions: t.Evictions}
}

// DropCached drops contents from the cache. Reads under way continue.
func (r *Root) DropCached(args CacheDropArgs) (CacheDropReport, error) {
	if err := r.needCache(); err != nil {
		return CacheDropReport{}, err
	}
	if args.All {
		return CacheDropReport{Dropped: r.Cache.DropAll()}, nil
	}
	var keys []string
	for _, d := range args.Digests {
		if err := d.Validate(); err != nil {
			return CacheDropReport{}, fmt.Errorf("digest %q: %w", string(d), err)
		}
		keys = append(keys, storage.BlobKey(d))
	}
	return CacheDropReport{Dropped: r.Cache.Drop(keys...)}, nil
}

// DropImage drops the layers of an image from the cache.
func (r *Root) DropImage(ctx context.Context, image string) (int, error) {
	layers, err := layersOf(ctx, r.Catalog, CacheWarmArgs{Images: []string{image}})
	if err != nil || len(layers) == 0 {
		return 0, err
	}
	var args CacheDropArgs
	for _, l := range layers {
		args.Digests = append(args.Digests, l.Digest)
	}
	rep, err := r.DropCached(args)
	return rep.Dropped, err
}

// warmParallel is how many layers a command fetches at a time.
const warmParallel = 4

// WarmCache fetches the layers of images into the cache.
func (r *Root) WarmCache(ctx context.Context, args CacheWarmArgs, progress func(CacheWarmReport)) (rep CacheWarmReport, err error) {
	if err := r.needCache(); err != nil {
		return rep, err
	}
	layers, err := layersOf(ctx, r.Catalog, args)
	if err != nil {
		return rep, err
	}
	return r.warmLayers(ctx, layers, progress)
}

func (r *Root) warmLayers(ctx context.Context, layers []oci.Descriptor, progress func(CacheWarmReport)) (rep CacheWarmReport, err error) {
	began := time.Now()
	rep.LayersTotal = len(layers)
	for _, l := range layers {
		rep.BytesTotal += l.Size
	}
	var mu sync.Mutex
	var first error // the first error of a failed fetch
	var g errgroup.Group
	g.SetLimit(warmParallel)
	for _, l := range layers {
		g.Go(func() error {
			key := storage.BlobKey(l.Digest)
			held := r.Cache.Holds(key) != policy.Nowhere
			err := r.Cache.Warm(ctx, key, l.Size)
			mu.Lock()
			defer mu.Unlock()
			if rep.note(l.Size, held, err); err != nil && !errors.Is(err, tier.ErrNotKept) {
				first = cmp.Or(first, fmt.Errorf("layer %s: %w", l.Digest, err))
			}
			rep.Took = time.Since(began)
			if progress != nil {
				progress(rep)
			}
			return ctx.Err()
		})
	}
	err = g.Wait()
	rep.Took = time.Since(began)
	if err == nil && rep.Failed > 0 {
		err = fmt.Errorf("%d of %d layers could not be fetched, first %w", rep.Failed, rep.LayersTotal, first)
	}
	return rep, err
}

// note records the outcome of a layer.
func (rep *CacheWarmReport) note(size int64, held bool, err error) {
	rep.Layers++
	rep.Bytes += size
	switch {
	case err == nil && held:
		rep.Held++
	case errors.Is(err, tier.ErrNotKept):
		rep.NotKept++
	case err != nil:
		rep.Failed++
	}
}

// layersOf lists the layers and configurations of images, each once and the smallest
// first.
func layersOf(ctx context.Context, cat *catalog.Catalog, args CacheWarmArgs) ([]oci.Descriptor, error) {
	w := &warmList{cat: cat, platform: args.Platform, seen: map[oci.Digest]bool{}}
	for _, image := range args.Images {
		if err := w.addImage(ctx, image); err != nil {
			return nil, fmt.Errorf("image %s: %w", image, err)
		}
	}
	slices.SortStableFunc(w.layers, func(a, b oci.Descriptor) int { return cmp.Compare(a.Size, b.Size) })
	return w.layers, nil
}

// warmList collects layers.
type warmList struct {
	cat      *catalog.Catalog
	platform string
	seen     map[oci.Digest]bool
	layers   []oci.Descriptor
}

func (w *warmList) addImage(ctx context.Context, image string) error {
	repo, ref, byDigest := strings.Cut(image, "@")
	if !byDigest {
		ref = "latest"
		if i := strings.LastIndexByte(image, ':'); i > strings.LastIndexByte(image, '/') {
			repo, ref = image[:i], image[i+1:]
		}
	}
	if err := oci.CheckName(repo); err != nil {
		return err
	}
	var m catalog.Manifest
	var err error
	if byDigest {
		m, err = w.cat.Manifest(ctx, repo, oci.Digest(ref))
	} else {
		m, err = w.cat.Tag(ctx, repo, ref)
	}
	if errors.Is(err, catalog.ErrNotFound) {
		return errors.New("is not here")
	}
	if err != nil {
		return err
	}
	return w.addManifest(ctx, repo, m.Content, 0)
}

// maxNesting bounds indexes within indexes.
const maxNesting = 4

func (w *warmList) addManifest(ctx context.Context, repo string, content []byte, depth int) error {
	var doc struct {
		Config    oci.Descriptor   `json:"config"`
		Layers    []oci.Descriptor `json:"layers"`
		Manifests []oci.Descriptor `json:"manifests"`
	}
	if err := json.Unmarshal(content, &doc); err != nil {
		return fmt.Errorf("read the manifest: %w", err)
	}
	for _, d := range append(doc.Layers, doc.Config) {
		if d.Size > SmallBlob && len(d.URLs) == 0 && d.Digest.Validate() == nil && !w.seen[d.Digest] {
			w.seen[d.Digest] = true
			w.layers = append(w.layers, d)
		}
	}
	for _, d := range doc.Manifests {
		if depth == maxNesting || w.seen[d.Digest] || !w.wants(d) {
			continue
		}
		w.seen[d.Digest] = true
		m, err := w.cat.Manifest(ctx, repo, d.Digest)
		if errors.Is(err, catalog.ErrNotFound) {
			continue // a platform that is not here
		}
		if err != nil {
			return err
		}
		if err := w.addManifest(ctx, repo, m.Content, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// wants reports whether a manifest in an index is of the wanted platform.
func (w *warmList) wants(d oci.Descriptor) bool {
	if w.platform == "" {
		return true
	}
	if d.Platform == nil {
		return false
	}
	short := d.Platform.OS + "/" + d.Platform.Architecture
	return w.platform == short || w.platform == short+"/"+d.Platform.Variant
}
