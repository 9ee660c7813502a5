package tier

import (
	"bytes"
	"context"
	"errors"
	"hash/crc32"
	"io"
	"math"
	"os"
	"time"

	"example.org/slipway/internal/policy"
	"example.org/slipway/registry/cache/tier/format"
	"example.org/slipway/registry/objstore"
)

// NewUpload begins an upload. See [objstore.Store].
func (s *Store) NewUpload(ctx context.Context, sizeHint int64) (objstore.Upload, error) {
	u, err := s.inner.NewUpload(ctx, sizeHint)
	if err != nil {
		return nil, err
	}
	return &upload{u, s, s.newTee()}, nil
}

// keyedUploader keeps what is uploaded under a key that is known in advance.
type keyedUploader struct {
	s     *Store
	inner objstore.KeyedUploader
}

func (k keyedUploader) NewUploadFor(ctx context.Context, key string, sizeHint int64) (objstore.Upload, error) {
	u, err := k.inner.NewUploadFor(ctx, key, sizeHint)
	if err != nil {
		return nil, err
	}
	return &upload{u, k.s, k.s.newTee()}, nil
}

// Resume continues a suspended upload. See [objstore.Store].
func (s *Store) Resume(ctx context.Context, state string, size int64) (objstore.Upload, error) {
	u, err := s.inner.Resume(ctx, state, size)
	if err != nil {
		return nil, err
	}
	t := s.tees.take(s, state)
	if t != nil && t.size != size {
		t.drop()
		t = nil
	}
	if t != nil {
		t.resumed = true
	}
	if t == nil && size == 0 {
		t = s.newTee()
	}
	return &upload{u, s, t}, nil
}

// Abandon drops a suspended upload. See [objstore.Store].
func (s *Store) Abandon(ctx context.Context, state string) error {
	s.tees.take(s, state).drop()
	return s.inner.Abandon(ctx, state)
}

// upload is an upload whose bytes may be kept when it becomes an object.
type upload struct {
	objstore.Upload
	s *Store
	t *tee // or nil
}

func (u *upload) Write(p []byte) (int, error) {
	before := u.Upload.Size()
	n, err := u.Upload.Write(p)
	u.t.write(p[:u.Upload.Size()-before])
	return n, err
}

func (u *upload) Suspend(ctx context.Context) (string, error) {
	state, err := u.Upload.Suspend(ctx)
	if err != nil {
		u.t.drop()
		return state, err
	}
	u.s.tees.put(u.s, state, u.t)
	u.t = nil
	return state, nil
}

func (u *upload) Commit(ctx context.Context, key string) error {
	c := u.s.change(key)
	err := u.Upload.Commit(ctx, key)
	t := u.t
	u.t = nil
	if err != nil || c.c == nil || !t.finish(c.k) || !t.right(key) {
		t.drop()
		t = nil
	}
	c.end(t)
	return err
}

func (u *upload) Cancel(ctx context.Context) error {
	u.t.drop()
	return u.Upload.Cancel(ctx)
}

// tee is a copy of the bytes of an upload. It is in RAM as long as the bytes may be there
// and there is room, and otherwise in a file. If there is no room for it, the tee is
// dropped, and the object is fetched when it is requested. The methods do nothing on nil.
type tee struct {
	s    *Store
	size int64
	crc  uint32
	mod  time.Time
	buf  []byte // its capacity counts as taken in RAM
	file *file  // used instead of buf; its size counts as taken on the SSD
	w    *os.File
	dead bool
	// resumed says that the upload was suspended in between.
	resumed bool
}

// teeStep is how much room on the SSD is taken at once, in bytes.
const teeStep = 16 << 20

// newTee returns nil if uploads are not kept.
func (s *Store) newTee() *tee {
	if !s.o.WriteThrough {
		return nil
	}
	return &tee{s: s}
}

// teeOf returns the tee of a small object whose bytes are all here. It returns nil if
// there is no room.
func (c changing) teeOf(data []byte) *tee {
	if c.c == nil || len(data) == 0 {
		return nil
	}
	t := c.s.newTee()
	t.write(data)
	if !t.finish(c.k) {
		t.drop()
		return nil
	}
	return t
}

func (t *tee) write(p []byte) {
	if t == nil || t.dead || len(p) == 0 {
		return
	}
	t.size += int64(len(p))
	t.crc = crc32.Update(t.crc, format.Castagnoli, p)
	if t.file == nil && t.grow() {
		t.buf = append(t.buf, p...)
		return
	}
	if err := t.spill(p); err != nil {
		t.drop()
	}
}

// grow makes room in RAM for size bytes, if they may be there.
func (t *tee) grow() bool {
	s := t.s
	if split := s.o.LargeObject; split > 0 && t.size >= split {
		return false
	}
	if int64(cap(t.buf)) >= t.size {
		return true
	}
	n := max(t.size, 2*int64(cap(t.buf)), 4096)
	s.mu.Lock()
	ok := s.ram.take(n) || s.tees.dropOldest(s) && s.ram.take(n)
	s.mu.Unlock()
	if ok {
		t.resize(n)
	}
	return ok
}

// resize moves the bytes to a buffer of n bytes. The caller has taken these bytes.
func (t *tee) resize(n int64) {
	old := t.buf
	t.buf = append(make([]byte, 0, n), old...)
	t.s.mu.Lock()
	t.s.ram.give(int64(cap(old)))
	t.s.mu.Unlock()
}

// spill writes the bytes in RAM, and p, to the file.
func (t *tee) spill(p []byte) error {
	s := t.s
	s.mu.Lock()
	err := t.admitted()
	if err == nil && t.file == nil {
		t.file, err = s.newFile(0)
	}
	if err == nil && t.size > t.file.size {
		if n := t.size - t.file.size + teeStep; s.ssd.take(n) || s.tees.dropOldest(s) && s.ssd.take(n) {
			t.file.size += n
		} else {
			err = errNoRoom
		}
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if t.w == nil {
		if t.w, err = os.OpenFile(t.file.path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err == nil {
			_, err = t.w.Write(t.buf)
		}
		s.mu.Lock()
		s.ram.give(int64(cap(t.buf)))
		t.buf = nil
		s.mu.Unlock()
	}
	if err == nil {
		_, err = t.w.Write(p)
	}
	if err != nil {
		s.disk.aside("write a file", err)
	}
	return err
}

// errNotAdmitted says that the SSD must be spared this write.
var errNotAdmitted = errors.New("not admitted to the SSD")

// admitted returns an error unless the policy would write this many bytes to the SSD for
// an object that was requested once. The policy decides when the upload becomes an
// object. But by then the bytes have been written, whether they are in the budget or not.
// mu is held.
func (t *tee) admitted() error {
	o, budget := &t.s.o, int64(math.MaxInt64)
	if o.SSDWritePerDay > 0 {
		budget = t.s.two.WriteBudget()
	}
	if t.size > budget || o.Admission == policy.SecondTouch || o.Admission == policy.Adaptive && budget < o.SSDWriteBurst/2 {
		return errNotAdmitted
	}
	return nil
}

// finish turns the bytes into what an entry can have. It reports whether there are any
// bytes.
func (t *tee) finish(k policy.Key) bool {
	if t == nil || t.dead || t.size == 0 {
		return false
	}
	s := t.s
	t.mod = time.Now().Truncate(time.Second)
	if t.file == nil {
		if n := t.size; int64(cap(t.buf)) > n+n/8 {
			s.mu.Lock()
			ok := s.ram.take(n)
			s.mu.Unlock()
			if ok {
				t.resize(n)
			}
		}
		return true
	}
	s.mu.Lock()
	s.ssd.give(t.file.size - t.size)
	t.file.size = t.size
	s.mu.Unlock()
	w := t.w
	t.w = nil
	if err := s.disk.finish(t.file, w, k, t.mod, t.crc); err != nil {
		s.disk.aside("write a file", err)
		return false
	}
	return true
}

// right reports whether the bytes from finish are the bytes of a key. It checks only if
// there is a doubt.
func (t *tee) right(key string) bool {
	o := &t.s.o
	if !o.CheckUploads || !t.resumed || o.Verify == nil {
		return true
	}
	sum, want := o.Verify(key)
	if sum == nil {
		return true
	}
	if t.file == nil {
		sum.Write(t.buf)
		return bytes.Equal(sum.Sum(nil), want)
	}
	h, err := os.Open(t.file.path)
	if err != nil {
		return false
	}
	defer h.Close()
	p := t.s.pieces.get()
	defer t.s.pieces.put(p)
	_, err = io.CopyBuffer(sum, io.NewSectionReader(h, 0, t.size), p[:])
	return err == nil && bytes.Equal(sum.Sum(nil), want)
}

// admitTee adds an upload to the cache as if it had been requested. mu is held.
func (s *Store) admitTee(k policy.Key, t *tee) {
	if s.objs[k] != nil || s.fills[k] != nil {
		return
	}
	s.request(k, nil)
	cost := 1.0
	if s.o.Cost != nil {
		cost = s.o.Cost(t.size, 0)
	}
	s.two.Add(k, t.size, cost)
	e := s.objs[k]
	if e == nil {
		return
	}
	if t.file != nil {
		s.counts.ssdWritten += t.size
		e.file, t.file = t.file, nil
	} else {
		e.slab = &slab{s: s, data: t.buf, mod: t.mod, crc: t.crc}
		e.slab.refs.Store(1)
		t.buf = nil
	}
	s.settle(e)
}

// drop gives back what the tee still has.
func (t *tee) drop() {
	if t == nil || t.dead {
		return
	}
	t.s.mu.Lock()
	t.dropLocked()
	t.s.mu.Unlock()
	t.s.reap()
}

// dropLocked is like drop, for a caller that holds Store.mu. The file is unlinked by the next
// reap.
func (t *tee) dropLocked() {
	t.dead = true
	t.s.ram.give(int64(cap(t.buf)))
	t.buf = nil
	if t.w != nil {
		_ = t.w.Close() // the file is removed
		t.w = nil
	}
	if t.file != nil {
		t.s.discard(t.file)
		t.file = nil
	}
}

// tees are the tees of suspended uploads, by state. Store.mu guards them.
type tees struct {
	of    map[string]*tee
	order []string // oldest first; some are gone
}

// maxTees bounds the number of tees.
const maxTees = 1024

func (ts *tees) put(s *Store, state string, t *tee) {
	if t == nil || t.dead {
		return
	}
	s.mu.Lock()
	if ts.of == nil {
		ts.of = map[string]*tee{}
	}
	if old := ts.of[state]; old != nil {
		old.dropLocked()
	}
	for len(ts.order) > 0 && ts.of[ts.order[0]] == nil { // else the list grows until one in use is dropped
		ts.order = ts.order[1:]
	}
	ts.of[state] = t
	ts.order = append(ts.order, state)
	for len(ts.of) > maxTees || len(ts.order) > 2*maxTees {
		ts.dropOldest(s)
	}
	s.mu.Unlock()
	s.reap()
}

// take returns the tee of a state, or nil.
func (ts *tees) take(s *Store, state string) *tee {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := ts.of[state]
	delete(ts.of, state)
	return t
}

// dropOldest drops the oldest tee, and reports whether there was one. mu is held.
func (ts *tees) dropOldest(s *Store) bool {
	for len(ts.order) > 0 {
		state := ts.order[0]
		ts.order = ts.order[1:]
		if t := ts.of[state]; t != nil {
			delete(ts.of, state)
			t.dropLocked()
			return true
		}
	}
	return false
}

// dropTees drops all tees.
func (s *Store) dropTees() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.tees.dropOldest(s) {
	}
}

var _ objstore.Upload = (*upload)(nil)
