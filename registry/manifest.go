package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"example.org/slipway/cache"
	"example.org/slipway/catalog"
	"example.org/slipway/oci"
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
	Layers        []oci.Descriptor  `json:"layers"`
	Blobs         []oci.Descriptor  `json:"blobs"`
	Manifests     []oci.Descriptor  `json:"manifests"`
	Subject       *oci.Descriptor   `json:"subject"`
	Annotations   map[string]string `json:"annotations"`
}

func manifestInvalid(format string, args ...any) error {
	return oci.Errorf(oci.CodeManifestInvalid, format, args...)
}

// parseManifest reads and checks a manifest. contentType is the request's, or
// empty.
func parseManifest(b []byte, contentType string) (document, error) {
	var doc document
	if err := json.Unmarshal(b, &doc); err != nil {
		return doc, manifestInvalid("the manifest is not valid JSON: %v", err)
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
	doc, err := parseManifest(m.Bytes, m.MediaType)
	if err != nil {
		return oci.PutResult{}, err
	}
	row, err := r.manifestRow(repo, d, doc, m)
	if err != nil {
		return oci.PutResult{}, err
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

// beforePut prepares RAM for a manifest about to be recorded: what was just
// pushed is soon pulled. The returned function is called when it is durable.
func (r *Registry) beforePut(repo string, d oci.Digest, tags []string) (keep func(*oci.Manifest)) {
	keys := []cache.Key{{Kind: kindManifest, Repo: repo, Ref: string(d)}}
	for _, tag := range tags {
		keys = append(keys, cache.Key{Kind: kindTag, Repo: repo, Ref: tag})
	}
	epochs := make([]uint64, len(keys))
	for i, k := range keys {
		epochs[i] = r.ram.Epoch(k)
	}
	return func(m *oci.Manifest) {
		r.ram.Replace(keys[0], m, ramManifestBytes+int64(len(m.Bytes)), epochs[0])
		for i, k := range keys[1:] {
			r.ram.Replace(k, string(d), ramTagBytes, epochs[i+1])
		}
	}
}

func (r *Registry) emitPush(ctx context.Context, repo string, doc document, res oci.PutResult) error {
	if r.opts.OnEvent == nil {
		return nil
	}
	e := Event{Action: ActionPush, Repo: repo, Descriptor: res.Descriptor}
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
	if err := r.writable(); err != nil {
		return err
	}
	if err := oci.CheckName(repo); err != nil {
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
	switch {
	case errors.As(err, &missing):
		return &oci.Error{Code: oci.CodeManifestBlobUnknown, Detail: missing.Digests,
			Message: fmt.Sprintf("the manifest names %d contents that repository %s does not hold, the first is %s; push them first", len(missing.Digests), repo, missing.Digests[0])}
	case errors.As(err, &immutable):
		return immutableError(immutable)
	}
	return storeError("record the manifest", err)
}

func immutableError(e *catalog.ImmutableError) error {
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
	if r.opts.Immutable != nil {
		row.Immutable = func(tag string) bool { return r.opts.Immutable(repo, tag) }
	}
	if doc.Config != nil {
		row.Blobs = append(row.Blobs, doc.Config.Digest)
	}
	for _, l := range append(doc.Layers, doc.Blobs...) {
		if !foreign(l) {
			row.Blobs = append(row.Blobs, l.Digest)
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
	return row, nil
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

// Referrers implements oci.Lister. What a client without the referrers API has
// listed under the fallback tag is listed too.
func (r *Registry) Referrers(ctx context.Context, repo string, d oci.Digest, artifactType string) ([]oci.Descriptor, error) {
	list, err := r.cat.Referrers(ctx, repo, d, artifactType)
	if err != nil {
		return nil, fmt.Errorf("list the referrers of %s: %w", d, err)
	}
	m, err := r.manifest(ctx, repo, oci.ReferrersTag(d))
	if oci.HasCode(err, oci.CodeManifestUnknown) {
		return list, nil
	}
	if err != nil {
		return nil, err
	}
	var index ocispec.Index
	if m.MediaType != oci.MediaTypeOCIIndex || json.Unmarshal(m.Bytes, &index) != nil {
		return list, nil // somebody's own tag of that name
	}
	known := map[oci.Digest]bool{}
	for _, e := range list {
		known[e.Digest] = true
	}
	for _, e := range index.Manifests {
		if !known[e.Digest] && (artifactType == "" || e.ArtifactType == artifactType) {
			list = append(list, e)
		}
	}
	return list, nil
}
