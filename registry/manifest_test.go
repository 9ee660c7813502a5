package registry_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"example.org/slipway/registry/registrytest"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/objstore/memstore"
)

func TestImmutableTags(t *testing.T) {
	r := openPlain(t, memstore.New(nil), &registry.Options{Immutable: func(repo, tag string) bool { return repo == "fixed" && strings.HasPrefix(tag, "v") }})
	b := &bed{&registrytest.Bed{Registry: r, T: t}}
	one, _, _, _ := b.PushImage("fixed", 1, "v1", "latest")
	two, _, _, _ := b.PushImage("fixed", 2, "latest")
	raw := func(d oci.Digest) []byte {
		m, err := r.GetManifest(t.Context(), "fixed", string(d))
		if err != nil {
			t.Fatal(err)
		}
		return m.Bytes
	}
	put := func(d oci.Digest, tags ...string) error {
		_, err := r.PutManifest(t.Context(), "fixed", oci.PutManifest{Bytes: raw(d), Tags: tags})
		return err
	}
	for what, err := range map[string]error{
		"move":                   put(two.Digest, "v1"),
		"move with others":       put(two.Digest, "v2", "v1"),
		"delete the tag":         r.DeleteTag(t.Context(), "fixed", "v1"),
		"delete what it is upon": r.DeleteManifest(t.Context(), "fixed", one.Digest),
	} {
		if !oci.HasCode(err, oci.CodeDenied) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := r.ResolveManifest(t.Context(), "fixed", "v2"); !oci.HasCode(err, oci.CodeManifestUnknown) {
		t.Errorf("v2 was set although v1 could not be: %v", err)
	}
	if err := put(one.Digest, "v1"); err != nil {
		t.Errorf("push the same again: %v", err)
	}
	if err := put(one.Digest, "latest"); err != nil {
		t.Errorf("move another tag: %v", err)
	}
	if m, err := r.ResolveManifest(t.Context(), "fixed", "v1"); err != nil || m.Digest != one.Digest {
		t.Errorf("v1 is %v, %v", m.Digest, err)
	}
	other, _, _, _ := b.PushImage("free", 1, "v1")
	if err := r.DeleteManifest(t.Context(), "free", other.Digest); err != nil {
		t.Errorf("another repository: %v", err)
	}
}

func TestManifestPolicies(t *testing.T) {
	r := openPlain(t, memstore.New(nil), &registry.Options{
		MissingPlatforms: func(repo string, d oci.Descriptor) bool { return repo == "sparse" },
		ForeignURL:       func(u string) bool { return strings.HasPrefix(u, "https://good.test/") },
	})
	b := &bed{&registrytest.Bed{Registry: r, T: t}}
	here, config, _, _ := b.PushImage("sparse", 1)
	absent := oci.Descriptor{MediaType: oci.MediaTypeOCIManifest, Digest: oci.SHA256([]byte("absent")), Size: 6}
	b.PushManifest("sparse", registrytest.IndexOf(here, absent), "index")
	put := func(repo string, doc registrytest.Image) error {
		raw, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		_, err = r.PutManifest(t.Context(), repo, oci.PutManifest{Bytes: raw})
		return err
	}
	if err := put("full", registrytest.IndexOf(absent)); !oci.HasCode(err, oci.CodeManifestBlobUnknown) {
		t.Errorf("an index without its platforms: %v", err)
	}
	for url, ok := range map[string]bool{"https://good.test/x": true, "https://bad.test/x": false, "file:///etc/passwd": false} {
		layer := oci.Descriptor{MediaType: "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", Digest: oci.SHA256([]byte(url)), Size: 1, URLs: []string{url}}
		err := put("sparse", registrytest.ImageOf(config, layer))
		if ok != (err == nil) || (err != nil && !oci.HasCode(err, oci.CodeManifestInvalid)) {
			t.Errorf("a layer at %s: %v", url, err)
		}
	}
	// Content that the index named although it was absent comes later, and is kept.
	if _, err := r.GetManifest(t.Context(), "sparse", string(absent.Digest)); !oci.HasCode(err, oci.CodeManifestUnknown) {
		t.Errorf("got %v", err)
	}
}

// TestEvents checks that each change is announced once, in order, before it is acknowledged. It is
// an error if a change cannot be announced.
func TestEvents(t *testing.T) {
	var got []string
	var fail error
	r := openPlain(t, memstore.New(nil), &registry.Options{PullEvents: func() bool { return true }, OnEvent: func(ctx context.Context, e registry.Event) error {
		if e.Time.IsZero() || time.Since(e.Time) > time.Minute {
			t.Errorf("an event at %v", e.Time)
		}
		what := "manifest"
		if e.Blob {
			what = "blob"
		}
		got = append(got, fmt.Sprintf("%s %s %s:%s %s %d", e.Action, what, e.Repo, e.Tag, e.FromRepo, len(e.References)))
		return fail
	}})
	b := &bed{&registrytest.Bed{Registry: r, T: t}}
	d := b.PushBytes("a", []byte("config"))
	m := b.PushManifest("a", registrytest.ImageOf(d), "one", "two")
	ctx := t.Context()
	steps := []error{}
	step := func(err error) { steps = append(steps, err) }
	_, err := r.MountBlob(ctx, "b", "a", d.Digest)
	step(err)
	_, err = r.GetManifest(ctx, "a", "one")
	step(err)
	_, err = r.GetManifest(ctx, "a", string(m.Digest))
	step(err)
	_, err = registrytest.ReadBlob(ctx, r, "a", d.Digest)
	step(err)
	_, err = r.ResolveManifest(ctx, "a", "one") // no pull
	step(err)
	step(r.DeleteTag(ctx, "a", "one"))
	step(r.DeleteManifest(ctx, "a", m.Digest))
	step(r.DeleteBlob(ctx, "a", d.Digest))
	if err := errors.Join(steps...); err != nil {
		t.Fatal(err)
	}
	want := []string{"push blob a:  0", "push manifest a:one  1", "push manifest a:two  1", "mount blob b: a 0", "pull manifest a:one  0", "pull manifest a:  0",
		"pull blob a:  0", "delete manifest a:one  0", "delete manifest a:  0", "delete blob a:  0"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	fail = errors.New("the queue is full")
	if _, err := r.PushBlob(ctx, "a", oci.SHA256(nil), 0, nil); !errors.Is(err, fail) {
		t.Errorf("push: %v", err)
	}
	if _, err := r.GetBlob(ctx, "b", d.Digest); !errors.Is(err, fail) {
		t.Errorf("pull: %v", err)
	}
	if slices.Contains(got, "") {
		t.Error("an empty event")
	}
}
