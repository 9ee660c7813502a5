//go:build ceph

package rbd

import (
	"crypto/rand"
	"fmt"
	"math"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/volume/block"
)

// lockName is the name of the lock on each lease object.
const lockName = "slipway"

// readers and writer are the lease objects of a volume. They are made and removed
// with it: a full cluster takes locks, but no new objects, and must still let volumes
// be read and removed.
func readers(id string) string { return "readers." + id }
func writer(id string) string  { return "writer." + id }

// lease is a lock of RADOS that expires and is renewed again and again.
type lease struct {
	s           *Store
	oid, cookie string
	exclusive   bool
	// inherited: the previous holder was a process of this machine that has died.
	inherited  bool
	stop, done chan struct{}

	op sync.Mutex // held while the cluster is asked

	mu    sync.Mutex
	until time.Duration // since boot
}

// sinceBoot returns the time since boot. It includes the time that the machine sleeps, as
// the clocks of the OSDs do. Without a clock, every lease has lapsed.
func sinceBoot() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return math.MaxInt64
	}
	return time.Duration(t.Nano())
}

// acquire takes a lease. It returns ErrInUse if another holds it and either of the two is
// exclusive.
func (s *Store) acquire(oid string, exclusive bool) (*lease, error) {
	l := &lease{s: s, oid: oid, exclusive: exclusive, cookie: s.self.cookie(rand.Text()),
		stop: make(chan struct{}), done: make(chan struct{})}
	until, err := l.lock(0)
	if errno(err) == eBusy {
		alive, broken, e := s.holders(oid)
		if e != nil {
			return nil, e
		}
		if alive {
			return nil, block.ErrInUse
		}
		l.inherited = broken // otherwise it was given up meanwhile, or has lapsed
		if until, err = l.lock(0); errno(err) == eBusy {
			return nil, block.ErrInUse // somebody else was faster
		}
	}
	if err != nil {
		return nil, translate(err)
	}
	l.set(until)
	go l.keep()
	return l, nil
}

// radosError is the errno that go-ceph's locks return besides an error.
type radosError int

func (e radosError) Error() string  { return syscall.Errno(-e).Error() }
func (e radosError) ErrorCode() int { return int(e) }

// These are flags of a lock. They say that the lock may be held already, or must be.
const (
	mayRenew  = 1
	mustRenew = 2
)

// lock takes or extends the lock, and returns until when it is ours.
func (l *lease) lock(flags byte) (until time.Duration, err error) {
	l.op.Lock()
	defer l.op.Unlock()
	until = sinceBoot() + l.s.o.LeaseTime
	var n int
	if l.exclusive {
		n, err = l.s.leases.LockExclusive(l.oid, lockName, l.cookie, "", l.s.o.LeaseTime, &flags)
	} else {
		n, err = l.s.leases.LockShared(l.oid, lockName, l.cookie, "", "", l.s.o.LeaseTime, &flags)
	}
	if err == nil && n != 0 {
		err = radosError(n)
	}
	return until, err
}

func (l *lease) set(until time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until = until
}

// revive renews a lapsed lease. Then it calls unchanged, and keeps the lease only if nobody
// touched the volume meanwhile.
func (l *lease) revive(unchanged func() error) error {
	until, err := l.lock(mayRenew)
	if err != nil {
		return translate(err)
	}
	if err := unchanged(); err != nil {
		return err
	}
	l.set(until)
	return nil
}

// valid reports whether the lease has not lapsed.
func (l *lease) valid() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return sinceBoot() < l.until
}

func (l *lease) keep() {
	defer close(l.done)
	t := time.NewTicker(l.s.o.LeaseTime / 4)
	defer t.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-t.C:
		}
		if l.s.begin() != nil {
			return
		}
		l.renew()
		l.s.calls.Done()
	}
}

// renew extends a lease that has not lapsed. A lapsed lease stays so until revive has
// checked what happened meanwhile.
func (l *lease) renew() {
	switch until, err := l.lock(mustRenew); {
	case err == nil && l.valid():
		l.set(until)
	case isMissing(err) || errno(err) == eBusy:
		l.set(0)
	}
}

// release ends the lease. If the cluster does not answer, it lapses on its own.
func (l *lease) release() {
	close(l.stop)
	<-l.done
	_, _ = l.s.leases.Unlock(l.oid, lockName, l.cookie)
}

// drop ends a writer's lease on a volume that does not exist, and removes its objects.
func (l *lease) drop(id string) error {
	close(l.stop)
	<-l.done
	if !l.valid() {
		return nil // the objects may be another's
	}
	for _, oid := range []string{readers(id), writer(id)} {
		if err := l.s.leases.Delete(oid); err != nil && !isMissing(err) {
			return translate(err)
		}
	}
	return nil
}

// holders reports whether anybody holds a lease. It breaks leases of processes of this
// machine that have died, and broken reports whether there were any.
func (s *Store) holders(oid string) (alive, broken bool, err error) {
	info, err := s.leases.ListLockers(oid, lockName)
	switch {
	case isMissing(err):
		return false, false, nil
	case errno(err) == syscall.ERANGE:
		return true, false, nil // too many to list
	case err != nil:
		return false, false, fmt.Errorf("look for leases: %w", translate(err))
	}
	for i := range min(info.NumLockers, len(info.Cookies), len(info.Clients)) {
		if !s.self.dead(info.Cookies[i]) {
			alive = true
			continue
		}
		if _, err := s.leases.BreakLock(oid, lockName, info.Clients[i], info.Cookies[i]); err != nil && !isMissing(err) {
			return false, false, fmt.Errorf("end the lease of a dead process: %w", translate(err))
		}
		broken = true
	}
	return alive, broken, nil
}
