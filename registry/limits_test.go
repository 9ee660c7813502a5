package registry_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"

	"example.org/slipway/registry/manifest"

	"example.org/slipway/registry/registrytest"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/objstore/memstore"
)

// list returns count times element, with commas between.
func list(element string, count int) string {
	return "[" + strings.TrimSuffix(strings.Repeat(element+",", count), ",") + "]"
}

// TestManifestLimits checks that a manifest that holds too much is refused, and costs little
// memory.
func TestManifestLimits(t *testing.T) {
	d := string(oci.SHA256([]byte("x")))
	entry := fmt.Sprintf(`{"mediaType":"m","digest":%q,"size":1,"urls":["a,b\"[{"]}`, d)
	config := `{"schemaVersion":2,"config":{"digest":"` + d + `","size":1},`
	for name, c := range map[string]struct {
		doc  string
		want string // in the error; empty if the manifest is accepted
	}{
		"10,000 layers":            {config + `"layers":` + list(entry, 10_000) + `}`, ""},
		"10,001 layers":            {config + `"layers":` + list(entry, 10_001) + `}`, "10000 descriptors"},
		"10,001 manifests":         {`{"schemaVersion":2,"manifests":` + list(entry, 10_001) + `}`, "10000 descriptors"},
		"4 MiB of nothing":         {`{"schemaVersion":2,"manifests":` + list("{}", 1_390_000) + `}`, "250000 JSON values"},
		"nested 4 MiB":             {config + `"x":` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + `,"layers":` + list(list("", 2), 600_000) + `}`, "250000 JSON values"},
		"4 MiB of URLs":            {config + `"layers":[{"urls":` + list(`""`, 1_390_000) + `}]}`, "250000 JSON values"},
		"commas in an annotation":  {config + `"annotations":{"a":"` + strings.Repeat(`,\"[{`, 300_000) + `"}}`, ""},
		"as many values as it may": {config + `"annotations":{"a":""},"x":` + list("0", 249_988) + `}`, ""},
		"a list that is none":      {config + `"layers":{}}`, "not an array"},
		"no list":                  {config + `"layers":null,"manifests":null}`, ""},
		"an empty second list":     {config + `"manifests":[]}`, "cannot have a config"},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := manifest.Parse([]byte(c.doc), "")
		runtime.ReadMemStats(&after)
		if c.want == "" && err != nil || c.want != "" && (!oci.HasCode(err, oci.CodeManifestInvalid) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
		if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 48 {
			t.Errorf("%s: took %d MiB", name, took)
		}
	}
}

// TestManifestNamesMuch checks that of thousands of missing contents only the first are named, and
// that what is named twice is looked up once.
func TestManifestNamesMuch(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	b := newBed(t, nil, registry.Options{})
	config := b.PushBytes("a", []byte("{}"))
	var absent, foreign []oci.Descriptor
	for i := range 5000 {
		e := oci.Descriptor{MediaType: "application/x", Digest: oci.SHA256(fmt.Append(nil, i)), Size: int64(i)}
		absent = append(absent, e, e)
		e.URLs = []string{"https://a.test"}
		foreign = append(foreign, e)
	}
	put := func(doc registrytest.Image) error {
		raw, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		_, err = b.PutManifest(t.Context(), "a", oci.PutManifest{Bytes: raw})
		return err
	}
	for what, doc := range map[string]registrytest.Image{"layers": registrytest.ImageOf(config, absent[:9999]...), "manifests": registrytest.IndexOf(absent...)} {
		err := put(doc)
		var e *oci.Error
		if !errors.As(err, &e) || e.Code != oci.CodeManifestBlobUnknown || !strings.Contains(e.Message, "5000 contents") {
			t.Fatalf("%s: %v", what, err)
		}
		digests, _ := e.Detail.([]oci.Digest)
		if len(digests) != 100 || digests[0] != absent[0].Digest || digests[99] != absent[198].Digest {
			t.Errorf("%s: the error names %d digests: %.300v", what, len(digests), digests)
		}
	}
	if err := put(registrytest.ImageOf(config, append(foreign, config, config)...)); err != nil {
		t.Fatal(err)
	}
	// What was named as foreign is known, is not here, and may come.
	if _, err := b.ResolveBlob(t.Context(), "a", foreign[7].Digest); !oci.HasCode(err, oci.CodeBlobUnknown) {
		t.Errorf("a foreign layer: %v", err)
	}
	b.PushBytes("a", []byte("7"))
	if err := b.DeleteBlob(t.Context(), "a", foreign[7].Digest); !oci.HasCode(err, oci.CodeDenied) {
		t.Errorf("delete a foreign layer that came: %v", err)
	}
	if err := b.DeleteBlob(t.Context(), "a", config.Digest); !oci.HasCode(err, oci.CodeDenied) {
		t.Errorf("delete the config: %v", err)
	}
}

// TestMediaTypeStays checks that the same bytes cannot become another kind of manifest.
func TestMediaTypeStays(t *testing.T) {
	r := openPlain(t, memstore.New(nil), &registry.Options{Immutable: func(_, tag string) bool { return tag == "v1" }})
	b := &bed{&registrytest.Bed{Registry: r, T: t}}
	config := b.PushBytes("a", []byte("{}"))
	raw := fmt.Appendf(nil, `{"schemaVersion":2,"config":{"mediaType":"m","digest":%q,"size":2},"layers":[]}`, config.Digest)
	put := func(mediaType string, tags ...string) error {
		_, err := r.PutManifest(t.Context(), "a", oci.PutManifest{Bytes: raw, MediaType: mediaType, Digest: oci.SHA256(raw), Tags: tags})
		return err
	}
	if err := put(oci.MediaTypeOCIManifest, "v1"); err != nil {
		t.Fatal(err)
	}
	if err := put(oci.MediaTypeDockerManifest, "v2"); !oci.HasCode(err, oci.CodeManifestInvalid) || !strings.Contains(err.Error(), oci.MediaTypeOCIManifest) {
		t.Errorf("with another media type: %v", err)
	}
	if _, err := r.ResolveManifest(t.Context(), "a", "v2"); !oci.HasCode(err, oci.CodeManifestUnknown) {
		t.Errorf("the tag of the refused push: %v", err)
	}
	if err := put(oci.MediaTypeOCIManifest, "v3"); err != nil {
		t.Errorf("push the same again: %v", err)
	}
	for _, ref := range []string{"v1", "v3", string(oci.SHA256(raw))} {
		if m, err := r.ResolveManifest(t.Context(), "a", ref); err != nil || m.MediaType != oci.MediaTypeOCIManifest {
			t.Errorf("%s: %+v, %v", ref, m, err)
		}
	}
}

// TestReferrerPages checks that pages end at 4 MiB, that each referrer comes once in every order of
// requests, and that what is too large to list is left out.
func TestReferrerPages(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	b := newBed(t, nil, registry.Options{MissingPlatforms: func(string, oci.Descriptor) bool { return true }})
	ctx := t.Context()
	subject, config, _, _ := b.PushImage("a", 1, "v1")
	config.MediaType = "x/y"     // stands for the artifact type
	want := map[oci.Digest]int{} // bytes of annotations
	for i := range 100 {
		doc := registrytest.ImageOf(config)
		doc.Subject = &subject
		size := []int{60_000, 65_600, 1_000_000, 3}[min(i/80+i/90+i/99, 3)]
		doc.Annotations = map[string]string{"n": fmt.Sprintf("%0*d", size, i)}
		d := b.PushManifest("a", doc)
		if want[d.Digest] = size; size > 65_000 && size < 2_000_000 {
			want[d.Digest] = 0
		}
	}
	// The fallback tag repeats some, and itself.
	sizes := [10]int{0, 1, 100, 1000, 10_000, 2, 200, 2000, 60_000, 70_000}
	var tagged []oci.Descriptor
	for i, d := range slices.Sorted(maps.Keys(want))[:10] {
		e := oci.Descriptor{MediaType: oci.MediaTypeOCIManifest, Digest: d, Size: 1, ArtifactType: "x/y"}
		doc := registrytest.ImageOf(config)
		doc.Annotations = map[string]string{"old": fmt.Sprint(i)}
		old := b.PushManifest("a", doc)
		old.ArtifactType, old.Annotations = "x/y", map[string]string{"n": strings.Repeat("a", sizes[i])}
		gone := old // a referrer that was deleted since, or never came
		gone.Digest = oci.SHA256(fmt.Append(nil, i))
		tagged = append(tagged, e, old, gone, old)
		if want[old.Digest] = sizes[i]; sizes[i] > 65_000 {
			want[old.Digest] = 0
		}
	}
	b.PushManifest("a", registrytest.IndexOf(tagged...), oci.ReferrersTag(subject.Digest))

	for _, n := range []int{1, 7, 1000} {
		got, pages := map[oci.Digest]int{}, 0
		for last, more := "", true; more; pages++ {
			var page []oci.Descriptor
			var err error
			page, more, err = b.Referrers(ctx, "a", subject.Digest, "x/y", last, n)
			if err != nil || len(page) == 0 || len(page) > n {
				t.Fatalf("behind %q: %d referrers, %v", last, len(page), err)
			}
			if raw, err := json.Marshal(page); err != nil || len(raw) > 5<<20 {
				t.Errorf("a page of %d bytes, %v", len(raw), err)
			}
			for _, d := range page {
				if string(d.Digest) <= last {
					t.Fatalf("%s behind %s", d.Digest, last)
				}
				last, got[d.Digest] = string(d.Digest), len(d.Annotations["n"])
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("in pages of %d (-want +got):\n%s", n, diff)
		}
		if n == 1000 && pages != 2 {
			t.Errorf("%d pages, want 2", pages)
		}
	}
	// A digest that does not exist is a valid position too.
	all := slices.Sorted(maps.Keys(want))
	last := string(all[len(all)-3]) + "0"
	page, more, err := b.Referrers(ctx, "a", subject.Digest, "", last, 1000)
	if err != nil || more || len(page) != 2 || page[0].Digest != all[len(all)-2] {
		t.Errorf("behind %s: %d referrers, %v, %v", last, len(page), more, err)
	}
}
