package backup_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"example.org/slipway/registry"
	"example.org/slipway/registry/backup"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/fsstore"
	"example.org/slipway/registry/objstore/memstore"
	"example.org/slipway/registry/registrytest"
)

// hookedKey is a store that calls a function before it reads a key.
type hookedKey struct {
	objstore.Store
	key  string
	then func()
}

// Get implements objstore.Store.
func (h *hookedKey) Get(ctx context.Context, key string, off, n int64) (objstore.Object, error) {
	if key == h.key {
		h.then()
	}
	return h.Store.Get(ctx, key, off, n)
}

func wantFile(t testing.TB, path, want string) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("%s: got %q, %v; want %q", path, got, err, want)
	}
}

// TestBackupOfPacks checks that packs are copied whatever they hold, and that packs that are gone
// for good stop nothing.
func TestBackupOfPacks(t *testing.T) {
	b := registrytest.NewOnDisk(t)
	b.PushImage("app", 1, "v1")
	here, gone := b.PutPack("a pack", 1), b.PutPack("another pack", 2)
	if err := b.Store.Delete(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	dir, root := filepath.Join(t.TempDir(), "backup"), filepath.Join(t.TempDir(), "root")
	rep, err := backup.Make(t.Context(), b.Registry, dir, backup.Options{})
	if err != nil || rep.ObjectsTotal != rep.Objects+1 || rep.Copied != rep.Objects {
		t.Errorf("backup: got %+v, %v; want all objects but one", rep, err)
	}
	wantFile(t, filepath.Join(dir, here), "a pack")
	if rep, err := backup.Restore(t.Context(), dir, root, backup.RestoreOptions{}); err != nil || rep.ObjectsTotal != rep.Objects+1 {
		t.Errorf("restore: got %+v, %v; want all objects but one", rep, err)
	}
	wantFile(t, filepath.Join(root, here), "a pack")
}

// TestBackupBadSector checks that a pack that the disk cannot read is reported and stops nothing.
func TestBackupBadSector(t *testing.T) {
	for _, when := range []string{"opened", "read"} {
		t.Run(when, func(t *testing.T) {
			root := t.TempDir()
			disk, err := fsstore.New(root, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { disk.Close() })
			store := &registrytest.BadSector{Store: disk, Late: when == "read"}
			b := registrytest.New(t, store, registry.Options{})
			b.PushImage("app", 1, "v1")
			good, bad := b.PutPack("a pack", 1), b.PutPack("another pack", 2)
			store.Keys = []string{bad}
			dir := filepath.Join(t.TempDir(), "backup")
			rep, err := backup.Make(t.Context(), b.Registry, dir, backup.Options{})
			if err != nil || rep.ObjectsTotal != rep.Objects+1 || rep.UnreadPacksTotal != 1 || !slices.Equal(rep.UnreadPacks, []string{bad}) || rep.DamagedTotal != 0 {
				t.Errorf("backup: got %+v, %v; want all objects but %s", rep, err, bad)
			}
			wantFile(t, filepath.Join(dir, good), "a pack")
			if _, err := os.Stat(filepath.Join(dir, bad)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the pack that cannot be read: got %v, want it not to be there", err)
			}
			// Once the disk can read it, the next backup has it.
			store.Keys = nil
			rep, err = backup.Make(t.Context(), b.Registry, dir, backup.Options{})
			if err != nil || rep.ObjectsTotal != rep.Objects || rep.UnreadPacksTotal != 0 {
				t.Errorf("next backup: got %+v, %v; want all objects", rep, err)
			}
			wantFile(t, filepath.Join(dir, bad), "another pack")
		})
	}
}

// TestBackupWhileSettling checks that if a pack is replaced during the copy, the backup has its
// replacement.
func TestBackupWhileSettling(t *testing.T) {
	store := &hookedKey{Store: memstore.New(nil)}
	b := registrytest.New(t, store, registry.Options{})
	old := b.PutPack("a pack", 1)
	key, p := registrytest.NewPack("the same, settled", 1)
	store.key, store.then = old, func() {
		store.key = ""
		packs, err := gearfacts.NewFiles(b.Cat.DB).Packs(t.Context(), 0, 1)
		if err != nil || len(packs) != 1 {
			t.Fatalf("got packs %v, %v", packs, err)
		}
		err = errors.Join(b.Store.Put(t.Context(), key, []byte("the same, settled"), true),
			gearfacts.NewFiles(b.Cat.DB).Move(t.Context(), gearfacts.Replacement{Packs: []gearfacts.NewPack{p}, Old: []int64{packs[0].ID}, Due: b.Clock.Now()}),
			b.Store.Delete(t.Context(), old))
		if err != nil {
			t.Fatal(err)
		}
	}
	dir := filepath.Join(t.TempDir(), "backup")
	rep, err := backup.Make(t.Context(), b.Registry, dir, backup.Options{})
	if err != nil || rep.Objects != 1 || rep.ObjectsTotal != 1 || rep.Copied != 1 {
		t.Errorf("got %+v, %v", rep, err)
	}
	wantFile(t, filepath.Join(dir, key), "the same, settled")
}
