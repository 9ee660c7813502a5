package file

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/volume/block"
)

// A lease says that a volume is open: for reading (r-*) or writing (w-*). It is an empty
// file whose name says who holds it. The holder has a flock on it and renews its
// modification time. Leases are created under the lock, ended without it, and examined
// under it.

type lease struct {
	s    *Store
	path string
	f    *os.File // flocked

	renewed atomic.Int64 // when it was last, Unix nanoseconds of Options.Clock
	gone    atomic.Bool  // somebody took it for dead
	stop    chan struct{}
	done    chan struct{} // closed when keep has ended
	once    sync.Once
	err     error // the error of the removal
}

const (
	reading = "r-"
	writing = "w-"
)

// lease creates a lease of a volume. The lock is held.
func (s *Store) lease(id, kind string) (*lease, error) {
	name := fmt.Sprintf("%s%s.%v", kind, token(), s.self())
	l := &lease{s: s, path: s.volume(id, "leases", name), stop: make(chan struct{}), done: make(chan struct{})}
	var err error
	if l.f, err = os.OpenFile(l.path, os.O_RDONLY|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
		return nil, err
	}
	err = unix.Flock(int(l.f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if s.unlocked.Load() {
		err = nil
	}
	now := s.o.Clock()
	if err == nil {
		err = os.Chtimes(l.path, now, now)
	}
	if err != nil {
		return nil, errors.Join(err, l.f.Close(), os.Remove(l.path))
	}
	l.renewed.Store(now.UnixNano())
	go l.keep()
	return l, nil
}

// holderOf reads the holder of a lease from its name.
func holderOf(name string) holder {
	_, text, _ := strings.Cut(name, ".")
	return parseHolder(text)
}

// keep renews the lease until it ends.
func (l *lease) keep() {
	defer close(l.done)
	t := time.NewTicker(max(l.s.o.LeaseTime/3, time.Millisecond))
	defer t.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-t.C:
		}
		now := l.s.o.Clock()
		switch err := os.Chtimes(l.path, now, now); {
		case err == nil:
			l.renewed.Store(now.UnixNano())
		case errors.Is(err, fs.ErrNotExist):
			l.gone.Store(true)
			return
		}
	}
}

// valid returns an error if others may consider the holder dead.
func (l *lease) valid() error {
	if l.gone.Load() || l.s.o.Clock().Sub(time.Unix(0, l.renewed.Load())) > l.s.o.LeaseTime {
		return fmt.Errorf("%w: the lease on it ran out", block.ErrAway)
	}
	return nil
}

// end releases the volume. It may hang.
func (l *lease) end() error {
	l.once.Do(func() {
		close(l.stop)
		<-l.done // it might make the file's time young again
		l.err = errors.Join(ignore(os.Remove(l.path), fs.ErrNotExist), l.f.Close())
	})
	return l.err
}

// users counts who has the volume in dir open, and removes leases of dead holders. The
// lock is held.
func (s *Store) users(dir string) (readers, writers int, err error) {
	names, err := os.ReadDir(filepath.Join(dir, "leases"))
	if err != nil {
		return 0, 0, err
	}
	for _, e := range names {
		alive, err := s.alive(filepath.Join(dir, "leases", e.Name()))
		switch {
		case err != nil:
			return 0, 0, err
		case alive && strings.HasPrefix(e.Name(), writing):
			writers++
		case alive:
			readers++
		}
	}
	return readers, writers, nil
}

// alive reports whether the holder of a lease is alive. If not, it removes the lease.
func (s *Store) alive(path string) (bool, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()     // only read from; it ends the flock
	st, err := f.Stat() // of the open file, because NFS may return old attributes for the path
	if err != nil {
		return false, err
	}
	h := holderOf(filepath.Base(path))
	if h.flocked && h.boot == s.boot && !s.unlocked.Load() {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
	} else if !s.late(h, st.ModTime()) {
		return true, nil
	}
	return false, ignore(os.Remove(path), fs.ErrNotExist)
}
