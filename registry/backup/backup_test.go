package backup_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/registry/backup"

	"example.org/slipway/registry/check"

	"example.org/slipway/registry/registrytest"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/memstore"
	"example.org/slipway/registry/storage"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func TestBackupAndRestore(t *testing.T) {
	b := registrytest.NewOnDisk(t)
	ctx := t.Context()
	_, _, _, large := b.PushImage("a/b", 1, "v1")
	first, _, _, _ := b.PushImage("c", 2, "v1", "v2")
	b.PushManifest("c", registrytest.IndexOf(first), "multi")
	// One upload is under way, and another has left its bytes in the staging directory.
	if _, err := b.StartUpload(ctx, "c"); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "backup")
	rep, err := backup.Make(ctx, b.Registry, dir, backup.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if rep.Objects != 2 || rep.Copied != 2 || rep.Bytes != 200_000 || rep.Bytes != rep.BytesTotal || rep.CopiedBytes != 200_000 {
		t.Errorf("got %+v, want the two large layers copied", rep)
	}
	want := registrytest.Reachable(t, b)
	if diff := cmp.Diff(want, registrytest.ReadBackup(t, dir)); diff != "" {
		t.Errorf("the backup is not the registry (-registry +backup):\n%s", diff)
	}
	for _, f := range registrytest.Files(t, dir) {
		if strings.HasPrefix(f, "_staging/") || strings.HasSuffix(f, "-wal") {
			t.Errorf("the backup holds %s", f)
		}
		info, err := os.Stat(filepath.Join(dir, f))
		if err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v (%v)", f, info.Mode(), err)
		}
	}

	// The second backup only copies what is new, and removes what is gone.
	b.PushImage("d", 3, "new")
	tags, _, _ := b.Tags(ctx, "a/b", "", 10)
	if err := b.DeleteManifest(ctx, "a/b", oci.Digest(want["a/b:"+tags[0]])); err != nil {
		t.Fatal(err)
	}
	b.Clock.Add(2 * time.Hour)
	if _, err := b.Collect(ctx, registry.CollectOptions{Now: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Collect(ctx, registry.CollectOptions{Now: true}); err != nil {
		t.Fatal(err)
	}
	if rep, err = backup.Make(ctx, b.Registry, dir, backup.Options{}); err != nil {
		t.Fatal(err)
	}
	if rep.Copied != 1 || rep.Objects != 2 || rep.Pruned != 1 {
		t.Errorf("got %+v, want 1 copied, 1 kept, 1 pruned", rep)
	}
	if _, err := os.Stat(filepath.Join(dir, storage.BlobKey(large.Digest))); err == nil {
		t.Error("the object of a deleted blob is still in the backup")
	}

	root := filepath.Join(t.TempDir(), "restored")
	if rep, err = backup.Restore(ctx, dir, root, backup.RestoreOptions{}); err != nil {
		t.Fatal(err)
	}
	if rep.Copied != 2 || rep.Bytes != rep.BytesTotal {
		t.Errorf("restored %+v", rep)
	}
	restored := registrytest.OpenOnDisk(t, root)
	if diff := cmp.Diff(registrytest.Reachable(t, b), registrytest.Reachable(t, restored)); diff != "" {
		t.Errorf("the restored registry is another one (-original +restored):\n%s", diff)
	}
	if rep := restored.Check(check.Options{}); !rep.Clean() {
		t.Errorf("the restored registry has problems: %+v", rep.Problems)
	}
	restored.PushImage("e", 5, "works")
}

func TestBackupRefuses(t *testing.T) {
	b := registrytest.NewOnDisk(t)
	ctx := t.Context()
	b.PushImage("a", 1, "v1")
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "precious"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := backup.Make(ctx, b.Registry, full, backup.Options{}); err == nil || !strings.Contains(err.Error(), "precious") {
		t.Errorf("a backup into a directory with other things: %v", err)
	}
	if _, err := backup.Make(ctx, b.Registry, b.Root, backup.Options{}); err == nil {
		t.Error("a backup into the data root itself is made")
	}
	dir := t.TempDir()
	if _, err := backup.Make(ctx, b.Registry, dir, backup.Options{}); err != nil {
		t.Fatal(err)
	}
	if _, err := backup.Restore(ctx, dir, full, backup.RestoreOptions{}); err == nil || !strings.Contains(err.Error(), "precious") {
		t.Errorf("a restore into a directory with other things: %v", err)
	}
	if _, err := backup.Restore(ctx, full, t.TempDir(), backup.RestoreOptions{}); err == nil || !strings.Contains(err.Error(), "no complete backup") {
		t.Errorf("a restore of no backup: %v", err)
	}
	_, done, err := backup.Open(ctx, dir, quiet())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := backup.Make(ctx, b.Registry, dir, backup.Options{}); err == nil || !strings.Contains(err.Error(), "another program") {
		t.Errorf("a backup while it is read: %v", err)
	}
	if err := done(ctx); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, registry.CatalogFile+"-wal"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := backup.Make(ctx, b.Registry, dir, backup.Options{}); err == nil || !strings.Contains(err.Error(), "serves from the backup") {
		t.Errorf("a backup over one that is served from: %v", err)
	}
}

func TestRestoreDamaged(t *testing.T) {
	b := registrytest.NewOnDisk(t)
	ctx := t.Context()
	_, _, _, large := b.PushImage("a", 1, "v1")
	b.PushImage("a", 2, "v2")
	dir := t.TempDir()
	if _, err := backup.Make(ctx, b.Registry, dir, backup.Options{}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, storage.BlobKey(large.Digest)), registrytest.Content(9, 100_000), 0o600); err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	rep, err := backup.Restore(ctx, dir, root, backup.RestoreOptions{})
	var lacks *backup.IncompleteError
	if !errors.As(err, &lacks) || !slices.Equal(lacks.Images, []string{"a:v1"}) || rep.DamagedTotal != 1 || rep.Damaged[0] != large.Digest {
		t.Errorf("got %+v and %v, want the damage and the image reported", rep, err)
	}
	if _, err := os.Stat(filepath.Join(root, registry.CatalogFile)); err == nil {
		t.Error("the root has a catalogue all the same")
	}
	// The same directory can be used again.
	if _, err := backup.Restore(ctx, dir, root, backup.RestoreOptions{AllowDamaged: true}); err != nil {
		t.Fatal(err)
	}
	restored := registrytest.OpenOnDisk(t, root)
	restored.Check(check.Options{Repair: true})
	if _, err := registrytest.ReadBlob(ctx, restored, "a", large.Digest); !oci.HasCode(err, oci.CodeBlobUnknown) {
		t.Errorf("the damaged blob: %v", err)
	}
}

// failing is a store that fails to return blobs after some calls.
type failing struct {
	objstore.Store
	left atomic.Int64
}

func (s *failing) Get(ctx context.Context, key string, off, n int64) (objstore.Object, error) {
	if strings.HasSuffix(key, "/data") && s.left.Add(-1) < 0 {
		return nil, fmt.Errorf("read %s: the power is out", key)
	}
	return s.Store.Get(ctx, key, off, n)
}

func TestBackupInterrupted(t *testing.T) {
	store := &failing{Store: memstore.New(nil)}
	store.left.Store(1 << 40)
	b := registrytest.New(t, store, registry.Options{})
	ctx := t.Context()
	b.PushImage("a", 1, "v1")
	dir := t.TempDir()
	if _, err := backup.Make(ctx, b.Registry, dir, backup.Options{}); err != nil {
		t.Fatal(err)
	}
	want := registrytest.ReadBackup(t, dir)
	if len(want) != 5 {
		t.Fatalf("the first backup holds %d things", len(want))
	}
	for i := range uint64(5) {
		b.PushImage("a", 2+i, "v1")
	}
	for left := range int64(3) {
		store.left.Store(left)
		rep, err := backup.Make(ctx, b.Registry, dir, backup.Options{Parallel: 1})
		if err == nil {
			t.Fatalf("a backup that could read %d objects succeeds: %+v", left, rep)
		}
		if diff := cmp.Diff(want, registrytest.ReadBackup(t, dir)); diff != "" {
			t.Fatalf("after an interruption the earlier backup is another one:\n%s", diff)
		}
	}
	// A killed process leaves this.
	if err := os.WriteFile(filepath.Join(dir, "catalog.db.new"), []byte("SQL"), 0o600); err != nil {
		t.Fatal(err)
	}
	store.left.Store(1 << 40)
	var last backup.Report
	rep, err := backup.Make(ctx, b.Registry, dir, backup.Options{Progress: func(r backup.Report) { last = r }})
	if err != nil {
		t.Fatal(err)
	}
	if rep.Copied >= 5 || rep.Objects != 6 {
		t.Errorf("got %+v, want only what the interrupted ones left to do", rep)
	}
	if diff := cmp.Diff(rep, last); diff != "" {
		t.Errorf("the last progress is not the report:\n%s", diff)
	}
	store.left.Store(1 << 40)
	if diff := cmp.Diff(registrytest.Reachable(t, b), registrytest.ReadBackup(t, dir)); diff != "" {
		t.Errorf("the backup is not the registry (-registry +backup):\n%s", diff)
	}
}

// TestBackupOfDamagedRegistry checks that a backup names what has no good copy anywhere, before and
// after a repair gave it up, and that everything else is backed up.
func TestBackupOfDamagedRegistry(t *testing.T) {
	p := registrytest.Plant(t)
	ctx := t.Context()
	p.PushImage("whole", 5, "v1")
	dir := t.TempDir()
	p.Overwrite(storage.BlobKey(p.Large.Digest), registrytest.Content(9, 100_000))
	for _, repaired := range []bool{false, true} {
		rep, err := backup.Make(ctx, p.Registry, dir, backup.Options{})
		var lacks *backup.IncompleteError
		if !errors.As(err, &lacks) || !rep.Done || !slices.Contains(lacks.Images, "a:v1") || !slices.Contains(lacks.Images, "b:v2") || slices.Contains(lacks.Images, "whole:v1") {
			t.Fatalf("repaired %v: got %+v and %v, want a:v1 and b:v2 named", repaired, rep, err)
		}
		if _, err := backup.Restore(ctx, dir, t.TempDir(), backup.RestoreOptions{}); !errors.As(err, &lacks) {
			t.Errorf("a restore of an incomplete backup: %v", err)
		}
		root := t.TempDir()
		if _, err := backup.Restore(ctx, dir, root, backup.RestoreOptions{AllowDamaged: true}); err != nil {
			t.Fatal(err)
		}
		if _, err := registrytest.OpenOnDisk(t, root).GetManifest(ctx, "whole", "v1"); err != nil {
			t.Errorf("the image without damage: %v", err)
		}
		p.Check(check.Options{Repair: true})
	}
	p.PushBytes("a", registrytest.Content(1+1<<32, 100_000))
	p.Check(check.Options{Repair: true})
	if rep, err := backup.Make(ctx, p.Registry, dir, backup.Options{}); err != nil || rep.IncompleteTotal != 0 {
		t.Errorf("after a push that heals: got %+v, %v", rep, err)
	}
}

// TestBackupWhileServing backs up again and again while four clients push and delete and the
// collector runs. Every backup must be whole in itself, and hold what was acknowledged before it
// began.
func TestBackupWhileServing(t *testing.T) {
	b := registrytest.NewOnDisk(t)
	c := b.Churn(4)
	dir := t.TempDir()
	c.Until(func() {
		before := make([]uint64, len(c.Pushed))
		for w := range c.Pushed {
			before[w] = c.Pushed[w].Load()
		}
		if _, err := backup.Make(t.Context(), b.Registry, dir, backup.Options{}); err != nil {
			t.Error(err)
			return
		}
		got := registrytest.ReadBackup(t, dir) // fails the test for whatever cannot be read
		for w, n := range before {
			for i := uint64(1); i <= n; i++ {
				if _, ok := got[fmt.Sprintf("w%d:t%d", w, i)]; !ok && i%3 != 0 {
					t.Errorf("w%d:t%d was pushed before the backup and is not in it", w, i)
				}
			}
		}
	})
	c.Stop()
	root := t.TempDir()
	if _, err := backup.Make(t.Context(), b.Registry, dir, backup.Options{}); err != nil {
		t.Fatal(err)
	}
	if _, err := backup.Restore(t.Context(), dir, root, backup.RestoreOptions{}); err != nil {
		t.Fatal(err)
	}
	restored := registrytest.OpenOnDisk(t, root)
	if diff := cmp.Diff(registrytest.Reachable(t, b), registrytest.Reachable(t, restored)); diff != "" {
		t.Errorf("the restored registry is another one (-original +restored):\n%.2000s", diff)
	}
	if rep := restored.Check(check.Options{}); !rep.Clean() {
		t.Errorf("the restored registry has problems: %+v", rep.Problems)
	}
}

// TestBackupHoldsCollection deletes everything, and lets the collector run,
// while a backup is about to read its first object.
func TestBackupHoldsCollection(t *testing.T) {
	store := &registrytest.Hooked{Store: memstore.New(nil)}
	b := registrytest.New(t, store, registry.Options{})
	m1, _, _, _ := b.PushImage("a", 1, "v1")
	m2, _, _, large := b.PushImage("a", 2, "v2")
	want := registrytest.Reachable(t, b)
	b.Clock.Add(3 * time.Hour)
	collected := make(chan error, 1)
	deleteAll := func() {
		for _, m := range []oci.Descriptor{m1, m2} {
			if err := b.DeleteManifest(t.Context(), "a", m.Digest); err != nil {
				t.Error(err)
			}
		}
		go func() {
			_, err := b.Collect(t.Context(), registry.CollectOptions{Now: true})
			collected <- err
		}()
		select { // a collection of so little takes milliseconds
		case <-collected:
			t.Error("the collector runs during a backup")
		case <-time.After(300 * time.Millisecond):
		}
	}
	store.OnGet.Store(&deleteAll)
	dir := t.TempDir()
	if _, err := backup.Make(t.Context(), b.Registry, dir, backup.Options{Parallel: 1}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, registrytest.ReadBackup(t, dir)); diff != "" {
		t.Errorf("the backup is not the registry as it was (-registry +backup):\n%s", diff)
	}
	if err := <-collected; err != nil {
		t.Error(err)
	}
	if _, err := store.Stat(t.Context(), storage.BlobKey(large.Digest)); err == nil {
		t.Error("the collector took nothing after the backup")
	}
}

// TestBackupTellsOfAll checks that a report also covers contents in the catalogue, which holds all
// contents of a small image.
func TestBackupTellsOfAll(t *testing.T) {
	b := registrytest.NewOnDisk(t)
	small := b.PushBytes("a", registrytest.Content(1, 500))
	m := b.PushManifest("a", registrytest.ImageOf(b.PushBytes("a", []byte("{}")), small), "v1")
	if _, err := b.MountBlob(t.Context(), "b", "a", small.Digest); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	rep, err := backup.Make(t.Context(), b.Registry, dir, backup.Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := backup.Report{Manifests: 1, Blobs: 2, Inline: 3, InlineBytes: 502 + m.Size, Done: true, Took: rep.Took}
	if d := cmp.Diff(want, rep); d != "" {
		t.Errorf("report (-want +got):\n%s", d)
	}
	b.PushBytes("a", registrytest.Content(2, 50_000))
	if rep, err = backup.Make(t.Context(), b.Registry, dir, backup.Options{}); err != nil {
		t.Fatal(err)
	}
	want = backup.Report{Manifests: 1, Blobs: 3, Inline: 3, InlineBytes: 502 + m.Size, Objects: 1, ObjectsTotal: 1, Bytes: 50_000,
		BytesTotal: 50_000, Copied: 1, CopiedBytes: 50_000, Done: true, Took: rep.Took}
	if d := cmp.Diff(want, rep); d != "" {
		t.Errorf("with an object (-want +got):\n%s", d)
	}
}
