package mirror_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"example.org/slipway/oci"
	"example.org/slipway/registry/mirror"
)

// TestNameRules checks which repositories and tags are admitted.
func TestNameRules(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	v1 := regexp.MustCompile(`^v1(\..*)?$`)
	for _, c := range []struct {
		name        string
		allow, deny []mirror.Rule
		ok, refused []string
	}{
		{name: "no rules", ok: []string{"app:v1", "team/app:v2"}},
		{name: "allowed names", allow: []mirror.Rule{{Name: "library/*"}, {Name: "team/**"}},
			ok: []string{"library/app:v1", "team/a/b:v1"}, refused: []string{"app:v1", "library/a/b:v1", "library:v1"}},
		{name: "denied names", deny: []mirror.Rule{{Name: "evil/**"}}, ok: []string{"app:v1"}, refused: []string{"evil/app:v1"}},
		{name: "deny wins", allow: []mirror.Rule{{Name: "team/*"}}, deny: []mirror.Rule{{Name: "*/secret"}},
			ok: []string{"team/app:v1"}, refused: []string{"team/secret:v1"}},
		{name: "tags", allow: []mirror.Rule{{Tag: v1}}, ok: []string{"app:v1", "app:v1.2"}, refused: []string{"app:v2", "app:xv1"}},
		{name: "denied tags", deny: []mirror.Rule{{Name: "app", Tag: v1}}, ok: []string{"app:v2", "team/app:v1"}, refused: []string{"app:v1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBed(t, settings{source: func(s *mirror.Source) { s.Allow, s.Deny = c.allow, c.deny }})
			for _, ref := range append(c.ok, c.refused...) {
				repo, tag, _ := strings.Cut(ref, ":")
				b.o.image(repo, tag, `{}`)
			}
			for _, ref := range c.ok {
				repo, tag, _ := strings.Cut(ref, ":")
				if _, err := b.GetManifest(t.Context(), "origin/"+repo, tag); err != nil {
					t.Errorf("%s: %v", ref, err)
				}
			}
			for _, ref := range c.refused {
				repo, tag, _ := strings.Cut(ref, ":")
				_, err := b.GetManifest(t.Context(), "origin/"+repo, tag)
				wantCode(t, ref, err, oci.CodeDenied)
				if got := b.o.count("/v2/" + repo + "/manifests/" + tag); got != 0 {
					t.Errorf("%s: the upstream was asked", ref)
				}
			}
		})
	}
}

func TestBadRules(t *testing.T) {
	b := newBed(t, settings{})
	for _, o := range []mirror.Options{
		{},
		{Dir: t.TempDir(), Sources: []mirror.Source{{Name: "a/b", Upstream: b.opts.Sources[0].Upstream}}},
		{Dir: t.TempDir(), Sources: []mirror.Source{{Name: "a"}}},
		{Dir: t.TempDir(), Sources: []mirror.Source{b.opts.Sources[0], b.opts.Sources[0]}},
		{Dir: t.TempDir(), Sources: []mirror.Source{{Name: "a", Upstream: b.opts.Sources[0].Upstream, Allow: []mirror.Rule{{Name: "["}}}}},
		{Dir: t.TempDir(), Default: "absent"},
		{Dir: t.TempDir(), Mappings: []mirror.Mapping{{From: "a/*", To: "b"}}},
	} {
		if _, err := mirror.New(b.store, &o); err == nil {
			t.Errorf("New takes %+v", o)
		}
	}
}

// multi pushes an index with an image for each platform, and returns the index and the images.
func (b *bed) multi(repo, tag string, platforms ...string) (index oci.Descriptor, images []oci.Descriptor) {
	b.t.Helper()
	m := &manifest{SchemaVersion: 2, MediaType: oci.MediaTypeOCIIndex}
	for i, p := range platforms {
		part := append(strings.Split(p, "/"), "")
		d, _ := b.o.image(repo, "", fmt.Sprintf(`{"os":%q,"architecture":%q,"n":%d}`, part[0], part[1], i), random(uint64(i), sizeTiny))
		d.Platform = &ocispec.Platform{OS: part[0], Architecture: part[1], Variant: part[2]}
		m.Manifests = append(m.Manifests, d)
		images = append(images, d)
	}
	return b.o.put(repo, tag, m), images
}

// TestPlatforms checks that an index is unchanged and that images of other platforms are not
// found, however they are requested.
func TestPlatforms(t *testing.T) {
	amd64, err := oci.ParsePlatform("linux/amd64")
	if err != nil {
		t.Fatal(err)
	}
	s := settings{source: func(s *mirror.Source) { s.Platforms = []oci.Platform{amd64} }}
	b := newBed(t, s)
	index, images := b.multi("app", "v1", "linux/amd64", "linux/arm64/v8", "unknown/unknown")
	unwanted := func(what string) {
		t.Helper()
		_, err := b.GetManifest(t.Context(), "origin/app", string(images[1].Digest))
		wantCode(t, what, err, oci.CodeManifestUnknown)
		if err != nil && !strings.Contains(err.Error(), "arm64") {
			t.Errorf("%s: the error does not name the platform: %v", what, err)
		}
	}
	unwanted("before the index is known")
	b.clock.Add(time.Minute)
	b.wantManifest("origin/app", "v1", index.Digest)
	unwanted("after it")
	b.wantManifest("origin/app", string(images[0].Digest), images[0].Digest)
	b.wantManifest("origin/app", string(images[2].Digest), images[2].Digest)
	b.shut(b.Registry)
	b.open(s)
	b.wantManifest("origin/app", "v1", index.Digest)
	unwanted("after a restart")
	for _, bad := range []string{"", "linux", "linux/", "/amd64", "a/b/c/d", "a/b/"} {
		if p, err := oci.ParsePlatform(bad); err == nil {
			t.Errorf("platform %q is read as %v", bad, p)
		}
	}
}

// TestMissingPlatforms checks that an index may name images that its registry lacks. The rest can
// be pulled and loaded.
func TestMissingPlatforms(t *testing.T) {
	b := newBed(t, settings{})
	index, images := b.multi("app", "v1", "linux/amd64", "linux/arm64")
	b.o.on(func(r *http.Request) *fault {
		if strings.HasSuffix(r.URL.Path, string(images[1].Digest)) {
			return &fault{status: 404}
		}
		return nil
	})
	b.wantManifest("origin/app", "v1", index.Digest)
	_, err := b.GetManifest(t.Context(), "origin/app", string(images[1].Digest))
	wantCode(t, "missing image", err, oci.CodeManifestUnknown)
	if err := b.Load(t.Context(), "origin/app:v1", nil); err != nil {
		t.Errorf("load what is there: %v", err)
	}
	b.wantManifest("origin/app", string(images[0].Digest), images[0].Digest)
	if _, err := b.store.GetManifest(t.Context(), "origin/app", string(images[0].Digest)); err != nil {
		t.Errorf("the image that is there was not stored: %v", err)
	}
}

// TestMinAge checks that an image that is too young is not admitted, and that a tag which was moved
// to one keeps its old image.
func TestMinAge(t *testing.T) {
	b := newBed(t, settings{source: func(s *mirror.Source) { s.MinAge = 72 * time.Hour }})
	created := func(ago time.Duration) string {
		return fmt.Sprintf(`{"os":"linux","architecture":"amd64","created":%q}`, b.clock.Now().Add(-ago).Format(time.RFC3339))
	}
	layer := random(1, sizeTiny)
	old, _ := b.o.image("app", "v1", created(100*time.Hour), layer)
	b.wantManifest("origin/app", "v1", old.Digest)
	young, _ := b.o.image("app", "v1", created(time.Hour), layer)
	b.clock.Add(2 * time.Hour)
	b.wantManifest("origin/app", "v1", old.Digest)
	_, err := b.GetManifest(t.Context(), "origin/app", string(young.Digest))
	wantCode(t, "young image by digest", err, oci.CodeDenied)
	index := &manifest{SchemaVersion: 2, MediaType: oci.MediaTypeOCIIndex, Manifests: []oci.Descriptor{young}}
	index.Manifests[0].Platform = &ocispec.Platform{OS: "linux", Architecture: "amd64"}
	b.o.put("app", "multi", index)
	_, err = b.GetManifest(t.Context(), "origin/app", "multi")
	wantCode(t, "index of a young image", err, oci.CodeDenied)
	b.o.image("app", "ageless", `{"os":"linux"}`, layer)
	_, err = b.GetManifest(t.Context(), "origin/app", "ageless")
	wantCode(t, "image without an age", err, oci.CodeDenied)
	chart, _ := b.o.image("chart", "v1", `{}`) // has no root file system
	b.wantManifest("origin/chart", "v1", chart.Digest)
	b.clock.Add(80 * time.Hour)
	b.wantManifest("origin/app", "v1", young.Digest)
}

// TestOnlySigned checks that unsigned images are not admitted, and that the signature of an index
// covers its images.
func TestOnlySigned(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	s := settings{source: func(s *mirror.Source) { s.OnlySigned = true }}
	b := newBed(t, s)
	layer := random(1, sizeTiny)
	b.o.image("app", "unsigned", `{"n":1}`, layer)
	_, err := b.GetManifest(t.Context(), "origin/app", "unsigned")
	wantCode(t, "unsigned image", err, oci.CodeDenied)

	tagged, _ := b.o.image("app", "tagged", `{"n":2}`, layer)
	sig, _ := b.o.image("app", "sha256-"+tagged.Digest.Encoded()+".sig", `{"s":1}`)
	b.wantManifest("origin/app", "tagged", tagged.Digest)
	b.wantManifest("origin/app", "sha256-"+tagged.Digest.Encoded()+".sig", sig.Digest)

	referred, _ := b.o.image("app", "referred", `{"n":3}`, layer)
	config := b.o.push("app", []byte(`{}`))
	b.o.put("app", "", &manifest{SchemaVersion: 2, MediaType: oci.MediaTypeOCIManifest, ArtifactType: "application/vnd.cncf.notary.signature", Config: &config, Subject: &referred})
	b.wantManifest("origin/app", "referred", referred.Digest)

	index, images := b.multi("app", "multi", "linux/amd64")
	_, err = b.GetManifest(t.Context(), "origin/app", string(images[0].Digest))
	wantCode(t, "image of an index nobody has asked for", err, oci.CodeDenied)
	b.o.image("app", "sha256-"+index.Digest.Encoded()+".sig", `{"s":2}`)
	b.clock.Add(time.Minute)
	b.wantManifest("origin/app", "multi", index.Digest)
	b.wantManifest("origin/app", string(images[0].Digest), images[0].Digest)
}

// TestOnlySigned512: the digest may be one that is too long for cosign's tags.
func TestOnlySigned512(t *testing.T) {
	b := newBed(t, settings{source: func(s *mirror.Source) { s.OnlySigned = true }})
	put := func(n int) oci.Descriptor {
		_, m := b.o.image("app", "", fmt.Sprintf(`{"n":%d}`, n), random(1, sizeTiny))
		text, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		res, err := b.o.PutManifest(t.Context(), "app", oci.PutManifest{Bytes: text, MediaType: m.MediaType, Digest: sha512Of(text)})
		if err != nil {
			t.Fatal(err)
		}
		return res.Descriptor
	}
	unsigned, signed := put(1), put(2)
	config := b.o.push("app", []byte(`{}`))
	b.o.put("app", "", &manifest{SchemaVersion: 2, MediaType: oci.MediaTypeOCIManifest, ArtifactType: "application/vnd.cncf.notary.signature", Config: &config, Subject: &signed})
	if m, err := b.GetManifest(t.Context(), "origin/app", string(signed.Digest)); err != nil || m.Digest != signed.Digest {
		t.Errorf("a signed image: %v", err)
	}
	_, err := b.GetManifest(t.Context(), "origin/app", string(unsigned.Digest))
	wantCode(t, "an image without a signature", err, oci.CodeDenied)
}

// TestSignedIndex checks that an image of a signed index is admitted by digest, whatever was
// requested before it, and that parts of an unsigned index are not.
func TestSignedIndex(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	sign := func(b *bed, d oci.Descriptor, referrer bool) {
		if !referrer {
			b.o.image("app", "sha256-"+d.Digest.Encoded()+".sig", `{"s":2}`)
			return
		}
		b.bundle(d, map[string]string{"dev.sigstore.bundle.content": "dsse-envelope", "dev.sigstore.bundle.predicateType": "https://sigstore.dev/cosign/sign/v1"})
	}
	for name, c := range map[string]struct {
		signed func(b *bed, outer, index oci.Descriptor, images []oci.Descriptor)
		before bool // the index was fetched before the rule existed
		want   oci.Code
	}{
		"index by tag":      {signed: func(b *bed, _, index oci.Descriptor, _ []oci.Descriptor) { sign(b, index, false) }},
		"index by referrer": {signed: func(b *bed, _, index oci.Descriptor, _ []oci.Descriptor) { sign(b, index, true) }},
		"index of an index": {signed: func(b *bed, outer, _ oci.Descriptor, _ []oci.Descriptor) { sign(b, outer, false) }},
		"each image": {before: true, signed: func(b *bed, _, _ oci.Descriptor, images []oci.Descriptor) {
			for _, d := range images {
				sign(b, d, false)
			}
		}},
		"signed, from before the rule":   {before: true, signed: func(b *bed, _, index oci.Descriptor, _ []oci.Descriptor) { sign(b, index, false) }},
		"unsigned, from before the rule": {before: true, signed: func(*bed, oci.Descriptor, oci.Descriptor, []oci.Descriptor) {}, want: oci.CodeDenied},
	} {
		for _, read := range []bool{false, true} { // whether the index is requested again
			t.Run(fmt.Sprintf("%s, read %v", name, read), func(t *testing.T) {
				rule := settings{source: func(s *mirror.Source) { s.OnlySigned = true }}
				first := rule
				if c.before {
					first = settings{}
				}
				b := newBed(t, first)
				index, images := b.multi("app", "inner", "linux/amd64", "linux/arm64", "linux/s390x")
				outer := b.o.put("app", "v1", &manifest{SchemaVersion: 2, MediaType: oci.MediaTypeOCIIndex, Manifests: []oci.Descriptor{index}})
				c.signed(b, outer, index, images)
				tag, d := "inner", index.Digest
				if name == "index of an index" {
					b.wantManifest("origin/app", "v1", outer.Digest)
					b.wantManifest("origin/app", string(index.Digest), index.Digest)
					tag, d = "v1", outer.Digest
				}
				b.wantManifest("origin/app", tag, d)
				image := func(when string, i int) {
					t.Helper()
					_, err := b.GetManifest(t.Context(), "origin/app", string(images[i].Digest))
					if c.want == "" && err != nil || c.want != "" && !oci.HasCode(err, c.want) {
						t.Errorf("%s: an image of the index: %v, want %q", when, err, c.want)
					}
				}
				if !c.before {
					image("before a restart", 0)
				}
				b.shut(b.Registry)
				b.opts.Sources[0].OnlySigned = true
				b.open(rule)
				if read {
					b.wantManifest("origin/app", tag, d)
				}
				image("after a restart", 1)
				b.shut(b.Registry)
				b.open(rule)
				image("after another one", 2)
			})
		}
	}
}

// bundle adds a sigstore bundle to a manifest at the origin.
func (b *bed) bundle(d oci.Descriptor, annotations map[string]string) oci.Descriptor {
	b.t.Helper()
	config := b.o.push("app", []byte(`{}`))
	return b.o.put("app", "", &manifest{SchemaVersion: 2, MediaType: oci.MediaTypeOCIManifest, ArtifactType: "application/vnd.dev.sigstore.bundle.v0.3+json",
		Config: &config, Subject: &d, Annotations: annotations})
}

// TestBundles checks which bundles of sigstore are signatures of an image, listed with their annotations
// by the API, or without them under a tag.
func TestBundles(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	const content, predicate = "dev.sigstore.bundle.content", "dev.sigstore.bundle.predicateType"
	for name, c := range map[string]struct {
		annotations map[string]string
		signs       bool
	}{
		"cosign's signature":     {map[string]string{content: "dsse-envelope", predicate: "https://sigstore.dev/cosign/sign/v1"}, true},
		"signature of a message": {map[string]string{content: "message-signature"}, true},
		"provenance":             {map[string]string{content: "dsse-envelope", predicate: "https://slsa.dev/provenance/v1"}, false},
		"SBOM":                   {map[string]string{content: "dsse-envelope", predicate: "https://spdx.dev/Document/v2.3"}, false},
		"predicate alone":        {map[string]string{predicate: "https://cosign.sigstore.dev/attestation/vuln/v1"}, false},
		"nothing told":           {nil, false},
	} {
		for _, tagged := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, tagged %v", name, tagged), func(t *testing.T) {
				t.Parallel()
				b := newBed(t, settings{source: func(s *mirror.Source) { s.OnlySigned = true }})
				d, _ := b.o.image("app", "v1", `{"n":1}`, random(1, sizeTiny))
				provenance := b.bundle(d, map[string]string{content: "dsse-envelope", predicate: "https://slsa.dev/provenance/v0.2"})
				bundle := b.bundle(d, c.annotations)
				if tagged {
					for _, d := range []*oci.Descriptor{&provenance, &bundle} {
						d.ArtifactType = "application/vnd.dev.sigstore.bundle.v0.3+json"
					}
					b.o.put("app", oci.ReferrersTag(d.Digest), &manifest{SchemaVersion: 2, MediaType: oci.MediaTypeOCIIndex, Manifests: []oci.Descriptor{provenance, bundle}})
					b.o.on(func(r *http.Request) *fault {
						if strings.Contains(r.URL.Path, "/referrers/") {
							return &fault{status: 404}
						}
						return nil
					})
				}
				_, err := b.GetManifest(t.Context(), "origin/app", "v1")
				if c.signs && err != nil || !c.signs && !oci.HasCode(err, oci.CodeDenied) {
					t.Errorf("got error %v", err)
				}
			})
		}
	}
}

// TestNames checks what the names that clients write stand for.
func TestNames(t *testing.T) {
	b := newBed(t, settings{
		source: func(s *mirror.Source) { s.Library, s.Hosts = true, []string{"Mirror.example.com"} },
		options: func(o *mirror.Options) {
			o.Default = "origin"
			o.Mappings = []mirror.Mapping{{From: "hub/*", To: "origin/*"}, {From: "base", To: "origin/team/base"}}
		},
	})
	for name, want := range map[string]string{
		"origin/nginx":         "origin/library/nginx",
		"origin/library/nginx": "origin/library/nginx",
		"origin/team/app":      "origin/team/app",
		"hub/nginx":            "origin/library/nginx",
		"hub/team/app":         "origin/team/app",
		"base":                 "origin/team/base",
		"nginx":                "origin/library/nginx",
		"team/app":             "origin/team/app",
		"origin":               "origin/library/origin",
	} {
		if got := b.Name(t.Context(), name); got != want {
			t.Errorf("name %s stands for %s, want %s", name, got, want)
		}
	}
	for name, want := range map[string]string{"nginx": "nginx", "team/app": "team/app", "origin/nginx": "origin/library/nginx", "hub/a": "origin/library/a"} {
		if got := b.NameToPush(name); got != want {
			t.Errorf("name %s in a push stands for %s, want %s", name, got, want)
		}
	}
	for ns, known := range map[string]bool{
		"origin": true, "ORIGIN": true, "origin:443": true, "mirror.example.com": true, "Mirror.example.com:443": true,
		"origin:5000": false, "origin:80": false, "mirror.example.com:5000": false, "other.example.com:443": false, "": false, ":443": false,
	} {
		got, ok := b.NameFor(ns, "nginx")
		if ok != known || known && got != "origin/library/nginx" {
			t.Errorf("nginx at %q: %s, %v", ns, got, ok)
		}
	}
	// A pushed name is local from then on.
	data := random(1, 10)
	if _, err := b.PushBlob(t.Context(), "team/app", oci.SHA256(data), 10, strings.NewReader(string(data))); err != nil {
		t.Fatal(err)
	}
	if got := b.Name(t.Context(), "team/app"); got != "team/app" {
		t.Errorf("a pushed repository stands for %s", got)
	}
	if b.Mirrored("team/app") || !b.Mirrored("origin/team/app") || b.Mirrored("origin") {
		t.Error("Mirrored is wrong")
	}
}

// TestLists checks that lists of tags and referrers are the upstream's. There are none while it
// fails, because the content here may be incomplete.
func TestLists(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	b := newBed(t, settings{})
	d, _ := b.o.image("app", "v1", `{}`)
	b.o.image("app", "v2", `{}`)
	config := b.o.push("app", []byte(`{}`))
	sig := b.o.put("app", "", &manifest{SchemaVersion: 2, MediaType: oci.MediaTypeOCIManifest, ArtifactType: "application/x.sig", Config: &config, Subject: &d})
	b.wantManifest("origin/app", "v1", d.Digest)
	b.wantManifest("origin/app", string(sig.Digest), sig.Digest)
	tags, more, err := b.Tags(t.Context(), "origin/app", "", 10)
	if err != nil || more || len(tags) != 2 {
		t.Errorf("tags %v, %v, %v, want 2", tags, more, err)
	}
	list, more, err := b.Referrers(t.Context(), "origin/app", d.Digest, "", "", 10)
	if err != nil || more || len(list) != 1 || list[0].Digest != sig.Digest {
		t.Errorf("referrers %v, %v, %v", list, more, err)
	}
	if list, _, err := b.Referrers(t.Context(), "origin/app", d.Digest, "application/x.other", "", 10); err != nil || len(list) != 0 {
		t.Errorf("referrers of another type: %v, %v", list, err)
	}
	until(t, "the manifests are stored", func() bool {
		_, err := b.store.GetManifest(t.Context(), "origin/app", string(sig.Digest))
		return err == nil
	})
	b.o.srv.CloseClientConnections()
	b.o.srv.Close()
	_, _, err = b.Tags(t.Context(), "origin/app", "", 10)
	wantCode(t, "tags while the upstream is down", err, oci.CodeUnavailable)
	_, _, err = b.Referrers(t.Context(), "origin/app", d.Digest, "", "", 10)
	wantCode(t, "referrers while the upstream is down", err, oci.CodeUnavailable)
}
