package snapshotter

import "sync"

// keyed is a mutex for each of any number of names. The zero value is ready.
type keyed struct {
	mu   sync.Mutex
	held map[string]*holder
}

type holder struct {
	sync.Mutex
	users int // who holds it or waits for it
}

// lock waits for the name and returns the function that gives it back.
func (k *keyed) lock(name string) (unlock func()) {
	k.mu.Lock()
	h := k.join(name)
	k.mu.Unlock()
	h.Lock()
	return k.leave(name, h)
}

// tryLock is lock for who need not wait; it returns nil if somebody has the
// name or waits for it.
func (k *keyed) tryLock(name string) (unlock func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held[name] != nil {
		return nil
	}
	h := k.join(name)
	h.Lock()
	return k.leave(name, h)
}

// join makes the caller, who holds k.mu, one of the users of a name.
func (k *keyed) join(name string) *holder {
	if k.held == nil {
		k.held = map[string]*holder{}
	}
	h := k.held[name]
	if h == nil {
		h = &holder{}
		k.held[name] = h
	}
	h.users++
	return h
}

func (k *keyed) leave(name string, h *holder) (unlock func()) {
	return func() {
		h.Unlock()
		k.mu.Lock()
		defer k.mu.Unlock()
		if h.users--; h.users == 0 {
			delete(k.held, name)
		}
	}
}
