package registry

import "context"

// Purge does what the registry otherwise does once a minute.
func (r *Registry) Purge(ctx context.Context) error { return r.uploads.Purge(ctx) }

// UploadsInRAM returns the number of uploads in RAM.
func (r *Registry) UploadsInRAM() int64 { return int64(r.uploads.Count()) }

// ForgetRAM clears the registry's RAM to the state after a start.
func (r *Registry) ForgetRAM() {
	r.storage.Reset()
	r.ram.Clear()
}
