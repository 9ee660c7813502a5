// Package history shows how the tags of repositories changed, and takes changes back:
// moves of tags, and deletions as long as the collector has not removed the contents.
package history

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/historyfacts"
	"example.org/slipway/registry/manifest"
	"example.org/slipway/registry/storage"
)

// Registry is what changes are made with. *registry.Registry implements it.
type Registry interface {
	PutManifest(ctx context.Context, repo string, m oci.PutManifest) (oci.PutResult, error)
	DeleteManifest(ctx context.Context, repo string, d oci.Digest) error
}

// Options are the options of New. The zero value works.
type Options struct {
	// Mirrored reports whether a repository is a copy of another registry's. Then nothing
	// is taken back. nil means that none is.
	Mirrored func(repo string) bool
	// Immutable reports whether a tag must not be removed. nil means that none is.
	Immutable func(repo, tag string) bool
}

// History reads and takes back changes. All methods may run concurrently.
type History struct {
	cat   *catalog.Catalog
	facts historyfacts.History
	reg   Registry
	opts  Options
}

// New returns the history of a registry with its catalogue.
func New(cat *catalog.Catalog, reg Registry, o Options) *History {
	return &History{cat, historyfacts.History{DB: cat.DB}, reg, o}
}

func (h *History) mirrored(repo string) bool { return h.opts.Mirrored != nil && h.opts.Mirrored(repo) }

func unknown(repo, ref string) error {
	return oci.Errorf(oci.CodeManifestUnknown, "repository %s has no manifest or tag %s, and remembers none", repo, ref)
}

// TagHistory returns at most n changes of a tag, the last one first. Errors:
// MANIFEST_UNKNOWN.
func (h *History) TagHistory(ctx context.Context, repo, tag string, n int) ([]oci.TagChange, error) {
	list, err := h.facts.Tag(ctx, repo, tag, n)
	if errors.Is(err, catalog.ErrNotFound) {
		return nil, unknown(repo, tag)
	}
	if err != nil {
		return nil, storage.ClientError(fmt.Sprintf("read the history of tag %s of %s", tag, repo), err)
	}
	return list, nil
}

// Deleted lists at most n manifests of a repository that can be restored, the last one
// that was removed first.
func (h *History) Deleted(ctx context.Context, repo string, n int) ([]oci.DeletedManifest, error) {
	list, err := h.facts.Deleted(ctx, repo, n)
	if err != nil {
		return nil, storage.ClientError("list what was deleted from "+repo, err)
	}
	return list, nil
}

// Restore takes a deletion or a move of a tag back. With a tag, the tag points at the
// manifest again, which may have been removed. Without one, a removed manifest is back,
// and those of its tags that do not exist now. Manifests that a removed one names come
// back with it. Everything else that it names must still be here. What retention removed
// along with a manifest, such as its signatures, comes back, too. Errors: as for
// PutManifest, and MANIFEST_UNKNOWN.
func (h *History) Restore(ctx context.Context, repo string, d oci.Digest, tag string) (oci.PutResult, error) {
	return h.restoration(repo).restore(ctx, d, tag)
}

// restoration is one call of Restore or RestoreAll.
type restoration struct {
	*History
	repo string
	// attached is what retention removed in a step along with a manifest: first by when that
	// step can be taken back until, and then by the tag that stands for the manifest. Each
	// step is read once, since it may have removed thousands.
	attached map[time.Time]map[string][]oci.Digest
	back     map[oci.Digest]bool // what was attached, and is back
}

func (h *History) restoration(repo string) *restoration {
	return &restoration{h, repo, map[time.Time]map[string][]oci.Digest{}, map[oci.Digest]bool{}}
}

func (h *restoration) restore(ctx context.Context, d oci.Digest, tag string) (oci.PutResult, error) {
	repo := h.repo
	if h.mirrored(repo) {
		return oci.PutResult{}, oci.Errorf(oci.CodeUnsupported, "%s is a copy of another registry's repository: pull the image again", repo)
	}
	put := oci.PutManifest{Digest: d}
	if tag != "" {
		put.Tags = []string{tag}
	}
	m, err := h.cat.Manifest(ctx, repo, d)
	if err == nil {
		put.Bytes, put.MediaType = m.Content, m.MediaType
		return h.put(ctx, repo, put)
	}
	if !errors.Is(err, catalog.ErrNotFound) {
		return oci.PutResult{}, storage.ClientError("restore "+string(d), err)
	}
	removed, content, err := h.facts.DeletedManifest(ctx, repo, d)
	if errors.Is(err, catalog.ErrNotFound) {
		return oci.PutResult{}, unknown(repo, string(d))
	}
	if err != nil {
		return oci.PutResult{}, storage.ClientError("restore "+string(d), err)
	}
	put.Bytes, put.MediaType = content, removed.MediaType
	if tag == "" {
		if put.Tags, err = h.free(ctx, repo, removed.Tags); err != nil {
			return oci.PutResult{}, err
		}
	}
	if err := h.restoreParts(ctx, put); err != nil {
		return oci.PutResult{}, err
	}
	res, err := h.put(ctx, repo, put)
	if err != nil {
		return res, err
	}
	return res, h.restoreAttached(ctx, removed)
}

func (h *History) put(ctx context.Context, repo string, m oci.PutManifest) (oci.PutResult, error) {
	return h.reg.PutManifest(catalog.WithCause(ctx, oci.CauseRestore), repo, m)
}

// restoreParts restores the manifests that an index names and that were removed.
func (h *restoration) restoreParts(ctx context.Context, index oci.PutManifest) error {
	doc, err := manifest.Parse(index.Bytes, index.MediaType)
	if err != nil {
		return err
	}
	var parts []oci.Digest
	for _, m := range doc.Manifests {
		parts = append(parts, m.Digest)
	}
	here, err := h.cat.ManifestsHere(ctx, h.repo, parts)
	if err != nil {
		return storage.ClientError("look for what an index names", err)
	}
	for _, d := range parts {
		if here[d] {
			continue
		}
		// If it is not among what was removed, the registry decides whether it may be missing.
		if _, err := h.restore(ctx, d, ""); err != nil && !oci.HasCode(err, oci.CodeManifestUnknown) {
			return err
		}
	}
	return nil
}

// restoreAttached restores what retention removed in the same step as a manifest, because
// it refers to the manifest or its tag names it. What was removed by itself stays so:
// somebody may have withdrawn a signature.
func (h *restoration) restoreAttached(ctx context.Context, to oci.DeletedManifest) error {
	if to.Cause != oci.CauseRetention {
		return nil
	}
	attached, err := h.step(ctx, to)
	if err != nil {
		return storage.ClientError("look for what is attached to "+string(to.Digest), err)
	}
	for _, d := range attached[oci.ReferrersTag(to.Digest)] {
		if h.back[d] {
			continue
		}
		h.back[d] = true
		if _, err := h.restore(ctx, d, ""); err != nil && !oci.HasCode(err, oci.CodeManifestUnknown) {
			return err
		}
	}
	return nil
}

// step returns what the step that removed a manifest removed along with others, because it has
// them as its subject or its tag names them.
func (h *restoration) step(ctx context.Context, of oci.DeletedManifest) (map[string][]oci.Digest, error) {
	if known := h.attached[of.Until]; known != nil {
		return known, nil
	}
	attached := map[string][]oci.Digest{}
	err := h.facts.RemovedWith(ctx, h.repo, of.Cause, of.Until, func(d oci.DeletedManifest, content []byte) error {
		for _, tag := range d.Tags {
			if to := catalog.HungOn(tag); to != "" {
				attached[to] = append(attached[to], d.Digest)
			}
		}
		if doc, err := manifest.Parse(content, d.MediaType); err == nil && doc.Subject != nil {
			to := oci.ReferrersTag(doc.Subject.Digest)
			attached[to] = append(attached[to], d.Digest)
		}
		return nil
	})
	if err == nil {
		h.attached[of.Until] = attached
	}
	return attached, err
}

// free returns the tags that a repository does not have.
func (h *History) free(ctx context.Context, repo string, tags []string) (out []string, err error) {
	for _, tag := range tags {
		switch _, err := h.cat.Tag(ctx, repo, tag); {
		case errors.Is(err, catalog.ErrNotFound):
			out = append(out, tag)
		case err != nil:
			return nil, storage.ClientError("look for tag "+tag, err)
		}
	}
	return out, nil
}

// RestoreAll restores every manifest of a repository that can be restored, and returns
// how many it restored. What an index names comes before the index. Errors: as for
// Restore; what was restored before stays.
func (h *History) RestoreAll(ctx context.Context, repo string) (restored int, err error) {
	x := h.restoration(repo)
	for {
		list, err := h.Deleted(ctx, repo, maxRestored)
		if err != nil || len(list) == 0 {
			return restored, err
		}
		before := restored
		var failed error
		for _, d := range list {
			if _, err := x.restore(ctx, d.Digest, ""); err != nil {
				failed = errors.Join(failed, err)
				continue
			}
			restored++
		}
		if restored == before {
			return restored, failed
		}
	}
}

// maxRestored is how many manifests RestoreAll looks at together.
const maxRestored = 1000

// removeStep is how many manifests are listed together, and how many tags.
const removeStep = 500

// DeleteRepository removes all tags and manifests of a repository. Blobs that nothing
// names then are collected. It removes nothing if a tag is immutable. Until the collector
// runs, the manifests can be restored. Errors: NAME_UNKNOWN, DENIED.
func (h *History) DeleteRepository(ctx context.Context, repo string) (removed int, err error) {
	if h.mirrored(repo) {
		return 0, oci.Errorf(oci.CodeUnsupported, "%s is a copy of another registry's repository: slipway mirror prune removes such copies", repo)
	}
	if err := h.noneImmutable(ctx, repo); err != nil {
		return 0, err
	}
	for {
		list, err := h.facts.Manifests(ctx, repo, removeStep)
		if errors.Is(err, catalog.ErrNoRepository) && removed == 0 {
			return 0, oci.Errorf(oci.CodeNameUnknown, "there is no repository %s", repo)
		}
		if errors.Is(err, catalog.ErrNoRepository) || err == nil && len(list) == 0 {
			return removed, nil
		}
		if err != nil {
			return removed, storage.ClientError("delete the repository "+repo, err)
		}
		for _, d := range list {
			err := h.reg.DeleteManifest(ctx, repo, d)
			if oci.HasCode(err, oci.CodeManifestUnknown) {
				continue // somebody else was quicker
			}
			if err != nil {
				return removed, err
			}
			removed++
		}
	}
}

// noneImmutable returns an error if a repository has an immutable tag.
func (h *History) noneImmutable(ctx context.Context, repo string) error {
	if h.opts.Immutable == nil {
		return nil
	}
	for last := ""; ; {
		tags, err := h.cat.Tags(ctx, repo, last, removeStep)
		if errors.Is(err, catalog.ErrNoRepository) || err == nil && len(tags) == 0 {
			return nil
		}
		if err != nil {
			return storage.ClientError("list the tags of "+repo, err)
		}
		for _, tag := range tags {
			if h.opts.Immutable(repo, tag) {
				return oci.Errorf(oci.CodeDenied, "tag %s is immutable: the repository stays as long as that tag exists", tag)
			}
		}
		last = tags[len(tags)-1]
	}
}
