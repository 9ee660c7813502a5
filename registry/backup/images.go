package backup

import (
	"context"
	"fmt"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/browse"
)

// Repository is what a registry holds in one repository.
type Repository struct {
	Name string
	// Untagged lists the images that clients know only by their digests: manifests that
	// have no tag, are not part of another image, and refer to no other manifest. The
	// oldest comes first.
	Untagged []oci.Digest
	// Tags holds the tags with the times by which retention judges them. The tag that was
	// pushed first comes first.
	Tags []catalog.TagInfo
}

// Repositories returns what a registry, such as one that [Open] opened, has in each
// repository. Unlike the lists that clients see, it includes images without a tag.
func Repositories(ctx context.Context, reg *registry.Registry) ([]Repository, error) {
	const page = 500
	cat := reg.Upkeep().Catalog
	var out []Repository
	for q := (browse.ImageQuery{Limit: page}); ; {
		images, err := browse.New(cat.DB).Images(ctx, q)
		if err != nil {
			return nil, fmt.Errorf("list the images: %w", err)
		}
		for _, im := range images {
			q.AfterRepo, q.AfterID = im.Repo, im.ID
			if n := len(out); n == 0 || out[n-1].Name != im.Repo {
				tags, err := tagsByPush(ctx, cat, im.Repo)
				if err != nil {
					return nil, fmt.Errorf("list the tags of %s: %w", im.Repo, err)
				}
				out = append(out, Repository{Name: im.Repo, Tags: tags})
			}
			if len(im.Tags) == 0 {
				r := &out[len(out)-1]
				r.Untagged = append(r.Untagged, im.Digest)
			}
		}
		if len(images) < page {
			return out, nil
		}
	}
}

// tagsByPush returns the tags of a repository. The tag that was pushed first comes first.
func tagsByPush(ctx context.Context, cat *catalog.Catalog, repo string) ([]catalog.TagInfo, error) {
	infos, err := cat.Retention.Infos(ctx, repo, nil)
	tags := make([]catalog.TagInfo, len(infos))
	for i, t := range infos { // newest first
		tags[len(infos)-1-i] = t.TagInfo
	}
	return tags, err
}
