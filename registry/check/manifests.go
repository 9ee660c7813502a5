package check

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/repair"
	"example.org/slipway/registry/manifest"
)

func (f *fsck) checkManifests(ctx context.Context) error {
	const page = 500
	for after := int64(0); ; {
		list, err := f.facts.ManifestRows(ctx, after, page)
		if err != nil {
			return err
		}
		g, gctx := errgroup.WithContext(ctx)
		g.SetLimit(f.o.Parallel)
		for _, m := range list {
			after = m.ID
			if m.ID > f.extent.LastManifest {
				break
			}
			g.Go(func() error {
				if err := f.checkManifest(gctx, m); err != nil {
					return fmt.Errorf("manifest %s of %s: %w", m.Digest, m.Repo, err)
				}
				f.step(func(rep *Report) { rep.Manifests++ })
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			return err
		}
		if len(list) < page || after > f.extent.LastManifest {
			return nil
		}
	}
}

// checkManifest checks that a manifest is valid, and that the catalogue records what it names.
func (f *fsck) checkManifest(ctx context.Context, m repair.ManifestRow) error {
	if !oci.ValidDigest(m.Digest) {
		return f.found(ctx, Problem{Kind: ProblemManifest, Repo: m.Repo, Digest: m.Digest, Detail: "the catalogue has a digest that is none"}, nil)
	}
	content, ok, err := f.manifestContent(ctx, m)
	if err != nil || !ok {
		return err
	}
	p := Problem{Repo: m.Repo, Digest: m.Digest}
	doc, err := manifest.Parse(content, m.MediaType)
	if err != nil {
		p.Kind, p.Detail = ProblemManifest, err.Error()
		return f.found(ctx, p, nil)
	}
	named := doc.Names()
	refs, ok, err := f.checkRefs(ctx, m, named)
	if err != nil || !ok || f.up.Partial(m.Repo) { // missing content is fetched there on demand
		return err
	}
	for _, d := range named.Blobs {
		if err := f.checkNamedBlob(ctx, m, d.Digest, refs); err != nil {
			return err
		}
	}
	for _, d := range named.Manifests {
		ref, known := refs[d.Digest]
		if !known || ref.Manifest || ref.Linked {
			continue
		}
		if f.up.Options.MissingPlatforms != nil && f.up.Options.MissingPlatforms(m.Repo, d) {
			continue
		}
		if err := f.incomplete(ctx, m, fmt.Sprintf("the index names manifest %s, which is not here", d.Digest)); err != nil {
			return err
		}
	}
	return nil
}

// manifestContent returns a manifest's verified bytes. ok is false if the manifest is gone, or if a
// problem with its bytes has been reported.
func (f *fsck) manifestContent(ctx context.Context, m repair.ManifestRow) (content []byte, ok bool, err error) {
	refused := ""
	for range 3 { // between the attempts a push or the source may bring the bytes back
		b, err := f.up.Catalog.StoredBlob(ctx, m.Digest)
		if err == nil {
			return f.verifiedManifest(ctx, m, b)
		}
		if !errors.Is(err, catalog.ErrNotFound) {
			return nil, false, err
		}
		if _, there, err := f.facts.RefsOf(ctx, m); err != nil || !there {
			return nil, false, err
		}
		_, back, err := f.takeBack(ctx, m.Digest)
		if err == nil && !back {
			back, refused, err = f.bring(ctx, Problem{Kind: ProblemIncomplete, Repo: m.Repo, Digest: m.Digest, Detail: "the manifest itself was not here any more"}, m.Digest)
		}
		if err != nil {
			return nil, false, err
		}
		if !back {
			break
		}
	}
	return nil, false, f.incomplete(ctx, m, "the manifest itself is not here any more"+refused)
}

func (f *fsck) verifiedManifest(ctx context.Context, m repair.ManifestRow, b catalog.Blob) ([]byte, bool, error) {
	if b.Content != nil {
		return b.Content, m.Digest.Algorithm().FromBytes(b.Content) == m.Digest, nil
	}
	p := Problem{Kind: ProblemNotInline, Repo: m.Repo, Digest: m.Digest, Detail: "the manifest's bytes are not in the catalogue"}
	var err error
	if f.o.Repair {
		if p.Repaired, err = f.takeInline(ctx, m.Digest); err != nil {
			return nil, false, err
		}
	}
	f.note(p)
	if !p.Repaired {
		return nil, false, nil
	}
	b, err = f.up.Catalog.StoredBlob(ctx, m.Digest)
	return b.Content, err == nil, err
}

// checkRefs compares what a manifest names with what the catalogue records. It returns
// the catalogue's record, after the repair if there was one.
func (f *fsck) checkRefs(ctx context.Context, m repair.ManifestRow, n manifest.Names) (map[oci.Digest]repair.Ref, bool, error) {
	refs, ok, err := f.refs(ctx, m)
	if err != nil || !ok {
		return nil, false, err
	}
	var lacking []oci.Descriptor
	wanted := map[oci.Digest]bool{}
	for _, d := range n.All() {
		wanted[d.Digest] = true
		if _, known := refs[d.Digest]; !known {
			lacking = append(lacking, d)
		}
	}
	var surplus []oci.Digest
	for d := range refs {
		if !wanted[d] {
			surplus = append(surplus, d)
		}
	}
	p := Problem{Kind: ProblemRefs, Repo: m.Repo, Digest: m.Digest}
	if len(lacking) > 0 {
		p.Detail = fmt.Sprintf("%d contents it names are not recorded, the first is %s", len(lacking), lacking[0].Digest)
		err = f.found(ctx, p, func(ctx context.Context) (bool, error) { return f.facts.AddRefs(ctx, m, lacking) })
	}
	if err == nil && len(surplus) > 0 {
		p.Detail = fmt.Sprintf("%d contents are recorded that it does not name, the first is %s", len(surplus), surplus[0])
		err = f.found(ctx, p, func(ctx context.Context) (bool, error) { return f.facts.DropRefs(ctx, m, surplus) })
	}
	if err != nil || len(lacking) == 0 {
		return refs, err == nil, err
	}
	return f.refs(ctx, m)
}

// checkNamedBlob checks that a manifest's repository shows a blob that the manifest
// needs.
func (f *fsck) checkNamedBlob(ctx context.Context, m repair.ManifestRow, d oci.Digest, refs map[oci.Digest]repair.Ref) error {
	ref, known := refs[d]
	switch {
	case !known || ref.Linked:
		return nil
	case !ref.Stored:
		_, back, err := f.takeBack(ctx, d)
		refused := ""
		if err == nil && !back {
			back, refused, err = f.bring(ctx, Problem{Kind: ProblemIncomplete, Repo: m.Repo, Digest: m.Digest, Detail: fmt.Sprintf("it needs blob %s, which was not here", d)}, d)
		}
		if err != nil {
			return err
		}
		if back {
			break
		}
		return f.incomplete(ctx, m, fmt.Sprintf("it needs blob %s, which is not here", d)+refused)
	}
	p := Problem{Kind: ProblemUnlinked, Repo: m.Repo, Digest: d, Detail: fmt.Sprintf("manifest %s needs it, the repository does not show it", m.Digest)}
	return f.found(ctx, p, func(ctx context.Context) (bool, error) { return f.facts.LinkNamed(ctx, m, d) })
}

func (f *fsck) incomplete(ctx context.Context, m repair.ManifestRow, detail string) error {
	hurts, err := f.hurts(ctx, m.Digest)
	if err != nil {
		return err
	}
	return f.found(ctx, Problem{Kind: ProblemIncomplete, Repo: m.Repo, Digest: m.Digest, Detail: detail, Hurts: hurts}, nil)
}
