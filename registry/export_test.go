package registry

import "context"

// Purge does what is otherwise done once a minute.
func (r *Registry) Purge(ctx context.Context) error { return r.uploads.purge(ctx) }

// ParseManifest is parseManifest without its result.
func ParseManifest(b []byte, contentType string) error {
	_, err := parseManifest(b, contentType)
	return err
}
