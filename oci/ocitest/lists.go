package ocitest

import (
	"fmt"
	"maps"
	"slices"

	"example.org/slipway/oci"
)

func (s *suite) referrers() {
	image := s.image(repo, 1)
	subject := s.put(repo, image, "latest")
	s.wantReferrers(subject.Digest, "")

	signature := s.image(repo, 2)
	signature.ArtifactType, signature.Subject = "application/vnd.example.signature", &subject
	signature.Annotations = map[string]string{"by": "me", "with": `"<&>"`}
	sig := s.putWithSubject(signature, subject.Digest)
	sig.ArtifactType, sig.Annotations = signature.ArtifactType, signature.Annotations

	config := *image.Config // it has no artifact type, so the media type of its config counts
	config.MediaType = "application/vnd.example.sbom"
	bill := image
	bill.Config, bill.Subject = &config, &subject
	sbom := s.putWithSubject(bill, subject.Digest)
	sbom.ArtifactType = config.MediaType

	index := document{SchemaVersion: 2, MediaType: oci.MediaTypeOCIIndex, ArtifactType: signature.ArtifactType,
		Manifests: []oci.Descriptor{subject}, Subject: &subject}
	idx := s.putWithSubject(index, subject.Digest)
	idx.ArtifactType = index.ArtifactType

	s.wantReferrers(subject.Digest, "", sig, sbom, idx)
	s.wantReferrers(subject.Digest, signature.ArtifactType, sig, idx)
	s.wantReferrers(subject.Digest, config.MediaType, sbom)
	s.wantReferrers(subject.Digest, "application/vnd.example.none")
	s.wantReferrers(oci.SHA256([]byte("none")), "")

	// A subject need not exist, neither before nor afterwards.
	absent := oci.Descriptor{MediaType: oci.MediaTypeOCIManifest, Digest: oci.SHA256([]byte("later")), Size: 5}
	early := s.image(repo, 3)
	early.Subject = &absent
	s.wantReferrers(absent.Digest, "", oci.Descriptor{MediaType: early.MediaType, Digest: s.putWithSubject(early, absent.Digest).Digest,
		Size: int64(len(s.marshal(early))), ArtifactType: early.Config.MediaType})
	s.must(s.r.DeleteManifest(s.Context(), repo, sig.Digest), "delete a referrer")
	s.wantReferrers(subject.Digest, "", sbom, idx)
	s.must(s.r.DeleteManifest(s.Context(), repo, idx.Digest), "delete a referrer")
	s.must(s.r.DeleteManifest(s.Context(), repo, subject.Digest), "delete the subject")
	s.wantReferrers(subject.Digest, "", sbom)
	list, _, err := s.r.Referrers(s.Context(), "other", subject.Digest, "", "", 10)
	if err != nil || len(list) > 0 {
		s.Errorf("referrers in another repository: got %v, %v", list, err)
	}
}

func (s *suite) putWithSubject(doc document, subject oci.Digest) oci.Descriptor {
	s.Helper()
	b := s.marshal(doc)
	res, err := s.r.PutManifest(s.Context(), repo, oci.PutManifest{Bytes: b, MediaType: doc.MediaType})
	s.must(err, "put a manifest with a subject")
	if res.Subject != subject {
		s.Errorf("put a manifest with a subject: got %q, want %q", res.Subject, subject)
	}
	return oci.Descriptor{MediaType: doc.MediaType, Digest: res.Digest, Size: res.Size}
}

// wantReferrers checks the list as a whole and in pages of one.
func (s *suite) wantReferrers(d oci.Digest, artifactType string, want ...oci.Descriptor) {
	s.Helper()
	got, more, err := s.r.Referrers(s.Context(), repo, d, artifactType, "", 100)
	s.must(err, "list referrers of type %q", artifactType)
	if more {
		s.Errorf("referrers of type %q: says there are more", artifactType)
	}
	var paged []oci.Descriptor
	for last, more := "", true; more && len(paged) <= len(got); {
		var page []oci.Descriptor
		page, more, err = s.r.Referrers(s.Context(), repo, d, artifactType, last, 1)
		s.must(err, "list referrers of type %q behind %q", artifactType, last)
		if paged = append(paged, page...); more {
			if len(page) != 1 || string(page[0].Digest) <= last {
				s.Fatalf("referrers behind %q: got %v and more", last, page)
			}
			last = string(page[0].Digest)
		}
	}
	s.equal(append([]oci.Descriptor{}, paged...), append([]oci.Descriptor{}, got...), "referrers of type %q in pages of one", artifactType)
	byDigest := func(list []oci.Descriptor) map[oci.Digest]oci.Descriptor {
		m := map[oci.Digest]oci.Descriptor{}
		for _, d := range list {
			m[d.Digest] = d
		}
		return m
	}
	if len(got) != len(want) {
		s.Errorf("referrers of type %q: got %d, want %d", artifactType, len(got), len(want))
	}
	s.equal(byDigest(got), byDigest(want), "referrers of type %q", artifactType)
}

// awkward holds names whose order depends on locale, case or length.
var awkward = []string{"1", "10", "2", "A", "B", "Z", "_", "a", "a-b", "a.b", "aB", "a_b", "aa", "b", "latest", "v1.0", "v1.10", "v1.9"}

func (s *suite) tagPages() {
	_, _, err := s.r.Tags(s.Context(), repo, "", 10)
	s.wantCode(err, "tags of a repository that is not there", oci.CodeNameUnknown)
	doc := s.image(repo, 1)
	tags, more, err := s.r.Tags(s.Context(), repo, "", 10)
	if err != nil || more || len(tags) > 0 {
		s.Errorf("tags of a repository without any: got %q, %v, %v", tags, more, err)
	}
	s.put(repo, doc, awkward...)
	s.pages("tags", awkward, func(last string, n int) ([]string, bool, error) {
		return s.r.Tags(s.Context(), repo, last, n)
	})
}

func (s *suite) repositoryPages() {
	names, more, err := s.r.Repositories(s.Context(), "", 10)
	if err != nil || more || len(names) > 0 {
		s.Errorf("repositories of an empty registry: got %q, %v, %v", names, more, err)
	}
	all := map[string]bool{}
	for i := range 12 {
		for _, format := range []string{"a/r%d", "a-b/r%d", "r%d", "z/y/x%d"} {
			name := fmt.Sprintf(format, i)
			s.put(name, s.image(name, 1), "latest")
			all[name] = true
		}
	}
	want := slices.Sorted(maps.Keys(all))
	s.pages("repositories", want, func(last string, n int) ([]string, bool, error) {
		return s.r.Repositories(s.Context(), last, n)
	})
}

// pages walks a list in pages of several sizes, and also starts at odd places.
func (s *suite) pages(what string, want []string, list func(last string, n int) ([]string, bool, error)) {
	s.Helper()
	for _, n := range []int{1, 2, 3, len(want) - 1, len(want), len(want) + 1, 1000} {
		var got []string
		for last, more := "", true; more; {
			page, m, err := list(last, n)
			s.must(err, "list %s behind %q", what, last)
			if len(page) > n || (m && len(page) == 0) {
				s.Fatalf("list at most %d %s behind %q: got %d and more %v", n, what, last, len(page), m)
			}
			if got = append(got, page...); len(got) > len(want) {
				break
			}
			if more = m; more {
				last = page[len(page)-1]
			}
		}
		s.equal(got, want, "%s in pages of %d", what, n)
	}
	for _, last := range []string{"A0", "a", "a-b/r1", "l", "zzz", "~"} {
		i, found := slices.BinarySearch(want, last)
		if found {
			i++
		}
		got, more, err := list(last, 1000)
		s.must(err, "list %s behind %q", what, last)
		s.equal(append([]string{}, got...), append([]string{}, want[i:]...), "%s behind %q", what, last)
		if more {
			s.Errorf("%s behind %q: says there are more", what, last)
		}
	}
}
