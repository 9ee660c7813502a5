package replication

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"example.org/slipway/oci"
	"example.org/slipway/oci/imagecopy"
)

// differing returns the tags and the digests of a repository that the destination lacks.
func (x *run) differing(ctx context.Context, repo, to string, tags []string) ([]string, error) {
	var names, attached []string
	for _, tag := range tags {
		switch {
		case x.rule.picked(tag):
			names = append(names, tag)
		case subjectOf(tag) != "" && x.rule.Referrers:
			attached = append(attached, tag)
		}
	}
	imagecopy.SortTags(names)
	refs, images, err := x.compare(ctx, repo, to, names)
	if err != nil {
		return nil, err
	}
	if attached, err = x.attachedTo(ctx, repo, to, images, attached); err != nil {
		return nil, err
	}
	more, _, err := x.compare(ctx, repo, to, attached)
	return append(refs, more...), err
}

// attachedTo returns those of the tags that cosign has attached to images which the rule
// copies, to parts of these, or to what the destination has.
func (x *run) attachedTo(ctx context.Context, repo, to string, images map[oci.Digest]oci.Descriptor, tags []string) ([]string, error) {
	strange := func(tag string) bool { _, ok := images[subjectOf(tag)]; return !ok }
	if x.rule.Tags == nil || !slices.ContainsFunc(tags, strange) {
		return tags, nil
	}
	list := slices.Collect(maps.Values(images))
	if err := x.present(ctx, to, slices.DeleteFunc(slices.Clone(tags), func(tag string) bool { return !strange(tag) }), images); err != nil {
		return nil, err
	}
	for _, image := range list {
		parts, err := x.parts(ctx, repo, to, image)
		if err := x.ended(ctx, to, err); err != nil {
			return nil, err
		}
		for _, d := range parts {
			images[d] = oci.Descriptor{}
		}
	}
	return slices.DeleteFunc(tags, strange), nil
}

// present adds to images those to which tags are attached, and which the destination has.
func (x *run) present(ctx context.Context, to string, tags []string, images map[oci.Digest]oci.Descriptor) error {
	var mu sync.Mutex
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(lookParallel)
	for _, tag := range tags {
		d := subjectOf(tag)
		g.Go(func() error {
			_, err := x.dst.ResolveManifest(gctx, to, string(d))
			if absent(err) {
				return nil
			}
			if err == nil {
				mu.Lock()
				images[d] = oci.Descriptor{}
				mu.Unlock()
			}
			return x.ended(gctx, to, err)
		})
	}
	return g.Wait()
}

// parts returns the manifests of an index of the source. It reads the copy here if there is
// one, because some registries count how often they are asked.
func (x *run) parts(ctx context.Context, repo, to string, image oci.Descriptor) ([]oci.Digest, error) {
	if !x.rule.Push {
		if parts, err := partsOf(ctx, x.dst, to, image); err != nil || parts != nil {
			return parts, err
		}
	}
	return partsOf(ctx, x.src, repo, image)
}

// partsOf returns the manifests that an image consists of if it is an index, also those of
// indexes in it, each once. It returns nothing for other images, and leaves out what the
// registry lacks.
func partsOf(ctx context.Context, r oci.Registry, repo string, image oci.Descriptor) (parts []oci.Digest, err error) {
	seen, indexes := map[oci.Digest]bool{image.Digest: true}, []oci.Descriptor{}
	if oci.IsIndex(image.MediaType) {
		indexes = append(indexes, image)
	}
	for i := 0; i < len(indexes); i++ {
		index := indexes[i].Digest
		m, err := r.GetManifest(ctx, repo, string(index))
		if absent(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read index %s: %w", index, err)
		}
		var doc struct {
			Manifests []oci.Descriptor `json:"manifests"`
		}
		if err := json.Unmarshal(m.Bytes, &doc); err != nil {
			return nil, fmt.Errorf("read index %s: %w", index, err)
		}
		for _, d := range doc.Manifests {
			if oci.CheckDigest(d.Digest) != nil || seen[d.Digest] {
				continue
			}
			seen[d.Digest] = true
			parts = append(parts, d.Digest)
			if oci.IsIndex(d.MediaType) {
				indexes = append(indexes, d)
			}
		}
	}
	return parts, nil
}

// compare returns the tags that the destination lacks, the referrers of the others that it
// lacks, and all images. An error ends the run.
func (x *run) compare(ctx context.Context, repo, to string, tags []string) (refs []string, images map[oci.Digest]oci.Descriptor, err error) {
	images = map[oci.Digest]oci.Descriptor{}
	var mu sync.Mutex
	var gone []string
	lacks := make([][]string, len(tags))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(lookParallel)
	for i, tag := range tags {
		g.Go(func() error {
			list, image, err := x.look(gctx, repo, to, tag)
			if err != nil {
				err = fmt.Errorf("compare %s:%s: %w", repo, tag, err)
			}
			mu.Lock()
			lacks[i] = list
			if image.Digest != "" {
				images[image.Digest] = image
			} else if err == nil {
				gone = append(gone, tag)
			}
			mu.Unlock()
			return x.ended(gctx, to, err)
		})
	}
	if err := g.Wait(); err != nil {
		return nil, nil, err
	}
	for _, list := range lacks {
		for _, ref := range list {
			if !oci.IsDigest(ref) || !slices.Contains(refs, ref) {
				refs = append(refs, ref)
			}
		}
	}
	return refs, images, x.deleted(ctx, repo, to, gone)
}

// deleted looks whether tags that the source did not have, although it listed them, were
// deleted meanwhile. Otherwise they count as failures.
func (x *run) deleted(ctx context.Context, repo, to string, gone []string) error {
	if len(gone) == 0 {
		return nil
	}
	tags, err := x.tags(ctx, repo)
	if err != nil {
		return x.ended(ctx, to, fmt.Errorf("list the tags of %s: %w", repo, err))
	}
	for _, tag := range gone {
		if slices.Contains(tags, tag) {
			x.failed(fmt.Errorf("the source lists %s:%s, but does not have it", repo, tag))
		}
	}
	return nil
}

// look compares one tag. It returns the tag if the destination lacks it or has another
// image under it, unless that is newer, and otherwise those of the image's referrers that the destination lacks.
// The image is empty if the source does not have the tag.
func (x *run) look(ctx context.Context, repo, to, tag string) (lacks []string, image oci.Descriptor, err error) {
	want, err := x.src.ResolveManifest(ctx, repo, tag)
	if absent(err) {
		return nil, want, nil
	}
	if err != nil {
		return nil, want, err
	}
	have, err := x.dst.ResolveManifest(ctx, to, tag)
	switch {
	case absent(err):
		x.change("copy", repo, tag, to, "new")
		return []string{tag}, want, nil
	case err != nil:
		return nil, want, err
	case have.Digest != want.Digest:
		newer, err := x.newer(ctx, repo, to, tag, want.Digest, have.Digest)
		if err != nil {
			return nil, want, err
		}
		if newer {
			x.step(func(rep *Report) { rep.Newer++ })
			x.change("keep", repo, tag, to, "the destination changed it later")
			return nil, want, nil
		}
		x.change("copy", repo, tag, to, "changed")
		return []string{tag}, want, nil
	}
	x.step(func(rep *Report) { rep.Present++ })
	if !x.rule.Referrers {
		return nil, want, nil
	}
	lacks, err = x.lackingReferrers(ctx, repo, to, want, 0)
	return lacks, want, err
}

// absent reports whether an error says that a registry has no such manifest.
func absent(err error) bool {
	return oci.HasCode(err, oci.CodeManifestUnknown, oci.CodeNameUnknown)
}

const (
	// referrersPage is how many referrers one request asks for.
	referrersPage = 1000
	// maxNesting bounds how far what refers to referrers is compared.
	maxNesting = 4
)

// lackingReferrers returns what refers to an image, to its parts or to their referrers, and
// which the destination lacks.
func (x *run) lackingReferrers(ctx context.Context, repo, to string, image oci.Descriptor, depth int) (lacks []string, err error) {
	x.mu.Lock()
	at := place{repo, image.Digest}
	seen := x.looked[at]
	x.looked[at] = true
	x.mu.Unlock()
	if seen || depth > maxNesting {
		return nil, nil
	}
	parts, err := x.parts(ctx, repo, to, image)
	if err != nil {
		return nil, err
	}
	for _, d := range parts {
		more, err := x.lackingReferrers(ctx, repo, to, oci.Descriptor{Digest: d}, depth+1)
		if err != nil {
			return nil, err
		}
		lacks = append(lacks, more...)
	}
	referrers, err := x.referrersOf(ctx, repo, image.Digest)
	if err != nil {
		return nil, err
	}
	for _, ref := range referrers {
		_, err := x.dst.ResolveManifest(ctx, to, string(ref.Digest))
		switch {
		case absent(err):
			x.change("copy", repo, string(ref.Digest), to, "refers to "+string(image.Digest))
			lacks = append(lacks, string(ref.Digest))
			continue
		case err != nil:
			return nil, err
		}
		more, err := x.lackingReferrers(ctx, repo, to, ref, depth+1)
		if err != nil {
			return nil, err
		}
		lacks = append(lacks, more...)
	}
	return lacks, nil
}

// referrersOf lists what refers to a manifest of the source.
func (x *run) referrersOf(ctx context.Context, repo string, d oci.Digest) (list []oci.Descriptor, err error) {
	for last, more := "", true; more; {
		var page []oci.Descriptor
		page, more, err = x.src.Referrers(ctx, repo, d, "", last, referrersPage)
		if err != nil {
			return nil, fmt.Errorf("referrers of %s: %w", d, err)
		}
		list = append(list, page...)
		if more = more && len(page) > 0; more {
			last = string(page[len(page)-1].Digest)
		}
	}
	return list, nil
}
