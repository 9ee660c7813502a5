package serve_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"example.org/slipway/oci"
	"example.org/slipway/registry/backup"
	"example.org/slipway/serve/dataroot"
)

// TestDiskAway removes each directory that may be a mount point, while the server runs and before
// it starts, and leaves an empty directory. Requests for its contents are answered with 503,
// readiness gives the reason, and each command refuses. Once the disk is back, everything can be
// pulled without a restart.
func TestDiskAway(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	for _, dir := range []string{"docker", "docker/registry", "docker/registry/v2/blobs", "docker/registry/v2/blobs/sha256"} {
		for _, when := range []string{"while it runs", "before it starts"} {
			t.Run(dir+" "+when, func(t *testing.T) {
				t.Parallel()
				s := start(t, setup{yaml: "storage:\n  retention:\n  - {repositories: [\"**\"], keep_newest: 1}\n"})
				layer := strings.Repeat("a layer that is an object of the store ", 5000)
				s.pushImage("a", "v1", layer)
				blob := "/v2/a/blobs/" + oci.SHA256([]byte(layer)).String()
				s.want(200, "GET", blob, "")
				path := filepath.Join(s.root, dir)
				unmount := func() {
					if err := os.Rename(path, path+".away"); err != nil {
						t.Fatal(err)
					}
					if err := os.Mkdir(path, 0o700); err != nil {
						t.Fatal(err)
					}
				}
				if when == "while it runs" {
					unmount()
				} else {
					if err := s.stop(); err != nil {
						t.Fatal(err)
					}
					unmount()
					s = start(t, setup{root: s.root, yaml: "storage:\n  retention:\n  - {repositories: [\"**\"], keep_newest: 1}\n"})
				}
				if a := s.do("GET", s.debug+"/readyz", ""); a.status != 503 || !strings.Contains(a.body, "object store") {
					t.Errorf("readyz: got %d %q, want 503 and why", a.status, a.body)
				}
				if a := s.do("GET", blob, ""); a.status != 503 || a.header.Get("Retry-After") == "" {
					t.Errorf("read: got %d %v, want 503 with Retry-After", a.status, a.header)
				}
				if a := s.do("POST", "/v2/a/blobs/uploads/", ""); a.status != 503 || a.header.Get("Retry-After") == "" {
					t.Errorf("push: got %d %v, want 503 with Retry-After", a.status, a.header)
				}
				wantRefused(t, s)
				if err := os.RemoveAll(path); err != nil {
					t.Fatal(err)
				}
				if err := os.Rename(path+".away", path); err != nil {
					t.Fatal(err)
				}
				poll(t, "the server is ready", func() bool { return s.do("GET", s.debug+"/readyz", "").status == 200 })
				if got := s.want(200, "GET", blob, "").body; got != layer {
					t.Errorf("the layer has %d bytes, want %d", len(got), len(layer))
				}
				s.pushImage("a", "v2", layer+"more")
				a, _ := openAdmin(t, s.cfg)
				if rep, err := a.Fsck(t.Context(), dataroot.FsckArgs{}, nil); err != nil || !rep.Clean() {
					t.Errorf("fsck: %+v, %v", rep.Problems, err)
				}
			})
		}
	}
}

// wantRefused runs the maintenance commands and wants each to refuse.
func wantRefused(t *testing.T, s *instance) {
	t.Helper()
	a, closeAdmin := openAdmin(t, s.cfg)
	defer closeAdmin()
	ctx := t.Context()
	for what, do := range map[string]func() error{
		"fsck":           func() error { _, err := a.Fsck(ctx, dataroot.FsckArgs{}, nil); return err },
		"fsck --repair":  func() error { _, err := a.Fsck(ctx, dataroot.FsckArgs{Repair: true, Quick: true}, nil); return err },
		"fsck --rebuild": func() error { _, err := a.Fsck(ctx, dataroot.FsckArgs{Rebuild: true}, nil); return err },
		"gc":             func() error { _, err := a.Collect(ctx, dataroot.GCArgs{Now: true}, nil); return err },
		"retention":      func() error { _, err := a.Retain(ctx, dataroot.RetainArgs{Now: true}); return err },
		"backup": func() error {
			_, err := a.Backup(ctx, dataroot.BackupArgs{Dir: t.TempDir()}, func(backup.Report) {})
			return err
		},
	} {
		if err := do(); err == nil || !strings.Contains(err.Error(), "object store") {
			t.Errorf("%s: got %v, want that the object store is not there", what, err)
		}
	}
}
