package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"example.org/slipway/oci"
	"example.org/slipway/registry/cache"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/manifest"
	"example.org/slipway/registry/storage"
)

// parse parses a pushed manifest. It parses only a few large ones at a time.
func (r *Registry) parse(ctx context.Context, m oci.PutManifest) (manifest.Document, error) {
	const large = 256 << 10
	if len(m.Bytes) > large {
		select {
		case r.parsing <- struct{}{}:
			defer func() { <-r.parsing }()
		case <-ctx.Done():
			return manifest.Document{}, ctx.Err()
		}
	}
	return manifest.Parse(m.Bytes, m.MediaType)
}

// PutManifest implements oci.Writer.
func (r *Registry) PutManifest(ctx context.Context, repo string, m oci.PutManifest) (oci.PutResult, error) {
	if err := r.checkPut(repo, m); err != nil {
		return oci.PutResult{}, err
	}
	d := oci.SHA256(m.Bytes)
	if m.Digest != "" { // checked above, so it has an algorithm
		if got := m.Digest.Algorithm().FromBytes(m.Bytes); got != m.Digest {
			return oci.PutResult{}, storage.DigestMismatch(m.Digest, got, int64(len(m.Bytes)))
		}
		d = m.Digest
	}
	doc, err := r.parse(ctx, m)
	if err != nil {
		return oci.PutResult{}, err
	}
	row, err := r.manifestRow(repo, d, doc, m)
	if err != nil {
		return oci.PutResult{}, err
	}
	if row.Origin = catalog.OriginOf(ctx, oci.CausePush); r.partial(repo) {
		row.Origin = catalog.Origin{Cause: oci.CauseMirror}
	}
	lost, err := r.storage.Missing(ctx, slices.Concat(row.Blobs, row.Manifests))
	if err == nil && len(lost) > 0 {
		err = &catalog.MissingError{Digests: lost[:min(len(lost), maxLost)], Total: len(lost)}
	}
	if err == nil {
		err = r.checkBelow(ctx, repo, row.Manifests)
	}
	if err != nil {
		return oci.PutResult{}, putError(repo, err)
	}
	keep := r.beforePut(repo, d, m.Tags)
	if _, err = r.cat.PutManifest(ctx, repo, row); err != nil {
		return oci.PutResult{}, putError(repo, err)
	}
	keep(&oci.Manifest{Bytes: m.Bytes, Descriptor: oci.Descriptor{MediaType: doc.MediaType, Digest: d, Size: int64(len(m.Bytes)), ArtifactType: row.ArtifactType}})
	res := oci.PutResult{Tags: m.Tags, Subject: row.Subject}
	res.Descriptor = oci.Descriptor{MediaType: doc.MediaType, Digest: d, Size: int64(len(m.Bytes)), ArtifactType: row.ArtifactType}
	return res, r.emitPush(ctx, repo, doc, res)
}

// maxLost is how many contents an error names.
const maxLost = 100

const (
	// belowAtOnce is how many manifests of an index are in RAM at the same time.
	belowAtOnce = 32
	// maxBelow is how many contents are looked for below an index. Images for all
	// platforms name a few hundred.
	maxBelow = 20_000
)

// checkBelow looks for the contents that the manifests of an index name. Clients that
// copy an index do not send the manifests that are here, and so do not send their layers
// either.
func (r *Registry) checkBelow(ctx context.Context, repo string, manifests []oci.Digest) error {
	lost, err := r.goneBelow(ctx, repo, manifests, nil)
	if err != nil || len(lost) == 0 {
		return err
	}
	return &oci.Error{Code: oci.CodeManifestBlobUnknown, Detail: lost[:min(len(lost), maxLost)],
		Message: fmt.Sprintf("the manifests of the index name %d contents that repository %s does not hold, the first is %s; push them first", len(lost), repo, lost[0])}
}

// goneBelow returns the contents that manifests name, at any depth, and that are gone. It
// reads no object, because an index may name hundreds. If had is not nil, it returns
// which manifests the repository has or had, and goneBelow ignores all other manifests of
// indexes.
func (r *Registry) goneBelow(ctx context.Context, repo string, manifests []oci.Digest,
	had func(context.Context, string, []oci.Digest) (map[oci.Digest]bool, error)) (lost []oci.Digest, err error) {
	if r.opts.MissingBlobs {
		return nil, nil
	}
	seen := map[oci.Digest]bool{}
	for len(manifests) > 0 && len(seen) < maxBelow {
		part := manifests[:min(len(manifests), belowAtOnce)]
		blobs, inner, err := r.namedBelow(ctx, repo, part, seen, had == nil)
		if err != nil {
			return nil, err
		}
		if had != nil && len(inner) > 0 {
			known, err := had(ctx, repo, inner)
			if err != nil {
				return nil, err
			}
			inner = slices.DeleteFunc(inner, func(d oci.Digest) bool { return !known[d] })
		}
		gone, err := r.goneFrom(ctx, repo, blobs, inner)
		if err != nil {
			return nil, err
		}
		lost = append(lost, gone...)
		manifests = append(manifests[len(part):len(manifests):len(manifests)], inner...)
	}
	return lost, nil
}

// lacks reports whether a client that may push has to push an image again because part of
// it is lost. If that cannot be determined in time, the part is taken to be here. An
// index may lack platforms that were never here, since its clients may not want them.
func (r *Registry) lacks(ctx context.Context, repo string, m *oci.Manifest) bool {
	if !oci.IsForPushing(ctx) || r.partial(repo) || r.opts.MissingBlobs || r.storage.Writable() != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, storage.Patience)
	defer cancel()
	if room := maxWhole; r.whole(ctx, repo, m, &room) {
		return false
	}
	lost, err := r.goneBelow(ctx, repo, []oci.Digest{m.Digest}, r.cat.ManifestsKnown)
	return err == nil && len(lost) > 0
}

// maxWhole is how many contents whole looks up. It looks them up one at a time, so for
// more contents the queries of goneBelow are faster.
const maxWhole = 200

// whole reports whether everything that a manifest names is here, at any depth. It is
// fast for images that lack nothing, because RAM has their rows and only the store must
// be asked. It also returns false if it does not know, or if there are more contents than
// room.
func (r *Registry) whole(ctx context.Context, repo string, m *oci.Manifest, room *int) bool {
	blobs, manifests, ok := r.names(m)
	*room -= strings.Count(blobs, "\n") + len(manifests)
	if !ok || *room < 0 {
		return false
	}
	for line := range strings.Lines(blobs) {
		d := oci.Digest(strings.TrimSuffix(line, "\n"))
		b, err := r.blob(ctx, repo, d)
		if err != nil || b.suspect {
			return false
		}
		if !b.object {
			continue
		}
		if _, here, err := r.storage.Glance(ctx, d, b.size); err != nil || !here {
			return false
		}
	}
	for _, d := range manifests {
		if inner, err := r.manifestByDigest(ctx, repo, string(d.Digest)); err != nil || !r.whole(ctx, repo, &inner, room) {
			return false
		}
	}
	return true
}

// names returns what a manifest names, the blobs as lines. RAM keeps the lines, because
// to parse a manifest takes longer than to look its blobs up.
func (r *Registry) names(m *oci.Manifest) (blobs string, manifests []oci.Descriptor, ok bool) {
	k := cache.Key{Kind: kindNames, Ref: string(m.Digest)}
	if v, ok := r.ram.Get(k); ok {
		return string(v), nil, true
	}
	doc, err := manifest.Parse(m.Bytes, "")
	if err != nil {
		return "", nil, false // stored by a version that did not check this
	}
	named := doc.Names()
	var lines []byte
	for _, d := range named.Blobs {
		lines = append(append(lines, d.Digest...), '\n')
	}
	if len(named.Manifests) == 0 {
		r.ram.Put(k, r.ram.Epoch(k), lines) // contents do not change
	}
	return string(lines), named.Manifests, true
}

// namedBelow returns what the given contents name, for contents that are manifests of the
// repository. It leaves out what is in seen, and adds the rest to seen. needed leaves out
// the platforms that an index may lack.
func (r *Registry) namedBelow(ctx context.Context, repo string, manifests []oci.Digest, seen map[oci.Digest]bool, needed bool) (blobs, inner []oci.Digest, err error) {
	here, err := r.cat.ManifestsHere(ctx, repo, manifests)
	if err != nil {
		return nil, nil, err
	}
	stored, err := r.cat.Stored(ctx, manifests)
	if err != nil {
		return nil, nil, err
	}
	add := func(list []oci.Digest, d oci.Digest) []oci.Digest {
		if seen[d] {
			return list
		}
		seen[d] = true
		return append(list, d)
	}
	for _, b := range stored {
		if !here[b.Digest] {
			continue // a blob, which an index may name too
		}
		doc, err := manifest.Parse(b.Content, "")
		if err != nil {
			continue // stored by a version that did not check this
		}
		named := doc.Names()
		for _, d := range named.Blobs {
			blobs = add(blobs, d.Digest)
		}
		for _, d := range named.Manifests {
			if !needed || r.opts.MissingPlatforms == nil || !r.opts.MissingPlatforms(repo, d) {
				inner = add(inner, d.Digest)
			}
		}
	}
	return blobs, inner, nil
}

// goneFrom returns the contents that the repository does not show, or whose objects are
// gone, truncated or known to be damaged.
func (r *Registry) goneFrom(ctx context.Context, repo string, blobs, manifests []oci.Digest) ([]oci.Digest, error) {
	shown, err := r.cat.Linked(ctx, repo, slices.Concat(blobs, manifests))
	if err != nil {
		return nil, err
	}
	asManifest, err := r.cat.ManifestsHere(ctx, repo, manifests)
	if err != nil {
		return nil, err
	}
	all := slices.Concat(blobs, manifests)
	gone := slices.DeleteFunc(slices.Clone(all), func(d oci.Digest) bool { return shown[d] || asManifest[d] })
	here := slices.DeleteFunc(all, func(d oci.Digest) bool { return !shown[d] && !asManifest[d] })
	lost, err := r.storage.MissingBy(ctx, here, func(ctx context.Context, b catalog.Blob) (here bool, err error) {
		if !b.Suspect {
			_, here, err = r.storage.Glance(ctx, b.Digest, b.Size)
		}
		return here, err
	})
	return append(gone, lost...), err
}

// beforePut prepares RAM for a manifest that is about to be recorded, because clients
// soon pull what was just pushed. The returned function is called when the manifest is
// durable.
func (r *Registry) beforePut(repo string, d oci.Digest, tags []string) (keep func(*oci.Manifest)) {
	keys := []cache.Key{manifestKey(repo, string(d))}
	for _, tag := range tags {
		keys = append(keys, tagKey(repo, tag))
	}
	epochs := make([]uint64, len(keys))
	for i, k := range keys {
		epochs[i] = r.ram.Epoch(k)
	}
	return func(m *oci.Manifest) {
		r.ram.Replace(keys[0], epochs[0], manifestHead(m), m.Bytes)
		for i, k := range keys[1:] {
			r.ram.Replace(k, epochs[i+1], []byte(d))
		}
	}
}

func (r *Registry) emitPush(ctx context.Context, repo string, doc manifest.Document, res oci.PutResult) error {
	if r.opts.OnEvent == nil {
		return nil
	}
	e := Event{Action: ActionPush, Repo: repo, Descriptor: res.Descriptor, Mirrored: r.partial(repo)}
	if doc.Config != nil {
		e.References = append(e.References, *doc.Config)
	}
	e.References = append(append(append(e.References, doc.Layers...), doc.Blobs...), doc.Manifests...)
	if len(res.Tags) == 0 {
		return r.emit(ctx, e)
	}
	for _, e.Tag = range res.Tags {
		if err := r.emit(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

func (r *Registry) checkPut(repo string, m oci.PutManifest) error {
	if err := errors.Join(r.storage.Writable(), oci.CheckName(repo), r.storage.Room()); err != nil {
		return err
	}
	if int64(len(m.Bytes)) > r.opts.MaxManifestBytes {
		return &oci.Error{Code: oci.CodeManifestInvalid, Status: http.StatusRequestEntityTooLarge,
			Message: fmt.Sprintf("the manifest has %d bytes, at most %d are allowed", len(m.Bytes), r.opts.MaxManifestBytes)}
	}
	for _, tag := range m.Tags {
		if err := oci.CheckTag(tag); err != nil {
			return err
		}
	}
	if m.Digest != "" {
		return oci.CheckDigest(m.Digest)
	}
	return nil
}

func putError(repo string, err error) error {
	var missing *catalog.MissingError
	var immutable *catalog.ImmutableError
	var mediaType *catalog.MediaTypeError
	var size *catalog.SizeError
	switch {
	case errors.As(err, &size):
		return manifest.Invalid("the manifest names %s with %d bytes, and it has %d; clients would refuse to pull it", size.Digest, size.Named, size.Stored)
	case errors.As(err, &mediaType):
		return manifest.Invalid("repository %s holds this manifest with the media type %s; it cannot be changed", repo, mediaType.Stored)
	case errors.As(err, &missing):
		return &oci.Error{Code: oci.CodeManifestBlobUnknown, Detail: missing.Digests,
			Message: fmt.Sprintf("the manifest names %d contents that repository %s does not hold, the first is %s; push them first", missing.Total, repo, missing.Digests[0])}
	case errors.As(err, &immutable):
		return immutableError(immutable)
	}
	return storage.ClientError("record the manifest", err)
}

func immutableError(e *catalog.ImmutableError) error {
	if e.Part {
		return oci.Errorf(oci.CodeDenied, "it is part of what tag %s points at, which is immutable: it cannot be removed as long as that tag exists", e.Tag)
	}
	return oci.Errorf(oci.CodeDenied, "tag %s is immutable: it cannot be moved or removed once it exists", e.Tag)
}

func (r *Registry) manifestRow(repo string, d oci.Digest, doc manifest.Document, m oci.PutManifest) (catalog.NewManifest, error) {
	row := catalog.NewManifest{
		Manifest: catalog.Manifest{Digest: d, MediaType: doc.MediaType, ArtifactType: doc.ReferrerType(), Annotations: doc.Annotations, Content: m.Bytes},
		Tags:     m.Tags,
	}
	if doc.Subject != nil {
		row.Subject = doc.Subject.Digest
	}
	if r.partial(repo) { // another registry decides what there is
		row.Optional = doc.Names().All()
		return row, nil
	}
	if r.opts.Immutable != nil {
		row.Immutable = func(tag string) bool { return r.opts.Immutable(repo, tag) }
	}
	var err error
	if row.Sizes, err = doc.Sizes(); err != nil {
		return row, err
	}
	own := func(d oci.Descriptor) {
		if r.opts.MissingBlobs {
			row.Optional = append(row.Optional, d)
		} else {
			row.Blobs = append(row.Blobs, d.Digest)
		}
	}
	if doc.Config != nil {
		own(*doc.Config)
	}
	for _, l := range slices.Concat(doc.Layers, doc.Blobs) {
		if !manifest.Foreign(l) {
			own(l)
			continue
		}
		for _, u := range l.URLs {
			if r.opts.ForeignURL != nil && !r.opts.ForeignURL(u) {
				return row, manifest.Invalid("layer %s may not be fetched from %.200s (validation.manifests.urls)", l.Digest, u)
			}
		}
		row.Optional = append(row.Optional, l)
	}
	for _, c := range doc.Manifests {
		if r.opts.MissingPlatforms != nil && r.opts.MissingPlatforms(repo, c) {
			row.Optional = append(row.Optional, c)
		} else {
			row.Manifests = append(row.Manifests, c.Digest)
		}
	}
	row.Blobs, row.Manifests, row.Optional = once(row.Blobs), once(row.Manifests), manifest.Unique(row.Optional)
	return row, nil
}

// once returns the digests in their order, without duplicates.
func once(list []oci.Digest) []oci.Digest {
	seen := make(map[oci.Digest]bool, len(list))
	return slices.DeleteFunc(list, func(d oci.Digest) bool {
		again := seen[d]
		seen[d] = true
		return again
	})
}

// DeleteManifest implements oci.Deleter.
func (r *Registry) DeleteManifest(ctx context.Context, repo string, d oci.Digest) error {
	if err := r.deletable(); err != nil {
		return err
	}
	tags, err := r.cat.DeleteManifest(ctx, repo, d, r.immutableIn(repo))
	if err != nil {
		return deleteError(repo, string(d), err)
	}
	for _, tag := range tags {
		r.ram.Drop(cache.Key{Kind: kindTag, Repo: repo, Ref: tag})
	}
	r.ram.Drop(cache.Key{Kind: kindManifest, Repo: repo, Ref: string(d)})
	return r.emit(ctx, Event{Action: ActionDelete, Repo: repo, Descriptor: oci.Descriptor{Digest: d}})
}

// DeleteTag implements oci.Deleter.
func (r *Registry) DeleteTag(ctx context.Context, repo, tag string) error {
	if err := r.deletable(); err != nil {
		return err
	}
	if err := r.cat.DeleteTag(ctx, repo, tag, r.immutableIn(repo)); err != nil {
		return deleteError(repo, tag, err)
	}
	r.ram.Drop(cache.Key{Kind: kindTag, Repo: repo, Ref: tag})
	return r.emit(ctx, Event{Action: ActionDelete, Repo: repo, Tag: tag})
}

func (r *Registry) immutableIn(repo string) func(string) bool {
	if r.opts.Immutable == nil {
		return nil
	}
	return func(tag string) bool { return r.opts.Immutable(repo, tag) }
}

func deleteError(repo, ref string, err error) error {
	var immutable *catalog.ImmutableError
	switch {
	case errors.Is(err, catalog.ErrNotFound):
		return manifestUnknown(repo, ref)
	case errors.As(err, &immutable):
		return immutableError(immutable)
	}
	return storage.ClientError(fmt.Sprintf("delete %s of %s", ref, repo), err)
}

// maxReferrers bounds a page of referrers, as catalog.MaxReferrersBytes does. With short
// annotations a page stays well below the 4 MiB that clients must accept.
const maxReferrers = 2000

// Referrers implements oci.Lister. It includes what a client without the referrers API
// has listed under the fallback tag. A page ends early at 2,000 manifests or about 4 MiB.
// Annotations of more than 64 KiB are left out.
func (r *Registry) Referrers(ctx context.Context, repo string, d oci.Digest, artifactType, last string, n int) ([]oci.Descriptor, bool, error) {
	if n = min(n, maxReferrers); n <= 0 {
		return nil, false, nil
	}
	list, more, err := r.cat.Referrers(ctx, repo, d, artifactType, last, n)
	if err != nil {
		return nil, false, storage.ClientError(fmt.Sprintf("list the referrers of %s", d), err)
	}
	tagged, err := r.taggedReferrers(ctx, repo, d)
	if err != nil {
		return nil, false, err
	}
	end := "" // the last digest from the catalogue; what sorts after it is for a later page
	if more {
		end = string(list[len(list)-1].Digest)
	}
	for _, e := range tagged {
		at := string(e.Digest)
		if at > last && (end == "" || at < end) && (artifactType == "" || e.ArtifactType == artifactType) {
			list = append(list, e)
		}
	}
	// The sort is stable: of equal digests, the catalogue's entry stays.
	slices.SortStableFunc(list, func(a, b oci.Descriptor) int { return strings.Compare(string(a.Digest), string(b.Digest)) })
	list = slices.CompactFunc(list, func(a, b oci.Descriptor) bool { return a.Digest == b.Digest })
	fits, err := fitting(list, n)
	if err != nil {
		return nil, false, fmt.Errorf("list the referrers of %s: %w", d, err)
	}
	return list[:fits], more || fits < len(list), nil
}

// fitting returns how many descriptors fit on a page, at least one if there are any. It
// removes annotations that are too large to be listed.
func fitting(list []oci.Descriptor, n int) (int, error) {
	total := 0
	for i := range list[:min(n, len(list))] {
		annotations, err := json.Marshal(list[i].Annotations)
		if err != nil {
			return 0, err
		}
		if len(annotations) > catalog.MaxListedAnnotations {
			list[i].Annotations = nil
		}
		b, err := json.Marshal(list[i])
		if err != nil {
			return 0, err
		}
		if total += len(b); total > catalog.MaxReferrersBytes && i > 0 {
			return i, nil
		}
	}
	return min(n, len(list)), nil
}

// taggedReferrers returns the manifests that the index under the fallback tag of d lists
// and that the repository has. Clients delete a referrer and leave its entry in the
// index.
func (r *Registry) taggedReferrers(ctx context.Context, repo string, d oci.Digest) ([]oci.Descriptor, error) {
	m, err := r.manifest(ctx, repo, oci.ReferrersTag(d))
	if oci.HasCode(err, oci.CodeManifestUnknown) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if m.MediaType != oci.MediaTypeOCIIndex {
		return nil, nil // a user's own tag of that name
	}
	index, err := manifest.Parse(m.Bytes, m.MediaType)
	if err != nil {
		return nil, nil // an index from before these checks, which lists nothing
	}
	if r.partial(repo) {
		return index.Manifests, nil // missing manifests are fetched when they are requested
	}
	digests := make([]oci.Digest, len(index.Manifests))
	for i, m := range index.Manifests {
		digests[i] = m.Digest
	}
	here, err := r.cat.ManifestsHere(ctx, repo, digests)
	if err != nil {
		return nil, storage.ClientError(fmt.Sprintf("look up the referrers of %s", d), err)
	}
	return slices.DeleteFunc(index.Manifests, func(m oci.Descriptor) bool { return !here[m.Digest] }), nil
}
