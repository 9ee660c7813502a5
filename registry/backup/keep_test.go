package backup_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/backup"
	"example.org/slipway/registry/catalog/repair"
	"example.org/slipway/registry/check"
	"example.org/slipway/registry/objstore/memstore"
	"example.org/slipway/registry/objstore/objtest"
	"example.org/slipway/registry/registrytest"
	"example.org/slipway/registry/storage"
)

// TestBackupOfWhom backs one registry up into a directory that holds something else.
func TestBackupOfWhom(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	for _, c := range []struct {
		name    string
		prepare func(dir string, first *registrytest.Bed) *registrytest.Bed // returns the registry to back up
		allowed bool
	}{
		{"the same registry", func(_ string, first *registrytest.Bed) *registrytest.Bed { return first }, true},
		{"another registry", func(string, *registrytest.Bed) *registrytest.Bed {
			b := registrytest.NewOnDisk(t)
			b.PushImage("c", 9, "v1")
			return b
		}, false},
		{"another registry with the same image", func(string, *registrytest.Bed) *registrytest.Bed {
			b := registrytest.NewOnDisk(t)
			b.PushImage("a", 1, "v1")
			return b
		}, false},
		{"an empty one", func(string, *registrytest.Bed) *registrytest.Bed { return registrytest.NewOnDisk(t) }, false},
		{"the registry restored on another machine", func(dir string, _ *registrytest.Bed) *registrytest.Bed {
			root := t.TempDir()
			if _, err := backup.Restore(t.Context(), dir, root, backup.RestoreOptions{}); err != nil {
				t.Fatal(err)
			}
			return registrytest.OpenOnDisk(t, root)
		}, true},
		{"one that continues it", func(dir string, _ *registrytest.Bed) *registrytest.Bed {
			b := registrytest.NewOnDisk(t)
			b.PushImage("a", 1, "v1")
			id, err := backup.RegistryOf(t.Context(), dir)
			if err == nil {
				err = b.Continue(t.Context(), id)
			}
			if err != nil {
				t.Fatal(err)
			}
			return b
		}, true},
		{"the same, from before registries had ids", func(dir string, first *registrytest.Bed) *registrytest.Bed {
			snapshotSQL(t, dir, `DELETE FROM settings WHERE name = 'registry_id'`)
			return first
		}, true},
		{"another, from before registries had ids", func(dir string, _ *registrytest.Bed) *registrytest.Bed {
			snapshotSQL(t, dir, `DELETE FROM settings WHERE name = 'registry_id'`)
			b := registrytest.NewOnDisk(t)
			b.PushImage("c", 9, "v1")
			return b
		}, false},
		{"the same, whose catalogue is damaged", func(dir string, first *registrytest.Bed) *registrytest.Bed {
			if err := os.WriteFile(filepath.Join(dir, registry.CatalogFile), []byte("no catalogue"), 0o600); err != nil {
				t.Fatal(err)
			}
			return first
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			first := registrytest.NewOnDisk(t)
			first.PushImage("a", 1, "v1")
			dir := t.TempDir()
			if _, err := backup.Make(t.Context(), first.Registry, dir, backup.Options{}); err != nil {
				t.Fatal(err)
			}
			b := c.prepare(dir, first)
			before := registrytest.Files(t, dir)
			_, err := backup.Make(t.Context(), b.Registry, dir, backup.Options{})
			if (err == nil) != c.allowed {
				t.Fatalf("got %v, want allowed %v", err, c.allowed)
			}
			if err == nil {
				return
			}
			if !strings.Contains(err.Error(), "--replace-other") {
				t.Errorf("the error names no way out: %v", err)
			}
			if diff := cmp.Diff(before, registrytest.Files(t, dir)); diff != "" {
				t.Errorf("the refusal changed the directory:\n%s", diff)
			}
			if _, err := backup.Make(t.Context(), b.Registry, dir, backup.Options{ReplaceOther: true}); err != nil {
				t.Fatalf("replace it: %v", err)
			}
			if diff := cmp.Diff(registrytest.Reachable(t, b), registrytest.ReadBackup(t, dir)); diff != "" {
				t.Errorf("the backup is not the registry (-registry +backup):\n%s", diff)
			}
		})
	}
}

func snapshotSQL(t *testing.T, dir, statement string) {
	(&registrytest.Bed{T: t, Root: dir}).SQL(statement)
}

// TestBackupShrinks checks that a backup that looks like a loss is only made on request.
func TestBackupShrinks(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	for _, c := range []struct {
		table, key     string // what loses rows
		images, delete int
		refused        bool
	}{
		{"manifests", "id", 1, 0, false}, {"manifests", "id", 1, 1, true}, {"manifests", "id", 3, 2, false}, {"manifests", "id", 12, 5, false},
		{"manifests", "id", 12, 8, true}, {"manifests", "id", 12, 12, true},
		{"tags", "manifest_id", 1, 1, true}, {"tags", "manifest_id", 12, 5, false}, {"tags", "manifest_id", 12, 8, true},
	} {
		b := registrytest.NewOnDisk(t)
		for i := range c.images {
			b.PushImage("a", uint64(i), fmt.Sprint("v", i))
		}
		want := registrytest.Reachable(t, b)
		dir := t.TempDir()
		if _, err := backup.Make(t.Context(), b.Registry, dir, backup.Options{}); err != nil {
			t.Fatal(err)
		}
		b.SQL(fmt.Sprintf(`DELETE FROM %[1]s WHERE %[2]s IN (SELECT %[2]s FROM %[1]s ORDER BY 1 LIMIT %[3]d)`, c.table, c.key, c.delete))
		_, err := backup.Make(t.Context(), b.Registry, dir, backup.Options{})
		var shrunk *backup.ShrinkError
		if errors.As(err, &shrunk) != c.refused || !c.refused && err != nil {
			t.Errorf("%d of the %s of %d images gone: got %v, want refused %v", c.delete, c.table, c.images, err, c.refused)
		}
		if c.refused {
			if diff := cmp.Diff(want, registrytest.ReadBackup(t, dir)); diff != "" {
				t.Errorf("the refusal changed the backup:\n%s", diff)
			}
			if _, err := backup.Make(t.Context(), b.Registry, dir, backup.Options{AllowShrink: true}); err != nil {
				t.Errorf("with --allow-shrink: %v", err)
			}
		}
	}
}

// TestRestoreRefusesFirst checks that an unusable backup changes nothing.
func TestRestoreRefusesFirst(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, dir string){
		"made by a newer slipway": func(t *testing.T, dir string) {
			snapshotSQL(t, dir, `INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, 1)`)
		},
		"is not a database": func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, registry.CatalogFile), []byte(strings.Repeat("no catalogue", 999)), 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := registrytest.NewOnDisk(t)
			b.PushImage("a", 1, "v1")
			dir, root := t.TempDir(), filepath.Join(t.TempDir(), "root")
			if _, err := backup.Make(t.Context(), b.Registry, dir, backup.Options{}); err != nil {
				t.Fatal(err)
			}
			spoil(t, dir)
			if _, err := backup.Restore(t.Context(), dir, root, backup.RestoreOptions{}); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("restore: got %v", err)
			}
			if _, err := os.Stat(root); err == nil {
				t.Error("the refused restore made the directory")
			}
			if _, _, err := backup.Open(t.Context(), dir, quiet()); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("open: got %v", err)
			}
		})
	}
}

// TestBackupVerify checks that damage in the backup itself is noticed, always by size and with
// Verify by bytes, and healed from the registry.
func TestBackupVerify(t *testing.T) {
	b := registrytest.NewOnDisk(t)
	_, _, _, large := b.PushImage("a", 1, "v1")
	dir := t.TempDir()
	for name, c := range map[string]struct {
		data   []byte
		verify bool
	}{"cut": {registrytest.Content(9, 10), false}, "flipped": {registrytest.Content(9, 100_000), true}} {
		if _, err := backup.Make(t.Context(), b.Registry, dir, backup.Options{}); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, storage.BlobKey(large.Digest)), c.data, 0o600); err != nil {
			t.Fatal(err)
		}
		rep, err := backup.Make(t.Context(), b.Registry, dir, backup.Options{Verify: c.verify})
		if err != nil || rep.Copied != 1 {
			t.Errorf("%s: got %+v, %v, want the object copied again", name, rep, err)
		}
		if diff := cmp.Diff(registrytest.Reachable(t, b), registrytest.ReadBackup(t, dir)); diff != "" {
			t.Errorf("%s: the backup is not the registry:\n%s", name, diff)
		}
	}
}

// TestFsckFromRegistry checks that every kind of damage in the list of kinds is repaired from a
// registry that has the image, in the same repository or in another one.
func TestFsckFromRegistry(t *testing.T) {
	for name, spoil := range map[string]func(p *registrytest.Planted){
		"object missing": func(p *registrytest.Planted) { p.Delete(storage.BlobKey(p.Large.Digest)) },
		"object corrupt": func(p *registrytest.Planted) {
			p.Overwrite(storage.BlobKey(p.Large.Digest), registrytest.Content(9, 100_000))
		},
		"object cut": func(p *registrytest.Planted) {
			p.Overwrite(storage.BlobKey(p.Large.Digest), registrytest.Content(9, 100))
		},
		"small content": func(p *registrytest.Planted) {
			p.SQL(`UPDATE blobs SET content = zeroblob(5000) WHERE digest = ` + registrytest.Quote(p.Small.Digest))
		},
		"manifest": func(p *registrytest.Planted) {
			p.SQL(`UPDATE blobs SET content = x'00' WHERE digest = ` + registrytest.Quote(p.A.Digest))
		},
		"given up before": func(p *registrytest.Planted) {
			p.Delete(storage.BlobKey(p.Large.Digest))
			p.SQL(`UPDATE blobs SET content = x'00' WHERE digest = ` + registrytest.Quote(p.A.Digest))
			p.Check(check.Options{Repair: true})
		},
	} {
		t.Run(name, func(t *testing.T) {
			good, p := registrytest.Plant(t), registrytest.Plant(t)
			spoil(p)
			rep := p.Check(check.Options{Repair: true, From: check.Other(good, "")})
			if !rep.Clean() || len(rep.Problems) == 0 || rep.Quarantined > 1 {
				t.Errorf("got %+v", rep)
			}
			if diff := cmp.Diff(registrytest.Reachable(t, good), registrytest.Reachable(t, p)); diff != "" {
				t.Errorf("the repaired registry is another one:\n%s", diff)
			}
			if rep := p.Check(check.Options{}); !rep.Clean() {
				t.Errorf("a check after it: %+v", rep.Problems)
			}
		})
	}
}

// TestBackupOfSuspects checks that nothing is suspect in a backup. What the registry suspects is
// read in the backup even if its size is right, because the registry's copy may be bad.
func TestBackupOfSuspects(t *testing.T) {
	for _, damaged := range []string{"", "here", "there", "both", "unreadable"} {
		t.Run(damaged, func(t *testing.T) {
			sectors := &registrytest.BadSectors{}
			b := registrytest.New(t, objtest.Faulty(memstore.New(nil), sectors.Faults()), registry.Options{})
			_, config, _, large := b.PushImage("a", 1, "v1")
			want := registrytest.Reachable(t, b)
			dir := t.TempDir()
			_, err := backup.Make(t.Context(), b.Registry, dir, backup.Options{})
			registrytest.NoError(t, err)
			for _, d := range []oci.Digest{config.Digest, large.Digest} {
				_, _, err := repair.New(b.Cat.DB).MarkSuspect(t.Context(), d)
				registrytest.NoError(t, err)
			}
			if damaged == "here" || damaged == "both" {
				b.Overwrite(storage.BlobKey(large.Digest), registrytest.Content(9, 100_000))
			}
			if damaged == "there" || damaged == "both" {
				registrytest.NoError(t, os.WriteFile(filepath.Join(dir, storage.BlobKey(large.Digest)), registrytest.Content(9, 100_000), 0o600))
			}
			if damaged == "unreadable" {
				sectors.Set(storage.BlobKey(large.Digest), true)
			}
			_, err = backup.Make(t.Context(), b.Registry, dir, backup.Options{})
			var lacks *backup.IncompleteError
			if damaged == "both" {
				if !errors.As(err, &lacks) {
					t.Errorf("no copy is good: %v", err)
				}
				return
			}
			registrytest.NoError(t, err)
			root := t.TempDir()
			_, err = backup.Restore(t.Context(), dir, root, backup.RestoreOptions{})
			registrytest.NoError(t, err)
			restored := registrytest.OpenOnDisk(t, root)
			for _, d := range []oci.Digest{config.Digest, large.Digest} {
				if _, err := restored.ResolveBlob(t.Context(), "a", d); err != nil {
					t.Errorf("in the restored registry: %v", err)
				}
			}
			if diff := cmp.Diff(want, registrytest.Reachable(t, restored)); diff != "" {
				t.Errorf("restored (-want +got):\n%s", diff)
			}
		})
	}
}

// damagedSource is a registry whose copies of some contents are damaged.
type damagedSource struct {
	check.Source
	bad oci.Digest
}

func (s damagedSource) Content(ctx context.Context, d oci.Digest, images []repair.Use) (io.ReadCloser, error) {
	if d == s.bad {
		return io.NopCloser(iotest.ErrReader(oci.Errorf(oci.CodeDigestInvalid, "the registry delivered other bytes"))), nil
	}
	return s.Source.Content(ctx, d, images)
}

// TestFsckFromDamagedSource checks that a copy that is damaged in the source too does not keep the
// others from being used.
func TestFsckFromDamagedSource(t *testing.T) {
	good, p := registrytest.Plant(t), registrytest.Plant(t)
	for _, d := range []oci.Descriptor{p.Large, p.Small} {
		p.SQL(`UPDATE blobs SET content = x'00' WHERE content IS NOT NULL AND digest = ` + registrytest.Quote(d.Digest))
	}
	p.Delete(storage.BlobKey(p.Large.Digest))
	for _, bad := range []oci.Digest{p.Small.Digest, p.Large.Digest} {
		rep := p.Check(check.Options{Repair: true, From: damagedSource{check.Other(good, ""), bad}})
		if rep.Clean() && bad == p.Small.Digest {
			t.Errorf("nothing remains, although the source has no good copy: %+v", rep)
		}
	}
	if diff := cmp.Diff(registrytest.Reachable(t, good), registrytest.Reachable(t, p)); diff != "" {
		t.Errorf("after two repairs that had both contents:\n%s", diff)
	}
}

// TestBackupShowsWhatItKeeps covers an image that is newer than the earlier backup and needs a lost
// content of which that backup has a copy.
func TestBackupShowsWhatItKeeps(t *testing.T) {
	b := registrytest.NewOnDisk(t)
	_, config, small, large := b.PushImage("a", 1, "v1")
	dir := t.TempDir()
	_, err := backup.Make(t.Context(), b.Registry, dir, backup.Options{})
	registrytest.NoError(t, err)
	for _, d := range []oci.Descriptor{config, small, large} {
		_, err := b.MountBlob(t.Context(), "b", "a", d.Digest)
		registrytest.NoError(t, err)
	}
	b.PushManifest("b", registrytest.ImageOf(config, small, large), "v1")
	want := registrytest.Reachable(t, b)
	registrytest.NoError(t, b.Store.Delete(t.Context(), storage.BlobKey(large.Digest)))
	b.Check(check.Options{Repair: true}) // records that the layer is absent
	_, err = backup.Make(t.Context(), b.Registry, dir, backup.Options{})
	registrytest.NoError(t, err)
	root := t.TempDir()
	_, err = backup.Restore(t.Context(), dir, root, backup.RestoreOptions{})
	registrytest.NoError(t, err)
	if diff := cmp.Diff(want, registrytest.Reachable(t, registrytest.OpenOnDisk(t, root))); diff != "" {
		t.Errorf("restored (-want +got):\n%s", diff)
	}
}
