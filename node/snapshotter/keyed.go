package snapshotter

import "sync"

// keyed is a mutex for each of any number of names. The zero value is ready to use.
type keyed struct {
	mu   sync.Mutex
	held map[string]*holder
}

type holder struct {
	sync.Mutex
	users int // how many hold the lock or wait for it
}

// lock waits for the lock of a name and returns the function that releases it.
func (k *keyed) lock(name string) (unlock func()) {
	k.mu.Lock()
	h := k.join(name)
	k.mu.Unlock()
	h.Lock()
	return k.leave(name, h)
}

// tryLock is like lock, but does not wait. It returns nil if somebody holds the lock of the
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

// join registers the caller as a user of a name. The caller holds k.mu.
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
