package registry

import (
	"context"
	"errors"
	"fmt"
	"io"

	"example.org/slipway/cache"
	"example.org/slipway/catalog"
	"example.org/slipway/objstore"
	"example.org/slipway/oci"
)

// Kinds of keys in RAM.
const (
	kindTag      = iota // repo, tag -> oci.Digest
	kindManifest        // repo, digest -> *oci.Manifest
	kindLink            // repo, digest -> int64, the blob's size
	kindContent         // "", digest -> []byte
)

// ramBlobMax is the largest blob in bytes whose content is kept in RAM: configs
// and the small layers whose cost is all in opening them. Larger ones come from
// the object store, where the page cache and sendfile serve them.
const ramBlobMax = 64 << 10

func blobUnknown(repo string, d oci.Digest) error {
	return oci.Errorf(oci.CodeBlobUnknown, "repository %s has no blob %s", repo, d)
}

func manifestUnknown(repo, ref string) error {
	return oci.Errorf(oci.CodeManifestUnknown, "repository %s has no manifest %s", repo, ref)
}

// ResolveBlob implements oci.Reader. It is what a pusher asks before it leaves
// an upload out, so the blob is kept for a grace period from now on.
func (r *Registry) ResolveBlob(ctx context.Context, repo string, d oci.Digest) (oci.Descriptor, error) {
	size, err := r.blobSize(ctx, repo, d)
	if err != nil {
		return oci.Descriptor{}, err
	}
	r.seen.add(seenKey{repo, d}, r.opts.Clock())
	return blobDescriptor(d, size), nil
}

func blobDescriptor(d oci.Digest, size int64) oci.Descriptor {
	return oci.Descriptor{MediaType: oci.MediaTypeOctetStream, Digest: d, Size: size}
}

// blobSize looks a blob up in a repository.
func (r *Registry) blobSize(ctx context.Context, repo string, d oci.Digest) (int64, error) {
	k := cache.Key{Kind: kindLink, Repo: repo, Ref: string(d)}
	if v, ok := r.ram.Get(k); ok {
		return v.(int64), nil
	}
	epoch := r.ram.Epoch(k)
	b, err := r.cat.Blob(ctx, repo, d)
	if errors.Is(err, catalog.ErrNotFound) {
		return 0, blobUnknown(repo, d)
	}
	if err != nil {
		return 0, fmt.Errorf("look up blob %s: %w", d, err)
	}
	r.ram.Put(k, b.Size, 0, epoch)
	if b.Content != nil {
		r.keepContent(d, b.Content)
	}
	return b.Size, nil
}

// keepContent takes a blob's bytes into RAM. Contents are named by what they
// are, so they can never be out of date.
func (r *Registry) keepContent(d oci.Digest, b []byte) {
	k := cache.Key{Kind: kindContent, Ref: string(d)}
	r.ram.Put(k, b, int64(len(b)), r.ram.Epoch(k))
}

// GetBlob implements oci.Reader.
func (r *Registry) GetBlob(ctx context.Context, repo string, d oci.Digest) (oci.Content, error) {
	size, err := r.blobSize(ctx, repo, d)
	if err != nil {
		return nil, err
	}
	c, err := r.openBlob(ctx, d, size, 0, size)
	if err == nil && r.opts.PullEvents {
		err = r.pulledBlob(ctx, repo, c)
	}
	return c, err
}

func (r *Registry) pulledBlob(ctx context.Context, repo string, c oci.Content) error {
	err := r.emit(ctx, Event{Action: ActionPull, Repo: repo, Descriptor: c.Descriptor()})
	if err != nil {
		c.Close()
	}
	return err
}

// GetBlobRange implements oci.Reader.
func (r *Registry) GetBlobRange(ctx context.Context, repo string, d oci.Digest, off, n int64) (oci.Content, error) {
	size, err := r.blobSize(ctx, repo, d)
	if err != nil {
		return nil, err
	}
	if off < 0 || off >= size {
		return nil, oci.Errorf(oci.CodeRangeInvalid, "range begins at byte %d of a blob of %d bytes", off, size)
	}
	if n < 0 || n > size-off {
		n = size - off
	}
	return r.openBlob(ctx, d, size, off, n)
}

func (r *Registry) openBlob(ctx context.Context, d oci.Digest, size, off, n int64) (oci.Content, error) {
	if size <= ramBlobMax {
		b, err := r.smallBlob(ctx, d, size)
		if err != nil {
			return nil, err
		}
		return &ramContent{digest: d, size: size, rest: b[off : off+n]}, nil
	}
	obj, err := r.store.Get(ctx, BlobKey(d), off, n)
	if err != nil {
		return nil, r.lost(d, err)
	}
	if got := obj.Info().Size; got != size {
		obj.Close()
		return nil, r.lost(d, fmt.Errorf("the object has %d bytes, the catalogue says %d", got, size))
	}
	return &storeContent{Object: obj, digest: d}, nil
}

// lost reports a blob the catalogue knows and the store cannot give.
func (r *Registry) lost(d oci.Digest, err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	r.log.Error("blob cannot be read; run slipway fsck", "digest", d, "err", err)
	return &oci.Error{Code: oci.CodeUnknown, Message: fmt.Sprintf("blob %s cannot be read from the store", d), Err: err}
}

// smallBlob returns a blob's bytes, from RAM if they are there.
func (r *Registry) smallBlob(ctx context.Context, d oci.Digest, size int64) ([]byte, error) {
	if v, ok := r.ram.Get(cache.Key{Kind: kindContent, Ref: string(d)}); ok {
		return v.([]byte), nil
	}
	b, err := r.cat.StoredBlob(ctx, d)
	if errors.Is(err, catalog.ErrNotFound) {
		return nil, blobUnknown("", d) // deleted since the look-up
	}
	if err != nil {
		return nil, fmt.Errorf("read blob %s: %w", d, err)
	}
	if b.Content == nil {
		if b.Content, err = r.readObject(ctx, d, size); err != nil {
			return nil, r.lost(d, err)
		}
	}
	if int64(len(b.Content)) != size {
		return nil, r.lost(d, fmt.Errorf("%d bytes are stored, the catalogue says %d", len(b.Content), size))
	}
	r.keepContent(d, b.Content)
	return b.Content, nil
}

func (r *Registry) readObject(ctx context.Context, d oci.Digest, size int64) ([]byte, error) {
	obj, err := r.store.Get(ctx, BlobKey(d), 0, -1)
	if err != nil {
		return nil, err
	}
	defer obj.Close()
	b := make([]byte, size)
	if obj.Info().Size != size {
		return nil, fmt.Errorf("the object has %d bytes, the catalogue says %d", obj.Info().Size, size)
	}
	_, err = io.ReadFull(obj, b)
	return b, err
}

// ResolveManifest implements oci.Reader.
func (r *Registry) ResolveManifest(ctx context.Context, repo, ref string) (oci.Descriptor, error) {
	m, err := r.manifest(ctx, repo, ref)
	if err != nil {
		return oci.Descriptor{}, err
	}
	if oci.IsDigest(ref) { // what a tag points at is kept anyway
		r.seen.add(seenKey{repo, m.Digest}, r.opts.Clock())
	}
	return m.Descriptor, nil
}

// GetManifest implements oci.Reader.
func (r *Registry) GetManifest(ctx context.Context, repo, ref string) (*oci.Manifest, error) {
	m, err := r.manifest(ctx, repo, ref)
	if err != nil {
		return nil, err
	}
	r.pulls.note(repo, ref, r.opts.Clock())
	if r.opts.PullEvents {
		e := Event{Action: ActionPull, Repo: repo, Descriptor: m.Descriptor}
		if !oci.IsDigest(ref) {
			e.Tag = ref
		}
		if err := r.emit(ctx, e); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (r *Registry) manifest(ctx context.Context, repo, ref string) (*oci.Manifest, error) {
	if oci.IsDigest(ref) {
		return r.manifestByDigest(ctx, repo, ref)
	}
	tagKey := cache.Key{Kind: kindTag, Repo: repo, Ref: ref}
	if v, ok := r.ram.Get(tagKey); ok {
		return r.manifestByDigest(ctx, repo, v.(string))
	}
	epoch := r.ram.Epoch(tagKey)
	row, err := r.cat.Tag(ctx, repo, ref)
	if err != nil {
		return nil, r.manifestError(ctx, repo, ref, err)
	}
	r.ram.Put(tagKey, string(row.Digest), 16, epoch)
	// Only the tag is kept: the epoch of the manifest's own key was not taken
	// before the read, so the manifest may be gone by now.
	return asManifest(row), nil
}

func (r *Registry) manifestByDigest(ctx context.Context, repo, d string) (*oci.Manifest, error) {
	k := cache.Key{Kind: kindManifest, Repo: repo, Ref: d}
	if v, ok := r.ram.Get(k); ok {
		return v.(*oci.Manifest), nil
	}
	epoch := r.ram.Epoch(k)
	row, err := r.cat.Manifest(ctx, repo, oci.Digest(d))
	if err != nil {
		return nil, r.manifestError(ctx, repo, d, err)
	}
	m := asManifest(row)
	r.ram.Put(k, m, int64(len(m.Bytes))+200, epoch)
	return m, nil
}

func (r *Registry) manifestError(ctx context.Context, repo, ref string, err error) error {
	if errors.Is(err, catalog.ErrNotFound) {
		return manifestUnknown(repo, ref)
	}
	return fmt.Errorf("look up manifest %s of %s: %w", ref, repo, err)
}

func asManifest(row catalog.Manifest) *oci.Manifest {
	return &oci.Manifest{
		Descriptor: oci.Descriptor{MediaType: row.MediaType, Digest: row.Digest, Size: int64(len(row.Content)), ArtifactType: row.ArtifactType},
		Bytes:      row.Content,
	}
}

// Repositories implements oci.Lister.
func (r *Registry) Repositories(ctx context.Context, last string, n int) ([]string, bool, error) {
	names, err := r.cat.Repositories(ctx, last, n+1)
	if err != nil {
		return nil, false, fmt.Errorf("list repositories: %w", err)
	}
	names, more := cut(names, n)
	return names, more, nil
}

// Tags implements oci.Lister.
func (r *Registry) Tags(ctx context.Context, repo, last string, n int) ([]string, bool, error) {
	tags, err := r.cat.Tags(ctx, repo, last, n+1)
	if errors.Is(err, catalog.ErrNoRepository) {
		return nil, false, oci.Errorf(oci.CodeNameUnknown, "there is no repository %s", repo)
	}
	if err != nil {
		return nil, false, fmt.Errorf("list tags of %s: %w", repo, err)
	}
	tags, more := cut(tags, n)
	return tags, more, nil
}

func cut(names []string, n int) ([]string, bool) {
	if len(names) > n {
		return names[:n], true
	}
	return names, false
}

// ramContent is a blob, or a part of one, that lies in RAM.
type ramContent struct {
	digest oci.Digest
	size   int64
	rest   []byte
}

func (c *ramContent) Descriptor() oci.Descriptor { return blobDescriptor(c.digest, c.size) }
func (c *ramContent) Close() error               { return nil }

func (c *ramContent) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

func (c *ramContent) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(c.rest)
	c.rest = c.rest[n:]
	return int64(n), err
}

// storeContent is a blob, or a part of one, that lies in the object store.
type storeContent struct {
	objstore.Object
	digest oci.Digest
}

func (c *storeContent) Descriptor() oci.Descriptor { return blobDescriptor(c.digest, c.Info().Size) }
