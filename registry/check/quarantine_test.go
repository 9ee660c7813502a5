package check_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"example.org/slipway/registry/check"

	"example.org/slipway/registry/registrytest"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/objstore/fsstore"
	"example.org/slipway/registry/storage"
)

func quarantineOf(d oci.Digest) string { return "slipway/quarantine/sha256/" + d.Encoded() }

// hold returns a registry with n images on a shelf.
func hold(t *testing.T, n int) (*bed, *registrytest.Shelf) {
	store := registrytest.NewShelf(t)
	b := newBed(t, store, registry.Options{})
	for i := range uint64(n) {
		b.PushImage(fmt.Sprintf("r%d", i), i, "v1")
	}
	b.Clock.Add(time.Minute)
	return b, store
}

// TestFsckTakesBack puts the right bytes of a given-up content into each place where they may be,
// and runs every kind of repair. The image can then be pulled again.
func TestFsckTakesBack(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	for _, place := range []string{"the store", "the quarantine", "both, the quarantine's damaged", "both, the store's damaged", "another name"} {
		for _, o := range []check.Options{{Repair: true}, {Repair: true, Quick: true}, {Repair: true, EmptyQuarantine: true}, {EmptyQuarantine: true}} {
			for _, what := range []string{"a large layer", "a small layer", "a manifest"} {
				t.Run(fmt.Sprintf("%s/%s/repair %t quick %t empty %t", place, what, o.Repair, o.Quick, o.EmptyQuarantine), func(t *testing.T) {
					b, _ := hold(t, 1)
					want := registrytest.Reachable(t, b)
					m, err := b.GetManifest(t.Context(), "r0", "v1")
					if err != nil {
						t.Fatal(err)
					}
					good := map[string][]byte{"a large layer": registrytest.Content(1<<32, 100_000), "a small layer": registrytest.Content(0, 5000), "a manifest": m.Bytes}[what]
					d := oci.SHA256(good)
					if what == "a large layer" {
						b.Overwrite(storage.BlobKey(d), []byte("gone"))
					} else {
						b.SQL(`UPDATE blobs SET content = x'00' WHERE digest = ` + registrytest.Quote(d))
					}
					b.Check(check.Options{Repair: true})
					b.Check(check.Options{EmptyQuarantine: true})
					switch place {
					case "the store":
						b.Overwrite(storage.BlobKey(d), good)
					case "the quarantine":
						b.Overwrite(quarantineOf(d), good)
					case "another name":
						b.Overwrite(storage.BlobKey(d)+".bak", good)
					case "both, the quarantine's damaged":
						b.Overwrite(storage.BlobKey(d), good)
						b.Overwrite(quarantineOf(d), []byte("worse"))
					default:
						b.Overwrite(storage.BlobKey(d), []byte("worse"))
						b.Overwrite(quarantineOf(d), good)
					}
					if rep := b.Check(check.Options{}); rep.Clean() || rep.Counts[check.ProblemOrphan] > 0 && place != "both, the store's damaged" && place != "another name" {
						t.Errorf("a check finds %v, want what came back, and no object that is unknown", registrytest.Kinds(rep))
					}
					b.Check(o)
					if !o.Repair { // what it did not take back it must have kept
						b.Check(check.Options{Repair: true})
					}
					if err := b.Clean(check.Options{}); err != nil {
						t.Errorf("after the repair: %v", err)
					}
					for name, bytes := range registrytest.Reachable(t, b) {
						if want[name] != bytes {
							t.Errorf("%s is another one", name)
						}
					}
				})
			}
		}
	}
}

// TestFsckForeign puts foreign files among the blobs. A check must name them, a repair must move
// them into quarantine, and the next check must find nothing.
func TestFsckForeign(t *testing.T) {
	large := registrytest.Content(1<<32, 100_000) // a blob of the image
	for _, tt := range []struct {
		key  string
		data []byte
	}{
		{"docker/registry/v2/blobs/notes.txt", []byte("notes")},
		{"docker/registry/v2/blobs/sha256/ab", nil},
		{storage.BlobKey(oci.SHA256(large)) + ".bak", large},
		{"docker/registry/v2/blobs/sha256/ab/data", large[:500]},
		{storage.BlobKey(oci.SHA256(large)) + ".aside-X/deep/file", []byte("file")},
	} {
		for _, quick := range []bool{false, true} {
			b, store := hold(t, 1)
			want := registrytest.Reachable(t, b)
			b.Overwrite(tt.key, tt.data)
			b.Clock.Add(time.Minute)
			if rep := b.Check(check.Options{Quick: quick}); rep.Counts[check.ProblemOrphan] != 1 {
				t.Errorf("%s: a check finds %v", tt.key, registrytest.Kinds(rep))
			}
			b.Check(check.Options{Quick: quick, Repair: true})
			if err := b.Clean(check.Options{}); err != nil {
				t.Errorf("%s: after a repair: %v", tt.key, err)
			}
			if got := store.Bytes(quarantineOf(oci.SHA256(tt.data))); !bytes.Equal(got, tt.data) {
				t.Errorf("%s: other bytes in quarantine", tt.key)
			}
			if diff := cmp.Diff(want, registrytest.Reachable(t, b)); diff != "" {
				t.Errorf("%s: the contents differ: -want +got\n%s", tt.key, diff)
			}
		}
	}
}

// TestDirectoryInPlaceOfBlob checks that a directory in the place of a blob counts as a missing
// blob, and that a push, and a repair from a source, put the blob into its place.
func TestDirectoryInPlaceOfBlob(t *testing.T) {
	data := registrytest.Content(1<<32, 100_000)
	d := oci.SHA256(data)
	source, _ := hold(t, 1)
	for name, mend := range map[string]func(*bed){
		"push":   func(b *bed) { b.PushBytes("r0", data) },
		"source": func(b *bed) { b.Check(check.Options{Repair: true, From: check.Stored(source.Registry)}) },
	} {
		root := t.TempDir()
		store, err := fsstore.New(root, nil)
		registrytest.NoError(t, err)
		t.Cleanup(func() { store.Close() })
		b := newBed(t, store, registry.Options{})
		b.PushImage("r0", 0, "v1")
		path := filepath.Join(root, storage.BlobKey(d))
		registrytest.NoError(t, os.Remove(path))
		registrytest.NoError(t, os.MkdirAll(path, 0o700))
		registrytest.NoError(t, os.WriteFile(filepath.Join(path, "precious"), []byte("precious"), 0o600))
		old := time.Now().Add(-24 * time.Hour)
		registrytest.NoError(t, os.Chtimes(filepath.Join(path, "precious"), old, old))
		b.Restart(t)
		if _, err := b.ResolveBlob(t.Context(), "r0", d); !oci.HasCode(err, oci.CodeBlobUnknown) {
			t.Errorf("%s: HEAD before: %v", name, err)
		}
		mend(b)
		b.WantBlob("r0", data)
		b.Check(check.Options{Repair: true})
		if err := b.Clean(check.Options{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got, err := os.ReadFile(filepath.Join(root, quarantineOf(oci.SHA256([]byte("precious"))))); string(got) != "precious" {
			t.Errorf("%s: what was in the directory: %q, %v", name, got, err)
		}
	}
}

// TestFsckHealsFromQuarantine checks that a content that is damaged again is repaired with the copy
// in quarantine, and that the damaged bytes do not overwrite that copy.
func TestFsckHealsFromQuarantine(t *testing.T) {
	for _, damage := range []string{"other bytes", "cut", "missing"} {
		b, store := hold(t, 1)
		want := registrytest.Reachable(t, b)
		good := registrytest.Content(1<<32, 100_000)
		d := oci.SHA256(good)
		b.Overwrite(quarantineOf(d), good)
		switch damage {
		case "other bytes":
			b.Overwrite(storage.BlobKey(d), registrytest.Content(9, 100_000))
		case "cut":
			b.Overwrite(storage.BlobKey(d), good[:5])
		default:
			store.Must(store.Delete(t.Context(), storage.BlobKey(d)))
		}
		if err := b.Clean(check.Options{EmptyQuarantine: true, Repair: true}); err != nil {
			t.Errorf("%s: %v", damage, err)
		}
		if now := registrytest.Reachable(t, b); len(now) != len(want) {
			t.Errorf("%s: %d contents of %d", damage, len(now), len(want))
		}
	}
}

// TestPushBringsBackEverywhere checks that a content that a repair gave up and that is pushed
// again, to whichever repository, is back in every image that needs it.
func TestPushBringsBackEverywhere(t *testing.T) {
	for _, size := range []int{50, 5000, 100_000} {
		for _, to := range []string{"a", "b", "other"} {
			b := newDiskBed(t)
			data := registrytest.Content(7, size)
			for _, repo := range []string{"a", "b"} {
				b.PushManifest(repo, registrytest.ImageOf(b.PushBytes(repo, []byte("{}")), b.PushBytes(repo, data)), "v1")
			}
			want := registrytest.Reachable(t, b)
			d := oci.SHA256(data)
			b.SQL(`UPDATE blobs SET content = x'00' WHERE content IS NOT NULL AND digest = ` + registrytest.Quote(d))
			if size > catalog.InlineMax {
				b.Overwrite(storage.BlobKey(d), registrytest.Content(8, size))
			}
			if rep := b.Check(check.Options{Repair: true}); rep.Clean() {
				t.Fatalf("%d bytes: the damage was not found", size)
			}
			b.PushBytes(to, data)
			if diff := cmp.Diff(want, registrytest.Reachable(t, b)); diff != "" {
				t.Errorf("%d bytes, pushed to %s:\n%s", size, to, diff)
			}
			if rep := b.Check(check.Options{}); !rep.Clean() {
				t.Errorf("%d bytes, pushed to %s: %+v", size, to, rep.Problems)
			}
		}
	}
}

// TestFsckOldCatalogue repairs with a catalogue that is older than the store, and then goes back to
// the newer one. Nothing that only the newer one names may be lost.
func TestFsckOldCatalogue(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	for _, n := range []int{1, 9, 30} { // number of newer images; more than 10 are too many
		for _, o := range []check.Options{{Repair: true}, {Repair: true, Quick: true}, {Repair: true, GiveUpMany: true}} {
			b := newDiskBed(t)
			b.PushImage("old", 1000, "v1")
			path := filepath.Join(t.TempDir(), "old.db")
			if err := b.Cat.DB.Backup(t.Context(), path); err != nil {
				t.Fatal(err)
			}
			for i := range n {
				b.PushImage("new", uint64(i), fmt.Sprintf("v%d", i))
			}
			want := registrytest.Reachable(t, b)
			old := &bed{T: t, Root: t.TempDir(), Clock: b.Clock, Store: b.Store}
			data, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(filepath.Join(old.Root, registry.CatalogFile), data, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			b.Clock.Add(time.Hour)
			old.Open(registry.Options{})
			_, err = check.Run(t.Context(), old.Registry, o)
			var many *check.TooManyError
			if refused := errors.As(err, &many); refused != (n > 10 && !o.GiveUpMany) || !refused && err != nil {
				t.Errorf("%d newer images, %+v: got %v", n, o, err)
			}
			if err := b.Clean(check.Options{Repair: true}); err != nil {
				t.Errorf("%d newer images, %+v: with the newer catalogue: %v", n, o, err)
			}
			if now := registrytest.Reachable(t, b); len(now) != len(want) {
				t.Errorf("%d newer images, %+v: %d contents of %d are left", n, o, len(now), len(want))
			}
		}
	}
}

// TestFsckGivesUpFewUnasked checks that a repair that would give up many contents changes none of
// them unless it is told to. It gives up a few at once.
func TestFsckGivesUpFewUnasked(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	for _, damage := range []string{"missing", "corrupt", "corrupt in the catalogue"} {
		for n, refused := range map[int]bool{1: false, 10: false, 11: true, 20: true} {
			b, store := hold(t, 20)
			for i := range n {
				large := registrytest.Content(uint64(i)+1<<32, 100_000)
				switch damage {
				case "missing":
					store.Must(store.Delete(t.Context(), storage.BlobKey(oci.SHA256(large))))
				case "corrupt":
					b.Overwrite(storage.BlobKey(oci.SHA256(large)), registrytest.Content(7, 100_000))
				default:
					b.SQL(`UPDATE blobs SET content = x'00' WHERE digest = ` + registrytest.Quote(oci.SHA256(registrytest.Content(uint64(i), 5000))))
				}
			}
			before := store.Keys()
			var many *check.TooManyError
			rep, err := check.Run(t.Context(), b.Registry, check.Options{Repair: true})
			switch {
			case refused && !errors.As(err, &many):
				t.Errorf("%d %s: got %v, want that it is too much", n, damage, err)
			case refused && !slices.Equal(before, store.Keys()):
				t.Errorf("%d %s: a refused repair changes the store", n, damage)
			case !refused && (err != nil || rep.Clean()):
				t.Errorf("%d %s: got %v, %v; want that the images are incomplete", n, damage, registrytest.Kinds(rep), err)
			}
			rep, err = check.Run(t.Context(), b.Registry, check.Options{Repair: true, GiveUpMany: true})
			if err != nil || rep.Counts[check.ProblemIncomplete] != n {
				t.Errorf("%d %s: got %v, %v; want %d images incomplete", n, damage, registrytest.Kinds(rep), err, n)
			}
			for i := range n {
				b.PushImage(fmt.Sprintf("r%d", i), uint64(i), "v1")
			}
			if err := b.Clean(check.Options{Repair: true}); err != nil {
				t.Errorf("%d %s: pushed again: %v", n, damage, err)
			}
			registrytest.Reachable(t, b)
		}
	}
}
