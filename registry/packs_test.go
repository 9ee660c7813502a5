package registry_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"example.org/slipway/registry/registrytest"

	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/fsstore"
	"example.org/slipway/registry/objstore/memstore"
)

// hookedKey is a store in which something happens before a key is read.
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

func newPack(content string, id byte) (key string, p catalog.NewGearPack) {
	digest := sha256.Sum256([]byte(content))
	return "slipway/gear/packs/" + hex.EncodeToString(digest[:]), catalog.NewGearPack{Digest: digest, Size: int64(len(content)), Bytes: 1,
		Files: []catalog.GearFile{{Name: catalog.GearName{id}, Size: 1, Stored: 1}}}
}

// putPack stores a pack and has the catalogue name it.
func (b *bed) putPack(content string, id byte) (key string) {
	b.T.Helper()
	key, p := newPack(content, id)
	err := errors.Join(b.Store.Put(b.T.Context(), key, []byte(content), true),
		b.Cat.RecordGear(b.T.Context(), catalog.GearRecord{Packs: []catalog.NewGearPack{p}}))
	if err != nil {
		b.T.Fatal(err)
	}
	return key
}

func wantFile(t testing.TB, path, want string) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("%s: got %q, %v; want %q", path, got, err, want)
	}
}

// TestBackupOfPacks: packs are copied whatever is in them, and those that are
// gone for good stop nothing.
func TestBackupOfPacks(t *testing.T) {
	b := newDiskBed(t)
	b.PushImage("app", 1, "v1")
	here, gone := b.putPack("a pack", 1), b.putPack("another pack", 2)
	if err := b.Store.Delete(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	dir, root := filepath.Join(t.TempDir(), "backup"), filepath.Join(t.TempDir(), "root")
	rep, err := b.Backup(t.Context(), dir, registry.BackupOptions{})
	if err != nil || rep.ObjectsTotal != rep.Objects+1 || rep.Copied != rep.Objects {
		t.Errorf("backup: got %+v, %v; want all objects but one", rep, err)
	}
	wantFile(t, filepath.Join(dir, here), "a pack")
	if rep, err := registry.Restore(t.Context(), dir, root, registry.RestoreOptions{}); err != nil || rep.ObjectsTotal != rep.Objects+1 {
		t.Errorf("restore: got %+v, %v; want all objects but one", rep, err)
	}
	wantFile(t, filepath.Join(root, here), "a pack")
}

// TestBackupBadSector: a pack that the disk cannot read is reported, and stops
// nothing.
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
			b := newBed(t, store, registry.Options{})
			b.PushImage("app", 1, "v1")
			good, bad := b.putPack("a pack", 1), b.putPack("another pack", 2)
			store.Keys = []string{bad}
			dir := filepath.Join(t.TempDir(), "backup")
			rep, err := b.Backup(t.Context(), dir, registry.BackupOptions{})
			if err != nil || rep.ObjectsTotal != rep.Objects+1 || rep.UnreadPacksTotal != 1 || !slices.Equal(rep.UnreadPacks, []string{bad}) || rep.DamagedTotal != 0 {
				t.Errorf("backup: got %+v, %v; want all objects but %s", rep, err, bad)
			}
			wantFile(t, filepath.Join(dir, good), "a pack")
			if _, err := os.Stat(filepath.Join(dir, bad)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the pack that cannot be read: got %v, want it not to be there", err)
			}
			// Once the disk can, the next backup has it.
			store.Keys = nil
			rep, err = b.Backup(t.Context(), dir, registry.BackupOptions{})
			if err != nil || rep.ObjectsTotal != rep.Objects || rep.UnreadPacksTotal != 0 {
				t.Errorf("next backup: got %+v, %v; want all objects", rep, err)
			}
			wantFile(t, filepath.Join(dir, bad), "another pack")
		})
	}
}

// TestBackupWhileSettling: of a pack that is replaced during the copy, what
// replaced it is in the backup.
func TestBackupWhileSettling(t *testing.T) {
	store := &hookedKey{Store: memstore.New(nil)}
	b := newBed(t, store, registry.Options{})
	old := b.putPack("a pack", 1)
	key, p := newPack("the same, settled", 1)
	store.key, store.then = old, func() {
		store.key = ""
		packs, err := b.Cat.GearPacks(t.Context(), 0, 1)
		if err != nil || len(packs) != 1 {
			t.Fatalf("got packs %v, %v", packs, err)
		}
		err = errors.Join(b.Store.Put(t.Context(), key, []byte("the same, settled"), true),
			b.Cat.MoveGear(t.Context(), "", []catalog.NewGearPack{p}, []int64{packs[0].ID}, b.Clock.Now()),
			b.Store.Delete(t.Context(), old))
		if err != nil {
			t.Fatal(err)
		}
	}
	dir := filepath.Join(t.TempDir(), "backup")
	rep, err := b.Backup(t.Context(), dir, registry.BackupOptions{})
	if err != nil || rep.Objects != 1 || rep.ObjectsTotal != 1 || rep.Copied != 1 {
		t.Errorf("got %+v, %v", rep, err)
	}
	wantFile(t, filepath.Join(dir, key), "the same, settled")
}
