package registry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"example.org/slipway/registry/backup"

	"example.org/slipway/registry/check"

	"example.org/slipway/registry/registrytest"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/fsstore"
	"example.org/slipway/registry/storage"
)

// mirrored reports whether the tests mirror a repository.
func mirrored(repo string) bool { return strings.HasPrefix(repo, "up/") }

// onEngines runs a test on a registry with either catalogue, whose objects are files.
// Repositories under up/ are mirrored.
func onEngines(t *testing.T, o registry.Options, test func(t *testing.T, b *bed)) {
	o.Partial = mirrored
	t.Run("sqlite", func(t *testing.T) {
		store, err := fsstore.New(t.TempDir(), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { store.Close() })
		test(t, newBed(t, store, o))
	})
	t.Run("postgres", func(t *testing.T) {
		store, err := fsstore.New(t.TempDir(), nil)
		if err != nil {
			t.Fatal(err)
		}
		r := newCluster(t, store, time.Hour).add(o, nil, nil)
		test(t, &bed{&registrytest.Bed{Registry: r.Registry, T: t, Cat: r.cat, Store: store}})
	})
}

// spool makes a file like one that was fetched.
func (b *bed) spool(data []byte) (path string) {
	b.T.Helper()
	f, err := os.CreateTemp(b.T.TempDir(), "spool-")
	if err == nil {
		_, err = f.Write(data)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		b.T.Fatal(err)
	}
	return f.Name()
}

// adopt gives a mirrored repository a blob.
func (b *bed) adopt(repo string, data []byte) oci.Descriptor {
	b.T.Helper()
	desc, err := b.AdoptBytes(b.T.Context(), repo, oci.SHA256(data), data)
	if err != nil {
		b.T.Fatalf("adopt %d bytes in %s: %v", len(data), repo, err)
	}
	return desc
}

func describe(data []byte) oci.Descriptor {
	return oci.Descriptor{MediaType: "application/vnd.oci.image.layer.v1.tar+gzip", Digest: oci.SHA256(data), Size: int64(len(data))}
}

func (b *bed) wantNoBlob(repo string, data []byte) {
	b.T.Helper()
	if _, err := b.GetBlob(b.T.Context(), repo, oci.SHA256(data)); !oci.HasCode(err, oci.CodeBlobUnknown) {
		b.T.Errorf("blob of %d bytes of %s: got %v, want BLOB_UNKNOWN", len(data), repo, err)
	}
}

// stored reports whether the object store has a blob.
func (b *bed) stored(data []byte) bool {
	b.T.Helper()
	_, err := b.Store.Stat(b.T.Context(), storage.BlobKey(oci.SHA256(data)))
	if err != nil && !errors.Is(err, objstore.ErrNotExist) {
		b.T.Fatal(err)
	}
	return err == nil
}

func (b *bed) wantSound() {
	b.T.Helper()
	rep, err := check.Run(b.T.Context(), b.Registry, check.Options{})
	if err != nil || !rep.Clean() {
		b.T.Errorf("fsck: %v, %+v", err, rep.Problems)
	}
	n, err := b.Cat.Counts(b.T.Context())
	if err != nil || n.Uploads != 0 {
		b.T.Errorf("%d uploads are left, %v", n.Uploads, err)
	}
}

// TestAdopt checks that files and bytes of all sizes become blobs of the repository, and of no
// other one.
func TestAdopt(t *testing.T) {
	onEngines(t, registry.Options{}, func(t *testing.T, b *bed) {
		ctx := t.Context()
		var total int64
		for i, size := range []int{0, 1, catalog.InlineMax, catalog.InlineMax + 1, 60_000, 300_000} {
			file, ram := registrytest.Content(uint64(2*i+1), size), registrytest.Content(uint64(2*i+2), size)
			path := b.spool(file)
			desc, err := b.AdoptBlob(ctx, "up/a", oci.SHA256(file), int64(size), path)
			if err != nil || desc.Size != int64(size) || desc.Digest != oci.SHA256(file) {
				t.Fatalf("adopt a file of %d bytes: %+v, %v", size, desc, err)
			}
			if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the file of %d bytes is still there: %v", size, err)
			}
			b.adopt("up/a", ram)
			total += int64(size)
			if size > 0 { // otherwise both are the same
				total += int64(size)
			}
			for _, data := range [][]byte{file, ram} {
				b.WantBlob("up/a", data)
				b.wantNoBlob("up/b", data)
				if want := size > catalog.InlineMax; b.stored(data) != want {
					t.Errorf("%d bytes are an object: %t, want %t", size, !want, want)
				}
			}
			// Again, and elsewhere: no new bytes.
			if _, err := b.AdoptBlob(ctx, "up/b", oci.SHA256(file), int64(size), b.spool(file)); err != nil {
				t.Errorf("adopt the same file elsewhere: %v", err)
			}
			if _, err := b.LinkStored(ctx, "up/b", oci.SHA256(ram)); err != nil {
				t.Errorf("show what is stored: %v", err)
			}
			b.adopt("up/a", file)
			b.WantBlob("up/b", file)
			b.WantBlob("up/b", ram)
		}
		if got := b.MirrorAdded(); got != total {
			t.Errorf("%d bytes were added, want %d", got, total)
		}
		if n, ok, err := b.Stored(ctx, oci.SHA256(registrytest.Content(3, 1))); n != 1 || !ok || err != nil {
			t.Errorf("Stored: got %d, %t, %v", n, ok, err)
		}
		b.wantSound()
	})
}

// TestAdoptRefuses checks that what cannot be adopted is left as it is.
func TestAdoptRefuses(t *testing.T) {
	onEngines(t, registry.Options{}, func(t *testing.T, b *bed) {
		ctx := t.Context()
		data := registrytest.Content(1, 50_000)
		d := oci.SHA256(data)
		path := b.spool(data)
		link := path + ".link"
		if err := os.Symlink(path, link); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			name, repo, path string
			d                oci.Digest
			size             int64
			code             oci.Code
		}{
			{"no mirror", "own/a", path, d, 50_000, oci.CodeUnsupported},
			{"no name", "up/../a", path, d, 50_000, oci.CodeNameInvalid},
			{"no digest", "up/a", path, "sha256:abc", 50_000, oci.CodeDigestInvalid},
			{"too short", "up/a", path, d, 50_001, ""},
			{"too long", "up/a", path, d, 49_999, ""},
			{"a link", "up/a", link, d, 50_000, ""},
			{"a directory", "up/a", filepath.Dir(path), d, 50_000, ""},
			{"nothing", "up/a", path + ".gone", d, 50_000, ""},
		} {
			_, err := b.AdoptBlob(ctx, c.repo, c.d, c.size, c.path)
			if err == nil || c.code != "" && !oci.HasCode(err, c.code) {
				t.Errorf("%s: got %v, want an error %s", c.name, err, c.code)
			}
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, data) {
				t.Fatalf("%s: the file is gone: %v", c.name, err)
			}
		}
		if _, err := b.AdoptBytes(ctx, "own/a", d, data); !oci.HasCode(err, oci.CodeUnsupported) {
			t.Errorf("adopt bytes where nothing is mirrored: %v", err)
		}
		if _, err := b.LinkStored(ctx, "own/a", d); !oci.HasCode(err, oci.CodeUnsupported) {
			t.Errorf("show a blob where nothing is mirrored: %v", err)
		}
		if _, err := b.LinkStored(ctx, "up/a", d); !oci.HasCode(err, oci.CodeBlobUnknown) {
			t.Errorf("show what is not stored: %v", err)
		}
		if _, err := b.Forget(ctx, "own/a", registry.ForgetOptions{}, d); !oci.HasCode(err, oci.CodeUnsupported) {
			t.Errorf("forget where nothing is mirrored: %v", err)
		}
		if _, ok, err := b.Stored(ctx, d); ok || err != nil {
			t.Errorf("Stored: got %t, %v", ok, err)
		}
		b.wantSound()
	})
}

// TestAdoptTogether adopts the same and other contents concurrently.
func TestAdoptTogether(t *testing.T) {
	onEngines(t, registry.Options{}, func(t *testing.T, b *bed) {
		var pool [][]byte
		for i, size := range []int{10, 4000, catalog.InlineMax, 30_000, 200_000} {
			pool = append(pool, registrytest.Content(uint64(i+1), size))
		}
		var busy sync.WaitGroup
		for i := range 10 {
			busy.Go(func() {
				repo := fmt.Sprintf("up/%d", i%3)
				for j := range pool {
					data := pool[(i+j)%len(pool)]
					var err error
					if i%2 == 0 {
						_, err = b.AdoptBytes(t.Context(), repo, oci.SHA256(data), data)
					} else {
						_, err = b.AdoptBlob(t.Context(), repo, oci.SHA256(data), int64(len(data)), b.spool(data))
					}
					if err != nil {
						t.Errorf("adopt %d bytes: %v", len(data), err)
					}
					b.WantBlob(repo, data)
				}
			})
		}
		busy.Wait()
		b.wantSound()
	})
}

// TestPartialImage checks that everything that maintains the registry treats a mirrored image as
// whole, however little of it is here.
func TestPartialImage(t *testing.T) {
	o := registry.Options{
		DeleteUntagged: true,
		Immutable:      func(_, tag string) bool { return true },
		ForeignURL:     func(string) bool { return false },
	}
	onEngines(t, o, func(t *testing.T, b *bed) {
		ctx := t.Context()
		config, layer, other := registrytest.Content(1, 2000), registrytest.Content(2, 80_000), registrytest.Content(3, 90_000)
		foreign := describe(registrytest.Content(4, 10))
		foreign.URLs = []string{"https://example.com/layer"}
		doc := registrytest.ImageOf(describe(config), describe(layer), describe(other), foreign)
		raw, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.PutManifest(ctx, "own/a", oci.PutManifest{Bytes: raw}); err == nil {
			t.Error("an ordinary repository takes the manifest")
		}
		m := b.PushManifest("up/a", doc, "v1")
		absent := describe(registrytest.Content(5, 100))
		index := b.PushManifest("up/a", registrytest.IndexOf(m, absent), "multi")
		next := b.PushManifest("up/a", registrytest.ImageOf(describe(config)), "v1") // the tag has moved
		b.adopt("up/a", layer)
		look := func(when string) {
			t.Helper()
			for ref, want := range map[string]oci.Digest{"v1": next.Digest, "multi": index.Digest, string(m.Digest): m.Digest} {
				if got, err := b.GetManifest(ctx, "up/a", ref); err != nil || got.Digest != want {
					t.Errorf("%s: manifest %s: %v", when, ref, err)
				}
			}
			b.WantBlob("up/a", layer)
			b.wantNoBlob("up/a", other)
			b.wantSound()
		}
		look("at first")
		if b.Clock != nil {
			b.Clock.Add(3 * time.Hour)
		}
		for _, o := range []registry.CollectOptions{{}, {Untagged: true}, {Now: true, Untagged: true}} {
			if _, err := b.Collect(ctx, o); err != nil {
				t.Fatal(err)
			}
			look("after a collection")
		}
		// What belongs to another repository is not shown because a manifest names it.
		b.PushBytes("own/a", other)
		look("with a layer elsewhere")
		if rep, err := check.Run(ctx, b.Registry, check.Options{Repair: true}); err != nil || !rep.Clean() || len(rep.Problems) > 0 {
			t.Errorf("repair: %v, %+v", err, rep.Problems)
		}
		look("after a repair")
		dir := t.TempDir()
		if _, err := backup.Make(ctx, b.Registry, dir, backup.Options{}); err != nil {
			t.Fatal(err)
		}
		reg, closeBackup, err := backup.Open(ctx, dir, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		defer closeBackup(ctx)
		if got, err := registrytest.ReadBlob(ctx, reg, "up/a", oci.SHA256(layer)); err != nil || !bytes.Equal(got, layer) {
			t.Errorf("the layer in the backup: %d bytes, %v", len(got), err)
		}
		if got, err := reg.GetManifest(ctx, "up/a", "multi"); err != nil || got.Digest != index.Digest {
			t.Errorf("the index in the backup: %v", err)
		}
		b.adopt("up/a", config)
		if _, err := b.LinkStored(ctx, "up/a", oci.SHA256(other)); err != nil {
			t.Error(err)
		}
		b.WantBlob("up/a", other)
	})
}

// TestMirrorEvents checks that content from elsewhere is distinguished from pushed content.
func TestMirrorEvents(t *testing.T) {
	var got []string
	b := newBed(t, nil, registry.Options{Partial: mirrored, OnEvent: func(_ context.Context, e registry.Event) error {
		got = append(got, fmt.Sprintf("%s %s blob=%t mirrored=%t %s", e.Action, e.Repo, e.Blob, e.Mirrored, e.Descriptor.Digest))
		return nil
	}})
	data := registrytest.Content(1, 100)
	b.adopt("up/a", data)
	if _, err := b.LinkStored(t.Context(), "up/b", oci.SHA256(data)); err != nil {
		t.Fatal(err)
	}
	m := b.PushManifest("up/a", registrytest.ImageOf(describe(data)), "v1")
	b.PushBytes("own/a", data)
	if err := b.ForgetTag(t.Context(), "up/a", "v1"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Forget(t.Context(), "up/a", registry.ForgetOptions{}, m.Digest); err != nil {
		t.Fatal(err)
	}
	want := []string{
		fmt.Sprintf("push up/a blob=true mirrored=true %s", oci.SHA256(data)),
		fmt.Sprintf("push up/b blob=true mirrored=true %s", oci.SHA256(data)),
		fmt.Sprintf("push up/a blob=false mirrored=true %s", m.Digest),
		fmt.Sprintf("push own/a blob=true mirrored=false %s", oci.SHA256(data)),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// TestMirrorPages checks that a page holds as many mirrored images as it may, wherever the
// registry's own repositories sort, and that the last page is the last one that holds any.
func TestMirrorPages(t *testing.T) {
	b := newBed(t, nil, registry.Options{Partial: mirrored})
	config := registrytest.Content(1, 100)
	var want []string
	for i := range 7 {
		for _, own := range []string{"a/own", "up.own/x", "zz/own"} {
			b.PushManifest(own, registrytest.ImageOf(b.PushBytes(own, fmt.Append(nil, i))), fmt.Sprint("t", i))
			b.Clock.Add(time.Second)
		}
		repo := fmt.Sprintf("up/%d", i%3)
		doc := registrytest.ImageOf(describe(config))
		doc.Annotations = map[string]string{"n": fmt.Sprint(i)}
		want = append(want, repo+"@"+string(b.PushManifest(repo, doc, fmt.Sprint("t", i)).Digest))
		b.Clock.Add(time.Second)
	}
	slices.Sort(want)
	for _, limit := range []int{1, 2, 3, 7, 8} {
		for _, used := range []bool{false, true} {
			var got []string
			pages := 0
			for q := (registry.MirrorQuery{Only: mirrored, Limit: limit, LeastUsed: used}); pages == 0 || q.After != ""; pages++ {
				page, next, err := b.MirrorImages(t.Context(), q)
				if err != nil || len(page) == 0 || next != "" && len(page) != limit {
					t.Fatalf("page %d of %d: %d images, next %q, %v", pages, limit, len(page), next, err)
				}
				for _, i := range page {
					got = append(got, i.Repo+"@"+string(i.Digest))
				}
				q.After = next
			}
			if slices.Sort(got); !slices.Equal(got, want) || pages != (len(want)+limit-1)/limit {
				t.Errorf("pages of %d, least used first %v: %d pages with %q, want %q", limit, used, pages, got, want)
			}
		}
	}
}

// TestMirrorImages checks that the list says what is here of each image, and when it was used.
func TestMirrorImages(t *testing.T) {
	onEngines(t, registry.Options{}, func(t *testing.T, b *bed) {
		ctx := t.Context()
		pass := func() {
			if b.Clock != nil {
				b.Clock.Add(time.Second)
			}
		}
		used := func(d oci.Digest) time.Time {
			t.Helper()
			images, _, err := b.MirrorImages(ctx, registry.MirrorQuery{Prefix: "up/"})
			i := slices.IndexFunc(images, func(i registry.MirrorImage) bool { return i.Digest == d })
			if err != nil || i < 0 {
				t.Fatalf("image %s: %+v, %v", d, images, err)
			}
			return images[i].Used()
		}
		config, shared, own := registrytest.Content(1, 1000), registrytest.Content(2, 70_000), registrytest.Content(3, 80_000)
		one := b.PushManifest("up/a", registrytest.ImageOf(describe(config), describe(shared), describe(own)), "v1", "latest")
		pass()
		two := b.PushManifest("up/a", registrytest.ImageOf(describe(config), describe(shared)))
		pass()
		index := b.PushManifest("up/b/c", registrytest.IndexOf(one, two), "multi")
		pass()
		child := b.PushManifest("up/b/c", registrytest.ImageOf(describe(config), describe(shared)))
		b.PushImage("own/a", 9, "v1")
		b.adopt("up/a", config)
		b.adopt("up/a", shared)
		b.adopt("up/b/c", shared)
		b.PushBytes("own/a", config)
		// A replica's clock is a little behind the catalogue's.
		poll(t, "a pull is later than a push", func() bool {
			pass()
			if _, err := b.GetManifest(ctx, "up/a", "v1"); err != nil {
				t.Fatal(err)
			}
			return used(one.Digest).After(used(two.Digest)) && used(one.Digest).After(used(index.Digest))
		})
		poll(t, "a pull is later than another", func() bool {
			pass()
			b.NotePull("up/b/c", string(child.Digest))
			return used(index.Digest).After(used(one.Digest))
		})
		between := used(one.Digest)

		list := func(q registry.MirrorQuery) (out []string) {
			t.Helper()
			for range 10 {
				page, next, err := b.MirrorImages(ctx, q)
				if err != nil {
					t.Fatal(err)
				}
				for _, i := range page {
					out = append(out, fmt.Sprintf("%s %s %v size=%d missing=%d pulled=%t", i.Repo, i.Digest, i.Tags, i.Size, i.Missing, !i.LastPull.IsZero()))
				}
				if q.After = next; next == "" {
					break
				}
			}
			return out
		}
		first := fmt.Sprintf("up/a %s [latest v1] size=%d missing=1 pulled=true", one.Digest, one.Size+71_000)
		second := fmt.Sprintf("up/a %s [] size=%d missing=0 pulled=false", two.Digest, two.Size+71_000)
		third := fmt.Sprintf("up/b/c %s [multi] size=%d missing=2 pulled=true", index.Digest, index.Size+child.Size+70_000)
		for _, limit := range []int{0, 1, 2} {
			for _, c := range []struct {
				name string
				q    registry.MirrorQuery
				want []string
			}{
				{"all", registry.MirrorQuery{Prefix: "up/"}, []string{first, second, third}},
				{"one repository", registry.MirrorQuery{Prefix: "up/b/"}, []string{third}},
				{"none", registry.MirrorQuery{Prefix: "up/none"}, nil},
				{"least used", registry.MirrorQuery{Prefix: "up/", LeastUsed: true}, []string{second, first, third}},
				{"used before", registry.MirrorQuery{Prefix: "up/", UsedBefore: between}, []string{second}},
			} {
				c.q.Limit = limit
				if diff := cmp.Diff(c.want, list(c.q)); diff != "" {
					t.Errorf("%s, %d at a time (-want +got):\n%s", c.name, limit, diff)
				}
			}
		}
		for _, after := range []string{"x", "1x/up", "/", "9999999999999999999/up"} {
			if _, _, err := b.MirrorImages(ctx, registry.MirrorQuery{After: after}); !oci.HasCode(err, oci.CodePaginationNumber) {
				t.Errorf("a list after %q: %v", after, err)
			}
		}
		manifests := one.Size + two.Size + index.Size + child.Size
		usage, err := b.MirrorUsage(ctx, "up/")
		// child has the same bytes as two, so both are one content in two repositories.
		want := registry.MirrorUsage{Repositories: 2, Manifests: 4, Bytes: manifests - child.Size + 71_000, OnlyBytes: manifests - child.Size + 70_000}
		if err != nil || usage != want {
			t.Errorf("usage: got %+v, %v; want %+v", usage, err, want)
		}
		all, _, err := b.MirrorImages(ctx, registry.MirrorQuery{Prefix: "up/"})
		if err != nil || !slices.IsSortedFunc(all, func(x, y registry.MirrorImage) int { return strings.Compare(x.Repo, y.Repo) }) {
			t.Errorf("images: %+v, %v", all, err)
		}
		for _, i := range all {
			if i.Stored.IsZero() || i.Used().Before(i.Stored) || i.Used().Before(i.LastPull) {
				t.Errorf("times of %+v", i)
			}
		}
	})
}
