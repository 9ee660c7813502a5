package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/volume/block"
)

// Creating, opening, committing or removing a volume requires the lock of the directory,
// for milliseconds. The lock has two halves. Processes of one machine take turns by a
// flock on the file lock; the kernel releases it when they die. Machines, whose flocks
// may not exclude each other, take turns by the files of locks/: the file with the
// highest number is the lock, and says who holds it. A machine takes a lock that is free,
// or whose holder is dead, by creating the next number, which succeeds only once. A
// process that comes late and creates a number that existed before finds a higher one,
// and withdraws.

// holder says who holds the lock or a lease. It is stored in the target of a symbolic
// link or in the name of an empty file. These can be created even if the disk is full,
// and volumes must be opened and removed there, too. The modification time says when it
// was last renewed.
type holder struct {
	boot    string        // identity of the machine's running kernel
	pid     int           // for whoever looks at the directory
	flocked bool          // it has a flock that others of its machine can see, as long as it lives
	within  time.Duration // the time in which it must be renewed
	free    bool          // nobody holds it any more
}

// self returns this process as a holder.
func (s *Store) self() holder {
	return holder{s.boot, os.Getpid(), !s.unlocked.Load(), s.o.LeaseTime, false}
}

// String returns the stored form of a holder. It is shorter than the 60 bytes that an
// inode has for a link's target.
func (h holder) String() string {
	state := "time"
	switch {
	case h.free:
		state = "free"
	case h.flocked:
		state = "lock"
	}
	return fmt.Sprintf("%s.%d.%s.%d", h.boot, h.pid, state, h.within.Milliseconds())
}

// unknown is a holder of which nothing can be read.
var unknown = holder{within: time.Minute}

func parseHolder(text string) holder {
	parts := strings.Split(text, ".")
	if len(parts) != 4 {
		return unknown
	}
	pid, err := strconv.Atoi(parts[1])
	ms, err2 := strconv.ParseUint(parts[3], 10, 32) // 49 days
	if err != nil || err2 != nil || ms == 0 {
		return unknown
	}
	return holder{parts[0], pid, parts[2] == "lock", time.Duration(ms) * time.Millisecond, parts[2] == "free"}
}

// late reports whether a holder did not renew in time. Half of the time is added because
// clocks differ.
func (s *Store) late(h holder, renewed time.Time) bool {
	return s.o.Clock().Sub(renewed) > h.within+h.within/2
}

// held is the lock while this process holds it.
type held struct {
	s     *Store
	path  string
	since time.Time
}

// still returns an error if another machine may have taken the lock. It is called before
// each step that decides something.
func (h *held) still() error {
	if d := h.s.o.Clock().Sub(h.since); d > h.s.o.LeaseTime {
		return fmt.Errorf("%w: a step took %v", block.ErrAway, d)
	}
	return nil
}

// locked calls do with the lock held.
func (s *Store) locked(ctx context.Context, do func(*held) error) error {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.turn }()
	if err := s.flock(ctx); err != nil {
		return fmt.Errorf("take the lock: %w", err)
	}
	defer func() { _ = unix.Flock(int(s.lockFile.Fd()), unix.LOCK_UN) }()
	h, err := s.take(ctx)
	if err != nil {
		return fmt.Errorf("take the lock: %w", err)
	}
	return errors.Join(do(h), h.release())
}

// These are the pauses between two looks at a lock that somebody holds.
const (
	firstPause = time.Millisecond
	maxPause   = 50 * time.Millisecond
)

// rest waits, longer each time.
func rest(ctx context.Context, pause *time.Duration) error {
	t := time.NewTimer(*pause)
	defer t.Stop()
	*pause = min(*pause*3/2, maxPause)
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Store) flock(ctx context.Context) error {
	for pause := firstPause; ; {
		err := unix.Flock(int(s.lockFile.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case noFlock(err):
			s.unlocked.Store(true)
			return nil
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			return err
		}
		if err := rest(ctx, &pause); err != nil {
			return err
		}
	}
}

// noFlock reports whether an error comes from a file system without flock.
func noFlock(err error) bool {
	return errors.Is(err, unix.ENOLCK) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL)
}

// take creates the next number once the highest one is free.
func (s *Store) take(ctx context.Context) (*held, error) {
	for pause := firstPause; ; {
		n, _, err := s.highest(0)
		if err != nil {
			return nil, err
		}
		if free, err := s.free(n); err != nil {
			return nil, err
		} else if !free {
			if err := rest(ctx, &pause); err != nil {
				return nil, err
			}
			continue
		}
		h, err := s.number(n + 1)
		if h != nil || err != nil {
			return h, err
		}
	}
}

// number tries to create a number of the lock. It returns nil if somebody else has
// created it.
func (s *Store) number(n uint64) (*held, error) {
	h := &held{s, s.path("locks", strconv.FormatUint(n, 10)), s.o.Clock()}
	err := s.mark(h.path, s.self(), h.since)
	if errors.Is(err, fs.ErrExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	highest, temps, err := s.highest(n)
	if err != nil || highest != n {
		return nil, errors.Join(err, os.Remove(h.path))
	}
	for _, t := range temps {
		// Only the holder of the lock creates them, so this one died before it freed the
		// lock.
		if err := ignore(os.Remove(t), fs.ErrNotExist); err != nil {
			return nil, errors.Join(err, h.release())
		}
	}
	return h, nil
}

// release frees the lock, unless somebody has taken it over.
func (h *held) release() error {
	if err := h.still(); err != nil {
		return err
	}
	free := h.s.self()
	free.free = true
	temp := h.s.path("locks", tempLock+token())
	if err := h.s.mark(temp, free, h.s.o.Clock()); err != nil {
		return err
	}
	return os.Rename(temp, h.path)
}

// tempLock begins the name of a file that becomes a number of the lock.
const tempLock = "t-"

// mark creates a symbolic link that says who holds it.
func (s *Store) mark(path string, h holder, now time.Time) error {
	if err := os.Symlink(h.String(), path); err != nil {
		return err
	}
	t := unix.NsecToTimespec(now.UnixNano())
	err := unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{t, t}, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return errors.Join(fmt.Errorf("set the time of %s: %w", path, err), os.Remove(path))
	}
	return nil
}

// highest returns the highest number, or 0 if there is none. It removes numbers below
// keep, and lists temporary files that were to replace one.
func (s *Store) highest(keep uint64) (highest uint64, temps []string, err error) {
	names, err := os.ReadDir(s.path("locks"))
	if err != nil {
		return 0, nil, err
	}
	for _, e := range names {
		n, err := strconv.ParseUint(e.Name(), 10, 64)
		switch {
		case err != nil && strings.HasPrefix(e.Name(), tempLock):
			temps = append(temps, s.path("locks", e.Name()))
		case err != nil:
		case n >= keep:
			highest = max(highest, n)
		default:
			if err := ignore(os.Remove(s.path("locks", e.Name())), fs.ErrNotExist); err != nil {
				return 0, nil, err
			}
		}
	}
	return highest, temps, nil
}

// free reports whether number n can be followed by the next: nobody holds it, or its
// holder is dead.
func (s *Store) free(n uint64) (bool, error) {
	if n == 0 {
		return true, nil
	}
	path := s.path("locks", strconv.FormatUint(n, 10))
	st, err := os.Lstat(path)
	var text string
	if err == nil {
		text, err = os.Readlink(path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil // by now a higher number exists, which the function number finds
	}
	if err != nil {
		return false, err
	}
	h := parseHolder(text)
	// This process has the flock of this machine, so no other process here can hold it.
	dead := h.flocked && h.boot == s.boot && !s.unlocked.Load()
	return h.free || dead || s.late(h, st.ModTime()), nil
}

// ignore returns nil if err is the error what, and otherwise err.
func ignore(err, what error) error {
	if errors.Is(err, what) {
		return nil
	}
	return err
}
