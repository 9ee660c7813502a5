package history_test

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/historyfacts"
	"example.org/slipway/registry/history"
	"example.org/slipway/registry/objstore/memstore"
)

const repo = "team/app"

// bed is a registry with its history, and what its repository has.
type bed struct {
	t   *testing.T
	cat *catalog.Catalog
	reg *registry.Registry
	*history.History
}

func newBed(t *testing.T) *bed {
	t.Helper()
	c, err := catalog.Open(t.Context(), t.TempDir()+"/catalog.db", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	r, err := registry.New(t.Context(), c, memstore.New(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(t.Context()) })
	if _, err := r.PushBlob(t.Context(), repo, oci.SHA256([]byte("{}")), 2, bytes.NewReader([]byte("{}"))); err != nil {
		t.Fatal(err)
	}
	return &bed{t, c, r, history.New(c, r, history.Options{})}
}

// put pushes a manifest whose name makes it different from others.
func (b *bed) put(mediaType, name, fields string, tags ...string) oci.Digest {
	b.t.Helper()
	body := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,%s,"annotations":{"name":%q}}`, mediaType, fields, name)
	if _, err := b.reg.PutManifest(b.t.Context(), repo, oci.PutManifest{MediaType: mediaType, Bytes: body, Tags: tags}); err != nil {
		b.t.Fatalf("%s: %v", body, err)
	}
	return oci.SHA256(body)
}

func (b *bed) image(name string, subject oci.Digest, tags ...string) oci.Digest {
	b.t.Helper()
	fields := fmt.Sprintf(`"config":{"mediaType":"application/vnd.oci.empty.v1+json","digest":%q,"size":2},"layers":[]`, oci.SHA256([]byte("{}")))
	if subject != "" {
		m, err := b.cat.Manifest(b.t.Context(), repo, subject)
		if err != nil {
			b.t.Fatal(err)
		}
		fields += fmt.Sprintf(`,"subject":{"mediaType":%q,"digest":%q,"size":%d}`, m.MediaType, subject, len(m.Content))
	}
	return b.put(oci.MediaTypeOCIManifest, name, fields, tags...)
}

func (b *bed) index(name string, parts []oci.Digest, tags ...string) oci.Digest {
	b.t.Helper()
	list := ""
	for i, d := range parts {
		m, err := b.cat.Manifest(b.t.Context(), repo, d)
		if err != nil {
			b.t.Fatal(err)
		}
		if i > 0 {
			list += ","
		}
		list += fmt.Sprintf(`{"mediaType":%q,"digest":%q,"size":%d}`, m.MediaType, d, len(m.Content))
	}
	return b.put(oci.MediaTypeOCIIndex, name, `"manifests":[`+list+`]`, tags...)
}

// state is what a repository shows.
type state struct {
	Tags      map[string]oci.Digest
	Manifests []oci.Digest
}

func (b *bed) state() state {
	b.t.Helper()
	s := state{Tags: map[string]oci.Digest{}}
	for _, info := range b.infos() {
		s.Tags[info.Name] = info.Digest
	}
	var err error
	if s.Manifests, err = (historyfacts.History{DB: b.cat.DB}).Manifests(b.t.Context(), repo, 10_000); err != nil {
		b.t.Fatal(err)
	}
	slices.Sort(s.Manifests)
	return s
}

func (b *bed) infos() []catalog.RetentionInfo {
	b.t.Helper()
	list, err := b.cat.Retention.Infos(b.t.Context(), repo, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	slices.SortFunc(list, func(x, y catalog.RetentionInfo) int { return cmp.Compare(x.Name, y.Name) })
	return list
}

// TestRestoreWhatRetentionRemoved makes images and indexes that share parts, with
// signatures of both kinds at any depth, lets retention remove a tag, and restores its
// image. The repository must be as before.
func TestRestoreWhatRetentionRemoved(t *testing.T) {
	t.Parallel()
	removed := 0
	for seed := range uint64(12) {
		b, rng := newBed(t), rand.New(rand.NewPCG(seed, 3))
		var all []oci.Digest
		any := func() oci.Digest { return all[rng.IntN(len(all))] }
		for i := range 14 {
			name := fmt.Sprint(seed, "-", i)
			var tags []string
			if rng.IntN(2) == 0 {
				tags = []string{"v" + name}
			}
			switch kind := rng.IntN(4); {
			case len(all) < 3 || kind == 0:
				all = append(all, b.image(name, "", tags...))
			case kind == 1:
				all = append(all, b.index(name, []oci.Digest{any(), any()}, "v"+name))
			case kind == 2:
				all = append(all, b.image(name, any()))
			case kind == 3 && rng.IntN(2) == 0:
				b.image(name, "", oci.ReferrersTag(any())+".sig")
			default: // a list of referrers, as clients make it that do not know the API for that
				to := any()
				b.index(name, []oci.Digest{b.image(name+" of", to)}, oci.ReferrersTag(to))
			}
		}
		for _, info := range b.infos() {
			before := b.state()
			if before.Tags[info.Name] != info.Digest || info.Hung != "" {
				continue
			}
			i := slices.IndexFunc(b.infos(), func(x catalog.RetentionInfo) bool { return x.Name == info.Name })
			went, err := b.cat.Retention.RetireTag(t.Context(), repo, b.infos()[i].TagInfo, catalog.RetireOptions{})
			if err != nil {
				t.Fatal(err)
			}
			tag := ""
			if len(went.Manifests) == 0 { // another tag or index keeps the image
				tag = info.Name
			} else if len(went.Manifests) > 1 {
				removed++
			}
			if _, err := b.Restore(t.Context(), repo, info.Digest, tag); err != nil {
				t.Fatalf("seed %d, restore %s: %v", seed, info.Name, err)
			}
			if diff := gocmp.Diff(before, b.state()); diff != "" {
				t.Fatalf("seed %d, after %s was removed, with %d manifests, and restored (-before +after)\n%s", seed, info.Name, len(went.Manifests), diff)
			}
		}
	}
	if removed < 10 {
		t.Errorf("only %d removals took more than one manifest", removed)
	}
}

// TestRestoreWithManySignatures removes an image with so many signatures that they are not
// listed together. All must come back with the image.
func TestRestoreWithManySignatures(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	image := b.image("image", "", "v1")
	for i := range 1100 {
		b.image(fmt.Sprint("signature ", i), image)
	}
	before := b.state()
	went, err := b.cat.Retention.RetireTag(t.Context(), repo, b.infos()[0].TagInfo, catalog.RetireOptions{})
	if err != nil || len(went.Manifests) != len(before.Manifests) {
		t.Fatalf("%d of %d manifests went: %v", len(went.Manifests), len(before.Manifests), err)
	}
	if _, err := b.Restore(t.Context(), repo, image, ""); err != nil {
		t.Fatal(err)
	}
	if after := b.state(); gocmp.Diff(before, after) != "" {
		t.Errorf("%d of %d manifests came back, and the tags %v of %v", len(after.Manifests), len(before.Manifests), after.Tags, before.Tags)
	}
}

// TestRestoreLeavesWithdrawn deletes a signature, and then the image. The image comes back
// without the signature.
func TestRestoreLeavesWithdrawn(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	image := b.image("image", "", "v1")
	signature := b.image("signature", image)
	if err := b.reg.DeleteManifest(t.Context(), repo, signature); err != nil {
		t.Fatal(err)
	}
	want := b.state()
	for how, remove := range map[string]func() error{
		"retention": func() error {
			_, err := b.cat.Retention.RetireTag(t.Context(), repo, b.infos()[0].TagInfo, catalog.RetireOptions{})
			return err
		},
		"a user": func() error { return b.reg.DeleteManifest(t.Context(), repo, image) },
	} {
		if err := remove(); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Restore(t.Context(), repo, image, ""); err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff(want, b.state()); diff != "" {
			t.Errorf("removed by %s and restored (-want +got)\n%s", how, diff)
		}
	}
}
