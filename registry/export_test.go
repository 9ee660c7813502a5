package registry

import "context"

// Purge does what is otherwise done once a minute.
func (r *Registry) Purge(ctx context.Context) error { return r.uploads.purge(ctx) }

// UploadsInRAM is how many uploads are in RAM.
func (r *Registry) UploadsInRAM() int64 { return int64(r.uploads.count()) }

// ForgetRAM makes the registry know no more than one that has just begun.
func (r *Registry) ForgetRAM() {
	r.trust.mu.Lock()
	r.trust.now, r.trust.past = nil, nil
	r.trust.mu.Unlock()
	r.ram.Clear()
}
