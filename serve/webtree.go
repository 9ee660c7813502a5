package serve

import (
	"context"

	"example.org/slipway/gear"
	gearregistry "example.org/slipway/gear/service"
	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/web/images"
)

// webFiles is how the web page reads the files of images.
type webFiles struct{ s *Server }

var _ images.Files = webFiles{}

// MayLook implements images.Files.
func (f webFiles) MayLook(ctx context.Context, repo string, d oci.Digest) error {
	return f.s.root.gear.MayLook(ctx, repo, d)
}

// Look implements images.Files.
func (f webFiles) Look(ctx context.Context, repo string, d oci.Digest) (*gear.Index, error) {
	return f.s.root.gear.Look(ctx, repo, d)
}

// Profile implements images.Files.
func (f webFiles) Profile(ctx context.Context, repo string, manifest oci.Digest) ([]gear.Name, error) {
	return f.s.root.gear.LookProfile(ctx, repo, manifest)
}

// Share implements images.Files.
func (f webFiles) Share(ctx context.Context, image oci.Digest, layers []oci.Digest, repo string) (gearfacts.Share, error) {
	return gearfacts.NewLayers(f.s.root.cat.DB).Share(ctx, image, layers, repo)
}

// Holders implements images.Files.
func (f webFiles) Holders(ctx context.Context, names []gear.Name, n int) ([]gearfacts.Holders, error) {
	return gearfacts.NewLayers(f.s.root.cat.DB).Holders(ctx, names, n)
}

// Converts implements images.Files.
func (f webFiles) Converts(repo string) bool {
	mode, err := gearModes(&f.s.cfg.Gear)
	return err == nil && mode(repo) != gearregistry.Off
}
