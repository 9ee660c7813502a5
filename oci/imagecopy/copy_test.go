package imagecopy_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"example.org/slipway/internal/backendtest"
	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
	"example.org/slipway/oci/imagecopy"
)

// memRegistry is the part of a registry in RAM that Copy uses. Like real registries, it
// refuses manifests whose content is missing.
type memRegistry struct {
	oci.Registry
	mu        sync.Mutex
	blobs     map[string][]byte // by repo@digest
	manifests map[string]*oci.Manifest
	tags      map[string]oci.Digest // by repo:tag
	mounts    bool
	broken    oci.Digest // GetBlob fails for it
	log       []string
}

func newMem() *memRegistry {
	return &memRegistry{blobs: map[string][]byte{}, manifests: map[string]*oci.Manifest{}, tags: map[string]oci.Digest{}}
}

func (m *memRegistry) ResolveBlob(_ context.Context, repo string, d oci.Digest) (oci.Descriptor, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, ok := m.blobs[repo+"@"+string(d)]
	if !ok {
		return oci.Descriptor{}, oci.Errorf(oci.CodeBlobUnknown, "no %s", d)
	}
	return oci.Descriptor{Digest: d, Size: int64(len(b))}, nil
}

type memContent struct {
	*bytes.Reader
	desc oci.Descriptor
}

func (c memContent) Descriptor() oci.Descriptor { return c.desc }
func (memContent) Close() error                 { return nil }

func (m *memRegistry) GetBlob(ctx context.Context, repo string, d oci.Digest) (oci.Content, error) {
	desc, err := m.ResolveBlob(ctx, repo, d)
	if err != nil {
		return nil, err
	}
	if d == m.broken {
		return nil, io.ErrUnexpectedEOF
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return memContent{bytes.NewReader(m.blobs[repo+"@"+string(d)]), desc}, nil
}

func (m *memRegistry) PushBlob(_ context.Context, repo string, d oci.Digest, size int64, r io.Reader) (oci.Descriptor, error) {
	b, err := io.ReadAll(r)
	if err != nil || int64(len(b)) != size || oci.SHA256(b) != d {
		return oci.Descriptor{}, oci.Errorf(oci.CodeDigestInvalid, "%d bytes: %w", len(b), err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.blobs[repo+"@"+string(d)] = b
	return oci.Descriptor{Digest: d, Size: size}, nil
}

func (m *memRegistry) MountBlob(_ context.Context, to, from string, d oci.Digest) (oci.Descriptor, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, ok := m.blobs[from+"@"+string(d)]
	if !ok || !m.mounts {
		return oci.Descriptor{}, oci.Errorf(oci.CodeBlobUnknown, "no %s", d)
	}
	m.blobs[to+"@"+string(d)] = b
	return oci.Descriptor{Digest: d}, nil
}

func (m *memRegistry) ResolveManifest(ctx context.Context, repo, ref string) (oci.Descriptor, error) {
	got, err := m.GetManifest(ctx, repo, ref)
	if err != nil {
		return oci.Descriptor{}, err
	}
	return got.Descriptor, nil
}

func (m *memRegistry) GetManifest(_ context.Context, repo, ref string) (*oci.Manifest, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !oci.IsDigest(ref) {
		ref = string(m.tags[repo+":"+ref])
	}
	if got, ok := m.manifests[repo+"@"+ref]; ok {
		return got, nil
	}
	return nil, oci.Errorf(oci.CodeManifestUnknown, "no %s", ref)
}

type parsed struct {
	MediaType string           `json:"mediaType"`
	Config    *oci.Descriptor  `json:"config,omitempty"`
	Layers    []oci.Descriptor `json:"layers,omitempty"`
	Manifests []oci.Descriptor `json:"manifests,omitempty"`
	Subject   *oci.Descriptor  `json:"subject,omitempty"`
}

func (m *memRegistry) PutManifest(_ context.Context, repo string, p oci.PutManifest) (oci.PutResult, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var x parsed
	if err := json.Unmarshal(p.Bytes, &x); err != nil {
		return oci.PutResult{}, err
	}
	if x.Config != nil {
		x.Layers = append(x.Layers, *x.Config)
	}
	for _, l := range x.Layers {
		if _, ok := m.blobs[repo+"@"+string(l.Digest)]; !ok && len(l.URLs) == 0 {
			return oci.PutResult{}, oci.Errorf(oci.CodeManifestBlobUnknown, "no blob %s", l.Digest)
		}
	}
	for _, c := range x.Manifests {
		if _, ok := m.manifests[repo+"@"+string(c.Digest)]; !ok {
			return oci.PutResult{}, oci.Errorf(oci.CodeManifestBlobUnknown, "no manifest %s", c.Digest)
		}
	}
	d := oci.SHA256(p.Bytes)
	desc := oci.Descriptor{MediaType: p.MediaType, Digest: d, Size: int64(len(p.Bytes))}
	m.manifests[repo+"@"+string(d)] = &oci.Manifest{Descriptor: desc, Bytes: p.Bytes}
	for _, tag := range p.Tags {
		m.tags[repo+":"+tag] = d
	}
	m.log = append(m.log, fmt.Sprintf("put %s %s", repo, strings.Join(p.Tags, ",")))
	return oci.PutResult{Descriptor: desc, Tags: p.Tags}, nil
}

func (m *memRegistry) Repositories(_ context.Context, last string, n int) ([]string, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []string
	for k := range m.tags {
		repo, _, _ := strings.Cut(k, ":")
		names = append(names, repo)
	}
	return pageOf(names, last)
}

func (m *memRegistry) Tags(_ context.Context, repo, last string, n int) ([]string, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []string
	for k := range m.tags {
		if tag, ok := strings.CutPrefix(k, repo+":"); ok {
			names = append(names, tag)
		}
	}
	return pageOf(names, last)
}

// pageOf returns pages of one name, so that paging is tested.
func pageOf(names []string, last string) ([]string, bool, error) {
	slices.Sort(names)
	names = slices.DeleteFunc(slices.Compact(names), func(s string) bool { return s <= last })
	return names[:min(1, len(names))], len(names) > 1, nil
}

func (m *memRegistry) Referrers(_ context.Context, repo string, d oci.Digest, _, last string, n int) ([]oci.Descriptor, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []oci.Descriptor
	for k, got := range m.manifests {
		var x parsed
		if json.Unmarshal(got.Bytes, &x) == nil && x.Subject != nil && x.Subject.Digest == d && strings.HasPrefix(k, repo+"@") {
			list = append(list, got.Descriptor)
		}
	}
	slices.SortFunc(list, func(a, b oci.Descriptor) int { return strings.Compare(string(a.Digest), string(b.Digest)) })
	list = slices.DeleteFunc(list, func(d oci.Descriptor) bool { return string(d.Digest) <= last })
	return list[:min(1, n, len(list))], len(list) > 1, nil // pages of one, so that paging is tested
}

func pushBlob(t testing.TB, r oci.Registry, repo, content string) oci.Descriptor {
	t.Helper()
	d := oci.SHA256([]byte(content))
	if _, err := r.PushBlob(t.Context(), repo, d, int64(len(content)), strings.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	return oci.Descriptor{MediaType: "application/vnd.oci.image.layer.v1.tar", Digest: d, Size: int64(len(content))}
}

func putManifest(t testing.TB, r oci.Registry, repo string, x parsed, tags ...string) oci.Descriptor {
	t.Helper()
	b, err := json.Marshal(struct {
		SchemaVersion int `json:"schemaVersion"`
		parsed
	}{2, x})
	if err != nil {
		t.Fatal(err)
	}
	res, err := r.PutManifest(t.Context(), repo, oci.PutManifest{Bytes: b, MediaType: x.MediaType, Tags: tags})
	if err != nil {
		t.Fatal(err)
	}
	res.Descriptor.MediaType = x.MediaType
	return res.Descriptor
}

// image pushes an image of the layers and returns its manifest.
func image(t testing.TB, r oci.Registry, repo string, subject *oci.Descriptor, layers []string, tags ...string) oci.Descriptor {
	t.Helper()
	config := pushBlob(t, r, repo, fmt.Sprintf(`{"layers":%q}`, layers))
	config.MediaType = "application/vnd.oci.image.config.v1+json"
	x := parsed{MediaType: oci.MediaTypeOCIManifest, Config: &config, Subject: subject}
	for _, l := range layers {
		x.Layers = append(x.Layers, pushBlob(t, r, repo, l))
	}
	return putManifest(t, r, repo, x, tags...)
}

// library fills a registry with two repositories. One has an index of two images, one of
// them signed. The other has an image that shares a layer.
func library(t testing.TB, r oci.Registry) (index, signature oci.Descriptor) {
	one := image(t, r, "lib/app", nil, []string{"base", "one"})
	two := image(t, r, "lib/app", nil, []string{"base", "two"})
	index = putManifest(t, r, "lib/app", parsed{MediaType: oci.MediaTypeOCIIndex, Manifests: []oci.Descriptor{one, two}}, "v1")
	image(t, r, "lib/tool", nil, []string{"base"}, "v1", "v2")
	return index, image(t, r, "lib/app", &two, []string{"signature"})
}

// TestCopyOrder checks that tags are copied in the order of their versions, whatever their order
// at the source, because retention at the destination keeps the last ones.
func TestCopyOrder(t *testing.T) {
	want := []string{"1.2", "1.10", "2024-01-31", "2024-11-02", "latest", "v1.9.9", "v1.10.0-rc1", "v1.10.0-rc10", "v1.10.0", "v01.10.1", "v1.10.1", "v2"}
	src, dst := newMem(), newMem()
	for _, i := range rand.Perm(len(want)) {
		image(t, src, "app", nil, []string{want[i]}, want[i])
	}
	var got []string
	_, err := imagecopy.Copy(t.Context(), dst, src, imagecopy.Options{Tagged: func(_ context.Context, _, tag string) error {
		got = append(got, tag)
		return nil
	}})
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("order (-want +got), %v:\n%s", err, diff)
	}
}

func TestCopyEverything(t *testing.T) {
	src, dst := newMem(), newMem()
	dst.mounts = true
	_, signature := library(t, src)
	var calls int
	var seen []string
	p, err := imagecopy.Copy(t.Context(), dst, src, imagecopy.Options{Referrers: true, Progress: func(p imagecopy.Progress) {
		calls++
		if at := fmt.Sprintf("%d of %d, %d of %d: %s:%s", p.Repository, p.Repositories, p.Tag, p.Tags, p.Repo, p.Reference); !slices.Contains(seen, at) {
			seen = append(seen, at)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	want := imagecopy.Progress{Repo: "lib/tool", Reference: "v2", Repository: 2, Repositories: 2, Tag: 2, Tags: 2, References: 3, Manifests: 6, Blobs: 8, Mounted: 1, Bytes: p.Bytes}
	if diff := cmp.Diff(want, p); diff != "" {
		t.Errorf("progress (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"1 of 2, 0 of 0: lib/app:", "1 of 2, 1 of 1: lib/app:v1", "2 of 2, 0 of 0: lib/tool:", "2 of 2, 1 of 2: lib/tool:v1", "2 of 2, 2 of 2: lib/tool:v2"}, seen); diff != "" {
		t.Errorf("totals (-want +got):\n%s", diff)
	}
	if p.Bytes == 0 || calls < 10 {
		t.Errorf("got %d bytes and %d calls of Progress", p.Bytes, calls)
	}
	if diff := cmp.Diff(src.tags, dst.tags); diff != "" {
		t.Errorf("tags (-want +got):\n%s", diff)
	}
	if _, err := dst.GetManifest(t.Context(), "lib/app", string(signature.Digest)); err != nil {
		t.Errorf("the signature was not copied: %v", err)
	}
	if got := dst.log[len(dst.log)-1]; got != "put lib/tool v2" {
		t.Errorf("last: got %q", got)
	}

	again, err := imagecopy.Copy(t.Context(), dst, src, imagecopy.Options{Referrers: true})
	if err != nil {
		t.Fatal(err)
	}
	if again.Manifests != 0 || again.Blobs != 0 || again.References != 3 {
		t.Errorf("a second time: got %+v, want nothing sent", again)
	}
}

func TestCopyChosen(t *testing.T) {
	src, dst := newMem(), newMem()
	index, signature := library(t, src)
	_, err := imagecopy.Copy(t.Context(), dst, src, imagecopy.Options{Images: []imagecopy.Image{
		{From: "lib/tool", To: "mirror/tool", References: []string{"v2"}},
		{From: "lib/app", References: []string{string(index.Digest)}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]oci.Digest{"mirror/tool:v2": src.tags["lib/tool:v2"]}, dst.tags); diff != "" {
		t.Errorf("tags (-want +got):\n%s", diff)
	}
	if _, err := dst.GetManifest(t.Context(), "lib/app", string(index.Digest)); err != nil {
		t.Error(err)
	}
	if _, err := dst.GetManifest(t.Context(), "lib/app", string(signature.Digest)); err == nil {
		t.Error("a referrer was copied unasked")
	}
}

func TestCopyForeignLayer(t *testing.T) {
	src, dst := newMem(), newMem()
	config := pushBlob(t, src, "a", "{}")
	away := oci.Descriptor{MediaType: "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", Digest: oci.SHA256([]byte("hello")), Size: 5, URLs: []string{"https://example.com/layer"}}
	putManifest(t, src, "a", parsed{MediaType: oci.MediaTypeOCIManifest, Config: &config, Layers: []oci.Descriptor{away}}, "v1")
	p, err := imagecopy.Copy(t.Context(), dst, src, imagecopy.Options{})
	if err != nil || p.Foreign != 1 {
		t.Errorf("got %+v, %v", p, err)
	}
}

func TestCopyErrors(t *testing.T) {
	for name, goOn := range map[string]bool{"stop": false, "continue": true} {
		t.Run(name, func(t *testing.T) {
			src, dst := newMem(), newMem()
			library(t, src)
			src.broken = oci.SHA256([]byte("two"))
			var good, bad int64
			p, err := imagecopy.Copy(t.Context(), dst, src, imagecopy.Options{ContinueOnError: goOn, Parallel: 1, Done: func(err error) {
				if err == nil {
					good++
				} else {
					bad++
				}
			}})
			if good != p.References || bad != p.Failed {
				t.Errorf("Done was called for %d good and %d bad references; the progress has %d and %d", good, bad, p.References, p.Failed)
			}
			if err == nil || !strings.Contains(err.Error(), "copy lib/app:v1: ") || !strings.Contains(err.Error(), string(src.broken)) {
				t.Errorf("got error %v", err)
			}
			if _, ok := dst.tags["lib/app:v1"]; ok {
				t.Error("a tag was set in spite of the error")
			}
			if want := map[bool]int64{false: 0, true: 2}[goOn]; p.Failed != 1 || p.References != want {
				t.Errorf("got %+v, want 1 failed and %d good", p, want)
			}
		})
	}
}

// TestCopyOfASparseIndexSaysWhatIsMissing checks an index whose source lacks some
// platforms. The error names them if the destination refuses such an index, and the log
// names them if it accepts it.
func TestCopyOfASparseIndexSaysWhatIsMissing(t *testing.T) {
	missing := oci.SHA256([]byte("nowhere"))
	index := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"manifests":[{"mediaType":%q,"digest":%q,"size":7,"platform":{"os":"linux","architecture":"arm","variant":"v7"}}]}`,
		oci.MediaTypeOCIIndex, oci.MediaTypeOCIManifest, missing)
	src := newMem()
	d := oci.SHA256(index)
	src.manifests["a@"+string(d)] = &oci.Manifest{Bytes: index, Descriptor: oci.Descriptor{MediaType: oci.MediaTypeOCIIndex, Digest: d, Size: int64(len(index))}}
	src.tags["a:v1"] = d
	var log bytes.Buffer
	o := imagecopy.Options{Images: []imagecopy.Image{{From: "a"}}, Logger: slog.New(slog.NewTextHandler(&log, nil))}
	p, err := imagecopy.Copy(t.Context(), newMem(), src, o)
	if err == nil || p.Absent != 1 || p.Failed != 1 {
		t.Fatalf("got %v, %+v", err, p)
	}
	for what, text := range map[string]string{"error": err.Error(), "log": log.String()} {
		if !strings.Contains(text, string(missing)) || !strings.Contains(text, "linux/arm/v7") {
			t.Errorf("the %s does not name the platform: %s", what, text)
		}
	}
	if !oci.HasCode(err, oci.CodeManifestBlobUnknown) {
		t.Errorf("got error %v, want code %s", err, oci.CodeManifestBlobUnknown)
	}
}

// TestCopyNamesWhatLacks checks that the error names what is missing from an index or an
// image.
func TestCopyNamesWhatLacks(t *testing.T) {
	src := newMem()
	index, _ := library(t, src)
	outer := putManifest(t, src, "lib/app", parsed{MediaType: oci.MediaTypeOCIIndex, Manifests: []oci.Descriptor{index}}, "outer")
	whole := *src.manifests["lib/app@"+string(index.Digest)]
	var doc parsed
	if err := json.Unmarshal(whole.Bytes, &doc); err != nil {
		t.Fatal(err)
	}
	gone := doc.Manifests[0].Digest
	delete(src.manifests, "lib/app@"+string(gone))
	for _, ref := range []string{string(index.Digest), string(outer.Digest)} {
		_, err := imagecopy.Copy(t.Context(), newMem(), src, imagecopy.Options{Images: []imagecopy.Image{{From: "lib/app", References: []string{ref}}}})
		if err == nil || !strings.Contains(err.Error(), string(gone)) || !strings.Contains(err.Error(), "of index "+string(index.Digest)) {
			t.Errorf("copy of %s: got %v", ref, err)
		}
	}
	layer := oci.SHA256([]byte("base"))
	delete(src.blobs, "lib/tool@"+string(layer))
	_, err := imagecopy.Copy(t.Context(), newMem(), src, imagecopy.Options{Images: []imagecopy.Image{{From: "lib/tool"}}})
	if err == nil || !strings.Contains(err.Error(), "neither the source nor the destination has it") || !strings.Contains(err.Error(), string(layer)) {
		t.Errorf("an image without its layer: got %v", err)
	}
}

// TestCopyLooksAtBlobs checks that a blob that the destination lost is copied again,
// although its manifest exists.
func TestCopyLooksAtBlobs(t *testing.T) {
	src, dst := newMem(), newMem()
	library(t, src)
	if _, err := imagecopy.Copy(t.Context(), dst, src, imagecopy.Options{}); err != nil {
		t.Fatal(err)
	}
	want := len(dst.blobs)
	for key := range dst.blobs {
		delete(dst.blobs, key)
		p, err := imagecopy.Copy(t.Context(), dst, src, imagecopy.Options{})
		if err != nil || len(dst.blobs) != want || p.Blobs != 1 || p.Manifests != 0 {
			t.Errorf("without %s: got %+v, %v", key, p, err)
		}
		break
	}
}

// TestCopyWithoutAList copies from registries whose list of tags is absent or empty,
// which means that there are no tags, and from registries that answer with something
// else.
func TestCopyWithoutAList(t *testing.T) {
	for body, ok := range map[string]bool{
		`{}`:                              true,
		`{"name":"a/b"}`:                  true,
		`{"name":"a/b","tags":null}`:      true,
		`{"name":"a/b","tags":[]}`:        true,
		`{"name":"a/b","child":[]}`:       false,
		`{"errors":[{"code":"UNKNOWN"}]}`: false,
		`[]`:                              false,
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }))
		src := dial(t, s.URL)
		p, err := imagecopy.Copy(t.Context(), newMem(), src, imagecopy.Options{Images: []imagecopy.Image{{From: "a/b"}}})
		if (err == nil) != ok || p.References != 0 {
			t.Errorf("tags/list answers %s: %d references, error %v", body, p.References, err)
		}
		if _, _, err := src.Tags(t.Context(), "a/b", "", 10); err == nil && !strings.Contains(body, "tags") {
			t.Errorf("Tags takes %s for a list", body)
		}
		s.Close()
	}
}

// deleting deletes tags of app when the first one is looked up, and loses others: it goes on
// listing these.
type deleting struct {
	*memRegistry
	listed         map[string]bool
	deletes, loses []string
	once           sync.Once
}

func (d *deleting) ResolveManifest(ctx context.Context, repo, ref string) (oci.Descriptor, error) {
	d.once.Do(func() {
		for _, tag := range slices.Concat(d.deletes, d.loses) {
			delete(d.tags, "app:"+tag)
		}
		for _, tag := range d.deletes {
			delete(d.listed, tag)
		}
	})
	return d.memRegistry.ResolveManifest(ctx, repo, ref)
}

func (d *deleting) Tags(_ context.Context, _, last string, _ int) ([]string, bool, error) {
	return pageOf(slices.Collect(maps.Keys(d.listed)), last)
}

// TestCopyWhileTagsAreDeleted copies a repository whose tags are deleted, or lost, after they
// were listed. A deleted tag is none, and the others are copied. A lost one is an error.
func TestCopyWhileTagsAreDeleted(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		src, dst := newMem(), newMem()
		d := &deleting{memRegistry: src, listed: map[string]bool{}}
		want, lost := map[string]bool{}, 0
		for i := range rapid.IntRange(1, 8).Draw(rt, "tags") {
			tag := fmt.Sprint("v", i)
			image(t, src, "app", nil, []string{tag}, tag)
			d.listed[tag] = true
			switch rapid.SampledFrom([]string{"stays", "deleted", "lost"}).Draw(rt, tag) {
			case "stays":
				want["app:"+tag] = true
			case "deleted":
				d.deletes = append(d.deletes, tag)
			case "lost":
				d.loses = append(d.loses, tag)
				lost++
			}
		}
		p, err := imagecopy.Copy(t.Context(), dst, d, imagecopy.Options{ContinueOnError: true, Parallel: 1, Images: []imagecopy.Image{{From: "app"}}})
		if (err != nil) != (lost > 0) || p.Failed != int64(lost) || errors.Is(err, imagecopy.ErrGone) {
			rt.Errorf("%d tags were lost: %d failed, error %v", lost, p.Failed, err)
		}
		for tag := range dst.tags {
			if !want[tag] {
				rt.Errorf("%s was copied", tag)
			}
			delete(want, tag)
		}
		if len(want) > 0 {
			rt.Errorf("not copied: %v", want)
		}
	})
}

// TestCopyOfAListedRepositoryWithoutTags copies a whole registry that lists a repository and then
// answers that it does not know it, as Distribution does once the last tag is deleted. A
// repository that was asked for by name has to be there, and one that is denied is an error.
func TestCopyOfAListedRepositoryWithoutTags(t *testing.T) {
	for _, tt := range []struct {
		status int
		body   string
		images []imagecopy.Image
		ok     bool
	}{
		{404, `{"errors":[{"code":"NAME_UNKNOWN"}]}`, nil, true},
		{404, `{"errors":[{"code":"NAME_UNKNOWN"}]}`, []imagecopy.Image{{From: "emptied"}}, false},
		{403, `{"errors":[{"code":"DENIED"}]}`, nil, false},
		{500, "", nil, false},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/v2/_catalog":
				_, _ = io.WriteString(w, `{"repositories":["emptied","later"]}`)
			case "/v2/later/tags/list":
				_, _ = io.WriteString(w, `{"name":"later","tags":[]}`)
			default:
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.body)
			}
		}))
		_, err := imagecopy.Copy(t.Context(), newMem(), dial(t, s.URL), imagecopy.Options{Images: tt.images})
		if (err == nil) != tt.ok {
			t.Errorf("tags/list answers %d %s to %v: error %v", tt.status, tt.body, tt.images, err)
		}
		s.Close()
	}
}

func TestDistributionCopy(t *testing.T) {
	src, dst := dial(t, "http://"+backendtest.Distribution(t, "")), dial(t, "http://"+backendtest.Distribution(t, ""))
	library(t, src)
	p, err := imagecopy.Copy(t.Context(), dst, src, imagecopy.Options{Referrers: true})
	if err != nil {
		t.Fatalf("%+v: %v", p, err)
	}
	if p.Mounted == 0 || p.Blobs == 0 || p.Failed != 0 {
		t.Errorf("got %+v", p)
	}
	for _, repo := range []string{"lib/app", "lib/tool"} {
		want, _, err := src.Tags(t.Context(), repo, "", 100)
		if err != nil {
			t.Fatal(err)
		}
		for _, tag := range want {
			a, err1 := src.GetManifest(t.Context(), repo, tag)
			b, err2 := dst.GetManifest(t.Context(), repo, tag)
			if err1 != nil || err2 != nil {
				t.Errorf("%s:%s: %v, %v", repo, tag, err1, err2)
				continue
			}
			// Every client rewrites the index of a referrers tag.
			if diff := cmp.Diff(a.Digest, b.Digest); diff != "" && !strings.HasPrefix(tag, "sha256-") {
				t.Errorf("%s:%s (-want +got):\n%s", repo, tag, diff)
			}
		}
	}
}

func ExampleCopy() {
	ctx := context.Background()
	src, err := client.New("https://registry.example.com", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer src.Close()
	dst, err := client.New("http://localhost:5000", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dst.Close()
	p, err := imagecopy.Copy(ctx, dst, src, imagecopy.Options{
		Images:    []imagecopy.Image{{From: "library/app", References: []string{"v1"}}},
		Referrers: true,
	})
	fmt.Println(p.Blobs, p.Bytes, err)
}

// dial opens a registry.
func dial(t *testing.T, url string) *client.Client {
	t.Helper()
	c, err := client.New(url, &client.Options{RetryWait: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}
