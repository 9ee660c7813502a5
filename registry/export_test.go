package registry

import "context"

// Purge does what the registry otherwise does once a minute.
func (r *Registry) Purge(ctx context.Context) error { return r.uploads.purge(ctx) }

// UploadsInRAM returns the number of uploads in RAM.
func (r *Registry) UploadsInRAM() int64 { return int64(r.uploads.count()) }

// ForgetRAM clears the registry's RAM to the state after a start.
func (r *Registry) ForgetRAM() {
	r.trust.mu.Lock()
	r.trust.now, r.trust.past = nil, nil
	r.trust.mu.Unlock()
	r.ram.Clear()
}
