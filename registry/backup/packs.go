package backup

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/catalog/snapshot"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/storage"
	"example.org/slipway/registry/verify"
)

// packTries bounds how often a backup starts again with a newer snapshot. It does so if
// packs were replaced, and their objects deleted, before they were copied.
const packTries = 5

// copyPacks copies the packs that the destination lacks. A pack that is damaged,
// unreadable or gone at the source does not stop the copy, because its content is made
// again from the layers. copyPacks counts the packs that are gone, and reports unreadable
// packs. neededPacks deals with dropped layers.
func (t *transfer) copyPacks(ctx context.Context, s *snapshot.Snapshot) error {
	return inPages(ctx, t.parallel, "packs", s.Packs, func(p snapshot.PackObject) int64 { return p.ID }, func(ctx context.Context, p snapshot.PackObject) error {
		if err := t.copyPack(ctx, p); err != nil {
			return fmt.Errorf("copy pack %x: %w", p.Digest, err)
		}
		return nil
	})
}

func (t *transfer) copyPack(ctx context.Context, p snapshot.PackObject) (err error) {
	key := packKey(p.Digest)
	info, err := t.dst.Stat(ctx, key)
	if err == nil && info.Size == p.Size {
		t.step(func(rep *Report) { rep.Objects, rep.Bytes = rep.Objects+1, rep.Bytes+p.Size })
		return t.missed(ctx, p)
	}
	if err != nil && !errors.Is(err, objstore.ErrNotExist) {
		return err
	}
	src, err := t.src.Get(ctx, key, 0, -1)
	if errors.Is(err, objstore.ErrNotExist) {
		t.step(func(*Report) { t.gone, t.without = t.gone+1, append(t.without, p.Digest) })
		return nil
	}
	if err != nil {
		return t.unread(ctx, p.Digest, err)
	}
	defer src.Close()
	dst, err := t.dst.NewUpload(ctx, p.Size)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Cancel(ctx)) }()
	// Each content in a pack is checked whenever it is read, so a pack with a damaged content is
	// worth keeping.
	sum := sha256.New()
	n, err := io.Copy(dst, io.TeeReader(packSource{src}, sum))
	var unreadable *verify.ReadError
	if errors.As(err, &unreadable) {
		return t.unread(ctx, p.Digest, err)
	}
	t.step(func(rep *Report) {
		rep.Bytes, rep.CopiedBytes = rep.Bytes+n, rep.CopiedBytes+n
		if err == nil && gearfacts.Name(sum.Sum(nil)) != p.Digest {
			t.without = append(t.without, p.Digest)
		}
	})
	if err != nil {
		return err
	}
	if err := dst.Commit(ctx, key); err != nil {
		return err
	}
	t.step(func(rep *Report) { rep.Objects, rep.Copied = rep.Objects+1, rep.Copied+1 })
	return nil
}

// missed notes that a pack is gone at the source, or has another size there, although the
// destination has it.
func (t *transfer) missed(ctx context.Context, p snapshot.PackObject) error {
	info, err := t.src.Stat(ctx, packKey(p.Digest))
	if err != nil && !errors.Is(err, objstore.ErrNotExist) {
		return t.unread(ctx, p.Digest, err)
	}
	if err != nil || info.Size != p.Size {
		t.step(func(*Report) { t.without = append(t.without, p.Digest) })
	}
	return nil
}

// packSource distinguishes errors of reading a pack from errors of writing it.
type packSource struct{ src io.Reader }

func (p packSource) Read(b []byte) (int, error) {
	n, err := p.src.Read(b)
	if err != nil && err != io.EOF {
		err = &verify.ReadError{Err: err}
	}
	return n, err
}

// unread notes that a pack could not be read, unless ctx is done.
func (t *transfer) unread(ctx context.Context, pack gearfacts.Name, err error) error {
	if ctx.Err() != nil {
		return err
	}
	t.step(func(rep *Report) {
		t.without = append(t.without, pack)
		rep.UnreadPacksTotal++
		if len(rep.UnreadPacks) < maxListed {
			rep.UnreadPacks = append(slices.Clip(rep.UnreadPacks), packKey(pack))
		}
	})
	return nil
}

func packKey(pack gearfacts.Name) string { return storage.PackPrefix + hex.EncodeToString(pack[:]) }

// NeededPacksError says that packs could not be read, and that dropped layers need
// contents of these packs.
type NeededPacksError struct {
	// Packs holds the keys of at most 1000 of the packs. Total counts all of them.
	Packs []string
	Total int
}

func (e *NeededPacksError) Error() string {
	return fmt.Sprintf("%d packs of which dropped layers consist cannot be read, the first is %s; bring them back from an earlier backup, and see slipway fsck", e.Total, e.Packs[0])
}

// neededPacks returns a [*NeededPacksError] if dropped layers use a pack that was left
// out, or that anybody found damaged before. The backup may have the pack or these layers
// from before, but the registry is about to lose them.
func (b *maker) neededPacks(ctx context.Context) error {
	var e NeededPacksError
	without := b.t.without
	damaged, err := gearfacts.NewChecks(b.up.Catalog.DB).Damaged(ctx, maxListed)
	if err != nil {
		return fmt.Errorf("look for damaged packs: %w", err)
	}
	for _, p := range damaged {
		if !slices.Contains(without, p.Digest) {
			without = append(slices.Clip(without), p.Digest)
		}
	}
	for _, pack := range without {
		needed, err := gearfacts.NewRecipes(b.up.Catalog.DB).PackNeeded(ctx, pack)
		if err != nil {
			return fmt.Errorf("find out what a pack is needed for: %w", err)
		}
		if !needed {
			continue
		}
		if e.Total++; e.Total <= maxListed {
			e.Packs = append(e.Packs, packKey(pack))
		}
	}
	if e.Total > 0 {
		return &e
	}
	return nil
}

// prunePacks removes the packs that the snapshot does not name.
func (t *transfer) prunePacks(ctx context.Context, s *snapshot.Snapshot) error {
	for info, err := range t.dst.List(ctx, storage.PackPrefix, "") {
		if err != nil {
			return fmt.Errorf("look for packs the backup does not need: %w", err)
		}
		b, err := hex.DecodeString(strings.TrimPrefix(info.Key, storage.PackPrefix))
		var digest gearfacts.Name
		if err != nil || len(b) != len(digest) {
			continue // not a pack of this registry
		}
		copy(digest[:], b)
		if has, err := s.HasPack(ctx, digest); err != nil || has {
			if err != nil {
				return err
			}
			continue
		}
		if err := t.dst.Delete(ctx, info.Key); err != nil {
			return err
		}
		t.step(func(rep *Report) { rep.Pruned++ })
	}
	return nil
}

// again reports whether packs were replaced while they were copied, and prepares another copy.
func (t *transfer) again() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone == 0 {
		return false
	}
	copied, bytes := t.rep.Copied, t.rep.CopiedBytes
	t.gone, t.without, t.lost, t.rep = 0, nil, nil, Report{Copied: copied, CopiedBytes: bytes}
	return true
}
