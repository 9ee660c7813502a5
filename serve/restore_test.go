package serve_test

import (
	"context"
	"crypto/sha512"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/config"
	"example.org/slipway/internal/backendtest"
	"example.org/slipway/oci"
	"example.org/slipway/oci/imagecopy"
	"example.org/slipway/registry"
	"example.org/slipway/registry/adopt"
	"example.org/slipway/registry/backup"
	"example.org/slipway/registry/registrytest"
	"example.org/slipway/serve"
	"example.org/slipway/serve/admin"
	"example.org/slipway/serve/dataroot"
)

// saved makes a backup of a registry with the image app:v1.
func saved(t *testing.T) string {
	t.Helper()
	s := start(t, setup{})
	s.pushImage("app", "v1", strings.Repeat("layer", 20_000))
	dir := filepath.Join(t.TempDir(), "backup")
	a, closeAdmin := openAdmin(t, s.cfg)
	defer closeAdmin()
	if _, err := a.Backup(t.Context(), dataroot.BackupArgs{Dir: dir}, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func restore(t *testing.T, cfg *config.Config, dir string, o admin.RestoreOptions) (admin.RestoreReport, error) {
	o.Logger = slog.New(slog.DiscardHandler)
	return admin.Restore(t.Context(), cfg, dir, o)
}

func TestRestoreInto(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	copied := saved(t)
	for _, c := range []struct {
		name    string
		prepare func(root string) error
	}{
		{"missing", func(string) error { return nil }},
		{"empty", func(root string) error { return os.MkdirAll(root, 0o700) }},
		{"new file system", func(root string) error { return os.MkdirAll(filepath.Join(root, "lost+found"), 0o700) }},
		{"lock of before", func(root string) error {
			return errors.Join(os.MkdirAll(root, 0o700), os.WriteFile(filepath.Join(root, registry.LockFile), nil, 0o600))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := filepath.Join(t.TempDir(), "a", "b", "root")
			if err := c.prepare(root); err != nil {
				t.Fatal(err)
			}
			cfg := configure(t, setup{root: root})
			held := false
			rep, err := restore(t, cfg, copied, admin.RestoreOptions{Progress: func(backup.Report) {
				if !held { // nobody else can use it meanwhile
					held = true
					if _, err := serve.New(t.Context(), cfg, nil); !errors.Is(err, dataroot.ErrInUse) {
						t.Errorf("a server on a root being restored: got %v", err)
					}
					if _, err := admin.Restore(t.Context(), cfg, copied, admin.RestoreOptions{}); !errors.Is(err, dataroot.ErrInUse) {
						t.Errorf("a second restore: got %v", err)
					}
				}
			}})
			if err != nil || rep.Merged || rep.Restored.Objects != 1 || !held {
				t.Fatalf("got %+v, %v; want 1 object restored", rep, err)
			}
			if _, err := os.Stat(filepath.Join(root, backup.RestoreMarker)); err == nil {
				t.Error("the marker is still there")
			}
			start(t, setup{root: root}).want(200, "GET", "/v2/app/manifests/v1", "")
			// The root is not empty any more, and so the backup is merged.
			merged := false
			rep, err = restore(t, cfg, copied, admin.RestoreOptions{MergeProgress: func(imagecopy.Progress) { merged = true }})
			if err != nil || !rep.Merged || rep.Copied.References != 1 || !merged {
				t.Errorf("merge: got %+v, %v; want 1 reference", rep, err)
			}
		})
	}
}

func TestRestoreLocked(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	copied, root := saved(t), t.TempDir()
	lock, err := os.Create(filepath.Join(root, registry.LockFile))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if _, err := restore(t, configure(t, setup{root: root}), copied, admin.RestoreOptions{}); !errors.Is(err, dataroot.ErrInUse) {
		t.Errorf("got %v, want ErrInUse", err)
	}
}

// TestMergeIsWhole makes random registries, merges their backups into other registries, and wants
// everything back: also images that only a digest names, and the times by which retention judges tags.
func TestMergeIsWhole(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			root, dir := t.TempDir(), filepath.Join(t.TempDir(), "backup")
			cfg := configure(t, setup{root: root})
			fillAtRandom(t, cfg, root, rand.New(rand.NewPCG(seed, 24)))
			want := backUp(t, cfg, dir)
			for name, serving := range map[string]bool{"into a directory": false, "through a server": true} {
				into := setup{root: filepath.Join(t.TempDir(), "root")}
				s := start(t, into)
				s.pushImage("other", "v1", "another layer")
				if !serving {
					if err := s.stop(); err != nil {
						t.Fatal(err)
					}
				}
				if rep, err := restore(t, s.cfg, dir, admin.RestoreOptions{}); err != nil || !rep.Merged {
					t.Fatalf("%s: got %+v, %v", name, rep, err)
				}
				got := slices.DeleteFunc(backUp(t, s.cfg, filepath.Join(t.TempDir(), "again")), func(r backup.Repository) bool { return r.Name == "other" })
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s: other than the backup (-backup +registry):\n%s", name, diff)
				}
			}
		})
	}
}

// TestMergeMirrored merges the backup of a mirror that has only the manifest of an image.
func TestMergeMirrored(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	mirror := "proxy: {upstreams: [{name: up.example, url: \"http://127.0.0.1:1\"}]}\n"
	s := start(t, setup{yaml: mirror})
	a, closeAdmin := openAdmin(t, s.cfg)
	raw := []byte(imageOf("a layer that nobody asked for"))
	if _, err := a.Registry().PutManifest(t.Context(), "up.example/app", oci.PutManifest{Bytes: raw, MediaType: oci.MediaTypeOCIManifest, Tags: []string{"v1"}}); err != nil {
		t.Fatal(err)
	}
	closeAdmin()
	dir := filepath.Join(t.TempDir(), "backup")
	backUp(t, s.cfg, dir)
	into := start(t, setup{yaml: mirror})
	if rep, err := restore(t, into.cfg, dir, admin.RestoreOptions{}); err != nil || !rep.Merged || rep.Copied.References != 1 {
		t.Errorf("got %+v, %v; want one image merged", rep, err)
	}
	a, _ = openAdmin(t, into.cfg)
	if _, err := a.Registry().ResolveManifest(t.Context(), "up.example/app", "v1"); err != nil {
		t.Error(err)
	}
}

// TestRestoreLostCatalog checks that a registry that lost its catalogue and has its objects,
// wherever they are, is complete again after the command that the server suggests.
func TestRestoreLostCatalog(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	s3, pg := backendtest.S3(t), backendtest.Postgres(t)
	onPostgres := func() string { return fmt.Sprintf("  catalog: {postgres: %q}\n", pg.DSN(pg.CreateDatabase(t))) }
	bucket, shared := s3Yaml(t, s3, s3.Endpoint, ""), s3Yaml(t, s3, s3.Endpoint, "")
	for _, c := range []struct{ name, before, after string }{
		{"directory", "", ""},
		{"object store", bucket, bucket},
		{"object store and PostgreSQL", shared + onPostgres(), shared + onPostgres()},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			root, dir := t.TempDir(), filepath.Join(t.TempDir(), "backup")
			cfg := configure(t, setup{root: root, yaml: c.before})
			fillAtRandom(t, cfg, root, rand.New(rand.NewPCG(1, 24)))
			want := backUp(t, cfg, dir)
			lost, err := filepath.Glob(filepath.Join(root, registry.CatalogFile+"*"))
			for _, path := range lost {
				err = errors.Join(err, os.Remove(path))
			}
			if err != nil {
				t.Fatal(err)
			}
			o := setup{root: root, yaml: c.after}
			cfg = configure(t, o)
			if _, err := serve.New(t.Context(), cfg, nil); err == nil || !strings.Contains(err.Error(), "slipway restore") {
				t.Fatalf("a server without the catalogue: got %v", err)
			}
			if rep, err := restore(t, cfg, dir, admin.RestoreOptions{}); err != nil || rep.Merged || rep.Restored.Copied > 0 {
				t.Fatalf("restore: got %+v, %v; want nothing copied", rep, err)
			}
			if diff := cmp.Diff(want, backUp(t, cfg, dir)); diff != "" {
				t.Errorf("other than the backup (-backup +registry):\n%s", diff)
			}
			a, _ := openAdmin(t, cfg)
			if rep, err := a.Fsck(t.Context(), dataroot.FsckArgs{}, nil); err != nil || !rep.Clean() {
				t.Errorf("fsck: got %+v, %v", rep, err)
			}
		})
	}
}

// TestAdoptedLostCatalog wants the catalogue of an adopted storage back from the backup. To adopt the
// storage again would bring only what Distribution had, and a catalogue that does not fit the store.
func TestAdoptedLostCatalog(t *testing.T) {
	t.Parallel()
	copied := saved(t)
	root := t.TempDir()
	cfg := configure(t, setup{root: root})
	if rep, err := restore(t, cfg, copied, admin.RestoreOptions{}); err != nil || rep.Merged {
		t.Fatalf("restore: got %+v, %v", rep, err)
	}
	link := filepath.Join(root, "docker/registry/v2/repositories/old/_manifests/tags/v1/current/link")
	err := errors.Join(os.MkdirAll(filepath.Dir(link), 0o700), os.WriteFile(link, []byte(oci.SHA256([]byte("gone"))), 0o600),
		os.Remove(filepath.Join(root, registry.CatalogFile)))
	if err != nil {
		t.Fatal(err)
	}
	for name, try := range map[string]func() error{
		"serve":   func() error { _, err := serve.New(t.Context(), cfg, nil); return err },
		"dry run": func() error { _, err := dataroot.AdoptInPlace(t.Context(), cfg, true, adopt.Options{}); return err },
		"adopt":   func() error { _, err := dataroot.AdoptInPlace(t.Context(), cfg, false, adopt.Options{}); return err },
	} {
		if err := try(); err == nil || !strings.Contains(err.Error(), "slipway restore") {
			t.Errorf("%s: got %v, want the advice to restore", name, err)
		}
	}
	if rep, err := restore(t, cfg, copied, admin.RestoreOptions{}); err != nil || rep.Merged {
		t.Fatalf("restore: got %+v, %v", rep, err)
	}
	start(t, setup{root: root}).want(200, "GET", "/v2/app/manifests/v1", "")
}

// fillAtRandom pushes images, indexes and referrers with and without tags, by SHA-256 and SHA-512,
// and gives the tags times in the past.
func fillAtRandom(t *testing.T, cfg *config.Config, root string, rnd *rand.Rand) {
	t.Helper()
	a, err := admin.Open(t.Context(), cfg, &admin.Options{Create: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	known := map[string][]oci.Descriptor{} // by repository
	for i := range 25 {
		repo := fmt.Sprint("r", rnd.IntN(3))
		layer := strings.Repeat(fmt.Sprint("layer ", i), 1+20_000*rnd.IntN(2)) // in the catalogue or an object
		desc := oci.Descriptor{MediaType: oci.MediaTypeOctetStream, Digest: oci.SHA256([]byte(layer)), Size: int64(len(layer))}
		if _, err := a.Registry().PushBlob(t.Context(), repo, desc.Digest, desc.Size, strings.NewReader(layer)); err != nil {
			t.Fatal(err)
		}
		doc := registrytest.ImageOf(desc)
		if before := known[repo]; len(before) > 0 {
			other := before[rnd.IntN(len(before))]
			switch rnd.IntN(3) {
			case 0:
				doc = registrytest.IndexOf(other)
				doc.Annotations = map[string]string{"n": fmt.Sprint(i)}
			case 1:
				doc.Subject = &other
			}
		}
		raw, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		put := oci.PutManifest{Bytes: raw}
		if rnd.IntN(3) == 0 {
			put.Digest = oci.Digest(fmt.Sprintf("sha512:%x", sha512.Sum512(raw)))
		}
		for range rnd.IntN(3) {
			put.Tags = append(put.Tags, fmt.Sprint("t", rnd.IntN(20)))
		}
		res, err := a.Registry().PutManifest(t.Context(), repo, put)
		if err != nil {
			t.Fatal(err)
		}
		known[repo] = append(known[repo], res.Descriptor)
	}
	if err := a.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, registry.CatalogFile)); err != nil {
		return // the catalogue is elsewhere
	}
	db, err := sql.Open("sqlite", "file:"+filepath.Join(root, registry.CatalogFile))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(`UPDATE tags SET updated_at = updated_at - abs(random() % 1000000000), pulled_at = abs(random() % 3) * 1000000000000`); err != nil {
		t.Fatal(err)
	}
}

// backUp makes a backup and returns what it holds, in an order of its own.
func backUp(t *testing.T, cfg *config.Config, dir string) []backup.Repository {
	t.Helper()
	a, closeAdmin := openAdmin(t, cfg)
	_, err := a.Backup(t.Context(), dataroot.BackupArgs{Dir: dir}, nil)
	closeAdmin()
	if err != nil {
		t.Fatal(err)
	}
	r, closeBackup, err := backup.Open(t.Context(), dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	repos, err := backup.Repositories(t.Context(), r)
	if err := errors.Join(err, closeBackup(context.Background())); err != nil {
		t.Fatal(err)
	}
	for _, r := range repos {
		slices.Sort(r.Untagged)
	}
	return repos
}

// TestRestoreInterrupted wants every command to say what to do about an interrupted restore.
func TestRestoreInterrupted(t *testing.T) {
	t.Parallel()
	copied, root := saved(t), filepath.Join(t.TempDir(), "root")
	damage(t, copied, strings.Repeat("layer", 20_000)) // ends the restore before the catalogue
	cfg := configure(t, setup{root: root})
	if _, err := restore(t, cfg, copied, admin.RestoreOptions{}); err == nil {
		t.Fatal("a damaged backup is restored")
	}
	if err := os.MkdirAll(filepath.Join(root, "docker/registry/v2/blobs"), 0o700); err != nil {
		t.Fatal(err)
	}
	tries := map[string]func() error{
		"serve": func() error { _, err := serve.New(t.Context(), cfg, nil); return err },
		"admin": func() error { _, err := admin.Open(t.Context(), cfg, nil); return err },
		"adopt": func() error {
			_, err := dataroot.AdoptInPlace(t.Context(), cfg, false, adopt.Options{})
			return err
		},
	}
	for name, try := range tries {
		if err := try(); err == nil || !strings.Contains(err.Error(), "run slipway restore again") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if _, err := restore(t, cfg, saved(t), admin.RestoreOptions{}); err == nil || !strings.Contains(err.Error(), "belongs to registry") {
		t.Errorf("another registry's backup into what was begun: got %v", err)
	}
	if rep, err := restore(t, cfg, copied, admin.RestoreOptions{AllowDamaged: true}); err != nil || rep.Merged || !slices.Equal(rep.Restored.Incomplete, []string{"app:v1"}) {
		t.Errorf("the restore that goes on: got %+v, %v", rep, err)
	}
	start(t, setup{root: root}).want(200, "GET", "/v2/app/manifests/v1", "")
}

// TestOfflineEvents wants the next server to deliver the events of a command that ran without a
// server.
func TestOfflineEvents(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	r.up.Store(true)
	root := t.TempDir()
	yaml := "storage: {retention: [{keep_newest: 1}]}\nnotifications:\n  endpoints:\n" + r.endpoint("hook", "docker", "")
	s := start(t, setup{root: root, yaml: yaml})
	d := s.pushImage("a", "old", "one")
	s.pushImage("a", "new", "two")
	poll(t, "the pushes are told", func() bool { return len(r.got()) == 4 })
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	a, closeAdmin := openAdmin(t, s.cfg)
	if rep, err := a.Retain(t.Context(), dataroot.RetainArgs{Now: true}); err != nil || rep.Removed != 1 {
		t.Fatalf("Retain: got %+v, %v", rep, err)
	}
	closeAdmin()
	if n := len(r.got()); n != 4 {
		t.Errorf("a command delivers: %d events", n)
	}
	start(t, setup{root: root, yaml: yaml})
	want := []string{"delete a:old", "delete a@" + d}
	poll(t, "the removal is told", func() bool { return len(r.got()) == 6 })
	if got := r.got()[4:]; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestRetentionPattern checks that retention uses the same pattern dialect as all other rules.
func TestRetentionPattern(t *testing.T) {
	s := start(t, setup{yaml: `storage: {retention: [{repositories: ["ci/?pp/**"], keep_newest: 1}]}`})
	for _, repo := range []string{"ci/app", "ci/app/x", "ci/xapp"} {
		s.pushImage(repo, "old", "one")
		s.pushImage(repo, "new", "two")
	}
	a, _ := openAdmin(t, s.cfg)
	rep, err := a.Retain(t.Context(), dataroot.RetainArgs{Now: true})
	if err != nil || rep.Repositories != 2 || rep.Removed != 2 {
		t.Errorf("got %+v, %v; want one tag removed of ci/app and one of ci/app/x", rep, err)
	}
}
