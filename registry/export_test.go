package registry

import "context"

// Purge does what is otherwise done once a minute.
func (r *Registry) Purge(ctx context.Context) error { return r.uploads.purge(ctx) }

// UploadsInRAM is how many uploads are in RAM.
func (r *Registry) UploadsInRAM() int64 { return int64(r.uploads.count()) }

// ParseManifest is parseManifest without its result.
func ParseManifest(b []byte, contentType string) error {
	_, err := parseManifest(b, contentType)
	return err
}
