package s3store

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"

	"example.org/slipway/registry/objstore"
)

// dropTimeout bounds the deletion of what an upload leaves behind. The sweep finds what
// could not be deleted in that time.
const dropTimeout = 30 * time.Second

var errUploadDone = errors.New("upload was committed, suspended or cancelled")

// upload is an [objstore.Upload]. The requests that carry its parts run in goroutines
// that Suspend, Commit and Cancel wait for.
type upload struct {
	s      *Store
	writer string // in the names of what this Upload stores, and of nothing else
	key    string // where it will be, "" if that is not known
	first  int64  // size of parts before they grow
	lent   int64  // of the store's memory
	ctx    context.Context
	cancel context.CancelFunc

	size     int64
	tag      string  // the object's ETag, after Commit
	cur      *buffer // the part that fills up
	id       string  // staging id, "" while nothing is stored there
	uploadID string  // multipart upload of key, "" before its first part
	parts    []*part
	resumed  string   // state that was resumed, "" for a new upload
	state    string   // resumed, as long as nothing was written since
	ids      []string // staging ids to delete at the end
	held     []string // marked as open in the store
	lost     error    // why the upload cannot be used any more

	slots chan struct{} // one for each part on its way
	wg    sync.WaitGroup
	mu    sync.Mutex // guards buf, err and segment of parts on their way
}

// part is a part that is stored, or on its way.
type part struct {
	segment
	number int
	buf    *buffer // nil when it is stored
	err    error   // why it is not stored
}

var _ objstore.Upload = (*upload)(nil)

// newUpload makes an upload with its share of the memory.
func (s *Store) newUpload(ctx context.Context, key string, part int64, sizeHint int64) *upload {
	want := partSize(part, sizeHint)
	size, parallel, lent := s.memory.share(want)
	if size < want {
		size = partSize(size, sizeHint)
	}
	u := &upload{
		s: s, writer: rand.Text(), key: key, first: size, lent: lent,
		cur: &buffer{m: &s.memory}, slots: make(chan struct{}, parallel),
	}
	// An upload outlives the request that began it.
	u.ctx, u.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return u
}

// NewUpload begins an upload. See [objstore.Store]. ctx gives values only.
func (s *Store) NewUpload(ctx context.Context, sizeHint int64) (objstore.Upload, error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	return s.newUpload(ctx, "", s.partSize, sizeHint), nil
}

// NewUploadFor begins an upload of a key. See [objstore.KeyedUploader].
func (s *Store) NewUploadFor(ctx context.Context, key string, sizeHint int64) (objstore.Upload, error) {
	if err := s.beginKey(ctx, key); err != nil {
		return nil, err
	}
	return s.newUpload(ctx, key, s.partSize, sizeHint), nil
}

func (u *upload) Size() int64 { return u.size }

// Write appends p. It returns an error when a part could not be stored; the part is
// kept and tried again by the next call.
func (u *upload) Write(p []byte) (int, error) {
	if u.lost != nil {
		return 0, u.lost
	}
	n := 0
	for n < len(p) {
		limit := grown(u.first, len(u.parts))
		if u.cur.size >= limit {
			if err := u.flush(u.ctx); err != nil {
				return n, fmt.Errorf("write upload at %d: %w", u.size, err)
			}
			continue
		}
		m := min(len(p)-n, int(limit-u.cur.size))
		u.cur.add(p[n : n+m])
		n += m
		u.size += int64(m)
		u.state = ""
	}
	return n, nil
}

// flush sends the current part on its way, when there is room for it.
func (u *upload) flush(ctx context.Context) error {
	if err := u.mend(ctx); err != nil {
		return err
	}
	if err := checkParts(len(u.parts)); err != nil {
		return err
	}
	if u.key != "" && u.uploadID == "" {
		if err := u.beginMultipart(ctx, u.key); err != nil {
			return err
		}
	}
	if u.key == "" && u.id == "" {
		u.stage(rand.Text())
	}
	p := &part{number: len(u.parts) + 1, buf: u.cur, segment: segment{Size: u.cur.size}}
	if u.key == "" {
		p.Name = segmentName(p.number, u.writer)
	}
	u.parts, u.cur = append(u.parts, p), &buffer{m: &u.s.memory}
	u.slots <- struct{}{} // sends end by themselves: their tries are bounded
	u.wg.Go(func() {
		defer func() { <-u.slots }()
		u.send(u.ctx, p)
	})
	return nil
}

// stage begins to keep things in the directory of uploads.
func (u *upload) stage(id string) {
	u.id = id
	u.ids = append(u.ids, id)
	u.hold(id)
}

func (u *upload) hold(id string) {
	u.s.hold(id)
	u.held = append(u.held, id)
}

// send stores a part and gives its memory back.
func (u *upload) send(ctx context.Context, p *part) {
	err := u.s.repeat(ctx, func(ctx context.Context) error {
		if u.uploadID != "" {
			return u.putPart(ctx, p)
		}
		name := u.s.root + uploadDir + u.id + "/" + p.Name
		return u.s.call(ctx, "store part of upload", func(ctx context.Context) error {
			_, err := u.s.send(ctx, name, p.buf.reader(), p.buf.size, u.s.putOptions())
			return err
		})
	})
	u.mu.Lock()
	defer u.mu.Unlock()
	p.err = err
	if err == nil {
		p.buf.free()
		p.buf = nil
	}
}

// putPart sends a part of the multipart upload.
func (u *upload) putPart(ctx context.Context, p *part) error {
	return u.s.call(ctx, "send part of upload", func(ctx context.Context) error {
		body := p.buf.reader()
		sum, err := u.s.sum(body)
		if err != nil {
			return err
		}
		o, err := u.s.core.PutObjectPart(ctx, u.s.bucket, u.s.root+u.key, u.uploadID, p.number, body, p.buf.size,
			minio.PutObjectPartOptions{Sha256Hex: sum, DisableContentSha256: true})
		if err == nil {
			err = u.s.proof(o.ETag)
		}
		if err == nil {
			u.mu.Lock()
			defer u.mu.Unlock()
			p.ETag = o.ETag
		}
		return err
	})
}

// mend stores parts that could not be stored before. It waits for the parts that are on
// their way only if one of them has failed.
func (u *upload) mend(ctx context.Context) error {
	failed := u.failed()
	if len(failed) == 0 {
		return nil
	}
	u.wg.Wait()
	for _, p := range u.failed() {
		u.send(ctx, p)
		if p.err != nil {
			return p.err
		}
	}
	return nil
}

func (u *upload) failed() (list []*part) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, p := range u.parts {
		if p.err != nil {
			list = append(list, p)
		}
	}
	return list
}

// settle waits until every part is stored. If ctx ends before that, the parts that are on
// their way are given up, which ends the upload.
func (u *upload) settle(ctx context.Context) error {
	stop := context.AfterFunc(ctx, u.cancel)
	u.wg.Wait()
	stop()
	if err := ctx.Err(); err != nil {
		return err
	}
	return u.mend(ctx)
}

// Suspend stores what is in RAM. See [objstore.Upload]. It works even if ctx is done, for
// example because the client has gone. If it fails, an upload that was resumed before can
// be resumed again from that position. Bytes that came after that are removed when the
// upload ends.
func (u *upload) Suspend(ctx context.Context) (string, error) {
	if u.lost != nil {
		return "", u.lost
	}
	if u.state != "" {
		state := u.state
		u.end()
		return state, nil
	}
	ctx, cancel := lasting(ctx)
	defer cancel()
	state, err := u.suspend(ctx)
	switch {
	case err == nil:
		u.end()
		return state, nil
	case u.resumed == "":
		return "", errors.Join(fmt.Errorf("suspend upload: %w", err), u.drop(ctx))
	}
	u.end()
	return "", fmt.Errorf("suspend upload: %w", err)
}

// lasting returns ctx or, if ctx is done, a new context with a time limit.
func lasting(ctx context.Context) (context.Context, context.CancelFunc) {
	if ctx.Err() == nil {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(context.WithoutCancel(ctx), dropTimeout)
}

func (u *upload) suspend(ctx context.Context) (string, error) {
	if u.key == "" && u.cur.size >= minPart {
		if err := u.flush(ctx); err != nil {
			return "", err
		}
	}
	if err := u.settle(ctx); err != nil {
		return "", err
	}
	switch {
	case u.uploadID != "" && u.id != keyedID(u.key, u.uploadID):
		u.stage(keyedID(u.key, u.uploadID))
	case u.id == "":
		u.stage(rand.Text())
	}
	rec := &record{Version: stateVersion, Part: u.first, Key: u.key, UploadID: u.uploadID, Before: u.resumed}
	for _, p := range u.parts {
		rec.Segments = append(rec.Segments, p.segment)
	}
	head, err := rec.encode()
	if err != nil {
		return "", err
	}
	state := stateID{id: u.id, writer: u.writer, tail: u.cur.size}
	body := &buffer{m: &u.s.memory}
	defer body.free()
	body.add(head)
	if err := body.fill(u.cur.reader(), u.cur.size); err != nil {
		return "", err
	}
	err = u.s.repeat(ctx, func(ctx context.Context) error {
		return u.s.call(ctx, "store state of upload", func(ctx context.Context) error {
			_, err := u.s.putObject(ctx, u.s.root+uploadDir+state.name(), body.reader(), body.size, u.s.putOptions())
			return err
		})
	})
	return state.String(), err
}

// Resume continues a suspended upload. See [objstore.Store]. If the key of the upload is
// known, the error is ErrNotExist also for a size inside a part that S3 has stored,
// because nobody can read or cut that part.
func (s *Store) Resume(ctx context.Context, state string, size int64) (objstore.Upload, error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	if size < 0 {
		return nil, fmt.Errorf("resume upload %q: size %d is negative", state, size)
	}
	id, ok := parseState(state)
	if !ok {
		return nil, fmt.Errorf("resume upload %q: %w", state, objstore.ErrNotExist)
	}
	u, err := s.resume(ctx, id, size)
	if err != nil {
		return nil, fmt.Errorf("resume upload %q: %w", state, err)
	}
	return u, nil
}

func (s *Store) resume(ctx context.Context, id stateID, size int64) (*upload, error) {
	s.hold(id.id) // a sweep must not take it meanwhile
	defer s.letGo(id.id)
	tail := &buffer{m: &s.memory}
	rec, err := s.readState(ctx, id, tail)
	if err == nil && rec.stored()+tail.size < size {
		err = objstore.ErrNotExist
	}
	if err != nil {
		tail.free()
		return nil, err
	}
	u := s.newUpload(ctx, rec.Key, rec.Part, -1)
	u.first = rec.Part // a lack of memory must not lead to too many parts
	u.cur, u.uploadID, u.id, u.resumed = tail, rec.UploadID, id.id, id.String()
	u.ids, u.size = []string{id.id}, size
	u.hold(id.id)
	if rec.UploadID != "" {
		u.hold(rec.UploadID)
	}
	if size == rec.stored()+tail.size {
		u.state = u.resumed
	}
	if err := u.take(ctx, rec.Segments, size); err != nil {
		u.end()
		return nil, err
	}
	if before, ok := parseState(rec.Before); ok {
		// This state was noted, so the state before it is not needed any more. If it cannot be
		// removed now, the sweep finds it.
		_ = s.remove(ctx, s.root+uploadDir+before.name())
		if before.id != id.id {
			u.ids = append(u.ids, before.id)
		}
	}
	return u, nil
}

// readState reads a state object; the bytes after its record go to tail.
func (s *Store) readState(ctx context.Context, id stateID, tail *buffer) (rec *record, err error) {
	o, err := s.get(ctx, uploadDir+id.name(), 0, -1)
	if err != nil {
		return nil, err
	}
	defer o.Close()
	r := bufio.NewReaderSize(o, 64<<10)
	if rec, err = decodeRecord(r); err == nil {
		err = tail.fill(r, id.tail)
	}
	return rec, cutOff(err)
}

// cutOff turns the early end of an answer into the error of a broken connection, which is
// the most likely cause. The upload is then unchanged.
func cutOff(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return &objstore.BusyError{Err: err}
	}
	return err
}

// take makes the upload hold the first size bytes of the stored parts and the tail.
func (u *upload) take(ctx context.Context, segments []segment, size int64) error {
	for i, seg := range segments {
		if size >= seg.Size {
			u.parts = append(u.parts, &part{segment: seg, number: i + 1})
			size -= seg.Size
			continue
		}
		u.cur.free()
		switch {
		case size == 0:
		case u.uploadID != "":
			return fmt.Errorf("%w: its size is inside a part", objstore.ErrNotExist)
		case size >= minPart: // a copy of its beginning is large enough for a part
			u.parts = append(u.parts, &part{segment: segment{Name: seg.Name, Size: size}, number: i + 1})
		default:
			return u.readBack(ctx, seg, size)
		}
		return nil
	}
	u.cur.cut(size)
	return nil
}

// readBack replaces the current part by the beginning of a stored part.
func (u *upload) readBack(ctx context.Context, seg segment, size int64) error {
	o, err := u.s.get(ctx, uploadDir+u.id+"/"+seg.Name, 0, size)
	if err != nil {
		return err
	}
	defer o.Close()
	return cutOff(u.cur.fill(o, size))
}

// Abandon drops a suspended upload. See [objstore.Store].
func (s *Store) Abandon(ctx context.Context, state string) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	id, ok := parseState(state)
	if !ok {
		return nil
	}
	tail := &buffer{m: &s.memory}
	defer tail.free()
	rec, err := s.readState(ctx, id, tail)
	if errors.Is(err, objstore.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("abandon upload %q: %w", state, err)
	}
	ids := []string{id.id}
	if before, ok := parseState(rec.Before); ok && before.id != id.id {
		ids = append(ids, before.id)
	}
	if err := s.removeUpload(ctx, ids...); err != nil {
		return fmt.Errorf("abandon upload %q: %w", state, err)
	}
	if rec.UploadID == "" {
		return nil
	}
	if err := s.abortMultipart(ctx, rec.Key, rec.UploadID); err != nil {
		return fmt.Errorf("abandon upload %q: %w", state, err)
	}
	return nil
}

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

// drop deletes everything of the upload and ends it.
func (u *upload) drop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropTimeout)
	defer cancel()
	u.cancel()
	u.wg.Wait()
	err := u.s.removeUpload(ctx, u.ids...)
	if u.uploadID != "" {
		err = errors.Join(err, u.abort(ctx))
	}
	u.end()
	return err
}

// abort ends a multipart upload. A part whose transfer was cut off may be stored after
// the abort, and the upload then exists again (see AbortMultipartUpload in the S3 API).
func (u *upload) abort(ctx context.Context) error {
	err := u.s.abortMultipart(ctx, u.key, u.uploadID)
	for range aborts {
		if err != nil || len(u.failed()) == 0 {
			break
		}
		select {
		case <-time.After(abortAgain):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		err = u.s.abortMultipart(ctx, u.key, u.uploadID)
	}
	return err
}

// aborts is how often an upload is aborted again if parts of it were cut off, and abortAgain is
// how long each further abort waits for these parts. The sweep takes what comes later.
const (
	aborts     = 2
	abortAgain = 100 * time.Millisecond
)

// end gives back what the upload holds in this process. No request is on its way.
func (u *upload) end() {
	u.lost = errUploadDone
	u.cancel()
	u.wg.Wait()
	u.cur.free()
	for _, p := range u.parts {
		if p.buf != nil {
			p.buf.free()
		}
	}
	u.parts = nil
	u.s.memory.giveBack(u.lent)
	for _, id := range u.held {
		u.s.letGo(id)
	}
	u.held = nil
}
