package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"example.org/slipway/oci"
)

// AcceptManifests is the Accept header of a request for a manifest. It lists the known
// types, and then accepts any type, because artifacts may have other types.
const AcceptManifests = oci.MediaTypeOCIManifest + ", " + oci.MediaTypeOCIIndex + ", " +
	oci.MediaTypeDockerManifest + ", " + oci.MediaTypeDockerIndex + ", " +
	MediaTypeOCIArtifact + ", " +
	oci.MediaTypeDockerManifestV1S + ";q=0.5, " + oci.MediaTypeDockerManifestV1 + ";q=0.4, */*;q=0.1"

// MediaTypeOCIArtifact was part of the release candidates of OCI Image 1.1.
const MediaTypeOCIArtifact = "application/vnd.oci.artifact.manifest.v1+json"

func checkReference(repo, ref string) error {
	if err := oci.CheckName(repo); err != nil {
		return err
	}
	if oci.IsDigest(ref) {
		return oci.CheckDigest(oci.Digest(ref))
	}
	return oci.CheckTag(ref)
}

func (c *Client) manifestCall(method, repo, ref string, q url.Values) call {
	return call{
		method:   method,
		url:      c.url(oci.Request{Kind: oci.KindManifest, Repo: repo, Ref: ref}, q),
		header:   http.Header{"Accept": {AcceptManifests}},
		scopes:   pull(repo),
		retry:    retryAll,
		notFound: oci.CodeManifestUnknown,
	}
}

// ResolveManifest implements [oci.Reader] with HEAD. If the registry has no HEAD, or its
// answer does not have everything that a descriptor needs, it uses a GET.
func (c *Client) ResolveManifest(ctx context.Context, repo, ref string) (oci.Descriptor, error) {
	if err := checkReference(repo, ref); err != nil {
		return oci.Descriptor{}, err
	}
	l := c.manifestCall(http.MethodHead, repo, ref, nil)
	l.accept = []int{http.StatusMethodNotAllowed}
	resp, err := c.do(ctx, l)
	if err != nil {
		return oci.Descriptor{}, err
	}
	_ = resp.Body.Close()
	if desc, ok := DescribeManifest(resp, ref); ok {
		return desc, nil
	}
	m, err := c.GetManifest(ctx, repo, ref)
	if err != nil {
		return oci.Descriptor{}, err
	}
	return m.Descriptor, nil
}

// DescribeManifest returns the descriptor in the answer to a HEAD for ref. ok is false if
// the answer does not have a complete descriptor, or has the descriptor of another
// manifest.
func DescribeManifest(resp *http.Response, ref string) (desc oci.Descriptor, ok bool) {
	desc = oci.Descriptor{
		MediaType: contentType(resp.Header),
		Digest:    oci.Digest(resp.Header.Get("Docker-Content-Digest")),
		Size:      resp.ContentLength,
	}
	if desc.Digest == "" && oci.IsDigest(ref) {
		desc.Digest = oci.Digest(ref)
	}
	ok = resp.StatusCode == http.StatusOK && desc.MediaType != "" && desc.Size > 0 && oci.ValidDigest(desc.Digest) &&
		contentEncoding(resp.Header) == ""
	return desc, ok && (!oci.IsDigest(ref) || string(desc.Digest) == ref)
}

// contentType returns an answer's media type without parameters. It returns "" if there
// is none, or if the type does not say anything about a manifest.
func contentType(h http.Header) string {
	t, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil {
		return ""
	}
	switch t {
	case "application/json", oci.MediaTypeOctetStream, "text/plain", "text/html":
		return ""
	}
	return t
}

// GetManifest implements [oci.Reader].
func (c *Client) GetManifest(ctx context.Context, repo, ref string) (*oci.Manifest, error) {
	if err := checkReference(repo, ref); err != nil {
		return nil, err
	}
	l := c.manifestCall(http.MethodGet, repo, ref, nil)
	resp, err := c.do(ctx, l)
	if err != nil {
		return nil, err
	}
	m, err := ReadManifest(resp, ref)
	if err != nil {
		return nil, fmt.Errorf("manifest %s of %s: %w", ref, repo, err)
	}
	return m, nil
}

// ReadManifest reads the manifest from the answer to a GET for ref, and closes the
// answer. It compares the content with ref if ref is a digest, or else with the digest in
// the answer's header. If there is neither, it computes the sha256 digest. Errors:
// MANIFEST_INVALID, DIGEST_INVALID, SIZE_INVALID (larger than [oci.MaxManifestSize]), and
// those of the connection.
func ReadManifest(resp *http.Response, ref string) (*oci.Manifest, error) {
	b, err := readAll(resp, oci.MaxManifestSize)
	if err != nil {
		return nil, err
	}
	m := &oci.Manifest{Bytes: b}
	m.Size = int64(len(b))
	if m.MediaType, err = manifestType(contentType(resp.Header), b); err != nil {
		return nil, err
	}
	want := oci.Digest(ref)
	if !oci.IsDigest(ref) {
		want = oci.Digest(resp.Header.Get("Docker-Content-Digest"))
		if c := contentEncoding(resp.Header); c != "" && !oci.ValidDigest(want) && !json.Valid(b) {
			return nil, oci.Errorf(oci.CodeManifestInvalid, "it has the content encoding %.20q, and nothing says its digest", c)
		}
		if m.MediaType == oci.MediaTypeDockerManifestV1S && oci.ValidDigest(want) {
			m.Digest = want // this digest is of the signed part only
			return m, nil
		}
	}
	if m.Digest, err = verify(b, want); err != nil {
		return nil, err
	}
	return m, nil
}

// verify returns the digest of b. It is an error if want is a digest and does not match.
// If want is not a digest, verify returns the sha256 digest.
func verify(b []byte, want oci.Digest) (oci.Digest, error) {
	if !oci.ValidDigest(want) {
		return oci.SHA256(b), nil
	}
	if got := want.Algorithm().FromBytes(b); got != want {
		return "", oci.Errorf(oci.CodeDigestInvalid, "its digest is %s and should be %s", got, want)
	}
	return want, nil
}

// manifestType returns a manifest's media type, from the Content-Type and the manifest's
// mediaType field. SPEC: a client should reject a manifest if the two differ.
func manifestType(header string, b []byte) (string, error) {
	var m struct {
		MediaType     string          `json:"mediaType"`
		SchemaVersion int             `json:"schemaVersion"`
		Manifests     json.RawMessage `json:"manifests"`
		Config        json.RawMessage `json:"config"`
	}
	err := json.Unmarshal(b, &m)
	switch {
	case err != nil && isJSON(header):
		return "", &oci.Error{Code: oci.CodeManifestInvalid, Message: fmt.Sprintf("it is served as %q and is not JSON", header), Err: err}
	case err != nil && header != "":
		return header, nil // a manifest of another type, which need not be JSON
	case err != nil:
		return "", &oci.Error{Code: oci.CodeManifestInvalid, Message: "it has no media type and is not JSON", Err: err}
	case header != "" && m.MediaType != "" && header != m.MediaType:
		return "", oci.Errorf(oci.CodeManifestInvalid, "it is served as %q and says it is %q", header, m.MediaType)
	case header != "":
		return header, nil
	case m.MediaType != "":
		return m.MediaType, nil
	case m.SchemaVersion == 1:
		return oci.MediaTypeDockerManifestV1, nil
	case m.Manifests != nil: // SPEC: mediaType is optional in OCI manifests
		return oci.MediaTypeOCIIndex, nil
	case m.Config != nil:
		return oci.MediaTypeOCIManifest, nil
	}
	return "", oci.Errorf(oci.CodeManifestInvalid, "it has no media type")
}

// isJSON reports whether content of a media type must be JSON. If such content is not
// JSON, it is not what its type says; it may be compressed, for example.
func isJSON(mediaType string) bool {
	return strings.HasSuffix(mediaType, "+json") || strings.HasSuffix(mediaType, "+prettyjws")
}

// maxTagQuery bounds the bytes of the tags in one PUT. Common proxies refuse URLs longer
// than about 8 KiB.
const maxTagQuery = 4 << 10

// PutManifest implements [oci.Writer]. A manifest with one tag and no digest is put under
// the tag. Any other manifest is put under its digest, with all tags as parameters. Tags
// that the registry did not accept as parameters are put one by one. With such a registry
// only some of the tags may be set after an error.
//
// If the manifest has a subject and the registry has no referrers API, PutManifest
// updates the index under the referrers tag.
func (c *Client) PutManifest(ctx context.Context, repo string, m oci.PutManifest) (oci.PutResult, error) {
	if err := checkPut(repo, &m); err != nil {
		return oci.PutResult{}, err
	}
	res := oci.PutResult{Descriptor: oci.Descriptor{MediaType: m.MediaType, Digest: m.Digest, Size: int64(len(m.Bytes))}}
	if res.Digest == "" {
		res.Digest = oci.SHA256(m.Bytes)
	}
	ref, q := string(res.Digest), url.Values{}
	if m.Digest == "" && len(m.Tags) == 1 {
		ref = m.Tags[0]
		res.Tags = m.Tags[:1:1]
	} else {
		for size, i := 0, 0; i < len(m.Tags) && size < maxTagQuery; i++ {
			q.Add("tag", m.Tags[i])
			size += len(m.Tags[i]) + len("&tag=")
		}
	}
	h, err := c.put(ctx, repo, ref, q, m, res.Digest)
	if err != nil {
		return oci.PutResult{}, err
	}
	for _, tag := range h.Values("OCI-Tag") {
		if slices.Contains(m.Tags, tag) && !slices.Contains(res.Tags, tag) {
			res.Tags = append(res.Tags, tag)
		}
	}
	for _, tag := range m.Tags {
		if slices.Contains(res.Tags, tag) {
			continue
		}
		if _, err := c.put(ctx, repo, tag, nil, m, res.Digest); err != nil {
			return oci.PutResult{}, err
		}
		res.Tags = append(res.Tags, tag)
	}
	res.Subject, err = c.noteSubject(ctx, repo, m, res.Descriptor, oci.Digest(h.Get("OCI-Subject")))
	return res, err
}

// checkPut returns an error for a manifest that no registry would accept. It fills in the
// media type.
func checkPut(repo string, m *oci.PutManifest) error {
	if err := oci.CheckName(repo); err != nil {
		return err
	}
	for _, tag := range m.Tags {
		if err := oci.CheckTag(tag); err != nil {
			return err
		}
	}
	if len(m.Bytes) > oci.MaxManifestSize {
		return &oci.Error{Code: oci.CodeSizeInvalid, Status: http.StatusRequestEntityTooLarge,
			Message: fmt.Sprintf("the manifest has %d bytes, at most %d are allowed", len(m.Bytes), oci.MaxManifestSize)}
	}
	if m.Digest != "" {
		if err := oci.CheckDigest(m.Digest); err != nil {
			return err
		}
		if _, err := verify(m.Bytes, m.Digest); err != nil {
			return err
		}
	}
	if m.MediaType != "" {
		return nil
	}
	var err error
	m.MediaType, err = manifestType("", m.Bytes)
	return err
}

// put puts a manifest under one reference and returns the answer's header.
func (c *Client) put(ctx context.Context, repo, ref string, q url.Values, m oci.PutManifest, d oci.Digest) (http.Header, error) {
	b, err := bytesBody(m.Bytes)
	if err != nil {
		return nil, err
	}
	l := c.manifestCall(http.MethodPut, repo, ref, q)
	l.header = http.Header{"Content-Type": {m.MediaType}}
	l.scopes, l.body, l.notFound = push(repo), b, oci.CodeNameUnknown
	resp, err := c.do(ctx, l)
	if err != nil {
		return nil, err
	}
	finish(resp)
	// A registry may use the sha256 digest for a manifest that was pushed by its sha512
	// digest.
	got := oci.Digest(resp.Header.Get("Docker-Content-Digest"))
	if oci.ValidDigest(got) && got.Algorithm() == d.Algorithm() && got != d {
		return nil, oci.Errorf(oci.CodeDigestInvalid, "the registry stored manifest %s of %s as %s", d, repo, got)
	}
	return resp.Header, nil
}

// noteSubject returns the subject of a manifest that was put. If the registry did not say
// that it lists the manifest among the referrers, noteSubject does that.
func (c *Client) noteSubject(ctx context.Context, repo string, m oci.PutManifest, desc oci.Descriptor, told oci.Digest) (oci.Digest, error) {
	if told != "" {
		return told, nil
	}
	var parsed struct {
		Subject      *oci.Descriptor   `json:"subject"`
		ArtifactType string            `json:"artifactType"`
		Config       *oci.Descriptor   `json:"config"`
		Annotations  map[string]string `json:"annotations"`
	}
	if err := json.Unmarshal(m.Bytes, &parsed); err != nil || parsed.Subject == nil {
		return "", nil // it is not JSON, or has no subject
	}
	if !oci.ValidDigest(parsed.Subject.Digest) {
		return "", nil // the registry took the field for something else
	}
	desc.ArtifactType = parsed.ArtifactType
	if desc.ArtifactType == "" && parsed.Config != nil {
		desc.ArtifactType = parsed.Config.MediaType // SPEC: as the referrers API does
	}
	desc.Annotations = parsed.Annotations
	return parsed.Subject.Digest, c.addReferrer(ctx, repo, parsed.Subject.Digest, desc)
}

// DeleteBlob implements [oci.Deleter].
func (c *Client) DeleteBlob(ctx context.Context, repo string, d oci.Digest) error {
	if err := checkBlob(repo, d); err != nil {
		return err
	}
	return c.delete(ctx, repo, c.blobCall(http.MethodDelete, repo, d))
}

// DeleteManifest implements [oci.Deleter].
func (c *Client) DeleteManifest(ctx context.Context, repo string, d oci.Digest) error {
	if err := checkBlob(repo, d); err != nil {
		return err
	}
	return c.delete(ctx, repo, c.manifestCall(http.MethodDelete, repo, string(d), nil))
}

// DeleteTag implements [oci.Deleter].
func (c *Client) DeleteTag(ctx context.Context, repo, tag string) error {
	if err := oci.CheckName(repo); err != nil {
		return err
	}
	if err := oci.CheckTag(tag); err != nil {
		return err
	}
	return c.delete(ctx, repo, c.manifestCall(http.MethodDelete, repo, tag, nil))
}

// delete sends a DELETE. If the connection breaks the request is not repeated, because
// the second answer would be that the content does not exist.
func (c *Client) delete(ctx context.Context, repo string, l call) error {
	l.scopes, l.retry = remove(repo), retryStatus
	resp, err := c.do(ctx, l)
	if err != nil {
		return err
	}
	finish(resp)
	return nil
}

// addReferrer adds a manifest to the index under the subject's referrers tag. SPEC:
// "Referrers Tag Schema". The protocol has nothing that keeps two clients from
// overwriting each other's entry.
func (c *Client) addReferrer(ctx context.Context, repo string, subject oci.Digest, desc oci.Descriptor) error {
	select {
	case c.referrers <- struct{}{}:
		defer func() { <-c.referrers }()
	case <-ctx.Done():
		return ctx.Err()
	}
	tag := oci.ReferrersTag(subject)
	index, err := c.taggedReferrers(ctx, repo, subject)
	if err != nil {
		return fmt.Errorf("update referrers of %s: %w", subject, err)
	}
	if slices.ContainsFunc(index.Manifests, func(d oci.Descriptor) bool { return d.Digest == desc.Digest }) {
		return nil
	}
	index.SchemaVersion = 2
	index.MediaType = ocispec.MediaTypeImageIndex
	index.Manifests = append(index.Manifests, desc)
	b, err := json.Marshal(index)
	if err != nil {
		return fmt.Errorf("update referrers of %s: %w", subject, err)
	}
	m := oci.PutManifest{Bytes: b, MediaType: ocispec.MediaTypeImageIndex}
	if _, err := c.put(ctx, repo, tag, nil, m, oci.SHA256(b)); err != nil {
		return fmt.Errorf("update referrers of %s: %w", subject, err)
	}
	return nil
}

// taggedReferrers returns the index under the subject's referrers tag, or an empty index
// if there is none.
func (c *Client) taggedReferrers(ctx context.Context, repo string, subject oci.Digest) (*ocispec.Index, error) {
	index := &ocispec.Index{Manifests: []oci.Descriptor{}}
	m, err := c.GetManifest(ctx, repo, oci.ReferrersTag(subject))
	if err != nil {
		var e *oci.Error
		if errors.As(err, &e) && e.Status == http.StatusNotFound {
			return index, nil
		}
		return nil, err
	}
	if m.MediaType != ocispec.MediaTypeImageIndex {
		return nil, oci.Errorf(oci.CodeManifestInvalid, "the referrers tag of %s names a %q and no index", subject, m.MediaType)
	}
	if err := json.Unmarshal(m.Bytes, index); err != nil {
		return nil, fmt.Errorf("referrers index of %s: %w", subject, err)
	}
	return index, nil
}
