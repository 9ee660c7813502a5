package registry

import (
	"context"
	"encoding/hex"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/catalog/repair"
	"example.org/slipway/registry/storage"
)

// facts connects the storage with the catalogue: it answers questions about objects, and
// records what the storage reports.
type facts struct{ r *Registry }

var _ storage.Facts = facts{}

func (f facts) repair() repair.Store { return repair.New(f.r.cat.DB) }

// Sample implements storage.Facts. Packs may be on a separate disk.
func (f facts) Sample(ctx context.Context, n int) ([]string, error) {
	list, err := f.r.cat.SampleObjects(ctx, n)
	if err != nil {
		return nil, err
	}
	packs, err := gearfacts.NewFiles(f.r.cat.DB).Packs(ctx, 0, n)
	if err != nil {
		return nil, err
	}
	var keys []string
	for _, d := range list {
		keys = append(keys, storage.BlobKey(d))
	}
	for _, p := range packs {
		keys = append(keys, storage.PackPrefix+hex.EncodeToString(p.Digest[:]))
	}
	return keys, nil
}

// MarkSuspect implements storage.Facts.
func (f facts) MarkSuspect(ctx context.Context, d oci.Digest) (marked bool, err error) {
	shown, marked, err := f.repair().MarkSuspect(ctx, d)
	if err == nil {
		f.r.forgetShown(d, shown)
	}
	return marked, err
}

// ClearSuspect implements storage.Facts.
func (f facts) ClearSuspect(ctx context.Context, d oci.Digest) error {
	return f.repair().ClearSuspect(ctx, d)
}

// ObjectTag implements storage.Facts.
func (f facts) ObjectTag(ctx context.Context, d oci.Digest) (string, error) {
	return f.repair().ObjectTag(ctx, d)
}

// SetObjectTag implements storage.Facts.
func (f facts) SetObjectTag(ctx context.Context, d oci.Digest, tag string) error {
	return f.repair().SetObjectTag(ctx, d, tag)
}

// forgetShown drops a content from RAM wherever it is visible.
func (r *Registry) forgetShown(d oci.Digest, shown repair.Shown) {
	for _, repo := range shown.Links {
		r.ram.Drop(blobKey(repo, d))
	}
	for _, repo := range shown.Manifests {
		r.ram.Drop(manifestKey(repo, string(d)))
	}
}
