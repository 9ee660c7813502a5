package starts

import (
	"context"
	"errors"

	"example.org/slipway/gear"
	"example.org/slipway/gear/profile"
	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
)

// Profile returns the files that containers of an image open first, in that order. It has
// the files that at least a quarter of the reports had. Errors: MANIFEST_UNKNOWN.
func (b *Book) Profile(ctx context.Context, repo string, manifest oci.Digest) ([]gear.Name, error) {
	return b.profileOf(ctx, repo, manifest, true)
}

// LookProfile is like Profile, for callers that only look. It leaves out files that are
// still being stored. It does not wait for these files, and does not make anybody store
// them sooner.
func (b *Book) LookProfile(ctx context.Context, repo string, manifest oci.Digest) ([]gear.Name, error) {
	return b.profileOf(ctx, repo, manifest, false)
}

func (b *Book) profileOf(ctx context.Context, repo string, manifest oci.Digest, wait bool) ([]gear.Name, error) {
	names, _, err := b.knownOf(ctx, repo, manifest, wait)
	return names, err
}

// knownOf is like profileOf, but also reports whether any report was of a complete start.
func (b *Book) knownOf(ctx context.Context, repo string, manifest oci.Digest, wait bool) (names []gear.Name, whole bool, err error) {
	if err := b.shows(ctx, repo, manifest); err != nil {
		return nil, false, err
	}
	data, err := b.facts.Profile(ctx, manifest)
	if err != nil || data == nil {
		return nil, false, err
	}
	var p profile.Profile
	if err := p.Decode(data); err != nil {
		b.log.Warn("a damaged profile is left alone", "manifest", manifest, "err", err)
		return nil, false, nil
	}
	names = p.Order()
	// Reports may have come through another repository that shows the image.
	may, err := b.src.Visible(ctx, repo, names, wait)
	if err != nil {
		return nil, false, err
	}
	kept := names[:0]
	for i, n := range names {
		if may[i] {
			kept = append(kept, n)
		}
	}
	return kept, p.Whole(), nil
}

// ReportProfile records which files a container opened, in that order. It ignores names
// that the repository may not read, so that a report can do no more than change an order.
// Errors: MANIFEST_UNKNOWN.
func (b *Book) ReportProfile(ctx context.Context, repo string, manifest oci.Digest, names []gear.Name) error {
	return b.report(ctx, repo, manifest, names, (*profile.Profile).Add)
}

// ReportSeen is like ReportProfile, for a container that may have opened other files as well,
// which nobody saw. The report counts for its names, and not against other names. Errors:
// MANIFEST_UNKNOWN.
func (b *Book) ReportSeen(ctx context.Context, repo string, manifest oci.Digest, names []gear.Name) error {
	return b.report(ctx, repo, manifest, names, (*profile.Profile).AddSeen)
}

func (b *Book) report(ctx context.Context, repo string, manifest oci.Digest, names []gear.Name, add func(*profile.Profile, []gear.Name)) error {
	if err := b.opts.Writable(); err != nil {
		return err
	}
	if err := b.shows(ctx, repo, manifest); err != nil {
		return err
	}
	names = names[:min(len(names), profile.MaxFiles)]
	may, err := b.src.Visible(ctx, repo, names, true)
	if err != nil {
		return err
	}
	var opened []gear.Name
	for i, n := range names {
		if may[i] {
			opened = append(opened, n)
		}
	}
	if len(opened) == 0 {
		return nil
	}
	err = b.facts.ChangeProfile(ctx, manifest, func(old []byte) ([]byte, error) {
		var p profile.Profile
		if err := p.Decode(old); err != nil {
			b.log.Warn("a damaged profile is started again", "manifest", manifest, "err", err)
			p = profile.Profile{}
		}
		add(&p, opened)
		return p.Encode(), nil
	})
	if err == nil {
		b.learnFrom(repo, manifest)
	}
	return err
}

// shows returns an error unless a repository shows a manifest.
func (b *Book) shows(ctx context.Context, repo string, manifest oci.Digest) error {
	_, err := b.cat.Manifest(ctx, repo, manifest)
	if errors.Is(err, catalog.ErrNotFound) || errors.Is(err, catalog.ErrNoRepository) {
		return oci.Errorf(oci.CodeManifestUnknown, "%s has no manifest %s", repo, manifest)
	}
	return err
}
