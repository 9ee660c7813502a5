package serve_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"example.org/slipway/config"
	"example.org/slipway/oci/client"
	"example.org/slipway/registry"
	"example.org/slipway/registry/adopt"
	"example.org/slipway/registry/backup"
	"example.org/slipway/serve"
)

// saved makes a backup of a registry with the image app:v1.
func saved(t *testing.T) string {
	t.Helper()
	s := start(t, setup{})
	s.pushImage("app", "v1", strings.Repeat("layer", 20_000))
	dir := filepath.Join(t.TempDir(), "backup")
	a, closeAdmin := openAdmin(t, s.cfg)
	defer closeAdmin()
	if _, err := a.Backup(t.Context(), serve.BackupArgs{Dir: dir}, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func restore(t *testing.T, cfg *config.Config, dir string, o serve.RestoreOptions) (serve.RestoreReport, error) {
	o.Logger = slog.New(slog.DiscardHandler)
	return serve.Restore(t.Context(), cfg, dir, o)
}

func TestRestoreInto(t *testing.T) {
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
			rep, err := restore(t, cfg, copied, serve.RestoreOptions{Progress: func(backup.Report) {
				if !held { // nobody else can use it meanwhile
					held = true
					if _, err := serve.New(t.Context(), cfg, nil); !errors.Is(err, serve.ErrInUse) {
						t.Errorf("a server on a root being restored: got %v", err)
					}
					if _, err := serve.Restore(t.Context(), cfg, copied, serve.RestoreOptions{}); !errors.Is(err, serve.ErrInUse) {
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
			rep, err = restore(t, cfg, copied, serve.RestoreOptions{MergeProgress: func(client.CopyProgress) { merged = true }})
			if err != nil || !rep.Merged || rep.Copied.References != 1 || !merged {
				t.Errorf("merge: got %+v, %v; want 1 reference", rep, err)
			}
		})
	}
}

func TestRestoreLocked(t *testing.T) {
	copied, root := saved(t), t.TempDir()
	lock, err := os.Create(filepath.Join(root, registry.LockFile))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if _, err := restore(t, configure(t, setup{root: root}), copied, serve.RestoreOptions{}); !errors.Is(err, serve.ErrInUse) {
		t.Errorf("got %v, want ErrInUse", err)
	}
}

// TestRestoreInterrupted wants every command to say what to do about an interrupted restore.
func TestRestoreInterrupted(t *testing.T) {
	copied, root := saved(t), filepath.Join(t.TempDir(), "root")
	damage(t, copied, strings.Repeat("layer", 20_000)) // ends the restore before the catalogue
	cfg := configure(t, setup{root: root})
	if _, err := restore(t, cfg, copied, serve.RestoreOptions{}); err == nil {
		t.Fatal("a damaged backup is restored")
	}
	if err := os.MkdirAll(filepath.Join(root, "docker/registry/v2/blobs"), 0o700); err != nil {
		t.Fatal(err)
	}
	tries := map[string]func() error{
		"serve": func() error { _, err := serve.New(t.Context(), cfg, nil); return err },
		"admin": func() error { _, err := serve.OpenAdmin(t.Context(), cfg, nil); return err },
		"adopt": func() error {
			_, err := serve.AdoptInPlace(t.Context(), cfg, false, adopt.Options{})
			return err
		},
	}
	for name, try := range tries {
		if err := try(); err == nil || !strings.Contains(err.Error(), "run slipway restore again") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if _, err := restore(t, cfg, saved(t), serve.RestoreOptions{}); err == nil || !strings.Contains(err.Error(), "belongs to registry") {
		t.Errorf("another registry's backup into what was begun: got %v", err)
	}
	if rep, err := restore(t, cfg, copied, serve.RestoreOptions{AllowDamaged: true}); err != nil || rep.Merged || !slices.Equal(rep.Restored.Incomplete, []string{"app:v1"}) {
		t.Errorf("the restore that goes on: got %+v, %v", rep, err)
	}
	start(t, setup{root: root}).want(200, "GET", "/v2/app/manifests/v1", "")
}

// TestOfflineEvents wants the next server to deliver the events of a command that ran without a
// server.
func TestOfflineEvents(t *testing.T) {
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
	if rep, err := a.Retain(t.Context(), serve.RetainArgs{Now: true}); err != nil || rep.Removed != 1 {
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
	rep, err := a.Retain(t.Context(), serve.RetainArgs{Now: true})
	if err != nil || rep.Repositories != 2 || rep.Removed != 2 {
		t.Errorf("got %+v, %v; want one tag removed of ci/app and one of ci/app/x", rep, err)
	}
}
