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

// Names of leases of processes that share a catalogue.
const (
	// leaseHouse: to clean up, and to settle.
	leaseHouse = "gear-settle"
	// leaseDelete: to delete the objects of packs.
	leaseDelete = "gear-delete"
	// leaseWriters, and the name of a process: that its writers live.
	leaseWriters = "gear-writers/"
)

// deletingFor is how many leases the right to delete objects of packs lasts, of
// which one is used: what of a request is under way then has the rest to end in.
const deletingFor = 5

// presence tells other processes that writers of this one are at work.
type presence struct {
	mu      sync.Mutex
	writers int
	// held ends when the others may take the writers for dead.
	held    context.Context
	release func()
}

// enter begins the work of a writer. held ends, where others share the catalogue,
// when they may take it for dead. leave ends the work, and is idempotent.
func (s *Store) enter(ctx context.Context) (held context.Context, leave func(), err error) {
	if !s.cat.DB.Shared() {
		return ctx, func() {}, nil
	}
	p := &s.presence
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.writers == 0 || p.held.Err() != nil {
		if p.writers > 0 { // they end one by one; who comes now does not end with them
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

// announce takes the lease of this process. Another one may have it for a moment
// that clears up after writers which could not. presence.mu is held.
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

// instanceOf is the process that a writer belongs to.
func instanceOf(writer string) string {
	instance, _, _ := strings.Cut(writer, "-")
	return instance
}

// reclaimShared ends the intents of the writers of processes that died: those whose
// lease this one can get. A process that is not dead after all records nothing any
// more that these writers made.
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

// housekeeping takes the lease to clean up and settle, where others share the
// catalogue. Errors: engine.ErrLeased.
func (s *Store) housekeeping(ctx context.Context) (held context.Context, release func(), err error) {
	if !s.cat.DB.Shared() {
		return ctx, func() {}, nil
	}
	return s.cat.DB.Hold(ctx, leaseHouse, s.instance, s.opts.Lease)
}

// deleteShared is deletePacks where others share the catalogue. Where one of them
// does it, it does nothing. s.deleting is held.
func (s *Store) deleteShared(ctx context.Context) error {
	for {
		// No object is deleted after within, so that nothing that is under way then
		// can meet the object of one who makes the same pack again later.
		within, cancel := context.WithTimeout(ctx, s.opts.Lease)
		n, err := s.deleteSome(within)
		cancel()
		if err != nil {
			return err // the lease ends by itself: what failed may still happen
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
	if n > 0 { // also those before one that failed, or nothing would ever get behind that
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

// now is the time by which packs are left alone and deleted.
func (s *Store) now(ctx context.Context) (time.Time, error) {
	if !s.cat.DB.Shared() {
		return s.opts.Clock(), nil
	}
	return s.cat.DB.Now(ctx)
}
