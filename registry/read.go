package registry

import (
	"context"
	"errors"
	"fmt"
	"io"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/storage"
)

func manifestUnknown(repo, ref string) error {
	if err := oci.CheckName(repo); err != nil {
		return err
	}
	return oci.Errorf(oci.CodeManifestUnknown, "repository %s has no manifest %s", repo, ref)
}

// ResolveBlob implements oci.Reader. A pusher calls it before it skips an upload, so the
// blob is kept for a grace period from now on.
func (r *Registry) ResolveBlob(ctx context.Context, repo string, d oci.Digest) (oci.Descriptor, error) {
	if here, err := r.promise(ctx, promise{seenKey{repo, d}, false}); err != nil || !here {
		return oci.Descriptor{}, orUnknown(err, storage.BlobUnknown(repo, d))
	}
	if r.partial(repo) { // what is missing there is fetched again
		ctx = oci.ForReading(ctx)
	}
	size, err := r.present(ctx, repo, d)
	if err != nil {
		r.seen.forget(seenKey{repo, d})
		return oci.Descriptor{}, err
	}
	return storage.BlobDescriptor(d, size), nil
}

// present looks a blob up and makes sure that the store has it, because a client that is
// told so does not push it. Suspect content counts as missing, so that it is pushed
// again.
func (r *Registry) present(ctx context.Context, repo string, d oci.Digest) (size int64, err error) {
	b, err := r.blob(ctx, repo, d)
	switch {
	case err != nil:
		return 0, err
	case b.suspect:
		return 0, storage.BlobLost(repo, d)
	case !b.object:
		return b.size, nil
	}
	size, here, err := r.storage.Look(ctx, d, b.size)
	if err != nil {
		return 0, err
	}
	if !here {
		return 0, storage.BlobLost(repo, d)
	}
	if size != b.size {
		r.ram.Drop(blobKey(repo, d))
	}
	return size, nil
}

// promise makes sure that content stays for a while before a client is told that it is
// there. A copy needs no promise, because its content is looked up in the original
// registry before anybody names it.
func (r *Registry) promise(ctx context.Context, k promise) (here bool, err error) {
	if r.partial(k.repo) {
		return true, nil
	}
	return r.promisePush(ctx, k)
}

// promisePush notes that a client is about to learn of content. It does so before the
// content is looked up. From then on the collector finds the content promised. If the
// collector is removing the content at this moment, promisePush waits until that is done.
// here is false if the content is known not to be there.
func (r *Registry) promisePush(ctx context.Context, k promise) (here bool, err error) {
	for {
		wait := r.seen.add(k.seenKey, r.replica.Now())
		if wait == nil {
			break
		}
		if err := storage.Await(ctx, wait); err != nil {
			return false, err
		}
	}
	if !r.replica.Shared {
		return true, nil
	}
	here, err = r.promiseShared(ctx, k)
	if !here {
		r.seen.forget(k.seenKey)
	}
	return here, err
}

// orUnknown returns err, or the error that content is unknown if err is nil.
func orUnknown(err, unknown error) error {
	if err != nil {
		return err
	}
	return unknown
}

// blob looks a blob up in a repository. The result includes the content of a small blob.
func (r *Registry) blob(ctx context.Context, repo string, d oci.Digest) (ramBlob, error) {
	k := blobKey(repo, d)
	if v, ok := r.hot(k); ok {
		return ramBlobOf(v), nil
	}
	epoch := r.ram.Epoch(k)
	row, err := r.cat.Blob(ctx, repo, d)
	if errors.Is(err, catalog.ErrNotFound) {
		return ramBlob{}, storage.BlobUnknown(repo, d)
	}
	if err != nil {
		return ramBlob{}, storage.ClientError(fmt.Sprintf("look up blob %s", d), err)
	}
	b, err := r.load(ctx, d, row)
	if err != nil {
		return ramBlob{}, r.storage.Lost(ctx, repo, d, err)
	}
	if !b.suspect {
		r.remember(k, epoch, b.head(), b.content)
	}
	return b, nil
}

// load reads the content of a small blob, wherever it is stored, and compares it with its
// digest.
func (r *Registry) load(ctx context.Context, d oci.Digest, row catalog.Blob) (b ramBlob, err error) {
	b = ramBlob{size: row.Size, content: row.Content, suspect: row.Suspect, object: row.Content == nil && row.Size > 0}
	switch {
	case !b.object:
		if b.size == 0 {
			b.content = []byte{}
		}
		if int64(len(b.content)) == b.size && d.Algorithm().FromBytes(b.content) == d {
			break
		}
		info, statErr := r.store.Stat(ctx, storage.BlobKey(d))
		if statErr != nil { // a push may have stored it there
			return b, storage.WrongBytes(d)
		}
		return ramBlob{size: info.Size, object: true, suspect: true}, r.storage.Doubt(ctx, d, storage.WrongBytes(d))
	case b.size > ramBlobMax:
		return b, nil
	default:
		if b.content, err = r.storage.Read(ctx, d, b.size); err != nil {
			return b, err
		}
	}
	if b.suspect {
		b.suspect = false
		r.storage.Trust(d)
	}
	return b, nil
}

// GetBlob implements oci.Reader.
func (r *Registry) GetBlob(ctx context.Context, repo string, d oci.Digest) (oci.Content, error) {
	b, err := r.blob(ctx, repo, d)
	if err != nil {
		return nil, err
	}
	c, err := r.openBlob(ctx, repo, d, b, 0, b.size)
	if err == nil && r.opts.PullEvents() {
		err = r.pulledBlob(ctx, repo, c)
	}
	return c, err
}

func (r *Registry) pulledBlob(ctx context.Context, repo string, c oci.Content) error {
	err := r.emit(ctx, Event{Action: ActionPull, Repo: repo, Blob: true, Descriptor: c.Descriptor()})
	if err != nil {
		c.Close()
	}
	return err
}

// GetBlobRange implements oci.Reader.
func (r *Registry) GetBlobRange(ctx context.Context, repo string, d oci.Digest, off, n int64) (oci.Content, error) {
	b, err := r.blob(ctx, repo, d)
	if err != nil {
		return nil, err
	}
	size := b.size
	if off < 0 || off >= size {
		return nil, oci.Errorf(oci.CodeRangeInvalid, "range begins at byte %d of a blob of %d bytes", off, size)
	}
	if n < 0 || n > size-off {
		n = size - off
	}
	return r.openBlob(ctx, repo, d, b, off, n)
}

func (r *Registry) openBlob(ctx context.Context, repo string, d oci.Digest, b ramBlob, off, n int64) (oci.Content, error) {
	switch {
	case b.content != nil:
		return &ramContent{digest: d, size: b.size, rest: b.content[off : off+n]}, nil
	case b.suspect && r.partial(repo): // it is fetched again
		return nil, storage.BlobLost(repo, d)
	}
	return r.storage.Open(ctx, repo, d, b.size, b.suspect, off, n)
}

// ResolveManifest implements oci.Reader. It counts as a pull, because a client that has
// the image only sends a HEAD request to learn whether the image is current. With
// [oci.ForPushing] it reports the image as unknown if something of the image is lost.
func (r *Registry) ResolveManifest(ctx context.Context, repo, ref string) (oci.Descriptor, error) {
	byDigest := oci.IsDigest(ref) // what a tag points at is kept anyway
	if byDigest {
		if here, err := r.promise(ctx, promise{seenKey{repo, oci.Digest(ref)}, true}); err != nil || !here {
			return oci.Descriptor{}, orUnknown(err, manifestUnknown(repo, ref))
		}
	}
	m, err := r.manifest(ctx, repo, ref)
	if damaged := (*manifestDamaged)(nil); errors.As(err, &damaged) { // so that it is pushed again
		err = oci.Errorf(oci.CodeManifestUnknown, "%s", damaged.Error())
	}
	if err != nil {
		if byDigest {
			r.seen.forget(seenKey{repo, oci.Digest(ref)})
		}
		return oci.Descriptor{}, err
	}
	if r.lacks(ctx, repo, &m) {
		return oci.Descriptor{}, oci.Errorf(oci.CodeManifestUnknown, "contents of %s in repository %s are lost; push it again, which mends it", ref, repo)
	}
	if noticed(ctx) {
		r.pulls.note(repo, ref, r.replica.Now())
	}
	return m.Descriptor, nil
}

// GetManifest implements oci.Reader.
func (r *Registry) GetManifest(ctx context.Context, repo, ref string) (*oci.Manifest, error) {
	m, err := r.manifest(ctx, repo, ref)
	if damaged := (*manifestDamaged)(nil); errors.As(err, &damaged) {
		err = &oci.Error{Code: oci.CodeUnknown, Message: damaged.Error(), Err: err}
	}
	if err != nil {
		return nil, err
	}
	if noticed(ctx) {
		r.pulled(repo, ref)
	}
	if r.opts.PullEvents() {
		e := Event{Action: ActionPull, Repo: repo, Descriptor: m.Descriptor}
		if !oci.IsDigest(ref) {
			e.Tag = ref
		}
		if err := r.emit(ctx, e); err != nil {
			return nil, err
		}
	}
	return &m, nil
}

func (r *Registry) manifest(ctx context.Context, repo, ref string) (oci.Manifest, error) {
	if oci.IsDigest(ref) {
		return r.manifestByDigest(ctx, repo, ref)
	}
	k := tagKey(repo, ref)
	if v, ok := r.hot(k); ok {
		m, err := r.manifestByDigest(ctx, repo, string(v))
		if !oci.HasCode(err, oci.CodeManifestUnknown) {
			return m, err
		}
		// The tag has just been moved, and the manifest that it pointed at was deleted.
	}
	epoch := r.ram.Epoch(k)
	row, err := r.cat.Tag(ctx, repo, ref)
	if err != nil {
		return oci.Manifest{}, r.manifestError(ctx, repo, ref, err)
	}
	r.remember(k, epoch, []byte(row.Digest))
	// Only the tag is kept in RAM. The epoch of the manifest's own key was not taken
	// before the read, so the manifest may be gone by now.
	return asManifest(row), r.checkManifest(ctx, repo, row)
}

func (r *Registry) manifestByDigest(ctx context.Context, repo, d string) (oci.Manifest, error) {
	k := manifestKey(repo, d)
	if v, ok := r.hot(k); ok {
		return manifestOf(oci.Digest(d), v), nil
	}
	epoch := r.ram.Epoch(k)
	row, err := r.cat.Manifest(ctx, repo, oci.Digest(d))
	if err != nil {
		return oci.Manifest{}, r.manifestError(ctx, repo, d, err)
	}
	if err := r.checkManifest(ctx, repo, row); err != nil {
		return oci.Manifest{}, err
	}
	m := asManifest(row)
	r.remember(k, epoch, manifestHead(&m), m.Bytes)
	return m, nil
}

// checkManifest compares a manifest that was read from the catalogue with its digest.
func (r *Registry) checkManifest(ctx context.Context, repo string, row catalog.Manifest) error {
	if row.Digest.Algorithm().FromBytes(row.Content) == row.Digest {
		return nil
	}
	if err := r.storage.Doubt(ctx, row.Digest, storage.WrongBytes(row.Digest)); err != nil {
		return err
	}
	return &manifestDamaged{repo, row.Digest}
}

// manifestDamaged is the error for a manifest whose bytes in the catalogue are wrong.
type manifestDamaged struct {
	repo   string
	digest oci.Digest
}

func (e *manifestDamaged) Error() string {
	return fmt.Sprintf("manifest %s of repository %s is damaged in the catalogue; push it again, or restore it from a backup", e.digest, e.repo)
}

func (r *Registry) manifestError(ctx context.Context, repo, ref string, err error) error {
	if errors.Is(err, catalog.ErrNotFound) {
		return manifestUnknown(repo, ref)
	}
	return storage.ClientError(fmt.Sprintf("look up manifest %s of %s", ref, repo), err)
}

func asManifest(row catalog.Manifest) oci.Manifest {
	return oci.Manifest{
		Descriptor: oci.Descriptor{MediaType: row.MediaType, Digest: row.Digest, Size: int64(len(row.Content)), ArtifactType: row.ArtifactType},
		Bytes:      row.Content,
	}
}

// Repositories implements oci.Lister. A repository without a manifest is not in the list. It
// still exists while something of it can be restored.
func (r *Registry) Repositories(ctx context.Context, last string, n int) ([]string, bool, error) {
	names, err := r.cat.Listed(ctx, last, n+1)
	if err != nil {
		return nil, false, storage.ClientError("list repositories", err)
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
		return nil, false, storage.ClientError("list tags of "+repo, err)
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

// ramContent is a blob, or a part of a blob, that lies in RAM.
type ramContent struct {
	digest oci.Digest
	size   int64
	rest   []byte
}

func (c *ramContent) Descriptor() oci.Descriptor { return storage.BlobDescriptor(c.digest, c.size) }
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
