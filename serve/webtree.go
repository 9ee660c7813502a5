package serve

import (
	"context"
	"errors"
	"io"

	"example.org/slipway/catalog"
	"example.org/slipway/gear"
	"example.org/slipway/gearregistry"
	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/web"
)

// webFiles is what the web page reads of the files of images.
type webFiles struct{ s *Server }

var _ web.Files = webFiles{}

// maxPageConfig is how many bytes of an image's config are read.
const maxPageConfig = 4 << 20

// Manifest implements web.Files. It reads the catalogue, so that nothing counts as a pull.
func (f webFiles) Manifest(ctx context.Context, repo, ref string) (oci.Manifest, error) {
	var m catalog.Manifest
	var err error
	if oci.IsDigest(ref) {
		m, err = f.s.root.cat.Manifest(ctx, repo, oci.Digest(ref))
	} else {
		m, err = f.s.root.cat.Tag(ctx, repo, ref)
	}
	if errors.Is(err, catalog.ErrNotFound) || errors.Is(err, catalog.ErrNoRepository) {
		return oci.Manifest{}, oci.Errorf(oci.CodeManifestUnknown, "%s has no manifest %s", repo, ref)
	}
	return oci.Manifest{Descriptor: oci.Descriptor{MediaType: m.MediaType, Digest: m.Digest, Size: int64(len(m.Content))}, Bytes: m.Content}, err
}

// Config implements web.Files.
func (f webFiles) Config(ctx context.Context, repo string, d oci.Digest) ([]byte, error) {
	unknown := oci.Errorf(oci.CodeBlobUnknown, "%s has no config %s that could be shown", repo, d)
	b, err := f.s.root.cat.Blob(ctx, repo, d)
	if errors.Is(err, catalog.ErrNotFound) || errors.Is(err, catalog.ErrNoRepository) || err == nil && b.Size > maxPageConfig {
		return nil, unknown
	}
	if err != nil || b.Content != nil {
		return b.Content, err
	}
	r, _, err := registry.OpenBlob(ctx, f.s.root.cat, f.s.root.store, d, 0)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(io.LimitReader(r, maxPageConfig))
}

// MayLook implements web.Files.
func (f webFiles) MayLook(ctx context.Context, repo string, d oci.Digest) error {
	return f.s.root.gear.MayLook(ctx, repo, d)
}

// Look implements web.Files.
func (f webFiles) Look(ctx context.Context, repo string, d oci.Digest) (*gear.Index, error) {
	return f.s.root.gear.Look(ctx, repo, d)
}

// Profile implements web.Files.
func (f webFiles) Profile(ctx context.Context, repo string, manifest oci.Digest) ([]gear.Name, error) {
	return f.s.root.gear.Profile(ctx, repo, manifest)
}

// Share implements web.Files.
func (f webFiles) Share(ctx context.Context, image oci.Digest, layers []oci.Digest, repo string) (catalog.GearShare, error) {
	return f.s.root.cat.GearShare(ctx, image, layers, repo)
}

// Holders implements web.Files.
func (f webFiles) Holders(ctx context.Context, names []gear.Name, n int) ([][]string, error) {
	return f.s.root.cat.GearHolders(ctx, names, n)
}

// Converts implements web.Files.
func (f webFiles) Converts(repo string) bool {
	mode, err := gearModes(&f.s.cfg.Gear)
	return err == nil && mode(repo) != gearregistry.Off
}
