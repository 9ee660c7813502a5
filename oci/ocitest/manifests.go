package ocitest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"example.org/slipway/oci"
)

func (s *suite) manifestsRoundTrip() {
	image := s.image(repo, 1)
	docker := image
	docker.MediaType = oci.MediaTypeDockerManifest
	bare := image // OCI manifests need not state their media type
	bare.MediaType = ""
	bare.Annotations = map[string]string{"k": "<v>"}
	repeated := image
	repeated.Layers = append(slices.Clone(image.Layers), image.Layers[0], *image.Config)
	empty := image
	empty.Layers = []oci.Descriptor{}
	artifact := image
	artifact.ArtifactType = "application/vnd.example.thing"
	large := image
	large.Annotations = map[string]string{"pad": strings.Repeat("x", 100_000)}

	var children []oci.Descriptor
	for name, doc := range map[string]document{"image": image, "docker": docker, "bare": bare, "repeated": repeated, "empty": empty, "artifact": artifact, "large": large} {
		b := s.marshal(doc)
		want := oci.Descriptor{MediaType: oci.MediaTypeOCIManifest, Digest: oci.SHA256(b), Size: int64(len(b))}
		if name == "docker" {
			want.MediaType = oci.MediaTypeDockerManifest
		}
		for _, mediaType := range []string{want.MediaType, want.MediaType + "; charset=utf-8"} {
			res, err := s.r.PutManifest(s.Context(), repo, oci.PutManifest{Bytes: b, MediaType: mediaType, Tags: []string{name}})
			if err != nil || res.Digest != want.Digest || !slices.Equal(res.Tags, []string{name}) || res.Subject != "" {
				s.Fatalf("put %s as %q: got %+v, %v", name, mediaType, res, err)
			}
		}
		s.wantManifest(repo, name, want, b)
		s.wantManifest(repo, string(want.Digest), want, b)
		children = append(children, want)
	}
	for _, mediaType := range []string{oci.MediaTypeOCIIndex, oci.MediaTypeDockerIndex} {
		index := document{SchemaVersion: 2, MediaType: mediaType, Manifests: children}
		m := s.put(repo, index, "index")
		s.wantManifest(repo, "index", m, s.marshal(index))
		nested := document{SchemaVersion: 2, MediaType: oci.MediaTypeOCIIndex, Manifests: []oci.Descriptor{m}}
		s.wantManifest(repo, string(s.put(repo, nested).Digest),
			oci.Descriptor{MediaType: oci.MediaTypeOCIIndex, Digest: oci.SHA256(s.marshal(nested)), Size: int64(len(s.marshal(nested)))}, nil)
	}
	// A manifest is not a blob, and a blob is not a manifest.
	s.wantNoBlob(repo, children[0].Digest)
	s.wantNoManifest(repo, string(image.Config.Digest))

	b := s.marshal(image)
	d := sha512Of(b)
	_, err := s.r.PutManifest(s.Context(), repo, oci.PutManifest{Bytes: b, MediaType: image.MediaType, Digest: d, Tags: []string{"sha512"}})
	s.must(err, "put by sha512")
	want := oci.Descriptor{MediaType: image.MediaType, Digest: d, Size: int64(len(b))}
	s.wantManifest(repo, string(d), want, b)
	s.wantManifest(repo, "sha512", want, b)
}

func (s *suite) manifestsRefused() {
	image := s.image(repo, 1)
	good := s.marshal(image)
	d := oci.SHA256(good)
	replace := func(from, to string) []byte { return bytes.ReplaceAll(good, []byte(from), []byte(to)) }
	huge := image
	huge.Annotations = map[string]string{"pad": strings.Repeat("x", oci.MaxManifestSize)}
	for _, c := range []struct {
		name string
		put  oci.PutManifest
		code oci.Code
	}{
		{"nothing", oci.PutManifest{}, oci.CodeManifestInvalid},
		{"no JSON", oci.PutManifest{Bytes: []byte("{")}, oci.CodeManifestInvalid},
		{"something behind the JSON", oci.PutManifest{Bytes: append(bytes.Clone(good), '}')}, oci.CodeManifestInvalid},
		{"no object", oci.PutManifest{Bytes: []byte("[]")}, oci.CodeManifestInvalid},
		{"null", oci.PutManifest{Bytes: []byte("null")}, oci.CodeManifestInvalid},
		{"an empty object", oci.PutManifest{Bytes: []byte("{}")}, oci.CodeManifestInvalid},
		{"the wrong type of a field", oci.PutManifest{Bytes: replace(`"layers":[`, `"layers":[1,`)}, oci.CodeManifestInvalid},
		{"schema version 1", oci.PutManifest{Bytes: replace(`"schemaVersion":2`, `"schemaVersion":1`)}, oci.CodeManifestInvalid},
		{"another media type than it says", oci.PutManifest{Bytes: good, MediaType: oci.MediaTypeOCIIndex}, oci.CodeManifestInvalid},
		{"an unknown media type", oci.PutManifest{Bytes: replace(oci.MediaTypeOCIManifest, "text/plain"), MediaType: "text/plain"}, oci.CodeManifestInvalid},
		{"two kinds at once", oci.PutManifest{Bytes: replace(`"layers":`, `"manifests":[],"layers":`)}, oci.CodeManifestInvalid},
		{"a malformed digest", oci.PutManifest{Bytes: replace(string(image.Config.Digest), "sha256:xyz")}, oci.CodeManifestInvalid},
		{"a digest of an unknown algorithm", oci.PutManifest{Bytes: replace(string(image.Config.Digest), "md5:d41d8cd98f00b204e9800998ecf8427e")}, oci.CodeManifestInvalid},
		{"a negative size", oci.PutManifest{Bytes: replace(`"size":3000`, `"size":-1`)}, oci.CodeManifestInvalid},
		{"another digest", oci.PutManifest{Bytes: good, Digest: oci.SHA256([]byte("x"))}, oci.CodeDigestInvalid},
		{"a malformed own digest", oci.PutManifest{Bytes: good, Digest: "sha256:abc"}, oci.CodeDigestInvalid},
		{"too many bytes", oci.PutManifest{Bytes: s.marshal(huge)}, oci.CodeSizeInvalid},
	} {
		put := c.put
		if put.MediaType == "" {
			put.MediaType = image.MediaType
		}
		if put.Digest == "" {
			put.Tags = []string{"refused"}
		}
		_, err := s.r.PutManifest(s.Context(), repo, put)
		codes := []oci.Code{c.code}
		if c.code == oci.CodeSizeInvalid { // some registries report an invalid manifest
			codes = append(codes, oci.CodeManifestInvalid)
		}
		s.wantCode(err, "put a manifest with "+c.name, codes...)
		s.wantNoManifest(repo, "refused")
		if len(put.Bytes) > 0 {
			s.wantNoManifest(repo, string(oci.SHA256(put.Bytes)))
		}
	}
	for _, tag := range []string{"", ".x", "-x", "a b", "a/b", "ü", "a:b", strings.Repeat("x", 129)} {
		_, err := s.r.PutManifest(s.Context(), repo, oci.PutManifest{Bytes: good, MediaType: image.MediaType, Digest: d, Tags: []string{"fine", tag}})
		s.wantCode(err, fmt.Sprintf("put with the tag %q", tag), oci.CodeTagInvalid)
		s.wantNoManifest(repo, "fine")
		s.wantNoManifest(repo, string(d))
	}
	tag := strings.Repeat("x", 128)
	s.wantManifest(repo, tag, s.put(repo, image, tag), good)
}

func (s *suite) manifestMissing() {
	image := s.image(repo, 1)
	absent := oci.Descriptor{MediaType: "application/vnd.oci.image.layer.v1.tar", Digest: oci.SHA256([]byte("absent")), Size: 6}
	elsewhere := s.push("other", []byte("elsewhere"))
	elsewhere.MediaType = absent.MediaType
	child := s.put("other", s.image("other", 2))

	withLayer := func(l oci.Descriptor) document {
		doc := image
		doc.Layers = append(slices.Clone(image.Layers), l)
		return doc
	}
	withConfig := image
	withConfig.Config = &absent
	for name, doc := range map[string]document{
		"a layer nobody has":              withLayer(absent),
		"a layer of another repository":   withLayer(elsewhere),
		"a config nobody has":             withConfig,
		"a manifest of another repo":      {SchemaVersion: 2, MediaType: oci.MediaTypeOCIIndex, Manifests: []oci.Descriptor{child}},
		"a manifest nobody has":           {SchemaVersion: 2, MediaType: oci.MediaTypeOCIIndex, Manifests: []oci.Descriptor{absent}},
		"a layer that is only a manifest": withLayer(s.put(repo, image)),
	} {
		b := s.marshal(doc)
		_, err := s.r.PutManifest(s.Context(), repo, oci.PutManifest{Bytes: b, MediaType: doc.MediaType, Tags: []string{"incomplete"}})
		s.wantCode(err, "put a manifest with "+name, oci.CodeManifestBlobUnknown)
		s.wantNoManifest(repo, "incomplete")
		s.wantNoManifest(repo, string(oci.SHA256(b)))
	}

	// Layers that need not be distributed may be absent.
	foreign := absent
	foreign.MediaType = "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip"
	byURL := absent
	byURL.URLs = []string{"https://registry.test/layer"}
	for _, l := range []oci.Descriptor{foreign, byURL} {
		doc := withLayer(l)
		s.wantManifest(repo, "foreign", s.put(repo, doc, "foreign"), s.marshal(doc))
	}
	s.push(repo, []byte("absent"))
	doc := withLayer(absent)
	s.wantManifest(repo, "complete", s.put(repo, doc, "complete"), s.marshal(doc))
}

func (s *suite) manifestTags() {
	a, b := s.image(repo, 1), s.image(repo, 2)
	da := s.put(repo, a, "latest", "v1", "v1.0")
	db := s.put(repo, b, "latest")
	s.wantManifest(repo, "latest", db, s.marshal(b))
	s.wantManifest(repo, "v1", da, s.marshal(a))
	s.wantManifest(repo, string(da.Digest), da, s.marshal(a))

	res, err := s.r.PutManifest(s.Context(), repo,
		oci.PutManifest{Bytes: s.marshal(b), MediaType: b.MediaType, Digest: db.Digest, Tags: []string{"v1", "v2", "v1"}})
	s.must(err, "put by digest with tags")
	if slices.Sort(res.Tags); !slices.Equal(slices.Compact(res.Tags), []string{"v1", "v2"}) {
		s.Errorf("put by digest with tags: got tags %q, want v1 and v2", res.Tags)
	}
	s.wantManifest(repo, "v1", db, nil)
	s.wantManifest(repo, "v2", db, nil)
	s.wantManifest(repo, "v1.0", da, nil)

	s.must(s.r.DeleteTag(s.Context(), repo, "v2"), "delete a tag")
	s.wantNoManifest(repo, "v2")
	s.wantManifest(repo, string(db.Digest), db, nil)
	s.wantManifest(repo, "v1", db, nil)
	s.wantCode(s.r.DeleteTag(s.Context(), repo, "v2"), "delete a tag again", oci.CodeManifestUnknown)
	s.wantCode(s.r.DeleteTag(s.Context(), "nowhere", "v2"), "delete a tag of no repository", oci.CodeManifestUnknown)
	s.put(repo, a, "v2")
	s.wantManifest(repo, "v2", da, nil)
}

func (s *suite) manifestDeletion() {
	a, b := s.image(repo, 1), s.image(repo, 2)
	da, db := s.put(repo, a, "a1", "a2"), s.put(repo, b, "b")
	index := document{SchemaVersion: 2, MediaType: oci.MediaTypeOCIIndex, Manifests: []oci.Descriptor{da, db}}
	di := s.put(repo, index, "index")
	s.must(s.r.DeleteManifest(s.Context(), repo, di.Digest), "delete the index")
	for _, ref := range []string{"index", string(di.Digest)} {
		s.wantNoManifest(repo, ref)
	}
	s.wantManifest(repo, "a1", da, nil)
	s.must(s.r.DeleteManifest(s.Context(), repo, da.Digest), "delete an image")
	for _, ref := range []string{"a1", "a2", string(da.Digest)} {
		s.wantNoManifest(repo, ref)
	}
	s.wantManifest(repo, "b", db, s.marshal(b))
	tags, _, err := s.r.Tags(s.Context(), repo, "", 10)
	s.must(err, "list tags")
	s.equal(tags, []string{"b"}, "tags after the deletion")
	for _, d := range []oci.Digest{da.Digest, oci.SHA256([]byte("none"))} {
		s.wantCode(s.r.DeleteManifest(s.Context(), repo, d), "delete an absent manifest", oci.CodeManifestUnknown)
	}
	s.wantCode(s.r.DeleteManifest(s.Context(), "nowhere", db.Digest), "delete a manifest elsewhere", oci.CodeManifestUnknown)
	// The content of the deleted manifests can still be pushed again at once.
	s.wantManifest(repo, "a1", s.put(repo, a, "a1"), s.marshal(a))
}
