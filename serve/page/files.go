package page

import (
	"context"

	"example.org/slipway/gear"
	gearregistry "example.org/slipway/gear/service"
	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/serve/dataroot"
	"example.org/slipway/web/images"
)

// files is how the web page reads the files of images.
type files struct{ root *dataroot.Root }

var _ images.Files = files{}

// MayLook implements images.Files.
func (f files) MayLook(ctx context.Context, repo string, d oci.Digest) error {
	return f.root.Gear.MayLook(ctx, repo, d)
}

// Look implements images.Files.
func (f files) Look(ctx context.Context, repo string, d oci.Digest) (*gear.Index, error) {
	return f.root.Gear.Look(ctx, repo, d)
}

// Profile implements images.Files.
func (f files) Profile(ctx context.Context, repo string, manifest oci.Digest) ([]gear.Name, error) {
	return f.root.Gear.LookProfile(ctx, repo, manifest)
}

// Share implements images.Files.
func (f files) Share(ctx context.Context, image oci.Digest, layers []oci.Digest, repo string) (gearfacts.Share, error) {
	return gearfacts.NewLayers(f.root.Catalog.DB).Share(ctx, image, layers, repo)
}

// Holders implements images.Files.
func (f files) Holders(ctx context.Context, names []gear.Name, n int) ([]gearfacts.Holders, error) {
	return gearfacts.NewLayers(f.root.Catalog.DB).Holders(ctx, names, n)
}

// Converts implements images.Files.
func (f files) Converts(repo string) bool {
	return f.root.GearMode(repo) != gearregistry.Off
}
