package registry

import (
	"bytes"
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
)

// mediaTypeArtifact is the artifact manifest that image-spec 1.1 dropped before
// its release; some tools still push it.
const mediaTypeArtifact = "application/vnd.oci.artifact.manifest.v1+json"

// document is what this registry reads of a manifest, of all kinds together.
type document struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	ArtifactType  string            `json:"artifactType"`
	Config        *oci.Descriptor   `json:"config"`
	Layers        descriptors       `json:"layers"`
	Blobs         descriptors       `json:"blobs"`
	Manifests     descriptors       `json:"manifests"`
	Subject       *oci.Descriptor   `json:"subject"`
	Annotations   map[string]string `json:"annotations"`
}

// Limits of what a manifest may hold, so that a small document cannot take much
// memory or keep the catalogue's writer busy.
const (
	// maxDescriptors in a manifest's list; only one kind of list is allowed.
	maxDescriptors = 10_000
	// maxValues is how many JSON values a manifest has at most: 25 for each of
	// 10,000 descriptors. A value may take a hundred times its bytes of memory.
	maxValues = 250_000
	// maxDepth is how many objects and arrays may lie in one another. Manifests have five;
	// whoever indents one for reading writes as much as the square of the depth.
	maxDepth = 64
)

// descriptors is a list that stops being read when it is too long.
type descriptors []oci.Descriptor

// UnmarshalJSON implements json.Unmarshaler.
func (l *descriptors) UnmarshalJSON(b []byte) error {
	*l = nil
	dec := json.NewDecoder(bytes.NewReader(b))
	switch t, err := dec.Token(); {
	case err != nil:
		return err
	case t == nil:
		return nil
	case t != json.Delim('['):
		return errors.New("a list of descriptors is not an array")
	}
	list := descriptors{} // an empty list is not an absent one
	for dec.More() {
		if len(list) == maxDescriptors {
			return fmt.Errorf("a list has more than %d descriptors, which is the limit", maxDescriptors)
		}
		var d oci.Descriptor
		if err := dec.Decode(&d); err != nil {
			return err
		}
		list = append(list, d)
	}
	*l = list
	return nil
}

// checkShape refuses a JSON document of too many values, or of values too deep in one
// another.
func checkShape(b []byte) error {
	values, depth := oci.JSONShape(b)
	switch {
	case values > maxValues:
		return manifestInvalid("the manifest has more than %d JSON values, which is the limit", maxValues)
	case depth > maxDepth:
		return manifestInvalid("the manifest nests objects and arrays more than %d deep, which is the limit", maxDepth)
	}
	return nil
}

func manifestInvalid(format string, args ...any) error {
	return oci.Errorf(oci.CodeManifestInvalid, format, args...)
}

// parseManifest reads and checks a manifest. contentType is the request's, or
// empty.
func parseManifest(b []byte, contentType string) (document, error) {
	var doc document
	if err := checkShape(b); err != nil {
		return doc, err
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		return doc, manifestInvalid("the manifest cannot be read: %v", err)
	}
	mediaType, _, _ := strings.Cut(contentType, ";")
	mediaType = strings.TrimSpace(mediaType)
	switch {
	case mediaType == "" || mediaType == "application/json" || mediaType == oci.MediaTypeOctetStream:
		mediaType = doc.MediaType
	case doc.MediaType != "" && doc.MediaType != mediaType:
		return doc, manifestInvalid("the Content-Type is %s, the manifest says %s", mediaType, doc.MediaType)
	}
	if mediaType == "" { // OCI manifests need not say what they are
		mediaType = oci.MediaTypeOCIManifest
		if doc.Manifests != nil {
			mediaType = oci.MediaTypeOCIIndex
		}
	}
	doc.MediaType = mediaType
	return doc, doc.check()
}

// check refuses what is not a manifest of its media type. A document that could
// be read as two kinds at once is refused as well (CVE-2021-41190).
func (doc *document) check() error {
	switch doc.MediaType {
	case oci.MediaTypeOCIManifest, oci.MediaTypeDockerManifest:
		if doc.Manifests != nil || doc.Blobs != nil {
			return manifestInvalid("an image manifest cannot have manifests or blobs beside its layers")
		}
		if doc.Config == nil {
			return manifestInvalid("the image manifest has no config")
		}
	case oci.MediaTypeOCIIndex, oci.MediaTypeDockerIndex:
		if doc.Config != nil || doc.Layers != nil || doc.Blobs != nil {
			return manifestInvalid("an image index cannot have a config, layers or blobs")
		}
	case mediaTypeArtifact:
		if doc.Config != nil || doc.Layers != nil || doc.Manifests != nil {
			return manifestInvalid("an artifact manifest has blobs and nothing else")
		}
		return doc.checkDescriptors()
	case oci.MediaTypeDockerManifestV1, oci.MediaTypeDockerManifestV1S:
		return manifestInvalid("Docker's manifest schema 1 is not supported; push with a client newer than Docker 1.10")
	default:
		return manifestInvalid("manifests of media type %.100q are not supported", doc.MediaType)
	}
	if doc.SchemaVersion != 2 {
		return manifestInvalid("schemaVersion is %d, not 2", doc.SchemaVersion)
	}
	return doc.checkDescriptors()
}

func (doc *document) checkDescriptors() error {
	check := func(d oci.Descriptor) error {
		if err := oci.CheckDigest(d.Digest); err != nil {
			return manifestInvalid("a descriptor of the manifest is malformed: %v", err)
		}
		if d.Size < 0 {
			return manifestInvalid("descriptor %s has the size %d", d.Digest, d.Size)
		}
		return nil
	}
	for _, list := range [][]oci.Descriptor{doc.Layers, doc.Blobs, doc.Manifests} {
		for _, d := range list {
			if err := check(d); err != nil {
				return err
			}
		}
	}
	for _, d := range []*oci.Descriptor{doc.Config, doc.Subject} {
		if d != nil {
			if err := check(*d); err != nil {
				return err
			}
		}
	}
	return nil
}

// artifactType is what the referrers API reports. SPEC: an image manifest
// without one has its config's media type.
func (doc *document) artifactType() string {
	if doc.ArtifactType == "" && doc.Config != nil && doc.MediaType == oci.MediaTypeOCIManifest {
		return doc.Config.MediaType
	}
	return doc.ArtifactType
}

// foreign tells whether a layer may stay where it is: clients fetch it from its
// URLs, or are not allowed to distribute it.
func foreign(d oci.Descriptor) bool {
	return len(d.URLs) > 0 || strings.Contains(d.MediaType, ".nondistributable.") || strings.Contains(d.MediaType, ".foreign.")
}

// parse reads a pushed manifest, large ones a few at a time.
func (r *Registry) parse(ctx context.Context, m oci.PutManifest) (document, error) {
	const large = 256 << 10
	if len(m.Bytes) > large {
		select {
		case r.parsing <- struct{}{}:
			defer func() { <-r.parsing }()
		case <-ctx.Done():
			return document{}, ctx.Err()
		}
	}
	return parseManifest(m.Bytes, m.MediaType)
}

// PutManifest implements oci.Writer.
func (r *Registry) PutManifest(ctx context.Context, repo string, m oci.PutManifest) (oci.PutResult, error) {
	if err := r.checkPut(repo, m); err != nil {
		return oci.PutResult{}, err
	}
	d := oci.SHA256(m.Bytes)
	if m.Digest != "" { // checked above, so it has an algorithm
		if got := m.Digest.Algorithm().FromBytes(m.Bytes); got != m.Digest {
			return oci.PutResult{}, digestMismatch(m.Digest, got, int64(len(m.Bytes)))
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
	lost, err := r.missing(ctx, slices.Concat(row.Blobs, row.Manifests))
	if err == nil && len(lost) > 0 {
		err = &catalog.MissingError{Digests: lost[:min(len(lost), maxLost)], Total: len(lost)}
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

// beforePut prepares RAM for a manifest about to be recorded: what was just
// pushed is soon pulled. The returned function is called when it is durable.
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

func (r *Registry) emitPush(ctx context.Context, repo string, doc document, res oci.PutResult) error {
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
	if err := errors.Join(r.writable(), oci.CheckName(repo), r.room()); err != nil {
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
		return manifestInvalid("the manifest names %s with %d bytes, and it has %d; clients would refuse to pull it", size.Digest, size.Named, size.Stored)
	case errors.As(err, &mediaType):
		return manifestInvalid("repository %s holds this manifest with the media type %s; it cannot be changed", repo, mediaType.Stored)
	case errors.As(err, &missing):
		return &oci.Error{Code: oci.CodeManifestBlobUnknown, Detail: missing.Digests,
			Message: fmt.Sprintf("the manifest names %d contents that repository %s does not hold, the first is %s; push them first", missing.Total, repo, missing.Digests[0])}
	case errors.As(err, &immutable):
		return immutableError(immutable)
	}
	return storeError("record the manifest", err)
}

func immutableError(e *catalog.ImmutableError) error {
	if e.Part {
		return oci.Errorf(oci.CodeDenied, "it is part of what tag %s points at, which is immutable: it cannot be removed as long as that tag exists", e.Tag)
	}
	return oci.Errorf(oci.CodeDenied, "tag %s is immutable: it cannot be moved or removed once it exists", e.Tag)
}

func (r *Registry) manifestRow(repo string, d oci.Digest, doc document, m oci.PutManifest) (catalog.NewManifest, error) {
	row := catalog.NewManifest{
		Manifest: catalog.Manifest{Digest: d, MediaType: doc.MediaType, ArtifactType: doc.artifactType(), Annotations: doc.Annotations, Content: m.Bytes},
		Tags:     m.Tags,
	}
	if doc.Subject != nil {
		row.Subject = doc.Subject.Digest
	}
	if r.partial(repo) { // another registry decides what there is
		row.Optional = doc.names().all()
		return row, nil
	}
	if r.opts.Immutable != nil {
		row.Immutable = func(tag string) bool { return r.opts.Immutable(repo, tag) }
	}
	var err error
	if row.Sizes, err = doc.sizes(); err != nil {
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
		if !foreign(l) {
			own(l)
			continue
		}
		for _, u := range l.URLs {
			if r.opts.ForeignURL != nil && !r.opts.ForeignURL(u) {
				return row, manifestInvalid("layer %s may not be fetched from %.200s (validation.manifests.urls)", l.Digest, u)
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
	row.Blobs, row.Manifests, row.Optional = once(row.Blobs), once(row.Manifests), unique(row.Optional)
	return row, nil
}

// sizes returns how large the manifest says the contents are that it names.
func (doc *document) sizes() (map[oci.Digest]int64, error) {
	list := slices.Concat(doc.Layers, doc.Blobs, doc.Manifests)
	if doc.Config != nil {
		list = append(list, *doc.Config)
	}
	sizes := make(map[oci.Digest]int64, len(list))
	for _, d := range list {
		if size, again := sizes[d.Digest]; again && size != d.Size {
			return nil, manifestInvalid("the manifest names %s with two sizes, %d and %d bytes", d.Digest, size, d.Size)
		}
		sizes[d.Digest] = d.Size
	}
	return sizes, nil
}

// once returns the digests in their order, each once.
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
	return storeError(fmt.Sprintf("delete %s of %s", ref, repo), err)
}

// maxReferrers bounds a page of referrers, beside catalog.MaxReferrersBytes. With
// short annotations it stays well below the 4 MiB that clients must accept.
const maxReferrers = 2000

// Referrers implements oci.Lister. What a client without the referrers API has
// listed under the fallback tag is listed too. A page ends early at 2,000
// manifests or about 4 MiB. Annotations of more than 64 KiB are left out.
func (r *Registry) Referrers(ctx context.Context, repo string, d oci.Digest, artifactType, last string, n int) ([]oci.Descriptor, bool, error) {
	if n = min(n, maxReferrers); n <= 0 {
		return nil, false, nil
	}
	list, more, err := r.cat.Referrers(ctx, repo, d, artifactType, last, n)
	if err != nil {
		return nil, false, storeError(fmt.Sprintf("list the referrers of %s", d), err)
	}
	tagged, err := r.taggedReferrers(ctx, repo, d)
	if err != nil {
		return nil, false, err
	}
	end := "" // of what the catalogue has told: what sorts behind it is for a later page
	if more {
		end = string(list[len(list)-1].Digest)
	}
	for _, e := range tagged {
		at := string(e.Digest)
		if at > last && (end == "" || at < end) && (artifactType == "" || e.ArtifactType == artifactType) {
			list = append(list, e)
		}
	}
	// The sort is stable: of the same digest the catalogue's entry stays.
	slices.SortStableFunc(list, func(a, b oci.Descriptor) int { return strings.Compare(string(a.Digest), string(b.Digest)) })
	list = slices.CompactFunc(list, func(a, b oci.Descriptor) bool { return a.Digest == b.Digest })
	fits, err := fitting(list, n)
	if err != nil {
		return nil, false, fmt.Errorf("list the referrers of %s: %w", d, err)
	}
	return list[:fits], more || fits < len(list), nil
}

// fitting tells how many descriptors fit on a page, at least one if there are
// any. It takes annotations off that are too large to be listed.
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

// taggedReferrers returns what the index under the fallback tag of d lists and the
// repository has: clients delete a referrer and leave its entry in the index.
func (r *Registry) taggedReferrers(ctx context.Context, repo string, d oci.Digest) ([]oci.Descriptor, error) {
	m, err := r.manifest(ctx, repo, oci.ReferrersTag(d))
	if oci.HasCode(err, oci.CodeManifestUnknown) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if m.MediaType != oci.MediaTypeOCIIndex {
		return nil, nil // somebody's own tag of that name
	}
	index, err := parseManifest(m.Bytes, m.MediaType)
	if err != nil {
		return nil, nil // an index from before these checks, which lists nothing
	}
	if r.partial(repo) {
		return index.Manifests, nil // what is not here comes when it is asked for
	}
	digests := make([]oci.Digest, len(index.Manifests))
	for i, m := range index.Manifests {
		digests[i] = m.Digest
	}
	here, err := r.cat.ManifestsHere(ctx, repo, digests)
	if err != nil {
		return nil, storeError(fmt.Sprintf("look up the referrers of %s", d), err)
	}
	return slices.DeleteFunc(index.Manifests, func(m oci.Descriptor) bool { return !here[m.Digest] }), nil
}
