package mirrors

import (
	"context"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/mirror"
	"example.org/slipway/serve/gate"
)

// store is the registry that stores mirrored content. While writes are stopped, it
// stores nothing.
type store struct {
	oci.Registry
	stored *registry.Registry
	writes *gate.Writes
}

var _ mirror.Store = store{}

// AdoptBlob implements mirror.Store.
func (s store) AdoptBlob(ctx context.Context, repo string, d oci.Digest, size int64, path string) (oci.Descriptor, error) {
	return gate.Do(s.writes, func() (oci.Descriptor, error) { return s.stored.AdoptBlob(ctx, repo, d, size, path) })
}

// AdoptBytes implements mirror.Store.
func (s store) AdoptBytes(ctx context.Context, repo string, d oci.Digest, content []byte) (oci.Descriptor, error) {
	return gate.Do(s.writes, func() (oci.Descriptor, error) { return s.stored.AdoptBytes(ctx, repo, d, content) })
}

// LinkStored implements mirror.Store.
func (s store) LinkStored(ctx context.Context, repo string, d oci.Digest) (oci.Descriptor, error) {
	return gate.Do(s.writes, func() (oci.Descriptor, error) { return s.stored.LinkStored(ctx, repo, d) })
}

// ForgetTag implements mirror.Store.
func (s store) ForgetTag(ctx context.Context, repo, tag string) error {
	_, err := gate.Do(s.writes, func() (struct{}, error) { return struct{}{}, s.stored.ForgetTag(ctx, repo, tag) })
	return err
}

// Forget implements mirror.Store.
func (s store) Forget(ctx context.Context, repo string, o registry.ForgetOptions, digests ...oci.Digest) (registry.Forgotten, error) {
	return gate.Do(s.writes, func() (registry.Forgotten, error) { return s.stored.Forget(ctx, repo, o, digests...) })
}

// ForgetBlob implements mirror.Store.
func (s store) ForgetBlob(ctx context.Context, repo string, d oci.Digest) error {
	_, err := gate.Do(s.writes, func() (struct{}, error) { return struct{}{}, s.stored.ForgetBlob(ctx, repo, d) })
	return err
}

// NotePull implements mirror.Store.
func (s store) NotePull(repo, ref string) { s.stored.NotePull(repo, ref) }

// MirrorImages implements mirror.Store.
func (s store) MirrorImages(ctx context.Context, q registry.MirrorQuery) ([]registry.MirrorImage, string, error) {
	return s.stored.MirrorImages(ctx, q)
}

// MirrorUsage implements mirror.Store.
func (s store) MirrorUsage(ctx context.Context, prefixes ...string) (registry.MirrorUsage, error) {
	return s.stored.MirrorUsage(ctx, prefixes...)
}

// NamedBy implements mirror.Store.
func (s store) NamedBy(ctx context.Context, repo string, d oci.Digest) ([]oci.Digest, error) {
	return s.stored.NamedBy(ctx, repo, d)
}

// MirrorAdded implements mirror.Store.
func (s store) MirrorAdded() int64 { return s.stored.MirrorAdded() }
