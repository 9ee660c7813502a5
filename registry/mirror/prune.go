package mirror

import (
	"context"
	"fmt"
	"math"
	"path"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
)

// PruneOptions say which images Prune forgets: those to which everything applies
// that is set. With nothing set it forgets nothing.
type PruneOptions struct {
	// OlderThan: they were fetched longer ago.
	OlderThan time.Duration
	// NotPulledSince: nobody has pulled them, nor were they fetched, for so long.
	NotPulledSince time.Duration
	// Pattern: their repository matches it, as path.Match has it, in which ** stands
	// for any number of segments.
	Pattern string
	// MaxBytes: of these, those used longest ago, until what only mirrors have is at
	// most so many bytes.
	MaxBytes int64
	// DryRun tells what would be forgotten and forgets nothing. What an image shares
	// with others that stay it cannot tell, so Bytes is at most that many.
	DryRun bool
	// Each is called for each image, before it is forgotten.
	Each func(registry.MirrorImage)
}

// Pruned is what Prune has done.
type Pruned struct {
	// Images that were forgotten.
	Images int `json:"images"`
	// Bytes that are free now, or will be with the next collection.
	Bytes int64 `json:"bytes"`
}

// Prune forgets images of mirrored repositories.
func (m *Registry) Prune(ctx context.Context, o PruneOptions) (Pruned, error) {
	var done Pruned
	if o.OlderThan <= 0 && o.NotPulledSince <= 0 && o.Pattern == "" && o.MaxBytes <= 0 {
		return done, nil
	}
	if err := (Rule{Name: o.Pattern}).check(); err != nil {
		return done, err
	}
	excess := int64(math.MaxInt64)
	if o.MaxBytes > 0 {
		used, err := m.usedBytes(ctx)
		if err != nil {
			return done, err
		}
		excess = used - o.MaxBytes
	}
	now := m.now()
	q := registry.MirrorQuery{LeastUsed: true, Prefix: literal(o.Pattern)}
	if o.NotPulledSince > 0 {
		q.UsedBefore = now.Add(-o.NotPulledSince)
	}
	var mu sync.Mutex // guards done
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(prunedAtOnce)
	err := m.images(gctx, q, func(i registry.MirrorImage) error {
		if o.MaxBytes > 0 && done.Bytes >= excess {
			return errEnough
		}
		if !m.Mirrored(i.Repo) || !matches(o.Pattern, i.Repo) || o.OlderThan > 0 && i.Stored.After(now.Add(-o.OlderThan)) {
			return nil
		}
		if o.Each != nil {
			o.Each(i)
		}
		forget := func() error {
			got, err := m.pruneImage(gctx, i, o.DryRun)
			mu.Lock()
			defer mu.Unlock()
			done.Images += got.Images
			done.Bytes += got.Bytes
			return err
		}
		if o.MaxBytes > 0 { // what this one frees decides whether the next has to go
			return forget()
		}
		g.Go(forget)
		return nil
	})
	// Why one could not be forgotten is the reason why the walk ended, too.
	if failed := g.Wait(); failed != nil {
		return done, failed
	}
	if err == errEnough {
		err = nil
	}
	return done, err
}

// prunedAtOnce is how many images are forgotten at once: those that wait for the disk
// together take one transaction of the catalogue.
const prunedAtOnce = 16

func (m *Registry) pruneImage(ctx context.Context, i registry.MirrorImage, dry bool) (Pruned, error) {
	if dry {
		return Pruned{Images: 1, Bytes: i.Size}, nil
	}
	// Whoever pulls it at this moment keeps it.
	got, err := m.forget(ctx, i.Repo, registry.ForgetOptions{UsedBefore: i.Used().Add(time.Millisecond)}, i.Digest)
	if err != nil {
		return Pruned{}, fmt.Errorf("forget %s@%s: %w", i.Repo, i.Digest, err)
	}
	return Pruned{Images: min(1, got.Manifests), Bytes: got.Bytes}, nil
}

// errEnough ends a walk over images.
var errEnough = fmt.Errorf("enough was forgotten")

// literal is what the names of all repositories that match a pattern begin with: the
// catalogue looks at these only. ** stands for no segment, too, so that a/** is a.
func literal(pattern string) string {
	if pattern == "" {
		return ""
	}
	pattern = path.Clean(pattern)
	if i := strings.IndexAny(pattern, `*?[\`); i >= 0 {
		pattern = pattern[:i]
	}
	return strings.TrimSuffix(pattern, "/")
}

func matches(pattern, repo string) bool {
	return pattern == "" || oci.MatchSegments(path.Clean(pattern), repo)
}

// images calls f for each image that q asks for.
func (m *Registry) images(ctx context.Context, q registry.MirrorQuery, f func(registry.MirrorImage) error) error {
	for {
		list, next, err := m.store.MirrorImages(ctx, q)
		if err != nil {
			return err
		}
		for _, i := range list {
			if err := f(i); err != nil {
				return err
			}
		}
		if next == "" {
			return nil
		}
		q.After = next
	}
}

// usage is how many bytes only mirrors have: counted now and then, and kept up to
// date by what came and went since.
type usage struct {
	mu      sync.Mutex
	counted time.Time
	bytes   int64 // then
	added   int64 // MirrorAdded then
}

// recountAfter is how long the count is trusted: other replicas, and what becomes
// of content that is pushed, too, are not in it.
const recountAfter = time.Hour

func (m *Registry) usedBytes(ctx context.Context) (int64, error) {
	u := &m.usage
	u.mu.Lock()
	defer u.mu.Unlock()
	if now := m.now(); u.counted.IsZero() || now.Sub(u.counted) > recountAfter {
		added := m.store.MirrorAdded()
		prefixes, err := m.Prefixes(ctx)
		if err != nil {
			return 0, err
		}
		got, err := m.store.MirrorUsage(ctx, prefixes...)
		if err != nil {
			return 0, err
		}
		u.counted, u.bytes, u.added = now, got.OnlyBytes, added
	}
	return u.bytes + m.store.MirrorAdded() - u.added, nil
}

const (
	// houseEvery is how often the use is compared with MaxBytes.
	houseEvery = 10 * time.Second
	// partsEvery is how often it is looked for beginnings of blobs that nobody wants.
	partsEvery = time.Hour
)

// keepHouse keeps the mirrors below MaxBytes, in steps of a twentieth, and what was
// fetched of blobs that nobody asks for any more from staying.
func (m *Registry) keepHouse() {
	defer m.background.Done()
	house, parts := time.NewTicker(houseEvery), time.NewTicker(partsEvery)
	defer house.Stop()
	defer parts.Stop()
	for {
		if err := m.sweep(m.ctx); err != nil && m.ctx.Err() == nil {
			m.log.Error("make room in the mirrors", "err", err)
		}
		select {
		case <-house.C:
		case <-parts.C:
			if err := m.fills.scan(m.now(), time.Time{}); err != nil {
				m.log.Error("remove what was fetched of blobs that nobody asks for", "err", err)
			}
		case <-m.ctx.Done():
			return
		}
	}
}

// sweep forgets the images used longest ago if there is more than MaxBytes.
func (m *Registry) sweep(ctx context.Context) error {
	if m.opts.MaxBytes <= 0 {
		return nil
	}
	used, err := m.usedBytes(ctx)
	if err != nil || used <= m.opts.MaxBytes {
		return err
	}
	done, err := m.Prune(ctx, PruneOptions{MaxBytes: m.opts.MaxBytes - m.opts.MaxBytes/20})
	if done.Images > 0 {
		m.log.Info("forgot the images of mirrors used longest ago", "images", done.Images, "bytes", done.Bytes, "used", used, "limit", m.opts.MaxBytes)
	}
	return err
}
