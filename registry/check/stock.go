package check

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"syscall"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/repair"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/storage"
	"example.org/slipway/registry/verify"
)

// stock is everything that the checked registry has: its rows, its objects, and what is
// in quarantine. Its methods change these and report nothing.
type stock struct {
	up    *registry.Upkeep
	facts repair.Store
}

// distribution reports whether Distribution's links are in the same store.
func (s stock) distribution(ctx context.Context) (bool, error) {
	for _, err := range s.up.Store.List(ctx, storage.RepositoryPrefix, "") {
		if err != nil {
			return false, fmt.Errorf("look for the repositories of another registry: %w", err)
		}
		return true, nil
	}
	return false, nil
}

func (s stock) setSize(ctx context.Context, d oci.Digest, size int64) (bool, error) {
	shown, err := s.facts.SetSize(ctx, d, size)
	return s.up.Corrected(d, shown, err)
}

// absent records that a content is no longer present. First it makes sure that the store
// itself is there.
func (s stock) absent(ctx context.Context, d oci.Digest, inline bool) (bool, error) {
	if err := s.up.Storage.Here(ctx); err != nil {
		return false, err
	}
	shown, err := s.facts.MarkAbsent(ctx, d, inline)
	return s.up.Corrected(d, shown, err)
}

// takeInline reads a content from its object, or from quarantine. If the bytes are right,
// it puts them into the catalogue.
func (s stock) takeInline(ctx context.Context, d oci.Digest) (bool, error) {
	for _, key := range []string{storage.BlobKey(d), quarantineKey(d)} {
		if b, ok := s.readAll(ctx, key, d); ok {
			shown, err := s.facts.SetContent(ctx, d, b)
			return s.up.Corrected(d, shown, err)
		}
	}
	return false, ctx.Err()
}

// read reads the object under a key and compares it with a digest.
func (s stock) read(ctx context.Context, key string, d oci.Digest, step func(int)) (x examined) {
	obj, err := s.up.Store.Get(ctx, key, 0, -1)
	if err != nil {
		x.err = err
		return x
	}
	defer obj.Close()
	x.info = obj.Info()
	_, x.match, x.err = verify.Copy(ctx, nil, obj, d, step)
	return x
}

// readAll reads a content that belongs in the catalogue. ok is false if the bytes do not have the
// digest.
func (s stock) readAll(ctx context.Context, key string, d oci.Digest) (content []byte, ok bool) {
	obj, err := s.up.Store.Get(ctx, key, 0, -1)
	if err != nil {
		return nil, false
	}
	defer obj.Close()
	if obj.Info().Size > s.up.Options.MaxManifestBytes {
		return nil, false
	}
	content, err = io.ReadAll(obj)
	return content, err == nil && d.Algorithm().FromBytes(content) == d
}

// copyObject copies an object to another key and reports whether its bytes have the
// digest. If onlyRight is set, it does not copy other bytes.
func (s stock) copyObject(ctx context.Context, from, to string, d oci.Digest, onlyRight bool) (match bool, err error) {
	src, err := s.up.Store.Get(ctx, from, 0, -1)
	if err != nil {
		return false, err
	}
	defer src.Close()
	dst, err := s.up.Store.NewUpload(ctx, src.Info().Size)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, dst.Cancel(ctx)) }()
	if _, match, err = verify.Copy(ctx, dst, src, d, func(int) {}); err != nil || onlyRight && !match {
		return false, err
	}
	return match, dst.Commit(ctx, to)
}

// putBack uses the verified copy in quarantine as the object of the content.
func (s stock) putBack(ctx context.Context, d oci.Digest) (bool, error) {
	return s.move(ctx, quarantineKey(d), storage.BlobKey(d), d)
}

// move moves an object whose bytes have a digest to another key.
func (s stock) move(ctx context.Context, from, to string, d oci.Digest) (bool, error) {
	if m, ok := objstore.As[objstore.Mover](s.up.Store); ok {
		err := m.Move(ctx, from, to)
		return err == nil, err
	}
	match, err := s.copyObject(ctx, from, to, d, true)
	if err != nil || !match {
		return false, err
	}
	return true, s.up.Store.Delete(ctx, from)
}

// recordBack records that the verified bytes under a key belong to a content that was
// absent. The digest's lock is held.
func (s stock) recordBack(ctx context.Context, d oci.Digest, key string, size int64) (bool, error) {
	absent, err := s.facts.Absent(ctx, []oci.Digest{d})
	if err != nil {
		return false, err
	}
	b := catalog.Blob{Digest: d, Size: size}
	if absent[d] { // a manifest's bytes belong in the catalogue
		content, ok := s.readAll(ctx, key, d)
		if !ok {
			return false, ctx.Err()
		}
		b.Content = content
	} else if key != storage.BlobKey(d) {
		if done, err := s.putBack(ctx, d); err != nil || !done {
			return false, err
		}
	}
	shown, err := s.facts.TakeBack(ctx, b)
	return s.up.Corrected(d, shown, err)
}

// digestOf hashes the object under a key.
func (s stock) digestOf(ctx context.Context, key string) (oci.Digest, error) {
	obj, err := s.up.Store.Get(ctx, key, 0, -1)
	if err != nil {
		return "", err
	}
	defer obj.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, obj); err != nil {
		return "", err
	}
	return oci.Digest("sha256:" + hex.EncodeToString(sum.Sum(nil))), ctx.Err()
}

// hurts lists the images that need a content.
func (s stock) hurts(ctx context.Context, d oci.Digest) ([]string, error) {
	uses, err := s.facts.Uses(ctx, d, maxHurts)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, u := range uses {
		out = append(out, u.String())
	}
	return out, nil
}

func (s stock) refs(ctx context.Context, m repair.ManifestRow) (map[oci.Digest]repair.Ref, bool, error) {
	list, ok, err := s.facts.RefsOf(ctx, m)
	out := make(map[oci.Digest]repair.Ref, len(list))
	for _, ref := range list {
		out[ref.Digest] = ref
	}
	return out, ok, err
}

// intended reports whether another replica is publishing a content.
func (s stock) intended(ctx context.Context, d oci.Digest) (bool, error) {
	if !s.up.Replica.Shared {
		return false, nil
	}
	list, err := s.up.Catalog.Uploads.Intents(ctx)
	return slices.ContainsFunc(list, func(u catalog.Upload) bool { return u.Intent == d }), err
}

// needsCopy reports whether the copy in quarantine is the only good copy of a content
// that the catalogue names. It reads the object in the store, even in a quick check.
func (s stock) needsCopy(ctx context.Context, key string) (bool, error) {
	d, ok := digestInQuarantine(key)
	if !ok {
		return false, nil
	}
	wanted, err := s.up.Catalog.Garbage.Wanted(ctx, d)
	if err != nil || !wanted {
		return false, err
	}
	x := s.read(ctx, key, d, func(int) {})
	if err := ctx.Err(); err != nil || x.err == nil && !x.match {
		return false, err
	}
	b, err := s.up.Catalog.StoredBlob(ctx, d)
	switch {
	case errors.Is(err, catalog.ErrNotFound):
		return true, nil
	case err != nil:
		return false, err
	case b.Content != nil:
		return d.Algorithm().FromBytes(b.Content) != d, nil
	}
	x = s.read(ctx, storage.BlobKey(d), d, func(int) {})
	return x.err != nil || !x.match, ctx.Err()
}

// sameObject reports whether the content should still be in the store, and its object is
// still the examined one, or is still missing.
func (s stock) sameObject(ctx context.Context, c repair.StoredContent, x examined) (bool, error) {
	is, err := s.facts.Presence(ctx, []oci.Digest{c.Digest})
	if err != nil || is[c.Digest] != repair.Object {
		return false, err
	}
	info, err := s.up.Store.Stat(ctx, storage.BlobKey(c.Digest))
	switch {
	case errors.Is(err, objstore.ErrNotExist):
		return errors.Is(x.err, objstore.ErrNotExist), nil
	case x.err != nil && !errors.Is(x.err, objstore.ErrNotExist):
		return true, nil // the object could not be read, and perhaps its information could not be read either
	case err != nil:
		return false, err
	}
	return x.err == nil && info.Size == x.info.Size && info.ModTime.Equal(x.info.ModTime), nil
}

// stillSurplus returns a function that confirms that an object is not needed.
func (s stock) stillSurplus(p Problem, was repair.Presence) func(context.Context) (bool, error) {
	return func(ctx context.Context) (bool, error) {
		is, err := s.facts.Presence(ctx, []oci.Digest{p.Digest})
		if err != nil || is[p.Digest] != was {
			return false, err
		}
		if intended, err := s.intended(ctx, p.Digest); err != nil || intended {
			return false, err
		}
		_, err = s.up.Store.Stat(ctx, p.Key)
		if errors.Is(err, objstore.ErrNotExist) {
			return false, nil
		}
		return err == nil, err
	}
}

// setAside returns the repair for an object that cannot be read. It returns nil if there
// is none.
func (s stock) setAside(d oci.Digest, because error) func(context.Context) (bool, error) {
	m, ok := objstore.As[objstore.Mover](s.up.Store)
	// A dropped layer has no object: what could not be read is a pack.
	if !ok || !errors.Is(because, syscall.EIO) || objstore.IsBusy(because) {
		return nil
	}
	return func(ctx context.Context) (bool, error) {
		if err := s.up.Storage.Here(ctx); err != nil {
			return false, err
		}
		// The unreadable object moves first, because it may be readable again another
		// day.
		if err := m.Move(ctx, storage.BlobKey(d), quarantineKey(d)); err != nil {
			return false, err
		}
		return s.absent(ctx, d, false)
	}
}

// unsuspect clears the suspicion of a content whose bytes were read and are right.
func (s stock) unsuspect(c repair.StoredContent) {
	if c.Suspect && s.up.Storage.Writable() == nil {
		s.up.Storage.Trust(c.Digest)
	}
}
