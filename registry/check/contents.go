package check

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"example.org/slipway/registry"

	"example.org/slipway/registry/verify"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/objstore"
)

// quarantineKey is where fsck keeps a content that does not have its digest, or
// that cannot be read,
// for whoever wants to find out what happened to it.
func quarantineKey(d oci.Digest) string {
	return quarantinePrefix + d.Algorithm().String() + "/" + d.Encoded()
}

// distribution tells whether Distribution's links lie in the same store.
func (f *fsck) distribution(ctx context.Context) (bool, error) {
	for _, err := range f.up.Store.List(ctx, registry.RepositoryPrefix, "") {
		if err != nil {
			return false, fmt.Errorf("look for the repositories of another registry: %w", err)
		}
		return true, nil
	}
	return false, nil
}

func (f *fsck) checkContent(ctx context.Context, c catalog.StoredContent) error {
	switch {
	case !oci.ValidDigest(c.Digest):
		return f.found(ctx, Problem{Kind: ProblemCorrupt, Digest: c.Digest, Detail: "the catalogue has a digest that is none"}, nil)
	case c.Inline:
		return f.checkInline(ctx, c)
	}
	return f.checkObject(ctx, c)
}

// checkInline checks a content whose bytes are in the catalogue. They are so
// few that a quick check does it too.
func (f *fsck) checkInline(ctx context.Context, c catalog.StoredContent) error {
	b, err := f.up.Catalog.StoredBlob(ctx, c.Digest)
	if errors.Is(err, catalog.ErrNotFound) || (err == nil && b.Content == nil) {
		return nil // gone by now
	}
	if err != nil {
		return err
	}
	f.step(func(rep *Report) { rep.Bytes += int64(len(b.Content)) })
	same := func(ctx context.Context) (bool, error) {
		now, err := f.up.Catalog.StoredBlob(ctx, c.Digest)
		if errors.Is(err, catalog.ErrNotFound) {
			return false, nil
		}
		return err == nil && now.Size == b.Size && string(now.Content) == string(b.Content), err
	}
	p := Problem{Digest: c.Digest}
	if c.Digest.Algorithm().FromBytes(b.Content) == c.Digest {
		if b.Size == int64(len(b.Content)) {
			f.unsuspect(c)
			return nil
		}
		p.Kind, p.Detail = ProblemSize, fmt.Sprintf("it has %d bytes, the catalogue says %d", len(b.Content), b.Size)
		return f.settle(ctx, p, same, func(ctx context.Context) (bool, error) {
			return f.setSize(ctx, c.Digest, int64(len(b.Content)))
		})
	}
	p.Kind, p.Detail = ProblemCorrupt, fmt.Sprintf("the %d bytes in the catalogue do not have the digest", len(b.Content))
	return f.giveUp(ctx, p, same, func(ctx context.Context) (bool, error) {
		if done, err := f.takeInline(ctx, c.Digest); done || err != nil {
			return done, err
		}
		if err := f.up.Store.Put(ctx, quarantineKey(c.Digest), b.Content, false); err != nil {
			return false, fmt.Errorf("put it into quarantine: %w", err)
		}
		return f.absent(ctx, c.Digest, true)
	})
}

func (f *fsck) setSize(ctx context.Context, d oci.Digest, size int64) (bool, error) {
	s, err := f.up.Catalog.SetSize(ctx, d, size)
	return f.up.Corrected(d, s, err)
}

// absent records that a content is not here any more. It makes sure first that the
// store is.
func (f *fsck) absent(ctx context.Context, d oci.Digest, inline bool) (bool, error) {
	if err := f.up.StoreHere(ctx); err != nil {
		return false, err
	}
	s, err := f.up.Catalog.MarkAbsent(ctx, d, inline)
	return f.up.Corrected(d, s, err)
}

// takeInline reads a content from its object, or from quarantine, into the catalogue,
// if the bytes are right.
func (f *fsck) takeInline(ctx context.Context, d oci.Digest) (bool, error) {
	for _, key := range []string{registry.BlobKey(d), quarantineKey(d)} {
		if b, ok := f.readAll(ctx, key, d); ok {
			s, err := f.up.Catalog.SetContent(ctx, d, b)
			return f.up.Corrected(d, s, err)
		}
	}
	return false, ctx.Err()
}

// examined is what was found of an object.
type examined struct {
	info  objstore.Info
	match bool // or not read, its size being right
	err   error
}

// unsuspect ends a content's being suspect: its bytes were read and are right.
func (f *fsck) unsuspect(c catalog.StoredContent) {
	if c.Suspect && f.up.Writable() == nil {
		f.up.Trust(c.Digest)
	}
}

// noteTag records the tag of an object behind a network that was read and is right: it
// may have been adopted, or copied.
func (f *fsck) noteTag(ctx context.Context, d oci.Digest, info objstore.Info) error {
	if info.Tag == "" || f.o.Quick || f.up.Writable() != nil {
		return nil
	}
	tag, err := f.up.Catalog.ObjectTag(ctx, d)
	if err == nil && tag != info.Tag {
		f.up.RecordTag(ctx, d, info)
	}
	return err
}

// examine reads an object, or in a quick check looks at its size, unless it is suspect.
func (f *fsck) examine(ctx context.Context, c catalog.StoredContent, step func(int)) (x examined) {
	key := registry.BlobKey(c.Digest)
	if f.o.Quick && !c.Suspect {
		x.info, x.err = f.up.Store.Stat(ctx, key)
		if x.err != nil || x.info.Size == c.Size {
			x.match = true
			step(int(c.Size))
			return x
		}
	}
	return f.read(ctx, key, c.Digest, step)
}

// read reads what lies under a key and compares it with a digest.
func (f *fsck) read(ctx context.Context, key string, d oci.Digest, step func(int)) (x examined) {
	obj, err := f.up.Store.Get(ctx, key, 0, -1)
	if err != nil {
		x.err = err
		return x
	}
	defer obj.Close()
	x.info = obj.Info()
	_, x.match, x.err = verify.Copy(ctx, nil, obj, d, step)
	return x
}

// checkObject checks a content that is an object in the store.
func (f *fsck) checkObject(ctx context.Context, c catalog.StoredContent) error {
	x := f.examine(ctx, c, func(n int) { f.step(func(rep *Report) { rep.Bytes += int64(n) }) })
	right := func() bool { return x.err == nil && x.match && x.info.Size == c.Size }
	if !right() && ctx.Err() == nil { // what passes is no damage
		x = f.examine(ctx, c, func(int) {})
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if right() {
		f.unsuspect(c)
		return f.noteTag(ctx, c.Digest, x.info)
	}
	p := Problem{Digest: c.Digest, Key: registry.BlobKey(c.Digest)}
	same := func(ctx context.Context) (bool, error) { return f.sameObject(ctx, c, x) }
	switch {
	case x.err == nil && x.match:
		p.Kind, p.Detail = ProblemSize, fmt.Sprintf("it has %d bytes, the catalogue says %d", x.info.Size, c.Size)
		return f.settle(ctx, p, same, func(ctx context.Context) (bool, error) {
			return f.setSize(ctx, c.Digest, x.info.Size)
		})
	case x.err == nil:
		p.Kind, p.Detail = ProblemCorrupt, fmt.Sprintf("the %d bytes of the object do not have the digest; the catalogue says %d bytes", x.info.Size, c.Size)
		return f.giveUp(ctx, p, same, nil)
	case errors.Is(x.err, objstore.ErrNotExist):
		p.Kind, p.Detail = ProblemMissing, fmt.Sprintf("the object of %d bytes is not in the store", c.Size)
		return f.giveUp(ctx, p, same, func(ctx context.Context) (bool, error) { return f.absent(ctx, c.Digest, false) })
	}
	p.Kind, p.Detail = ProblemUnreadable, x.err.Error()
	if f.o.Repair && registry.IsDamage(x.err) { // where it stays, a push brings its bytes again
		if err := f.up.Doubt(ctx, c.Digest, x.err); err != nil {
			return err
		}
	}
	return f.giveUp(ctx, p, same, f.setAside(c.Digest, x.err))
}

// setAside returns the repair for an object that cannot be read: nil where there
// is none.
func (f *fsck) setAside(d oci.Digest, because error) func(context.Context) (bool, error) {
	m, ok := objstore.As[objstore.Mover](f.up.Store)
	if !ok || !errors.Is(because, syscall.EIO) {
		return nil
	}
	return func(ctx context.Context) (bool, error) {
		if err := f.up.StoreHere(ctx); err != nil {
			return false, err
		}
		// Moved first: this one may be readable again on another day.
		if err := m.Move(ctx, registry.BlobKey(d), quarantineKey(d)); err != nil {
			return false, err
		}
		return f.absent(ctx, d, false)
	}
}

// sameObject tells whether the content is still meant to be in the store, and
// its object still is the one that was examined, or still missing.
func (f *fsck) sameObject(ctx context.Context, c catalog.StoredContent, x examined) (bool, error) {
	is, err := f.up.Catalog.Presence(ctx, []oci.Digest{c.Digest})
	if err != nil || is[c.Digest] != catalog.Object {
		return false, err
	}
	info, err := f.up.Store.Stat(ctx, registry.BlobKey(c.Digest))
	switch {
	case errors.Is(err, objstore.ErrNotExist):
		return errors.Is(x.err, objstore.ErrNotExist), nil
	case x.err != nil && !errors.Is(x.err, objstore.ErrNotExist):
		return true, nil // it could not be read, and perhaps not described
	case err != nil:
		return false, err
	}
	return x.err == nil && info.Size == x.info.Size && info.ModTime.Equal(x.info.ModTime), nil
}
