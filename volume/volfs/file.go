package volfs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/block"
)

// file is a mapping and its volume. The volume is opened when it is first needed, and
// after it was given up, once for all requests that wait.
type file struct {
	node  uint64
	size  int64
	opens int // live handles; under Server.mu

	opener Opener
	bound  time.Duration
	base   context.Context // ends with the server
	log    *slog.Logger
	memory *semaphore.Weighted // buffers of requests

	readBytes, writtenBytes, errors, failed atomic.Int64

	mu        sync.Mutex
	mapping   block.Mapping
	cur       *volume // open, or nil
	last      *volume // the previous volume, which may not be closed yet
	flight    *flight // the opening of the next
	lastError string
	ailing    bool // storage failed, and nothing succeeded since
	denied    bool // the last failure was due to the credential
	gone      bool // shut: nothing is opened any more
}

// volume is an open volume and how many use it.
type volume struct {
	v       block.Volume
	users   int  // under file.mu
	retired bool // no more users come; closed by the last
	closed  chan struct{}
	err     error // of closing, once closed
}

// flight is one opening of a volume. All that need the volume wait for it.
type flight struct {
	done chan struct{} // closed when err is set, or the file has its volume
	err  error
	over bool
}

// fileMemory bounds the buffers for reads of one file, so that a hanging volume takes no
// more: 16 MiB, twice what the kernel reads ahead for a few readers.
const fileMemory = 16 << 20

func (s *Server) newFile(node uint64, size int64, m block.Mapping) *file {
	return &file{node: node, size: size, mapping: m, opener: s.open, bound: s.o.Bound, base: s.conn.Context(),
		log: s.log.With("volume", m.ID), memory: semaphore.NewWeighted(fileMemory)}
}

func (f *file) mapped() block.Mapping {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mapping
}

func (f *file) status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	st := Status{Mapping: f.mapping, Size: f.size, ReadBytes: f.readBytes.Load(), WrittenBytes: f.writtenBytes.Load(),
		Errors: f.errors.Load(), LastError: f.lastError, Failed: f.failed.Load(), Denied: f.denied}
	st.Mapping.Credential.Key = ""
	return st
}

// take makes v the file's volume.
func (f *file) take(v block.Volume) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cur = &volume{v: v, closed: make(chan struct{})}
}

// use returns the volume, and opens it if necessary. Each use ends with release.
func (f *file) use(ctx context.Context) (*volume, error) {
	for {
		f.mu.Lock()
		if v := f.cur; v != nil {
			v.users++
			f.mu.Unlock()
			return v, nil
		}
		if f.gone {
			f.mu.Unlock()
			return nil, errGone
		}
		if f.flight == nil {
			f.launch()
		}
		fl := f.flight
		f.mu.Unlock()
		select {
		case <-fl.done:
			if fl.err != nil {
				return nil, fl.err
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// launch begins to open the volume. The lock is held.
func (f *file) launch() {
	fl := &flight{done: make(chan struct{})}
	f.flight = fl
	m, prev := f.mapping, f.last
	ctx, cancel := context.WithTimeout(f.base, f.bound)
	// This lets waiting requests try again even if the opener ignores its context.
	stop := context.AfterFunc(ctx, func() { f.deliver(fl, nil, context.Cause(ctx)) })
	go func() {
		defer cancel()
		v, err := f.openAfter(ctx, m, prev)
		stop()
		f.deliver(fl, v, err)
	}()
}

// openAfter opens a volume. It opens a writable one only after the previous one is
// closed: a volume has one writer, and no earlier write may follow a later one.
func (f *file) openAfter(ctx context.Context, m block.Mapping, prev *volume) (block.Volume, error) {
	if m.Writable && prev != nil {
		select {
		case <-prev.closed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	v, err := f.opener(ctx, m)
	if err != nil {
		return nil, err
	}
	if n := v.Size(); n != f.size {
		return nil, errors.Join(fmt.Errorf("volume %s has %d bytes and had %d", m.ID, n, f.size), v.Close())
	}
	return v, nil
}

// deliver ends a flight. A volume that comes too late is closed.
func (f *file) deliver(fl *flight, v block.Volume, err error) {
	f.mu.Lock()
	if !fl.over {
		fl.over, fl.err = true, err
		f.flight = nil
		f.denied = errors.Is(err, block.ErrDenied)
		if err == nil {
			f.cur = &volume{v: v, closed: make(chan struct{})}
			v = nil
		}
		close(fl.done)
	}
	f.mu.Unlock()
	if v != nil {
		if err := v.Close(); err != nil {
			f.log.Warn("close a volume", "err", err)
		}
	}
}

var (
	errRenewed = errors.New("the volume is opened with another credential now")
	errGone    = errors.New("the volume is not mapped any more")
)

// abandon ends a flight that is no longer wanted. Waiting requests get err and then try
// again. What the flight opens is closed. The lock is held.
func (f *file) abandon(err error) {
	if fl := f.flight; fl != nil {
		fl.over, fl.err = true, err
		f.flight = nil
		close(fl.done)
	}
}

// release ends a use. The last use of a volume that was given up closes it.
func (f *file) release(v *volume) {
	f.mu.Lock()
	v.users--
	end := v.retired && v.users == 0
	f.mu.Unlock()
	if end {
		v.close()
	}
}

func (v *volume) close() {
	v.err = v.v.Close()
	close(v.closed)
}

// retire gives a volume up, so that the next use opens it anew. If nobody uses the
// volume, retire closes it; otherwise its last user closes it. It ignores a volume that
// was given up before.
func (f *file) retire(v *volume) {
	f.mu.Lock()
	if v == nil || v.retired {
		f.mu.Unlock()
		return
	}
	v.retired = true
	if f.cur == v {
		f.cur, f.last = nil, v
	}
	end := v.users == 0
	f.mu.Unlock()
	if end {
		v.close()
	}
}

// renew opens the volume with another mapping of it, or with the same one if it is not
// open. After an error the old mapping stays.
func (f *file) renew(ctx context.Context, m block.Mapping) error {
	if sameCredential(f.mapped().Credential, m.Credential) {
		v, err := f.use(ctx)
		if err == nil {
			f.release(v)
		}
		return err
	}
	if m.Writable {
		return f.renewWriter(ctx, m)
	}
	v, err := f.openAfter(ctx, m, nil)
	if err != nil {
		return err
	}
	f.mu.Lock()
	f.abandon(errRenewed)
	f.mapping, f.denied = m, false
	old := f.cur
	f.cur = &volume{v: v, closed: make(chan struct{})}
	if old != nil {
		old.retired, f.last = true, old
	}
	end := old != nil && old.users == 0
	f.mu.Unlock()
	if end {
		old.close()
	}
	return nil
}

func sameCredential(a, b volref.Credential) bool {
	same := a.Expires.Equal(b.Expires)
	a.Expires = b.Expires // whatever zone and clock they were written with
	return same && a == b
}

// renewWriter gives the volume up before it opens it again, because a volume has only one
// writer. Requests wait meanwhile.
func (f *file) renewWriter(ctx context.Context, m block.Mapping) error {
	f.mu.Lock()
	f.abandon(errRenewed)
	old := f.mapping
	f.mapping = m
	v := f.cur
	f.mu.Unlock()
	f.retire(v)
	v, err := f.use(ctx)
	if err != nil {
		f.mu.Lock()
		f.abandon(errRenewed) // ctx may have ended before it has opened the volume
		f.mapping = old
		f.mu.Unlock()
		return err
	}
	f.release(v)
	return nil
}

// shut closes the volume, or lets its last user close it. It is not opened again, even
// for requests that were waiting.
func (f *file) shut() error {
	f.mu.Lock()
	f.gone = true
	f.abandon(errGone)
	v := f.cur
	f.mu.Unlock()
	if v == nil {
		return nil
	}
	f.retire(v)
	select {
	case <-v.closed:
		return v.err
	default:
		return nil
	}
}

// finish flushes a writable volume, also on behalf of a predecessor that did not, and
// closes it. ctx bounds the wait, but not the closing that follows.
func (f *file) finish(ctx context.Context) error {
	done := make(chan error, 1)
	go func() {
		var err error
		if f.mapped().Writable {
			var v *volume
			if v, err = f.use(ctx); err == nil {
				err = v.v.Flush()
				f.release(v)
			}
		}
		done <- errors.Join(err, f.shut())
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// troubled counts an error of storage, and logs the first one after a success.
func (f *file) troubled(err error) {
	f.errors.Add(1)
	f.mu.Lock()
	first := !f.ailing
	f.ailing, f.lastError = true, err.Error()
	f.denied = errors.Is(err, block.ErrDenied)
	f.mu.Unlock()
	if first {
		f.log.Warn("storage of a volume fails; trying again", "err", err, "bound", f.bound)
	}
}

// well says that storage answered.
func (f *file) well() {
	f.mu.Lock()
	again := f.ailing
	f.ailing, f.denied = false, false
	f.mu.Unlock()
	if again {
		f.log.Info("storage of a volume answers again")
	}
}
