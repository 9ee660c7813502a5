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

// PruneOptions say which images Prune forgets: those that meet all conditions that are
// set. If no condition is set, Prune forgets nothing.
type PruneOptions struct {
	// OlderThan selects images that were fetched longer ago than this.
	OlderThan time.Duration
	// NotPulledSince selects images that were neither pulled nor fetched for this long.
	NotPulledSince time.Duration
	// Pattern selects images whose repository matches it, by the rules of path.Match. In
	// addition ** stands for any number of segments.
	Pattern string
	// MaxBytes makes Prune forget the images that were used longest ago first, and stop
	// when the content that only mirrors have takes at most so many bytes.
	MaxBytes int64
	// DryRun makes Prune report what it would forget without forgetting it. It does not
	// find out what an image shares with images that stay, so Bytes is an upper bound.
	DryRun bool
	// Each is called for each image before it is forgotten.
	Each func(registry.MirrorImage)
}

// Pruned is the result of Prune.
type Pruned struct {
	// Images is how many images were forgotten.
	Images int `json:"images"`
	// Bytes is how many bytes are free now, or will be after the next collection.
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
		if o.MaxBytes > 0 { // what this frees decides whether the next image has to go
			return forget()
		}
		g.Go(forget)
		return nil
	})
	// If an image could not be forgotten, return that error. It has also ended the walk.
	if failed := g.Wait(); failed != nil {
		return done, failed
	}
	if err == errEnough {
		err = nil
	}
	return done, err
}

// prunedAtOnce is how many images are forgotten at once. Images that wait for the disk
// together take one transaction of the catalogue.
const prunedAtOnce = 16

func (m *Registry) pruneImage(ctx context.Context, i registry.MirrorImage, dry bool) (Pruned, error) {
	if dry {
		return Pruned{Images: 1, Bytes: i.Size}, nil
	}
	// The image is kept if somebody pulls it at this moment.
	got, err := m.forget(ctx, i.Repo, registry.ForgetOptions{UsedBefore: i.Used().Add(time.Millisecond)}, i.Digest)
	if err != nil {
		return Pruned{}, fmt.Errorf("forget %s@%s: %w", i.Repo, i.Digest, err)
	}
	return Pruned{Images: min(1, got.Manifests), Bytes: got.Bytes}, nil
}

// errEnough ends a walk over images.
var errEnough = fmt.Errorf("enough was forgotten")

// literal returns the beginning that all repository names matching a pattern share, so
// that the catalogue looks only at these names. ** also stands for no segment, so a/**
// matches a.
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

// images calls f for each image that q selects.
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

// usage is how many bytes only mirrors have. It is counted from time to time. In between,
// it is updated by what was added and removed since.
type usage struct {
	mu      sync.Mutex
	counted time.Time
	bytes   int64 // at that time
	added   int64 // MirrorAdded at that time
}

// recountAfter is how long a count is trusted. The updates in between do not include
// other replicas, nor mirrored content that is then also pushed.
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
	// partsEvery is how often Dir is searched for beginnings of blobs that nobody wants.
	partsEvery = time.Hour
)

// keepHouse keeps the mirrors below MaxBytes, in steps of a twentieth. It also removes
// the beginnings of blobs that nobody asks for any more.
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
			if err := m.fills.Scan(m.now()); err != nil {
				m.log.Error("remove what was fetched of blobs that nobody asks for", "err", err)
			}
		case <-m.ctx.Done():
			return
		}
	}
}

// sweep forgets the images that were used longest ago if the mirrors have more than
// MaxBytes.
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
