package node

import (
	"context"
	"fmt"
	"time"

	"example.org/slipway/node/view"
	"example.org/slipway/oci/volref"
)

// entry is an image or a container's copy. Manager.mu guards its fields. Only its flight
// changes the record.
type entry struct {
	name   string
	rec    *record // nil: there is nothing of it
	ready  bool    // it is mounted as rec.Mount says
	flight *flight // what is being done with it
	err    error   // the error of the last flight
}

// flight is an operation that is done once for everyone who asks for it meanwhile.
type flight struct {
	kind string
	done chan struct{}
	err  error // once done
}

// fly runs f with an entry and waits for its end. An entry has one operation at a time,
// and callers that want the same one join in. f continues after ctx ends, because a mount
// that waits for the storage cannot be cancelled.
func (m *Manager) fly(ctx context.Context, name, kind string, f func(context.Context, *entry) error) error {
	for {
		fl, err := m.join(name, kind, f)
		if err != nil {
			return err
		}
		select {
		case <-fl.done:
		case <-ctx.Done():
			return fmt.Errorf("%s is still under way: %w", fl.kind, context.Cause(ctx))
		}
		if fl.kind == kind {
			return fl.err
		}
	}
}

// join returns the flight that an entry is in, or begins one.
func (m *Manager) join(name, kind string, f func(context.Context, *entry) error) (*flight, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, ErrClosed
	}
	e := m.entries[name]
	if e == nil {
		e = &entry{name: name}
		m.entries[name] = e
	}
	if e.flight != nil {
		return e.flight, nil
	}
	fl := &flight{kind: kind, done: make(chan struct{})}
	e.flight = fl
	m.wait.Go(func() {
		fl.err = f(m.ctx, e)
		m.mu.Lock()
		defer m.mu.Unlock()
		e.flight, e.err = nil, fl.err
		if e.rec == nil {
			delete(m.entries, name)
		}
		close(fl.done)
	})
	return fl, nil
}

// mounted returns the directory of an entry that works, without asking the storage.
func (m *Manager) mounted(name string) (string, bool) {
	m.mu.Lock()
	e := m.entries[name]
	if e == nil || !e.ready || e.rec == nil || e.rec.Phase != made || e.rec.Mount == nil {
		m.mu.Unlock()
		return "", false
	}
	mr := *e.rec.Mount
	m.mu.Unlock()
	return mr.Dir, m.holds(&mr) == nil
}

// holds returns an error unless a mount is still the recorded one, and its source may
// still answer.
func (m *Manager) holds(mr *mountRecord) error {
	if mr.Boot != m.boot {
		return fmt.Errorf("it was mounted before the machine was started")
	}
	root, ok, err := view.RootAt(mr.Dir)
	if err != nil {
		return err
	}
	if !ok || root != mr.Root {
		return fmt.Errorf("something else, or nothing, is mounted at %s", mr.Dir)
	}
	under, err := deviceUnder(mr.File)
	if err != nil {
		return err
	}
	if under != mr.Under {
		return fmt.Errorf("the connection that served %s is gone", mr.File)
	}
	return nil
}

// namesOf lists the entries whose records want accepts.
func (m *Manager) namesOf(want func(*record) bool) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []string
	for name, e := range m.entries {
		if e.rec != nil && want(e.rec) {
			names = append(names, name)
		}
	}
	return names
}

// sameImage refuses to give a container the copy of another image.
func (m *Manager) sameImage(name string, img *volref.Record, volume string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.entries[name]
	if e == nil || e.rec == nil || e.rec.Volume == volume && e.rec.Image.Place == img.Place {
		return nil
	}
	return fmt.Errorf("container %s has a copy of volume %s; drop it first", e.rec.Key, e.rec.Volume)
}

// timed runs one step and reports how long it took.
func (m *Manager) timed(step string, f func() error) error {
	begin := time.Now()
	err := f()
	if m.o.Observe != nil {
		m.o.Observe(step, time.Since(begin))
	}
	if err == nil {
		m.o.step(step)
	}
	return err
}

// call is like timed, for a step that asks the storage.
func (m *Manager) call(ctx context.Context, step string, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, m.o.Limits.Call)
	defer cancel()
	return m.timed(step, func() error { return f(ctx) })
}
