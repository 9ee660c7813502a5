package ocitest

import (
	"bytes"
	"fmt"
	"strings"

	"example.org/slipway/oci"
)

// sizes returns sizes around the limits at which registries behave differently. These are
// 16 KiB and 64 KiB, up to which content is kept outside files. One size is larger than
// any buffer.
func (s *suite) sizes() []int {
	return []int{0, 1, 100, 16<<10 - 1, 16 << 10, 16<<10 + 1, 64 << 10, 64<<10 + 1, 256 << 10, s.o.LargeSize}
}

func (s *suite) blobsRoundTrip() {
	for i, size := range s.sizes() {
		data := random(uint64(i), size)
		desc := s.push(repo, data)
		s.wantBlob(repo, desc.Digest, data)
		s.push(repo, data) // push it a second time
		s.wantBlob(repo, desc.Digest, data)

		data = random(uint64(100+i), size)
		d := oci.SHA256(data)
		if size == 0 { // there is only one empty blob
			continue
		}
		_, err := s.r.PushBlob(s.Context(), repo, d, -1, struct{ *strings.Reader }{strings.NewReader(string(data))})
		s.must(err, "push a blob of unknown size, %d bytes", size)
		s.wantBlob(repo, d, data)

		data = random(uint64(200+i), size)
		d = sha512Of(data)
		_, err = s.r.PushBlob(s.Context(), repo, d, int64(size), bytes.NewReader(data))
		s.must(err, "push a blob by sha512, %d bytes", size)
		s.wantBlob(repo, d, data)
		s.wantNoBlob(repo, oci.SHA256(data))
	}
}

func (s *suite) blobRanges() {
	for _, size := range []int{1, 1000, 16<<10 + 1, s.o.LargeSize} {
		data := random(uint64(size), size)
		d := s.push(repo, data).Digest
		n := int64(size)
		for _, c := range []struct{ off, n int64 }{
			{0, 1}, {0, n}, {0, -1}, {0, n + 1}, {n - 1, 1}, {n - 1, -1}, {n - 1, 1 << 40}, {n / 2, n / 4}, {n / 3, -1},
		} {
			if c.n == 0 {
				continue
			}
			want := data[c.off:]
			if c.n > 0 && c.n < int64(len(want)) {
				want = want[:c.n]
			}
			for name, way := range map[string]func(oci.Content) ([]byte, error){"Read": readContent, "WriteTo": copyContent} {
				content, err := s.r.GetBlobRange(s.Context(), repo, d, c.off, c.n)
				if err != nil {
					s.Errorf("range %d, %d of %d bytes: %v", c.off, c.n, size, err)
					continue
				}
				if got := content.Descriptor(); got.Size != n || got.Digest != d {
					s.Errorf("range %d, %d of %d bytes: descriptor %+v is not the whole blob's", c.off, c.n, size, got)
				}
				got, err := way(content)
				if err != nil || !bytes.Equal(got, want) {
					s.Errorf("range %d, %d of %d bytes by %s: got %d bytes, %v, want %d others", c.off, c.n, size, name, len(got), err, len(want))
				}
				s.must(content.Close(), "close")
			}
		}
		for _, off := range []int64{n, n + 1, 1 << 40} {
			for _, length := range []int64{-1, 1} {
				_, err := s.r.GetBlobRange(s.Context(), repo, d, off, length)
				s.wantCode(err, fmt.Sprintf("range %d, %d of %d bytes", off, length, size), oci.CodeRangeInvalid)
			}
		}
	}
}

func (s *suite) blobsRefused() {
	for _, size := range []int{10, 20 << 10, s.o.LargeSize} {
		data := random(uint64(size), size)
		d := oci.SHA256(data)
		wrong := bytes.Clone(data)
		wrong[size/2] ^= 1
		for _, c := range []struct {
			name string
			size int64
			body []byte
			code oci.Code
		}{
			{"wrong bytes", int64(size), wrong, oci.CodeDigestInvalid},
			{"wrong bytes of unknown size", -1, wrong, oci.CodeDigestInvalid},
			{"too short", int64(size), data[:size-1], oci.CodeSizeInvalid},
			{"too long", int64(size), append(bytes.Clone(data), 'x'), oci.CodeSizeInvalid},
			{"truncated, of unknown size", -1, data[:size-1], oci.CodeDigestInvalid},
		} {
			_, err := s.r.PushBlob(s.Context(), repo, d, c.size, bytes.NewReader(c.body))
			if s.o.Remote && c.code == oci.CodeSizeInvalid { // the client finds out before it sends
				if err == nil {
					s.Errorf("push a blob of %d bytes, %s: got no error", size, c.name)
				}
			} else {
				s.wantCode(err, fmt.Sprintf("push a blob of %d bytes, %s", size, c.name), c.code)
			}
			s.wantNoBlob(repo, d)
		}
		s.push(repo, data) // the failed pushes do not prevent this one
		s.wantBlob(repo, d, data)
	}
	for _, d := range []oci.Digest{"", "sha256:", "sha256:abc", "md5:d41d8cd98f00b204e9800998ecf8427e", oci.Digest(strings.ToUpper(string(oci.SHA256(nil)))), "sha256:../../../../../../../../../../../../../../../../../etc/passwd"} {
		_, err := s.r.PushBlob(s.Context(), repo, d, 1, strings.NewReader("x"))
		s.wantCode(err, fmt.Sprintf("push a blob as %q", d), oci.CodeDigestInvalid)
	}
}

func (s *suite) blobsOfOthers() {
	data := random(1, 20<<10)
	d := s.push("one/a", data).Digest
	s.wantNoBlob("one", d)
	s.wantNoBlob("one/b", d)
	s.wantNoBlob("one/a/a", d)
	// Pushing a blob that another repository has still needs the bytes.
	_, err := s.r.PushBlob(s.Context(), "one/b", d, 20<<10, bytes.NewReader(random(2, 20<<10)))
	s.wantCode(err, "push other bytes under a known digest", oci.CodeDigestInvalid)
	s.wantNoBlob("one/b", d)
	s.push("one/b", data)
	s.wantBlob("one/b", d, data)
}

func (s *suite) mounts() {
	for _, size := range []int{10, s.o.LargeSize} {
		data := random(uint64(size), size)
		d := s.push("from/a", data).Digest
		desc, err := s.r.MountBlob(s.Context(), "to/b", "from/a", d)
		s.must(err, "mount")
		if desc.Digest != d || (!s.o.Remote && desc.Size != int64(size)) {
			s.Errorf("mount: got %+v, want %s of %d bytes", desc, d, size)
		}
		s.wantBlob("to/b", d, data)
		_, err = s.r.MountBlob(s.Context(), "to/b", "from/a", d)
		s.must(err, "mount again")
		_, err = s.r.MountBlob(s.Context(), "to/c", "from/other", d)
		s.wantCode(err, "mount from a repository without the blob", oci.CodeBlobUnknown)
		s.wantNoBlob("to/c", d)
		_, err = s.r.MountBlob(s.Context(), "to/c", "from/a", oci.SHA256([]byte("none")))
		s.wantCode(err, "mount what is nowhere", oci.CodeBlobUnknown)
		// The copy survives the deletion of the original.
		s.must(s.r.DeleteBlob(s.Context(), "from/a", d), "delete the original")
		s.wantNoBlob("from/a", d)
		s.wantBlob("to/b", d, data)
	}
}

func (s *suite) blobDeletion() {
	data := random(1, 5000)
	d := s.push(repo, data).Digest
	s.wantBlob(repo, d, data)
	s.must(s.r.DeleteBlob(s.Context(), repo, d), "delete")
	s.wantNoBlob(repo, d)
	s.wantCode(s.r.DeleteBlob(s.Context(), repo, d), "delete again", oci.CodeBlobUnknown)
	s.wantCode(s.r.DeleteBlob(s.Context(), "nowhere", d), "delete from a repository that is not there", oci.CodeBlobUnknown)
	s.push(repo, data)
	s.wantBlob(repo, d, data)

	doc := s.image(repo, 1)
	m := s.put(repo, doc, "latest")
	for _, b := range append(doc.Layers, *doc.Config) {
		s.wantCode(s.r.DeleteBlob(s.Context(), repo, b.Digest), "delete a blob that a manifest needs", oci.CodeDenied)
	}
	s.must(s.r.DeleteManifest(s.Context(), repo, m.Digest), "delete the manifest")
	s.must(s.r.DeleteBlob(s.Context(), repo, doc.Config.Digest), "delete the config")
	s.wantNoBlob(repo, doc.Config.Digest)
}

func (s *suite) names() {
	long := strings.Repeat("a/", 127) + "b" // 255 bytes, 128 segments
	for i, name := range []string{"a", "a/b/c/d/e/f/g/h", "x__y.z-----w/0", "blobs/uploads", "tags/list", "a/manifests/b", "v2", "uploads/blobs/uploads", "a/tags/list/b", long, strings.Repeat("x", 255)} {
		data := random(uint64(i), 100)
		d := s.push(name, data).Digest
		s.wantBlob(name, d, data)
		doc := s.image(name, i)
		m := s.put(name, doc, "v1")
		s.wantManifest(name, "v1", m, s.marshal(doc))
		tags, more, err := s.r.Tags(s.Context(), name, "", 10)
		if err != nil || more {
			s.Errorf("tags of %s: more %v, error %v", name, more, err)
		}
		s.equal(tags, []string{"v1"}, "tags of %s", name)
	}
}

func (s *suite) namesRefused() {
	ctx := s.Context()
	d := oci.SHA256([]byte("x"))
	for _, name := range []string{"", "A", "a//b", "/a", "a/", "a..b", "../a", "a/../b", "a b", "a/_b", "-a", "a-", "a___b", "ü", strings.Repeat("x", 256)} {
		calls := map[string]func() error{
			"PushBlob": func() error {
				_, err := s.r.PushBlob(ctx, name, d, 1, strings.NewReader("x"))
				return err
			},
			"StartUpload": func() error { _, err := s.r.StartUpload(ctx, name); return err },
			"MountBlob":   func() error { _, err := s.r.MountBlob(ctx, name, "a", d); return err },
			"PutManifest": func() error {
				_, err := s.r.PutManifest(ctx, name, oci.PutManifest{Bytes: []byte("{}"), Tags: []string{"x"}})
				return err
			},
			"ResolveBlob":     func() error { _, err := s.r.ResolveBlob(ctx, name, d); return err },
			"GetBlob":         func() error { _, err := s.r.GetBlob(ctx, name, d); return err },
			"GetBlobRange":    func() error { _, err := s.r.GetBlobRange(ctx, name, d, 0, 1); return err },
			"ResolveManifest": func() error { _, err := s.r.ResolveManifest(ctx, name, "x"); return err },
			"GetManifest":     func() error { _, err := s.r.GetManifest(ctx, name, "x"); return err },
		}
		for call, do := range calls {
			s.wantCode(do(), fmt.Sprintf("%s of repository %q", call, name), oci.CodeNameInvalid)
		}
	}
}
