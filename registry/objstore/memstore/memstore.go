// Package memstore keeps objects in RAM, for tests and for registries whose
// content may be lost with the process ("storage: inmemory").
//
// It keeps every promise of [objstore.Store] within the life of the process.
// Uploads can be resumed only in the [Store] that began them.
package memstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"example.org/slipway/registry/objstore"
)

// Options are the options of a Store. The zero value works.
type Options struct {
	// MaxBytes bounds the sum of all objects and uploads, in bytes; a write
	// beyond it is ErrNoSpace. Default 0: no bound but the machine's memory.
	MaxBytes int64
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// Store is an [objstore.Store] and [objstore.UploadSweeper] in RAM.
type Store struct {
	max int64
	now func() time.Time

	mu      sync.RWMutex
	objects map[string]entry
	uploads map[string]*entry // suspended ones, by state
	used    int64             // bytes of all objects and uploads
	lastID  uint64
	closed  bool
}

// entry is an object or a suspended upload. The bytes of an object never
// change.
type entry struct {
	data []byte
	mod  time.Time
	tag  string // of an object
}

var (
	_ objstore.Store         = (*Store)(nil)
	_ objstore.UploadSweeper = (*Store)(nil)
)

// New makes an empty store. opts may be nil.
func New(opts *Options) *Store {
	s := &Store{now: time.Now, objects: make(map[string]entry), uploads: make(map[string]*entry)}
	if opts != nil {
		s.max = opts.MaxBytes
		if opts.Now != nil {
			s.now = opts.Now
		}
	}
	return s
}

// begin checks what every method checks. s.mu is held.
func (s *Store) begin(ctx context.Context) error {
	if s.closed {
		return fmt.Errorf("object store in memory: %w", fs.ErrClosed)
	}
	return ctx.Err()
}

// find returns the object of key. s.mu is held.
func (s *Store) find(ctx context.Context, key string) (entry, objstore.Info, error) {
	if err := errors.Join(objstore.CheckKey(key), s.begin(ctx)); err != nil {
		return entry{}, objstore.Info{}, err
	}
	e, ok := s.objects[key]
	if !ok {
		return e, objstore.Info{}, fmt.Errorf("object %s: %w", key, objstore.ErrNotExist)
	}
	return e, objstore.Info{Key: key, Size: int64(len(e.data)), ModTime: e.mod, Tag: e.tag}, nil
}

// Get opens n bytes of an object from the offset off. See [objstore.Store].
func (s *Store) Get(ctx context.Context, key string, off, n int64) (objstore.Object, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	e, info, err := s.find(ctx, key)
	if err != nil {
		return nil, err
	}
	if off < 0 {
		return nil, fmt.Errorf("read object %s: offset %d is negative", key, off)
	}
	data := e.data[min(off, info.Size):]
	if n >= 0 && n < int64(len(data)) {
		data = data[:n]
	}
	o := &object{info: info}
	o.data.Reset(data)
	return o, nil
}

// Stat describes an object. See [objstore.Store].
func (s *Store) Stat(ctx context.Context, key string) (objstore.Info, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	_, info, err := s.find(ctx, key)
	return info, err
}

// Put writes a small object whole. See [objstore.Store].
func (s *Store) Put(ctx context.Context, key string, data []byte, ifAbsent bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, _, err := s.find(ctx, key)
	switch {
	case err == nil && ifAbsent:
		return fmt.Errorf("object %s: %w", key, objstore.ErrExist)
	case err != nil && !errors.Is(err, objstore.ErrNotExist):
		return err
	}
	more := int64(len(data) - len(old.data))
	if more > s.room() {
		return fmt.Errorf("put object %s: %w", key, objstore.ErrNoSpace)
	}
	s.used += more
	s.keep(key, bytes.Clone(data))
	return nil
}

// keep makes data an object and returns its tag. s.mu is held.
func (s *Store) keep(key string, data []byte) (tag string) {
	s.lastID++
	tag = "w" + strconv.FormatUint(s.lastID, 10)
	s.objects[key] = entry{data, s.now(), tag}
	return tag
}

// room returns the number of bytes that can still be stored. s.mu is held.
func (s *Store) room() int64 {
	if s.max <= 0 {
		return math.MaxInt64
	}
	return s.max - s.used
}

// Delete removes an object. See [objstore.Store].
func (s *Store) Delete(ctx context.Context, key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, _, err := s.find(ctx, key)
	if errors.Is(err, objstore.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	s.used -= int64(len(e.data))
	delete(s.objects, key)
	return nil
}

// List walks the objects as they are when it begins. See [objstore.Store].
func (s *Store) List(ctx context.Context, prefix, after string) iter.Seq2[objstore.Info, error] {
	return func(yield func(objstore.Info, error) bool) {
		keys, err := s.keys(ctx, prefix, after)
		if err != nil {
			yield(objstore.Info{}, err)
			return
		}
		for _, key := range keys {
			info, err := s.Stat(ctx, key)
			if errors.Is(err, objstore.ErrNotExist) {
				continue // deleted during the walk
			}
			if !yield(info, err) || err != nil {
				return
			}
		}
	}
}

// keys returns the keys that List walks, sorted.
func (s *Store) keys(ctx context.Context, prefix, after string) ([]string, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	var keys []string
	for k := range s.objects {
		if k > after && strings.HasPrefix(k, prefix) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys, nil
}

// NewUpload begins an upload. See [objstore.Store].
func (s *Store) NewUpload(ctx context.Context, sizeHint int64) (objstore.Upload, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	if sizeHint > s.room() {
		return nil, fmt.Errorf("begin upload of %d bytes: %w", sizeHint, objstore.ErrNoSpace)
	}
	return &upload{s: s}, nil
}

// Resume continues a suspended upload. See [objstore.Store].
func (s *Store) Resume(ctx context.Context, state string, size int64) (objstore.Upload, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	e := s.uploads[state]
	if e == nil || int64(len(e.data)) < size {
		return nil, fmt.Errorf("upload %q with %d bytes: %w", state, size, objstore.ErrNotExist)
	}
	if size < 0 {
		return nil, fmt.Errorf("resume upload %q: size %d is negative", state, size)
	}
	delete(s.uploads, state)
	s.used -= int64(len(e.data)) - size
	return &upload{s: s, state: state, data: e.data[:size]}, nil
}

// Abandon drops a suspended upload. See [objstore.Store].
func (s *Store) Abandon(ctx context.Context, state string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.begin(ctx); err != nil {
		return err
	}
	s.forget(state)
	return nil
}

// forget drops a suspended upload, if it is there, and returns how many bytes it held.
// s.mu is held.
func (s *Store) forget(state string) int64 {
	e := s.uploads[state]
	if e == nil {
		return 0
	}
	delete(s.uploads, state)
	s.used -= int64(len(e.data))
	return int64(len(e.data))
}

// SweepUploads drops suspended uploads. See [objstore.UploadSweeper].
func (s *Store) SweepUploads(ctx context.Context, before time.Time, keep func(state string) bool) (n int, bytes int64, err error) {
	s.mu.RLock()
	states := slices.Collect(maps.Keys(s.uploads))
	s.mu.RUnlock()
	for _, state := range states {
		if keep(state) { // called without the lock: it may use the store
			continue
		}
		s.mu.Lock()
		if err := s.begin(ctx); err != nil {
			s.mu.Unlock()
			return n, bytes, err
		}
		if e := s.uploads[state]; e != nil && e.mod.Before(before) {
			bytes += s.forget(state)
			n++
		}
		s.mu.Unlock()
	}
	return n, bytes, ctx.Err()
}

// Close drops everything. Objects that are open stay readable.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.objects, s.uploads, s.used = nil, nil, 0
	return nil
}

// object is an open range of an object.
type object struct {
	info   objstore.Info
	data   bytes.Reader
	closed bool
}

func (o *object) Info() objstore.Info { return o.info }

func (o *object) Close() error {
	o.closed = true
	return nil
}

func (o *object) Read(p []byte) (int, error) {
	if o.closed {
		return 0, fmt.Errorf("read object %s: %w", o.info.Key, fs.ErrClosed)
	}
	return o.data.Read(p)
}

// WriteTo sends all bytes in one Write.
func (o *object) WriteTo(w io.Writer) (int64, error) {
	if o.closed {
		return 0, fmt.Errorf("read object %s: %w", o.info.Key, fs.ErrClosed)
	}
	return o.data.WriteTo(w)
}

var errUploadDone = errors.New("upload was committed, suspended or cancelled")

// upload is an upload in use. Its bytes count as used by the store.
type upload struct {
	s     *Store
	state string // set by the first Suspend
	data  []byte
	done  bool
	tag   string // of the object
}

func (u *upload) Size() int64 { return int64(len(u.data)) }

// Write appends as much of p as there is room for.
func (u *upload) Write(p []byte) (int, error) {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	if u.done {
		return 0, errUploadDone
	}
	if err := u.s.begin(context.Background()); err != nil {
		return 0, err
	}
	n := int(min(int64(len(p)), u.s.room()))
	u.data = append(u.data, p[:n]...)
	u.s.used += int64(n)
	if n < len(p) {
		return n, fmt.Errorf("write upload at %d: %w", len(u.data), objstore.ErrNoSpace)
	}
	return n, nil
}

// Suspend keeps the bytes in the store. See [objstore.Upload].
func (u *upload) Suspend(context.Context) (string, error) {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	if u.done {
		return "", errUploadDone
	}
	if err := u.s.begin(context.Background()); err != nil {
		return "", err
	}
	u.done = true
	if u.state == "" {
		u.s.lastID++
		u.state = strconv.FormatUint(u.s.lastID, 10)
	}
	u.s.uploads[u.state] = &entry{data: u.data, mod: u.s.now()}
	return u.state, nil
}

// Commit turns the bytes into an object. See [objstore.Upload].
func (u *upload) Commit(ctx context.Context, key string) error {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	if u.done {
		return errUploadDone
	}
	old, _, err := u.s.find(ctx, key)
	if err != nil && !errors.Is(err, objstore.ErrNotExist) {
		u.drop()
		return err
	}
	u.done = true
	u.s.used -= int64(len(old.data))
	u.tag = u.s.keep(key, slices.Clip(u.data))
	return nil
}

// Tag implements [objstore.Upload].
func (u *upload) Tag() string { return u.tag }

// Cancel drops the bytes. See [objstore.Upload].
func (u *upload) Cancel(context.Context) error {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	if !u.done {
		u.drop()
	}
	return nil
}

// drop frees the bytes. s.mu is held.
func (u *upload) drop() {
	u.done = true
	u.s.used -= int64(len(u.data))
	u.data = nil
}
