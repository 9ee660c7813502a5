package mirror

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/mirror/fill"
	"example.org/slipway/registry/mirror/upstream"
)

// Rule matches contents of an upstream.
type Rule struct {
	// Name is a pattern for the repository's name at the upstream, by the rules of
	// path.Match. In addition ** stands for any number of segments. Default: every
	// repository.
	Name string
	// Tag is what a tag must match. Default: every tag matches. A rule with a Tag does
	// not restrict requests by digest.
	Tag *regexp.Regexp
}

func (r Rule) check() error {
	for _, part := range strings.Split(r.Name, "/") {
		if _, err := path.Match(part, ""); err != nil {
			return fmt.Errorf("pattern %q: %w", r.Name, err)
		}
	}
	return nil
}

func (r Rule) matchesName(name string) bool {
	return r.Name == "" || oci.MatchSegments(r.Name, name)
}

// wants reports whether p is one of the platforms. If no platforms are given, all are
// wanted. A manifest without a platform, such as a build's attestation, belongs to every
// platform.
func wants(platforms []oci.Platform, p oci.Platform) bool {
	if len(platforms) == 0 || p.OS == "" || p.OS == "unknown" {
		return true
	}
	for _, w := range platforms {
		if w.OS == p.OS && w.Architecture == p.Architecture && (w.Variant == "" || w.Variant == p.Variant) {
			return true
		}
	}
	return false
}

// refusal is the error by which a rule refuses something.
type refusal struct{ reply *oci.Error }

// Error implements error.
func (r *refusal) Error() string { return r.reply.Error() }

// Unwrap returns the error that the client gets.
func (r *refusal) Unwrap() error { return r.reply }

func refuse(code oci.Code, format string, args ...any) error {
	return &refusal{oci.Errorf(code, format, args...)}
}

func isRefusal(err error) bool {
	var r *refusal
	return errors.As(err, &r)
}

// allowed applies the rules about names and tags. tag is empty for a request by digest.
func (s *source) allowed(name, tag string) error {
	for _, r := range s.Deny {
		if r.matchesName(name) && (r.Tag == nil || tag != "" && r.Tag.MatchString(tag)) {
			return s.notMirrored(name, tag)
		}
	}
	if len(s.Allow) == 0 {
		return nil
	}
	for _, r := range s.Allow {
		if r.matchesName(name) && (r.Tag == nil || tag == "" || r.Tag.MatchString(tag)) {
			return nil
		}
	}
	return s.notMirrored(name, tag)
}

func (s *source) notMirrored(name, tag string) error {
	if tag != "" {
		name += ":" + tag
	}
	return refuse(oci.CodeDenied, "%s/%s is not mirrored here: the rules of %s do not allow it", s.Name, name, s.Name)
}

// document is the part of a manifest that is read here.
type document struct {
	Config      *oci.Descriptor   `json:"config"`
	Layers      []oci.Descriptor  `json:"layers"`
	Manifests   []oci.Descriptor  `json:"manifests"`
	Annotations map[string]string `json:"annotations"`
}

func isSchema1(mediaType string) bool {
	return mediaType == oci.MediaTypeDockerManifestV1 || mediaType == oci.MediaTypeDockerManifestV1S
}

// runs reports whether a manifest is an image: whether it has layers of a root file
// system. A signature or a chart has none and cannot be run.
func (d *document) runs() bool {
	for _, l := range d.Layers {
		if strings.HasPrefix(l.MediaType, "application/vnd.oci.image.layer.") || strings.HasPrefix(l.MediaType, "application/vnd.docker.image.rootfs.") {
			return true
		}
	}
	return false
}

// childKey identifies a manifest that an index of a repository names.
type childKey struct {
	repo   string
	digest oci.Digest
}

// child is what is known of a manifest that an index names.
type child struct {
	platform oci.Platform
	// index is the digest of the index.
	index oci.Digest
	// wanted is false if the manifest's platform is not mirrored.
	wanted bool
}

// noteChildren remembers what an index that was let in says of its manifests. It is
// called each time the index is read, because what it remembers does not survive a
// restart.
func (s *source) noteChildren(repo string, mf *oci.Manifest) {
	if !oci.IsIndex(mf.MediaType) {
		return
	}
	var doc document
	if json.Unmarshal(mf.Bytes, &doc) != nil {
		return
	}
	for _, c := range doc.Manifests {
		p := oci.PlatformOf(c.Platform)
		s.children.set(childKey{repo, c.Digest}, child{platform: p, index: mf.Digest, wanted: wants(s.Platforms, p)})
	}
}

// admit applies the rules about content. The age and signature of an index are those of
// its images. An image counts as signed if its index is signed.
func (m *Registry) admit(ctx context.Context, s *source, name, repo string, mf *oci.Manifest) error {
	if isSchema1(mf.MediaType) {
		return refuse(oci.CodeDenied, "%s/%s@%s is a manifest of Docker's schema 1, to which the rules of %s cannot be applied", s.Name, name, mf.Digest, s.Name)
	}
	var doc document
	if err := json.Unmarshal(mf.Bytes, &doc); err != nil {
		return &upstream.Error{Kind: upstream.Wrong, Upstream: s.Name, Err: fmt.Errorf("read manifest %s: %w", mf.Digest, err)}
	}
	_, isChild := s.children.get(childKey{repo, mf.Digest})
	if oci.IsIndex(mf.MediaType) {
		if s.OnlySigned {
			if err := m.checkSigned(ctx, s, name, repo, mf.Digest, 0); err != nil {
				return err
			}
		}
		s.noteChildren(repo, mf)
		return m.admitFirst(ctx, s, name, repo, &doc)
	}
	if !doc.runs() || doc.Config == nil {
		return nil
	}
	if len(s.Platforms) > 0 && !isChild || s.MinAge > 0 {
		if err := m.checkConfig(ctx, s, name, repo, &doc); err != nil {
			return err
		}
	}
	if s.OnlySigned {
		return m.checkSigned(ctx, s, name, repo, mf.Digest, 0)
	}
	return nil
}

// admitFirst checks the age of an index by its first image that is wanted and available.
// The other images are checked when they are requested.
func (m *Registry) admitFirst(ctx context.Context, s *source, name, repo string, doc *document) error {
	if s.MinAge <= 0 {
		return nil
	}
	var missing error
	for _, c := range doc.Manifests {
		p := oci.PlatformOf(c.Platform)
		if p.OS == "" || p.OS == "unknown" || oci.IsIndex(c.MediaType) || !wants(s.Platforms, p) {
			continue
		}
		_, err := m.ofDigest(ctx, s, name, repo, c.Digest, m.store.GetManifest)
		if !oci.HasCode(err, oci.CodeManifestUnknown) {
			return err
		}
		missing = err
	}
	return missing
}

// maxConfig is the size in bytes of the largest image config that is read.
const maxConfig = 4 << 20

// checkConfig applies the rules about an image's config.
func (m *Registry) checkConfig(ctx context.Context, s *source, name, repo string, doc *document) error {
	var config struct {
		Created      *time.Time `json:"created"`
		OS           string     `json:"os"`
		Architecture string     `json:"architecture"`
		Variant      string     `json:"variant"`
	}
	b, err := m.readBlob(ctx, s, name, repo, doc.Config.Digest, maxConfig)
	if err != nil {
		return fmt.Errorf("read config %s: %w", doc.Config.Digest, err)
	}
	if err := json.Unmarshal(b, &config); err != nil {
		return refuse(oci.CodeDenied, "%s/%s: the image's config %s cannot be read, so that the rules of %s cannot be applied: %v", s.Name, name, doc.Config.Digest, s.Name, err)
	}
	if p := (oci.Platform{OS: config.OS, Architecture: config.Architecture, Variant: config.Variant}); !wants(s.Platforms, p) {
		return refuse(oci.CodeManifestUnknown, "%s/%s: the image is for %s, which %s is not mirrored for", s.Name, name, p, s.Name)
	}
	if s.MinAge <= 0 {
		return nil
	}
	if config.Created == nil {
		return refuse(oci.CodeDenied, "%s/%s: the image does not say when it was made, and %s is mirrored only from an age of %s on", s.Name, name, s.Name, s.MinAge)
	}
	if at := config.Created.Add(s.MinAge); at.After(m.now()) {
		return refuse(oci.CodeDenied, "%s/%s: the image was made at %s, and %s is mirrored only from an age of %s on", s.Name, name,
			config.Created.UTC().Format(time.RFC3339), s.Name, s.MinAge)
	}
	return nil
}

// readBlob returns a config of a mirrored repository, if the config has at most the given
// number of bytes.
func (m *Registry) readBlob(ctx context.Context, s *source, name, repo string, d oci.Digest, most int64) ([]byte, error) {
	c, err := m.openBlob(ctx, s, name, repo, d, fill.Whole)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if size := c.Descriptor().Size; size > most {
		return nil, refuse(oci.CodeDenied, "%s/%s: config %s has %d bytes, and rules are applied to at most %d", s.Name, name, d, size, most)
	}
	return io.ReadAll(c)
}

// Artifact types and annotations that mark a signature in the referrers API.
const (
	cosignType = "application/vnd.dev.cosign.artifact.sig."
	notaryType = "application/vnd.cncf.notary.signature"
	// A sigstore bundle holds a signature of the image, or some other statement about it,
	// such as how it was built or what is in it. Annotations say which. If cosign lists
	// the bundle under a tag it leaves the annotations out of the list, but not out of
	// the bundle's manifest.
	bundleType       = "application/vnd.dev.sigstore.bundle"
	bundleContent    = "dev.sigstore.bundle.content"
	bundlePredicate  = "dev.sigstore.bundle.predicateType"
	messageSignature = "message-signature"
	cosignPredicate  = "https://sigstore.dev/cosign/sign/v1"
	// maxBundles bounds how many manifests of bundles are fetched.
	maxBundles = 32
)

// bundleSigns reports whether a bundle with these annotations is a signature. known is
// false if the annotations do not say it.
func bundleSigns(annotations map[string]string) (signs, known bool) {
	content, predicate := annotations[bundleContent], annotations[bundlePredicate]
	return content == messageSignature || predicate == cosignPredicate, content == messageSignature || predicate != ""
}

// maxNesting bounds the nesting of indexes.
const maxNesting = 8

// checkSigned checks whether a manifest has a signature at the upstream, or belongs to an
// index that has one. The store knows which indexes name the manifest, also after a
// restart.
func (m *Registry) checkSigned(ctx context.Context, s *source, name, repo string, d oci.Digest, depth int) error {
	if known, _ := s.signed.get(childKey{repo, d}); known {
		return nil
	}
	c, noted := s.children.get(childKey{repo, d})
	if noted {
		if known, _ := s.signed.get(childKey{repo, c.index}); known {
			s.signed.set(childKey{repo, d}, true)
			return nil
		}
	}
	no := m.askSigned(ctx, s, name, d)
	if !isRefusal(no) || depth == maxNesting {
		if no == nil {
			s.signed.set(childKey{repo, d}, true)
		}
		return no
	}
	indexes, err := m.store.NamedBy(ctx, repo, d)
	if err != nil {
		return err
	}
	if noted && !slices.Contains(indexes, c.index) { // the index is not stored yet
		indexes = append(indexes, c.index)
	}
	for _, index := range indexes {
		err := m.checkSigned(ctx, s, name, repo, index, depth+1)
		if err == nil {
			s.signed.set(childKey{repo, d}, true)
		}
		if !isRefusal(err) {
			return err
		}
	}
	return no
}

// askSigned asks the upstream whether a manifest has a signature, under cosign's tag or
// among its referrers.
func (m *Registry) askSigned(ctx context.Context, s *source, name string, d oci.Digest) error {
	tag := d.Algorithm().String() + "-" + d.Encoded() + ".sig"
	if oci.ValidTag(tag) { // with a sha512 digest the tag would be too long
		_, err := s.Upstream.ResolveManifest(ctx, name, tag)
		if err == nil || upstream.KindOf(err) != upstream.NotFound {
			return err
		}
	}
	list, err := s.Upstream.Referrers(ctx, name, d)
	if err != nil && upstream.KindOf(err) != upstream.NotFound {
		return err
	}
	var unknown []oci.Descriptor
	for _, r := range list {
		signs, known := true, true
		switch {
		case strings.HasPrefix(r.ArtifactType, cosignType), strings.HasPrefix(r.ArtifactType, notaryType):
		case strings.HasPrefix(r.ArtifactType, bundleType):
			signs, known = bundleSigns(r.Annotations)
		default:
			signs = false
		}
		if signs {
			return nil
		}
		if !known {
			unknown = append(unknown, r)
		}
	}
	for _, r := range unknown[:min(len(unknown), maxBundles)] {
		signs, err := m.readBundle(ctx, s, name, r.Digest)
		if signs || err != nil {
			return err
		}
	}
	return refuse(oci.CodeDenied, "%s/%s@%s has no signature, and %s is mirrored only with one", s.Name, name, d, s.Name)
}

// readBundle fetches a bundle's manifest and reports whether the bundle is a signature.
func (m *Registry) readBundle(ctx context.Context, s *source, name string, d oci.Digest) (signs bool, err error) {
	mf, _, _, err := s.Upstream.Manifest(ctx, name, string(d), "")
	if upstream.KindOf(err) == upstream.NotFound {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var doc document
	if json.Unmarshal(mf.Bytes, &doc) != nil {
		return false, nil
	}
	signs, _ = bundleSigns(doc.Annotations)
	return signs, nil
}
