package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/repair"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/storage"
)

// checkObjects compares the store with the catalogue in batches.
func (f *fsck) checkObjects(ctx context.Context) error {
	const batch = 500
	infos := make([]objstore.Info, 0, batch)
	for info, err := range f.up.Store.List(ctx, storage.BlobPrefix, "") {
		if err != nil {
			return err
		}
		if storage.IsIdentity(info.Key) {
			continue
		}
		infos = append(infos, info)
		if len(infos) == batch {
			if err := f.lookUp(ctx, infos); err != nil {
				return err
			}
			infos = infos[:0]
		}
	}
	if err := f.lookUp(ctx, infos); err != nil {
		return err
	}
	return f.doFew(ctx, &f.unknown, "are in the store that the catalogue does not name")
}

func (f *fsck) lookUp(ctx context.Context, infos []objstore.Info) error {
	digests := make([]oci.Digest, 0, len(infos))
	for _, info := range infos {
		if d, ok := storage.DigestOfKey(info.Key); ok {
			digests = append(digests, d)
		}
	}
	is, err := f.facts.Presence(ctx, digests)
	if err != nil {
		return err
	}
	for _, info := range infos {
		d, ok := storage.DigestOfKey(info.Key)
		switch {
		case !ok:
			err = f.foreign(ctx, info)
		case info.ModTime.After(f.start): // a push under way
		case is[d] == repair.Unknown:
			err = f.nobodys(ctx, d, info)
		case is[d] == repair.Inline && !f.shared:
			err = f.duplicate(ctx, Problem{Kind: ProblemDuplicate, Digest: d, Key: info.Key, Detail: fmt.Sprintf("%d bytes that are in the catalogue", info.Size)})
		}
		if err != nil {
			return err
		}
	}
	f.step(func(rep *Report) { rep.Objects += int64(len(infos)) })
	return nil
}

// foreign handles a file among the blobs that does not have a name of this registry. The
// repair moves the file into quarantine under the digest of its bytes. It takes the bytes
// back if an image lacks them.
func (f *fsck) foreign(ctx context.Context, info objstore.Info) error {
	p := Problem{Kind: ProblemOrphan, Key: info.Key, Detail: fmt.Sprintf("%d bytes of %s; its name is not one of this registry", info.Size, info.ModTime.UTC().Format(time.RFC3339))}
	if !f.o.Repair {
		return f.found(ctx, p, nil)
	}
	return f.few(ctx, &f.unknown, func(ctx context.Context) error {
		d, err := f.digestOf(ctx, info.Key)
		switch {
		case errors.Is(err, objstore.ErrNotExist):
			return nil
		case err != nil:
			p.Detail += "; it cannot be read: " + err.Error()
			return cmp.Or(ctx.Err(), f.found(ctx, p, nil))
		}
		p.Detail += "; moved into quarantine as " + string(d)
		err = f.found(ctx, p, func(ctx context.Context) (bool, error) { return f.move(ctx, info.Key, quarantineKey(d), d) })
		if err != nil {
			return err
		}
		absent, err := f.facts.Absent(ctx, []oci.Digest{d})
		if _, named := absent[d]; err != nil || !named {
			return err
		}
		if _, back, err := f.takeBack(ctx, d); err != nil || !back {
			return err
		}
		return f.up.Relink(ctx, d) // the manifests have been checked already
	})
}

// nobodys handles an object whose content the catalogue does not have. If the catalogue
// names the content, the object is taken back. Otherwise the object is surplus.
func (f *fsck) nobodys(ctx context.Context, d oci.Digest, info objstore.Info) error {
	absent, err := f.facts.Absent(ctx, []oci.Digest{d})
	if err != nil {
		return err
	}
	if _, named := absent[d]; named {
		if found, back, err := f.takeBack(ctx, d); err != nil || back || found && !f.o.Repair {
			return err
		}
	}
	p := Problem{Kind: ProblemOrphan, Digest: d, Key: info.Key, Detail: fmt.Sprintf("%d bytes of %s", info.Size, info.ModTime.UTC().Format(time.RFC3339))}
	if f.shared { // Distribution's links may name it, and no image here needs it, so it is not a problem
		surplus, err := f.stillSurplus(p, repair.Unknown)(ctx)
		if err == nil && surplus {
			f.step(func(rep *Report) { rep.Foreign, rep.ForeignBytes = rep.Foreign+1, rep.ForeignBytes+info.Size })
		}
		return err
	}
	if !f.o.Repair {
		return f.settle(ctx, p, f.stillSurplus(p, repair.Unknown), nil)
	}
	return f.few(ctx, &f.unknown, func(ctx context.Context) error { return f.surplus(ctx, p) })
}

// duplicate reports an object whose bytes are also in the catalogue. The repair deletes
// the object if the catalogue's bytes are right.
func (f *fsck) duplicate(ctx context.Context, p Problem) error {
	surplus := f.stillSurplus(p, repair.Inline)
	return f.settle(ctx, p, surplus, func(ctx context.Context) (bool, error) {
		b, err := f.up.Catalog.StoredBlob(ctx, p.Digest)
		if err != nil || p.Digest.Algorithm().FromBytes(b.Content) != p.Digest {
			return false, err
		}
		err = f.up.Store.Delete(ctx, p.Key)
		return err == nil, err
	})
}

// surplus moves an object that nothing names into quarantine, because a newer catalogue
// may name it. It deletes the object only if its bytes do not have its digest either,
// because then it is of no use to anybody.
func (f *fsck) surplus(ctx context.Context, p Problem) error {
	absent, err := f.facts.Absent(ctx, []oci.Digest{p.Digest})
	if err != nil {
		return err
	}
	_, named := absent[p.Digest]
	x := f.read(ctx, p.Key, p.Digest, func(int) {})
	confirm := f.stillSurplus(p, repair.Unknown)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(x.err, objstore.ErrNotExist):
		return nil
	case x.err != nil:
		p.Detail += "; it cannot be read: " + x.err.Error()
		return f.settle(ctx, p, confirm, nil)
	case !x.match:
		p.Detail += "; they do not have the digest"
	}
	aside := x.match || named
	if aside && !x.match { // better bytes may already be in quarantine
		q := f.read(ctx, quarantineKey(p.Digest), p.Digest, func(int) {})
		aside = q.err != nil || !q.match
	}
	if aside {
		if _, err := f.copyObject(ctx, p.Key, quarantineKey(p.Digest), p.Digest, false); err != nil {
			return fmt.Errorf("copy %s into quarantine: %w", p.Key, err)
		}
		p.Detail += "; kept in quarantine"
	}
	if f.up.Replica.Shared {
		return f.surplusShared(ctx, p, confirm)
	}
	return f.settle(ctx, p, confirm, func(ctx context.Context) (bool, error) {
		err := f.up.Store.Delete(ctx, p.Key)
		return err == nil, err
	})
}

// surplusShared is surplus for a registry with replicas, for an object that the catalogue
// does not know. Another replica may be about to publish the object, and the local locks
// do not prevent that.
func (f *fsck) surplusShared(ctx context.Context, p Problem, confirm func(context.Context) (bool, error)) error {
	real, err := confirm(ctx)
	if err == nil && real && f.o.Repair {
		var granted int
		granted, err = f.up.Storage.Delete(ctx, p.Digest)
		p.Repaired = granted > 0
		real = p.Repaired
	}
	if err != nil {
		return fmt.Errorf("settle %s %s: %w", p.Kind, p.Digest, err)
	}
	if real {
		f.note(p)
	}
	return nil
}
