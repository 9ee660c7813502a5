package backup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/catalog/repair"
	"example.org/slipway/registry/catalog/snapshot"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/storage"
	"example.org/slipway/registry/verify"
)

const (
	// maxListed is the maximum number of entries in a list of a report.
	maxListed = 1000
	// showEvery is how often progress is shown.
	showEvery = 100 * time.Millisecond
)

// transfer copies the objects of a snapshot from one store to another.
type transfer struct {
	src, dst objstore.Store
	parallel int
	progress func(Report)
	verify   bool // also read what the destination has
	// suspects holds contents that are suspect in the source. Their copies at the
	// destination are always read, because they may be the only good ones.
	suspects map[oci.Digest]bool
	began    time.Time

	mu    sync.Mutex // guards the fields below
	rep   Report
	lost  []repair.StoredContent // contents of which the source has no good copy
	shown time.Time
	gone  int // packs that had vanished from the source
	// without lists the packs without a good copy, because they had vanished, could not
	// be read or are damaged.
	without []gearfacts.Name
}

func newTransfer(src objstore.Store, parallel int, progress func(Report)) *transfer {
	if parallel <= 0 {
		parallel = 4
	}
	return &transfer{src: src, parallel: parallel, progress: progress, began: time.Now()}
}

// step changes the report, and shows it if it is time to do so.
func (t *transfer) step(change func(*Report)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	change(&t.rep)
	if now := time.Now(); t.progress != nil && now.Sub(t.shown) >= showEvery {
		t.shown = now
		t.progress(t.rep)
	}
}

// finish shows and returns the final report, after everything has ended.
func (t *transfer) finish() Report {
	t.rep.Took = time.Since(t.began)
	t.shown = time.Time{}
	t.step(func(*Report) {})
	return t.rep
}

// copyAll copies the objects that the destination lacks. It records objects that are
// damaged at the source, and still copies the others.
func (t *transfer) copyAll(ctx context.Context, s *snapshot.Snapshot) error {
	n, err := s.Totals(ctx)
	if err != nil {
		return fmt.Errorf("count the contents: %w", err)
	}
	packs, packBytes, err := s.PackTotals(ctx)
	if err != nil {
		return fmt.Errorf("count the packs: %w", err)
	}
	t.step(func(rep *Report) {
		rep.Manifests, rep.Blobs, rep.Inline, rep.InlineBytes = n.Manifests, n.Blobs, n.Inline, n.InlineBytes
		rep.ObjectsTotal, rep.BytesTotal = n.Objects+packs, n.ObjectBytes+packBytes
	})
	if err := t.copyPacks(ctx, s); err != nil { // first, because they may be replaced meanwhile
		return err
	}
	err = inPages(ctx, 1, "small contents", s.Inlines, func(c snapshot.InlineContent) int64 { return c.ID }, func(_ context.Context, c snapshot.InlineContent) error {
		if !oci.ValidDigest(c.Digest) || c.Digest.Algorithm().FromBytes(c.Bytes) != c.Digest {
			t.lose(repair.StoredContent{Digest: c.Digest, Inline: true})
		}
		return nil
	})
	if err != nil {
		return err
	}
	return inPages(ctx, t.parallel, "objects", s.Objects, func(c repair.StoredContent) int64 { return c.ID }, func(ctx context.Context, c repair.StoredContent) error {
		if err := t.copyObject(ctx, c); err != nil {
			return fmt.Errorf("copy %s: %w", c.Digest, err)
		}
		return nil
	})
}

// inPages calls a function for each row of a list, for several rows at the same time. It
// reads the list in pages, by id.
func inPages[T any](ctx context.Context, parallel int, what string,
	list func(ctx context.Context, after int64, n int) ([]T, error), id func(T) int64, do func(context.Context, T) error) error {
	const page = 500
	for after := int64(0); ; {
		rows, err := list(ctx, after, page)
		if err != nil {
			return fmt.Errorf("list the %s: %w", what, err)
		}
		g, gctx := errgroup.WithContext(ctx)
		g.SetLimit(parallel)
		for _, row := range rows {
			after = id(row)
			g.Go(func() error { return do(gctx, row) })
		}
		if err := g.Wait(); err != nil {
			return err
		}
		if len(rows) < page {
			return nil
		}
	}
}

func (t *transfer) copyObject(ctx context.Context, c repair.StoredContent) (err error) {
	if !oci.ValidDigest(c.Digest) {
		t.lose(c)
		return nil
	}
	key := storage.BlobKey(c.Digest)
	info, err := t.dst.Stat(ctx, key)
	here := err == nil && info.Size == c.Size
	if here && (t.verify || t.suspects[c.Digest]) {
		if _, here, err = t.good(ctx, c.Digest); err != nil {
			return err
		}
	}
	if here {
		t.step(func(rep *Report) { rep.Objects, rep.Bytes = rep.Objects+1, rep.Bytes+c.Size })
		return nil
	}
	if err != nil && !errors.Is(err, objstore.ErrNotExist) {
		return err
	}
	src, err := t.src.Get(ctx, key, 0, -1)
	if storage.IsDamage(err) {
		t.lose(c)
		return nil
	}
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := t.dst.NewUpload(ctx, c.Size)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Cancel(ctx)) }()
	n, match, err := verify.Copy(ctx, dst, src, c.Digest, func(n int) {
		t.step(func(rep *Report) { rep.Bytes, rep.CopiedBytes = rep.Bytes+int64(n), rep.CopiedBytes+int64(n) })
	})
	if objstore.IsBusy(err) { // it says nothing about the content
		return err
	}
	var unreadable *verify.ReadError
	if errors.As(err, &unreadable) && ctx.Err() == nil || err == nil && (!match || n != c.Size) {
		t.step(func(rep *Report) { rep.Bytes, rep.CopiedBytes = rep.Bytes-n, rep.CopiedBytes-n })
		t.lose(c)
		return nil
	}
	if err != nil {
		return err
	}
	if err := dst.Commit(ctx, key); err != nil {
		return err
	}
	t.step(func(rep *Report) { rep.Objects, rep.Copied = rep.Objects+1, rep.Copied+1 })
	return nil
}

// lose notes that the source has no good copy of a content.
func (t *transfer) lose(c repair.StoredContent) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lost = append(t.lost, c)
}

// damaged adds a content to the report.
func (t *transfer) damaged(d oci.Digest) {
	t.step(func(rep *Report) {
		rep.DamagedTotal++
		if len(rep.Damaged) < maxListed {
			rep.Damaged = append(slices.Clip(rep.Damaged), d)
		}
	})
}

// prune removes the objects that nothing in the snapshot needs.
func (t *transfer) prune(ctx context.Context, s *snapshot.Snapshot) error {
	const batch = 500
	keys := make([]string, 0, batch)
	flush := func() error {
		digests := make([]oci.Digest, 0, len(keys))
		for _, key := range keys {
			if d, ok := storage.DigestOfKey(key); ok {
				digests = append(digests, d)
			}
		}
		is, err := s.Presence(ctx, digests)
		if err != nil {
			return err
		}
		for _, d := range digests {
			if is[d] == repair.Object {
				continue
			}
			// The backup lacks a content that a manifest names. So this copy may be the
			// last one, whatever its state.
			if named, err := s.Named(ctx, d); err != nil || named && is[d] != repair.Inline {
				if err != nil {
					return err
				}
				continue
			}
			if err := t.dst.Delete(ctx, storage.BlobKey(d)); err != nil {
				return err
			}
			t.step(func(rep *Report) { rep.Pruned++ })
		}
		keys = keys[:0]
		return nil
	}
	for info, err := range t.dst.List(ctx, storage.BlobPrefix, "") {
		if err != nil {
			return fmt.Errorf("look for objects the backup does not need: %w", err)
		}
		if keys = append(keys, info.Key); len(keys) == batch {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if err := flush(); err != nil {
		return err
	}
	return t.prunePacks(ctx, s)
}
