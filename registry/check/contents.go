package check

import (
	"context"
	"errors"
	"fmt"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/repair"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/storage"
)

// quarantineKey returns the key under which a check keeps a content that cannot be read
// or that does not have its digest. The copy is for whoever wants to find out what
// happened to the content.
func quarantineKey(d oci.Digest) string {
	return quarantinePrefix + d.Algorithm().String() + "/" + d.Encoded()
}

func (f *fsck) checkContent(ctx context.Context, c repair.StoredContent) error {
	switch {
	case !oci.ValidDigest(c.Digest):
		return f.found(ctx, Problem{Kind: ProblemCorrupt, Digest: c.Digest, Detail: "the catalogue has a digest that is none"}, nil)
	case c.Inline:
		return f.checkInline(ctx, c)
	}
	return f.checkObject(ctx, c)
}

// checkInline checks a content whose bytes are in the catalogue. These bytes are so few
// that a quick check reads them too.
func (f *fsck) checkInline(ctx context.Context, c repair.StoredContent) error {
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

// examined is the result of the examination of an object.
type examined struct {
	info  objstore.Info
	match bool // also true if the object has the right size and was not read
	err   error
}

// noteTag records the tag of an object behind a network, after the object was read and is
// right. The catalogue may lack the tag, because the object may have been adopted or
// copied.
func (f *fsck) noteTag(ctx context.Context, d oci.Digest, info objstore.Info) error {
	if info.Tag == "" || f.o.Quick || f.up.Storage.Writable() != nil {
		return nil
	}
	tag, err := f.facts.ObjectTag(ctx, d)
	if err == nil && tag != info.Tag {
		f.up.Storage.RecordTag(ctx, d, info)
	}
	return err
}

// examine reads an object. A quick check only compares its size, unless the object is
// suspect.
func (f *fsck) examine(ctx context.Context, c repair.StoredContent, step func(int)) (x examined) {
	key := storage.BlobKey(c.Digest)
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

// checkObject checks a content that is an object in the store.
func (f *fsck) checkObject(ctx context.Context, c repair.StoredContent) error {
	x := f.examine(ctx, c, func(n int) { f.step(func(rep *Report) { rep.Bytes += int64(n) }) })
	right := func() bool { return x.err == nil && x.match && x.info.Size == c.Size }
	if !right() && ctx.Err() == nil { // an error that passes by itself is not damage
		x = f.examine(ctx, c, func(int) {})
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if right() {
		f.unsuspect(c)
		return f.noteTag(ctx, c.Digest, x.info)
	}
	p := Problem{Digest: c.Digest, Key: storage.BlobKey(c.Digest)}
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
	if f.o.Repair && storage.IsDamage(x.err) { // if the content stays, a push brings its bytes again
		if err := f.up.Storage.Doubt(ctx, c.Digest, x.err); err != nil {
			return err
		}
	}
	return f.giveUp(ctx, p, same, f.setAside(c.Digest, x.err))
}
