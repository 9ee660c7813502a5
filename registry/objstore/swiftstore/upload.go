package swiftstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"example.org/slipway/registry/objstore"
)

// cleanTime bounds what is tidied up after an upload has ended.
const cleanTime = time.Minute

// upload is an [objstore.Upload]. Up to two chunks of it are in RAM: one that is
// being stored in the background, and one that is being filled.
type upload struct {
	s  *Store
	id string
	// ctx is for what Write stores, because Write has no context. It lasts as long as the
	// upload in this process.
	ctx    context.Context
	cancel context.CancelFunc

	segs   []segment // what is stored, in order
	stored int64     // bytes of segs
	flying *flight   // the segment after them, or nil
	buf    []byte    // the bytes behind that
	size   int64
	tag    string // the object's ETag, after Commit

	kept    bool     // Suspend has made its state known to others
	marked  bool     // key-0 may exist
	garbage []string // stored, and not needed any more
	lost    error    // what made the upload unusable
}

var _ objstore.Upload = (*upload)(nil)

var errUploadDone = errors.New("upload was committed, suspended or cancelled")

func (s *Store) newUpload(ctx context.Context, id string) *upload {
	u := &upload{s: s, id: id}
	u.ctx, u.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return u
}

// NewUpload begins an upload. See [objstore.Store]. It sends nothing before there are
// more bytes than a chunk, and a size hint reserves no RAM.
func (s *Store) NewUpload(ctx context.Context, _ int64) (objstore.Upload, error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	return s.newUpload(ctx, rand.Text()), nil
}

// Resume continues a suspended upload. See [objstore.Store].
func (s *Store) Resume(ctx context.Context, state string, size int64) (objstore.Upload, error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	u, err := s.resume(ctx, state, size)
	if err != nil {
		return nil, fmt.Errorf("resume upload %q: %w", state, err)
	}
	return u, nil
}

func (s *Store) resume(ctx context.Context, id string, size int64) (*upload, error) {
	if !validID(id) {
		return nil, objstore.ErrNotExist
	}
	if size < 0 {
		return nil, fmt.Errorf("size %d is negative", size)
	}
	data, err := s.read(ctx, uploadDir(id)+stateName, nil)
	if err != nil {
		return nil, err
	}
	segs, held, err := decodeState(data)
	if err != nil {
		return nil, err
	}
	if held < size {
		return nil, fmt.Errorf("it holds %d bytes, not %d: %w", held, size, objstore.ErrNotExist)
	}
	u := s.newUpload(ctx, id)
	u.kept, u.size = true, size
	for len(segs) > 0 && u.stored+segs[0].Size <= size {
		u.stored += segs[0].Size
		u.segs = append(u.segs, segs[0])
		segs = segs[1:]
	}
	for _, seg := range segs {
		u.garbage = append(u.garbage, seg.Name)
	}
	if u.stored < size { // it ends within a segment
		u.size = u.stored
		if err := u.load(ctx, segs[0], size-u.stored); err != nil {
			u.end()
			return nil, err
		}
	}
	return u, nil
}

// load appends the first n bytes of a segment to the upload again. They may be more than
// a chunk if the segment was stored with a larger chunk size.
func (u *upload) load(ctx context.Context, seg segment, n int64) error {
	o, err := u.s.get(ctx, uploadDir(u.id)+seg.Name, 0, n)
	if err != nil {
		return err
	}
	defer o.Close()
	_, err = io.CopyN(filler{u}, o, n)
	return err
}

// filler is the upload as an io.Writer that never moves a stored segment back into the
// buffer.
type filler struct{ u *upload }

func (f filler) Write(p []byte) (int, error) { return f.u.fill(p) }

// Abandon drops a suspended upload. See [objstore.Store].
func (s *Store) Abandon(ctx context.Context, state string) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	if !validID(state) {
		return nil
	}
	names := []string{stateName}
	data, err := s.read(ctx, uploadDir(state)+stateName, nil)
	if err == nil {
		var segs []segment
		// A state that cannot be read names no segments. The listing does.
		segs, _, _ = decodeState(data)
		for _, seg := range segs {
			names = append(names, seg.Name)
		}
	} else if !errors.Is(err, objstore.ErrNotExist) {
		return fmt.Errorf("abandon upload %q: %w", state, err)
	}
	if err := s.release(ctx, state, names...); err != nil {
		return fmt.Errorf("abandon upload %q: %w", state, err)
	}
	return nil
}

func (u *upload) Size() int64 { return u.size }

// Write appends p to the buffer. When the buffer is full and more comes, it is stored in
// the background. An error may be about an earlier chunk. Its bytes are still in RAM, and
// the next Write, Suspend or Commit sends them again.
func (u *upload) Write(p []byte) (int, error) {
	if u.lost != nil {
		return 0, u.lost
	}
	if len(p) == 0 {
		return 0, nil
	}
	err := u.reopen()
	n := 0
	if err == nil {
		n, err = u.fill(p)
	}
	if err != nil {
		return n, fmt.Errorf("write upload at %d: %w", u.size, err)
	}
	return n, nil
}

// fill appends p.
func (u *upload) fill(p []byte) (int, error) {
	written := 0
	for len(p) > 0 {
		free := u.s.limits.chunk - int64(len(u.buf))
		if free == 0 {
			if err := u.launch(); err != nil {
				return written, err
			}
			continue
		}
		n := min(free, int64(len(p)))
		u.room(n)
		u.buf = append(u.buf, p[:n]...)
		p = p[n:]
		u.size += n
		written += int(n)
	}
	return written, nil
}

// reopen moves the last segment back into the buffer if it is too small to stay in the
// middle.
func (u *upload) reopen() error {
	if len(u.buf) > 0 || u.flying != nil || len(u.segs) == 0 {
		return nil
	}
	last := u.segs[len(u.segs)-1]
	if last.Size >= u.s.small {
		return nil
	}
	u.size -= last.Size
	if err := u.load(u.ctx, last, last.Size); err != nil {
		u.size += last.Size - int64(len(u.buf))
		u.buf = u.buf[:0]
		return err
	}
	u.segs = u.segs[:len(u.segs)-1]
	u.stored -= last.Size
	u.garbage = append(u.garbage, last.Name)
	return nil
}

// minBuffer is the smallest buffer, in bytes.
const minBuffer = 64 << 10

// room makes room in the buffer for n more bytes, at most a chunk.
func (u *upload) room(n int64) {
	need, chunk := int64(len(u.buf))+n, u.s.limits.chunk
	if need <= int64(cap(u.buf)) {
		return
	}
	size := max(2*int64(cap(u.buf)), need, minBuffer)
	old := u.buf
	if size > chunk/2 || u.flying != nil { // an upload that has sent a chunk is likely to fill another
		u.buf = u.s.buffer()
	} else {
		u.buf = make([]byte, 0, size)
	}
	u.buf = append(u.buf, old...)
}

// buffer returns an empty buffer for a chunk.
func (s *Store) buffer() []byte {
	if b, ok := s.buffers.Get().(*[]byte); ok {
		return (*b)[:0]
	}
	return make([]byte, 0, s.limits.chunk)
}

// giveBack keeps a buffer for reuse.
func (s *Store) giveBack(b []byte) {
	if int64(cap(b)) == s.limits.chunk {
		s.buffers.Put(&b)
	}
}

// flight is a segment being sent.
type flight struct {
	seg  segment
	data []byte
	done chan struct{} // closed at the end of the first try
	err  error
}

// launch begins to store the buffer, once the segment being sent has arrived.
func (u *upload) launch() error {
	if err := u.settle(u.ctx); err != nil {
		return err
	}
	if most := u.s.limits.maxSegments * u.s.limits.maxSegments; len(u.segs) >= most {
		return fmt.Errorf("the upload has more than %d segments: %w", most, objstore.ErrNoSpace)
	}
	f := &flight{seg: newSegment(u.stored), data: u.buf, done: make(chan struct{})}
	u.buf, u.flying = nil, f
	go func() {
		defer close(f.done)
		f.err = u.s.send(u.ctx, u.id, f)
	}()
	return nil
}

// send stores a segment. It gives the buffer back unless somebody may still read it.
func (s *Store) send(ctx context.Context, id string, f *flight) error {
	f.seg.Size, f.seg.Etag = int64(len(f.data)), etagOf(f.data)
	reusable := false
	err := again(ctx, func() (err error) {
		reusable, err = s.put(ctx, uploadDir(id)+f.seg.Name, f.data, f.seg.Etag, nil)
		return err
	})
	if err == nil && reusable {
		s.giveBack(f.data)
	}
	return err
}

// settle waits for the segment being sent, and sends it again if it did not arrive.
func (u *upload) settle(ctx context.Context) error {
	f := u.flying
	if f == nil {
		return nil
	}
	select {
	case <-f.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	if f.err != nil {
		if f.err = u.s.send(ctx, u.id, f); f.err != nil {
			return f.err
		}
	}
	u.flying = nil
	u.segs = append(u.segs, f.seg)
	u.stored += f.seg.Size
	return nil
}

// flush stores everything.
func (u *upload) flush(ctx context.Context) error {
	if err := u.settle(ctx); err != nil || len(u.buf) == 0 {
		return err
	}
	if err := u.launch(); err != nil {
		return err
	}
	return u.settle(ctx)
}

// Suspend stores what is in RAM and the list of segments. See [objstore.Upload]. It does
// not end with ctx, because a cancelled request is a reason to suspend. If it fails, an
// upload that was suspended before can be resumed from where it was then.
func (u *upload) Suspend(ctx context.Context) (string, error) {
	if u.lost != nil {
		return "", u.lost
	}
	ctx = context.WithoutCancel(ctx)
	if err := u.suspend(ctx); err != nil {
		err = fmt.Errorf("suspend upload: %w", err)
		if u.kept {
			u.end()
			return "", err
		}
		return "", errors.Join(err, u.drop(ctx))
	}
	u.end()
	// The state no longer names them. SweepUploads would find them.
	_ = u.s.removeAll(ctx, u.id, u.garbage)
	return u.id, nil
}

func (u *upload) suspend(ctx context.Context) error {
	if err := u.flush(ctx); err != nil {
		return err
	}
	data, err := encodeState(u.segs)
	if err != nil {
		return err
	}
	return again(ctx, func() error {
		_, err := u.s.put(ctx, uploadDir(u.id)+stateName, data, etagOf(data), nil)
		return err
	})
}

// end releases what the upload has in this process.
func (u *upload) end() {
	u.lost = errUploadDone
	u.cancel()
	if u.flying != nil {
		<-u.flying.done
	}
	u.buf, u.flying = nil, nil
}

// Commit turns the upload into the object with the given key. See [objstore.Upload]. If
// the store did not answer, it is not known whether the object is there. Then Commit
// leaves what the upload has stored to SweepUploads.
func (u *upload) Commit(ctx context.Context, key string) error {
	if u.lost != nil {
		return u.lost
	}
	err := u.s.beginKey(ctx, key)
	if err == nil {
		err = u.settle(ctx)
	}
	if err == nil {
		switch {
		case len(u.segs) == 0:
			err = u.commitSmall(ctx, key)
		case len(u.segs) == 1 && len(u.buf) == 0:
			err = u.commitCopy(ctx, key)
		default:
			return u.commitLarge(ctx, key)
		}
	}
	if err != nil {
		return errors.Join(fmt.Errorf("commit object %s: %w", key, err), u.drop(ctx))
	}
	if u.kept || len(u.segs) > 0 {
		// The object does not need them. SweepUploads would find them.
		_ = u.drop(ctx)
	}
	u.end()
	return nil
}

// commitSmall writes an upload that is all in the buffer.
func (u *upload) commitSmall(ctx context.Context, key string) error {
	etag := etagOf(u.buf)
	reusable := false
	err := again(ctx, func() (err error) {
		reusable, err = u.s.put(ctx, key, u.buf, etag, nil)
		return err
	})
	u.tag = etag
	if reusable {
		u.s.giveBack(u.buf)
		u.buf = nil
	}
	return err
}

// commitCopy copies the only segment, because a plain object is cheaper to read from then
// on.
func (u *upload) commitCopy(ctx context.Context, key string) error {
	seg := u.segs[0]
	return again(ctx, func() error {
		u.tag = seg.Etag
		return u.s.copyObject(ctx, uploadDir(u.id)+seg.Name, key, head{info: objstore.Info{Tag: seg.Etag}})
	})
}

// commitLarge writes a manifest of the segments. The upload is done in any case.
func (u *upload) commitLarge(ctx context.Context, key string) error {
	old, err := u.prepare(ctx, key)
	if err != nil {
		return errors.Join(fmt.Errorf("commit object %s: %w", key, err), u.drop(ctx))
	}
	segs, err := u.group(ctx)
	if err != nil {
		return errors.Join(fmt.Errorf("commit object %s: %w", key, err), u.drop(ctx))
	}
	err = again(ctx, func() (err error) {
		u.tag, err = u.s.putManifest(ctx, key, u.id, segs)
		return err
	})
	clean, cancel := cleanContext(ctx)
	defer cancel()
	if err != nil {
		err = fmt.Errorf("commit object %s: %w", key, err)
		if !undecided(ctx, err) {
			return errors.Join(err, u.drop(ctx))
		}
		if u.kept {
			_ = u.s.remove(clean, uploadDir(u.id)+stateName) // the upload is gone
		}
		u.end()
		return err
	}
	u.end()
	// From here on the object exists. SweepUploads would find any segments that are left.
	if u.kept {
		_ = u.s.remove(clean, uploadDir(u.id)+stateName)
	}
	_ = u.s.removeAll(clean, u.id, u.garbage)
	if old != "" && old != u.id {
		_ = u.s.release(clean, old)
	}
	return nil
}

// prepare stores the last bytes, and records that there may be a manifest under key. It returns
// the upload that the segments of the present object under key belong to.
func (u *upload) prepare(ctx context.Context, key string) (old string, err error) {
	if err := u.flush(ctx); err != nil {
		return "", err
	}
	u.marked = true
	if err := again(ctx, func() error { return u.s.markKey(ctx, u.id, key) }); err != nil {
		return "", err
	}
	h, err := u.s.head(ctx, key, true)
	if err != nil && statusOf(err) != http.StatusNotFound {
		// The old segments are left to SweepUploads.
		return "", ctx.Err()
	}
	return h.ref, nil
}

// group returns what the manifest will name: the segments, or, if they are too many,
// manifests of them, which it writes.
func (u *upload) group(ctx context.Context) ([]segment, error) {
	most := u.s.limits.maxSegments
	if len(u.segs) <= most {
		return u.segs, nil
	}
	var groups []segment
	for i := 0; i < len(u.segs); i += most {
		part := u.segs[i:min(i+most, len(u.segs))]
		g := segment{Name: fmt.Sprintf("m%06d-%s", len(groups), rand.Text())}
		for _, seg := range part {
			g.Size += seg.Size
		}
		u.garbage = append(u.garbage, g.Name) // in case the upload is dropped
		err := again(ctx, func() error {
			_, err := u.s.putManifest(ctx, uploadDir(u.id)+g.Name, u.id, part)
			return err
		})
		if err != nil {
			return nil, err
		}
		groups = append(groups, g)
	}
	u.garbage = u.garbage[:len(u.garbage)-len(groups)]
	return groups, nil
}

// undecided reports whether a request that ended with err may have had its effect, or may
// still have it.
func undecided(ctx context.Context, err error) bool {
	return ctx.Err() != nil || objstore.IsBusy(err)
}

// cleanContext returns a context for tidying up, even if ctx is done.
func cleanContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
}

// Tag implements [objstore.Upload].
func (u *upload) Tag() string { return u.tag }

// Cancel drops the upload. See [objstore.Upload].
func (u *upload) Cancel(ctx context.Context) error {
	if u.lost != nil {
		return nil
	}
	if err := u.drop(ctx); err != nil {
		return fmt.Errorf("cancel upload: %w", err)
	}
	return nil
}

// drop removes what the upload has stored, unless an object needs it, and ends the
// upload.
func (u *upload) drop(ctx context.Context) error {
	ctx, cancel := cleanContext(ctx)
	defer cancel()
	names := u.garbage
	for _, seg := range u.segs {
		names = append(names, seg.Name)
	}
	if u.flying != nil {
		names = append(names, u.flying.seg.Name)
	}
	u.end()
	if u.kept || u.marked {
		return u.s.release(ctx, u.id, append(names, stateName)...)
	}
	return u.s.removeAll(ctx, u.id, names) // nobody else knows of it
}
