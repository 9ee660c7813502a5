package filestore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/registry/catalog/engine"
)

// These are the names of the leases of processes that share a catalogue.
const (
	// leaseHouse is the lease to do housekeeping and to settle.
	leaseHouse = "gear-settle"
	// leaseDelete is the lease to delete the objects of packs.
	leaseDelete = "gear-delete"
	// leaseWriters, followed by the name of a process, is the lease which says that the
	// process's writers are alive.
	leaseWriters = "gear-writers/"
)

// deletingFor is how long the right to delete objects of packs lasts, as a multiple of
// Options.Lease. Objects are deleted only during the first Options.Lease of that time. A
// request that is under way then has the rest of the time to end.
const deletingFor = 5

// presence shows other processes that writers of this process are at work.
type presence struct {
	mu      sync.Mutex
	writers int
	// held ends when the other processes may consider the writers dead.
	held    context.Context
	release func()
}

// enter begins the work of a writer. If others share the catalogue, held ends when they
// may consider the writer dead. leave ends the work, and is idempotent.
func (s *Store) enter(ctx context.Context) (held context.Context, leave func(), err error) {
	if !s.cat.DB.Shared() {
		return ctx, func() {}, nil
	}
	p := &s.presence
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.writers == 0 || p.held.Err() != nil {
		if p.writers > 0 { // existing writers end one by one; a new writer does not end with them
			p.release()
		}
		if err := s.announce(ctx); err != nil {
			return nil, nil, fmt.Errorf("announce a writer: %w", err)
		}
	}
	p.writers++
	held, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(p.held, func() { cancel(engine.ErrLeaseLost) })
	return held, sync.OnceFunc(func() {
		stop()
		cancel(nil)
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.writers--; p.writers == 0 {
			p.release()
		}
	}), nil
}

// announce takes the lease of this process. Another process may hold it for a moment
// while it cleans up after writers that could not do that themselves. presence.mu is
// held.
func (s *Store) announce(ctx context.Context) error {
	p := &s.presence
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(s.opts.Lease + time.Second); ; {
		held, release, err := s.cat.DB.Hold(context.WithoutCancel(ctx), leaseWriters+s.instance, s.instance, s.opts.Lease)
		if err == nil {
			p.held, p.release = held, release
			return nil
		}
		if !errors.Is(err, engine.ErrLeased) || time.Now().After(end) {
			return err // p stays as it is, for writers that have not ended yet
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// instanceOf returns the process that a writer belongs to.
func instanceOf(writer string) string {
	instance, _, _ := strings.Cut(writer, "-")
	return instance
}

// reclaimShared ends the intents of the writers of dead processes. A process is dead if
// this one can get its lease. A process that is not dead after all no longer records
// anything that these writers made.
func (s *Store) reclaimShared(ctx context.Context) error {
	writers, err := s.facts.Writers(ctx)
	if err != nil {
		return err
	}
	of := map[string][]string{}
	for _, w := range writers {
		if in := instanceOf(w); in != s.instance {
			of[in] = append(of[in], w)
		}
	}
	for in, dead := range of {
		_, release, err := s.cat.DB.Hold(ctx, leaseWriters+in, s.instance, s.opts.Lease)
		if errors.Is(err, engine.ErrLeased) {
			continue
		}
		if err != nil {
			return err
		}
		for _, w := range dead {
			if err := s.facts.EndIntents(ctx, w); err != nil {
				release()
				return err
			}
			s.log.Info("reclaimed the packs of a conversion that was cut off", "writer", w)
		}
		release()
	}
	return nil
}

// housekeeping takes the lease to do housekeeping and to settle, if others share the
// catalogue. Errors: engine.ErrLeased.
func (s *Store) housekeeping(ctx context.Context) (held context.Context, release func(), err error) {
	if !s.cat.DB.Shared() {
		return ctx, func() {}, nil
	}
	return s.cat.DB.Hold(ctx, leaseHouse, s.instance, s.opts.Lease)
}

// deleteShared does what deletePacks does, if others share the catalogue. It does nothing while
// another process deletes. s.deleting is held.
func (s *Store) deleteShared(ctx context.Context) error {
	for {
		// No object is deleted after within ends. So a request that is still under way
		// then cannot delete the object of a process that makes the same pack again
		// later.
		within, cancel := context.WithTimeout(ctx, s.opts.Lease)
		n, err := s.deleteSome(within)
		cancel()
		if err != nil {
			return err // the lease ends by itself: a failed request may still take effect
		}
		if n == 0 {
			end, stop := context.WithTimeout(context.WithoutCancel(ctx), s.opts.Lease)
			defer stop()
			return s.cat.DB.Unlease(end, leaseDelete, s.instance)
		}
	}
}

func (s *Store) deleteSome(ctx context.Context) (n int, err error) {
	ok, err := s.cat.DB.Lease(ctx, leaseDelete, s.instance, deletingFor*s.opts.Lease)
	if err != nil || !ok {
		return 0, err
	}
	packs, err := s.facts.Deleting(ctx, 256)
	if err != nil || len(packs) == 0 {
		return 0, err
	}
	for n < len(packs) && err == nil {
		if err = s.objs.Delete(ctx, packKey(packs[n])); err == nil {
			s.forgetDicts(packs[n])
			n++
		}
	}
	if n > 0 { // this includes the packs before a failed one; otherwise the same failure would stop every run
		rest, stop := context.WithTimeout(context.WithoutCancel(ctx), s.opts.Lease)
		defer stop()
		err = errors.Join(err, s.facts.Forget(rest, packs[:n]...))
	}
	return n, err
}

func (s *Store) forgetDicts(pack gear.Name) {
	s.dicts.Drop(pack)
	s.storedDicts.Drop(pack)
}

// now returns the time by which packs are left alone and deleted.
func (s *Store) now(ctx context.Context) (time.Time, error) {
	if !s.cat.DB.Shared() {
		return s.opts.Clock(), nil
	}
	return s.cat.DB.Now(ctx)
}
