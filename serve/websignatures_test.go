package serve_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	_ "crypto/sha512" // for keys on longer curves
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"html"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"example.org/slipway/oci"
)

// signer signs as a key does: ECDSA over the digest, Ed25519 over the message.
type signer struct {
	t    *testing.T
	key  crypto.Signer
	file string
}

func newSigner(t *testing.T, name string, key crypto.Signer) *signer {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	s := &signer{t, key, filepath.Join(t.TempDir(), name+".pub")}
	writeFile(t, s.file, string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})))
	return s
}

func (s *signer) sign(message string) string {
	s.t.Helper()
	in, opts := []byte(message), crypto.SignerOpts(crypto.Hash(0))
	if k, ok := s.key.(*ecdsa.PrivateKey); ok {
		hash := crypto.SHA256
		if k.Curve == elliptic.P384() {
			hash = crypto.SHA384
		}
		h := hash.New()
		h.Write(in)
		in, opts = h.Sum(nil), hash
	}
	sig, err := s.key.Sign(rand.Reader, in, opts)
	if err != nil {
		s.t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(sig)
}

func simplePayload(digest, kind string) string {
	return fmt.Sprintf(`{"critical":{"identity":{"docker-reference":"example/app"},"image":{"docker-manifest-digest":%q},"type":%q},"optional":null}`, digest, kind)
}

// signedManifest returns the manifest of a signature with one layer.
func (s *instance) signedManifest(repo, mediaType, content string, annotations map[string]string, extra map[string]any) string {
	s.t.Helper()
	s.pushBlob(repo, content)
	layer := oci.Descriptor{MediaType: mediaType, Digest: oci.SHA256([]byte(content)), Size: int64(len(content)), Annotations: annotations}
	config := layer
	config.MediaType, config.Annotations = "application/vnd.oci.image.config.v1+json", nil
	doc := map[string]any{"schemaVersion": 2, "mediaType": oci.MediaTypeOCIManifest, "config": config, "layers": []oci.Descriptor{layer}}
	for k, v := range extra {
		doc[k] = v
	}
	b, err := json.Marshal(doc)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(b)
}

const (
	simpleSigning = "application/vnd.dev.cosign.simplesigning.v1+json"
	bundleType    = "application/vnd.dev.sigstore.bundle.v0.3+json"
	cosignType    = "cosign container image signature"
)

// byTag attaches a signature as cosign does by default.
func (s *instance) byTag(repo, image, payload, sig string, more map[string]string) {
	s.t.Helper()
	annotations := map[string]string{"dev.cosignproject.cosign/signature": sig}
	for k, v := range more {
		annotations[k] = v
	}
	m := s.signedManifest(repo, simpleSigning, payload, annotations, nil)
	s.want(http.StatusCreated, "PUT", "/v2/"+repo+"/manifests/"+strings.Replace(image, ":", "-", 1)+".sig", m, isManifest)
}

// asReferrer attaches an artifact to an image.
func (s *instance) asReferrer(repo, image, artifactType, mediaType, content string, annotations map[string]string) {
	s.t.Helper()
	m := s.signedManifest(repo, mediaType, content, annotations, map[string]any{"artifactType": artifactType,
		"subject": map[string]any{"mediaType": oci.MediaTypeOCIManifest, "digest": image, "size": 1}})
	s.want(http.StatusCreated, "PUT", "/v2/"+repo+"/manifests/"+digestOf(m), m, isManifest)
}

// envelope returns a bundle with a signed statement about an image. The form of what is
// signed is written out here as the DSSE specification has it.
func envelope(k *signer, image, predicate string) string {
	st := fmt.Sprintf(`{"_type":"https://in-toto.io/Statement/v1","subject":[{"digest":{"sha256":%q}}],"predicateType":%q,"predicate":{}}`, strings.TrimPrefix(image, "sha256:"), predicate)
	const kind = "application/vnd.in-toto+json"
	sig := k.sign(fmt.Sprintf("DSSEv1 %d %s %d %s", len(kind), kind, len(st), st))
	return fmt.Sprintf(`{"mediaType":%q,"verificationMaterial":{"publicKey":{"hint":"x"}},"dsseEnvelope":{"payload":%q,"payloadType":%q,"signatures":[{"sig":%q}]}}`,
		bundleType, base64.StdEncoding.EncodeToString([]byte(st)), kind, sig)
}

// TestSignatures attaches signatures of all forms, good and bad, to images, and looks at what
// the page says about each.
func TestSignatures(t *testing.T) {
	t.Parallel()
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	strange, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	long, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	release, build, other, vault := newSigner(t, "release", ecKey), newSigner(t, "build", edKey), newSigner(t, "other", strange), newSigner(t, "vault", long)
	keys := ""
	for name, k := range map[string]*signer{"release": release, "build": build, "vault": vault} {
		keys += fmt.Sprintf("- {name: %s, key: %s, repositories: ['team/**']}\n", name, k.file)
	}
	s := start(t, setup{yaml: "signatures:\n" + keys})
	const sign = "https://sigstore.dev/cosign/sign/v1"
	const bad, unknown = "signature does not verify", ">signature<"
	tag := func(k *signer, kind string, about func(string) string) func(string, string, string) {
		return func(repo, image, _ string) {
			p := simplePayload(about(image), kind)
			s.byTag(repo, image, p, k.sign(p), nil)
		}
	}
	itself := func(d string) string { return d }
	for name, c := range map[string]struct {
		attach func(repo, image, manifest string)
		want   string
	}{
		"team/tag":          {tag(release, cosignType, itself), "signed: release"},
		"team/tag-ed25519":  {tag(build, cosignType, itself), "signed: build"},
		"team/tag-p384":     {tag(vault, cosignType, itself), "signed: vault"},
		"team/other-key":    {tag(other, cosignType, itself), bad},
		"team/other-image":  {tag(release, cosignType, func(string) string { return digestOf("x") }), bad},
		"team/other-type":   {tag(release, "a promise", itself), bad},
		"free/without-keys": {tag(release, cosignType, itself), unknown},
		"team/altered": {func(repo, image, _ string) {
			p := simplePayload(image, cosignType)
			s.byTag(repo, image, strings.Replace(p, "example/app", "example/apq", 1), release.sign(p), nil)
		}, bad},
		"team/no-base64": {func(repo, image, _ string) {
			s.byTag(repo, image, simplePayload(image, cosignType), "%%%", nil)
		}, bad},
		"team/keyless": {func(repo, image, _ string) {
			p := simplePayload(image, cosignType)
			s.byTag(repo, image, p, other.sign(p), map[string]string{"dev.sigstore.cosign/certificate": "-----BEGIN"})
		}, unknown},
		"team/referrer": {func(repo, image, _ string) {
			p := simplePayload(image, cosignType)
			s.asReferrer(repo, image, "application/vnd.dev.cosign.artifact.sig.v1+json", simpleSigning, p, map[string]string{"dev.cosignproject.cosign/signature": build.sign(p)})
		}, "signed: build"},
		"team/two": {func(repo, image, manifest string) {
			tag(release, cosignType, itself)(repo, image, manifest)
			s.asReferrer(repo, image, bundleType, bundleType, envelope(build, image, sign), nil)
		}, "signed: build, release"},
		"team/bundle": {func(repo, image, _ string) {
			s.asReferrer(repo, image, bundleType, bundleType, envelope(release, image, sign), nil)
		}, "signed: release"},
		"team/bundle-p384": {func(repo, image, _ string) {
			s.asReferrer(repo, image, bundleType, bundleType, envelope(vault, image, sign), nil)
		}, "signed: vault"},
		"team/bundle-of-many": {func(repo, image, _ string) { // a format with one signature
			many := strings.Replace(envelope(release, image, sign), `"signatures":[`, `"signatures":[`+strings.Repeat("{},", 5000), 1)
			s.asReferrer(repo, image, bundleType, bundleType, many, nil)
		}, bad},
		"team/large-attestation": {func(repo, image, _ string) {
			large := strings.Replace(envelope(release, image, "https://spdx.dev/Document"), `{"publicKey"`, `{"padding":"`+strings.Repeat("x", 2<<20)+`","publicKey"`, 1)
			s.asReferrer(repo, image, bundleType, bundleType, large, nil)
		}, unknown},
		"team/bundle-other": {func(repo, image, _ string) {
			s.asReferrer(repo, image, bundleType, bundleType, envelope(other, image, sign), nil)
		}, bad},
		"team/bundle-altered": {func(repo, image, _ string) {
			s.asReferrer(repo, image, bundleType, bundleType, strings.Replace(envelope(release, image, sign), "in-toto+json", "in-toto+jsom", 1), nil)
		}, bad},
		"team/message": {func(repo, image, manifest string) {
			s.asReferrer(repo, image, bundleType, bundleType, fmt.Sprintf(`{"verificationMaterial":{"publicKey":{"hint":"x"}},"messageSignature":{"signature":%q}}`, release.sign(manifest)), nil)
		}, "signed: release"},
		"team/message-of-another": {func(repo, image, manifest string) {
			s.asReferrer(repo, image, bundleType, bundleType, fmt.Sprintf(`{"verificationMaterial":{"publicKey":{"hint":"x"}},"messageSignature":{"signature":%q}}`, release.sign(manifest+" ")), nil)
		}, bad},
		"team/bundle-of-another": {func(repo, image, _ string) {
			s.asReferrer(repo, image, bundleType, bundleType, envelope(release, digestOf("x"), sign), nil)
		}, unknown},
		"team/attestation": {func(repo, image, _ string) {
			s.asReferrer(repo, image, bundleType, bundleType, envelope(release, image, "https://slsa.dev/provenance/v1"), nil)
		}, unknown},
	} {
		image := s.pushImage(name, "v1", "content of "+name)
		c.attach(name, image, imageOf("content of "+name))
		body := html.UnescapeString(s.want(http.StatusOK, "GET", "/ui/repo/"+name, "").body)
		if !strings.Contains(body, c.want) || c.want == unknown && strings.Contains(body, "signed: ") || c.want != unknown && strings.Contains(body, unknown) {
			t.Errorf("%s: the page of the repository lacks %q:\n%s", name, c.want, body[strings.Index(body, "<tbody"):])
		}
		if signed, ok := strings.CutPrefix(c.want, "signed: "); ok && !strings.Contains(signed, ",") {
			s.holds("/ui/image/"+name+":v1", "signature, verified: "+signed)
		}
	}
}
