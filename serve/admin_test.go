package serve_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"example.org/slipway/config"
	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/backup"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/check"
	"example.org/slipway/registry/retention"
	"example.org/slipway/registry/storage"
	"example.org/slipway/serve"
	"example.org/slipway/serve/admin"
	"example.org/slipway/serve/dataroot"
)

// openAdmin opens a root for administration. It stays open until the test ends or closeAdmin is
// called.
func openAdmin(t testing.TB, cfg *config.Config) (a *admin.Admin, closeAdmin func()) {
	t.Helper()
	a, err := admin.Open(t.Context(), cfg, &admin.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatalf("OpenAdmin: %v", err)
	}
	closed := false
	closeAdmin = func() {
		if closed {
			return
		}
		closed = true
		if err := a.Close(context.Background()); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	t.Cleanup(closeAdmin)
	return a, closeAdmin
}

// reports holds the reports of all tasks and how often they reported progress.
type reports struct {
	GC        registry.CollectReport
	Fsck      check.Report
	Backup    backup.Report
	Retention retention.Report
	Tags      []string
}

// everyTask runs every task in the form that changes nothing, except that fsck repairs.
func everyTask(t *testing.T, a *admin.Admin) reports {
	t.Helper()
	var rep reports
	var err error
	var gc, fsck, saved atomic.Int64
	if rep.GC, err = a.Collect(t.Context(), dataroot.GCArgs{DryRun: true, Now: true, Untagged: true}, func(registry.CollectReport) { gc.Add(1) }); err != nil {
		t.Errorf("Collect: %v", err)
	}
	if rep.Fsck, err = a.Fsck(t.Context(), dataroot.FsckArgs{Parallel: 1}, func(check.Report) { fsck.Add(1) }); err != nil {
		t.Errorf("Fsck: %v", err)
	}
	dir := filepath.Join(t.TempDir(), "backup")
	if rep.Backup, err = a.Backup(t.Context(), dataroot.BackupArgs{Dir: dir}, func(backup.Report) { saved.Add(1) }); err != nil {
		t.Errorf("Backup: %v", err)
	}
	if rep.Retention, err = a.Retain(t.Context(), dataroot.RetainArgs{DryRun: true, Now: true}); err != nil {
		t.Errorf("Retain: %v", err)
	}
	if rep.Tags, _, err = a.Registry().Tags(t.Context(), "ci/app", "", 100); err != nil {
		t.Errorf("Tags: %v", err)
	}
	for what, n := range map[string]int64{"gc": gc.Load(), "fsck": fsck.Load(), "backup": saved.Load()} {
		if n == 0 {
			t.Errorf("%s told of no progress", what)
		}
	}
	return rep
}

func TestAdminSameReports(t *testing.T) {
	// The path is longer than a socket's address can be.
	root := filepath.Join(t.TempDir(), strings.Repeat("long/", 10)+strings.Repeat("x", 100))
	o := setup{root: root, yaml: `storage: {retention: [{repositories: ["ci/**"], keep_newest: 1}]}`}
	s := start(t, o)
	layer := func(i int) string { return strings.Repeat(fmt.Sprint("layer", i), catalog.InlineMax) } // in files
	for i := range 3 {
		s.pushImage("ci/app", fmt.Sprint("b", i), layer(i))
	}
	s.pushBlob("ci/app", "an orphan")
	s.want(202, "DELETE", "/v2/ci/app/manifests/b0", "")
	damage(t, root, layer(2))

	if fi, err := os.Stat(filepath.Join(root, "admin.sock")); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("administration socket: got %v %v, want mode 0600", fi, err)
	}
	a, closeAdmin := openAdmin(t, s.cfg)
	if _, err := a.Backup(t.Context(), dataroot.BackupArgs{Dir: "relative"}, nil); err == nil || !strings.Contains(err.Error(), "absolute") {
		t.Errorf("backup to a relative path: got %v", err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(root, link); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{root, filepath.Join(root, "not/there/yet"), filepath.Join(link, "sub")} {
		if _, err := a.Backup(t.Context(), dataroot.BackupArgs{Dir: dir}, nil); err == nil || !strings.Contains(err.Error(), "in the data directory") {
			t.Errorf("backup to %s in the data directory: got %v", dir, err)
		}
	}
	// The damaged layer must not be backed up, and the error must reach the caller.
	if _, err := a.Backup(t.Context(), dataroot.BackupArgs{Dir: filepath.Join(t.TempDir(), "b")}, nil); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("backup of damage: got %v", err)
	}
	rep, err := a.Fsck(t.Context(), dataroot.FsckArgs{Repair: true}, nil)
	if err != nil || rep.Counts[check.ProblemCorrupt] != 1 || rep.Repaired[check.ProblemCorrupt] != 1 {
		t.Fatalf("repair: got %+v, %v", rep, err)
	}
	s.pushBlob("ci/app", layer(2)) // a push brings it back
	remote := everyTask(t, a)
	closeAdmin()
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	a, closeAdmin = openAdmin(t, s.cfg)
	if _, err := serve.New(t.Context(), s.cfg, nil); !errors.Is(err, dataroot.ErrInUse) {
		t.Errorf("a server on a root that is being administered: got %v, want ErrInUse", err)
	}
	local := everyTask(t, a)
	closeAdmin()

	if d := cmp.Diff(local, remote, cmpopts.IgnoreFields(registry.CollectReport{}, "Took"), cmpopts.IgnoreFields(check.Report{}, "Took"),
		cmpopts.IgnoreFields(backup.Report{}, "Took"), cmpopts.EquateEmpty()); d != "" {
		t.Errorf("reports differ (-stopped +running):\n%s", d)
	}
	if remote.Retention.Removed != 1 || remote.GC.Contents == 0 || remote.Backup.Objects == 0 || !remote.Fsck.Clean() || len(remote.Tags) != 2 {
		t.Errorf("reports are not what was set up: %+v", remote)
	}
}

// damage changes the bytes of a blob on disk.
func damage(t testing.TB, root, content string) {
	t.Helper()
	path := filepath.Join(root, storage.BlobKey(oci.Digest(digestOf(content))))
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.Repeat("!", len(content))), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAdminChanges(t *testing.T) {
	s := start(t, setup{yaml: `
storage: {retention: [{keep_newest: 1}], immutable_tags: [{tags: [fixed]}]}
auth: {access: [{repositories: ["**"], subjects: [anonymous], actions: [pull, push, delete]}]}`})
	for i := range 3 {
		s.pushImage("a", fmt.Sprint("b", i), fmt.Sprint("layer", i))
	}
	a, _ := openAdmin(t, s.cfg)
	ret, err := a.Retain(t.Context(), dataroot.RetainArgs{Now: true})
	if err != nil || ret.Removed != 2 || ret.Kept != 1 {
		t.Errorf("Retain: got %+v, %v; want 2 removed", ret, err)
	}
	gc, err := a.Collect(t.Context(), dataroot.GCArgs{Now: true}, nil)
	if err != nil || gc.Contents != 4 {
		t.Errorf("Collect: got %+v, %v; want 4 contents", gc, err)
	}
	// The socket serves the same registry without access control. All other rules apply.
	ctx := t.Context()
	if _, err := a.Registry().PushBlob(ctx, "b", oci.Digest(digestOf("x")), 1, strings.NewReader("x")); err != nil {
		t.Errorf("PushBlob: %v", err)
	}
	s.want(200, "HEAD", "/v2/b/blobs/"+digestOf("x"), "")
	s.pushImage("a", "fixed", "layer9")
	if err := a.Registry().DeleteTag(ctx, "a", "fixed"); !oci.HasCode(err, oci.CodeDenied) {
		t.Errorf("delete an immutable tag: got %v, want DENIED", err)
	}
}

func TestOpenAdminErrors(t *testing.T) {
	empty, file := t.TempDir(), filepath.Join(t.TempDir(), "file")
	writeFile(t, file, "")
	foreign := t.TempDir()
	if err := os.MkdirAll(filepath.Join(foreign, "docker/registry/v2/repositories"), 0o700); err != nil {
		t.Fatal(err)
	}
	taken := start(t, setup{})
	if err := taken.stop(); err != nil {
		t.Fatal(err)
	}
	openAdmin(t, taken.cfg) // another command, while the previous server's socket still exists
	for _, c := range []struct {
		name, root string
		want       []string
	}{
		{"missing", filepath.Join(empty, "none"), []string{"is not there", "--root"}},
		{"empty", empty, []string{"not a data directory", "--root"}},
		{"a file", file, []string{file}},
		{"of Distribution", foreign, []string{"slipway import --in-place"}},
		{"another command", taken.root, []string{"no server", "wait"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, err := admin.Open(t.Context(), configure(t, setup{root: c.root}), nil)
			if err == nil {
				_, err = a.Fsck(t.Context(), dataroot.FsckArgs{}, nil)
				a.Close(t.Context())
			}
			if err == nil {
				t.Fatal("got no error")
			}
			for _, w := range append(c.want, c.root) {
				if !strings.Contains(err.Error(), w) || strings.Contains(err.Error(), "\n") {
					t.Errorf("got %q, want one line with %q", err, w)
				}
			}
		})
	}
	for _, dir := range []string{empty, foreign} {
		if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 1 || len(left) == 1 && filepath.Base(left[0]) != "docker" {
			t.Errorf("a command that was refused left %v", left)
		}
	}
	cfg := configure(t, setup{root: filepath.Join(empty, "new")})
	a, err := admin.Open(t.Context(), cfg, &admin.Options{Create: true})
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	if err := a.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(empty, "new", registry.CatalogFile)); err != nil {
		t.Errorf("Create: %v", err)
	}
}

func TestAdminProtocol(t *testing.T) {
	s := start(t, setup{})
	s.client.Transport = socketTransport(s.root)
	s.url = "http://admin.localhost"
	for _, c := range []struct {
		method, path, body string
		want               int
	}{
		{"POST", "/admin/gc", `{"DryRun":true}`, 200},
		{"POST", "/admin/gc", `{"DryRun":true,"OnlyOnMondays":true}`, 400}, // a field of a later version
		{"POST", "/admin/gc", `not JSON`, 400},
		{"POST", "/admin/gc", ``, 400},
		{"GET", "/admin/gc", ``, 405},
		{"POST", "/admin/nothing", `{}`, 404},
		{"GET", "/v2/", ``, 200},
		{"GET", "/elsewhere", ``, 404},
	} {
		if a := s.do(c.method, c.path, c.body); a.status != c.want {
			t.Errorf("%s %s %s: got %d %s, want %d", c.method, c.path, c.body, a.status, a.body, c.want)
		}
	}
	s.client.CloseIdleConnections()
}

// TestStopDuringAdministration wants the server to end the requests on the socket before it closes
// what they use. A push whose body stalls is such a request: it does not end by itself.
func TestStopDuringAdministration(t *testing.T) {
	s := start(t, setup{})
	a, _ := openAdmin(t, s.cfg)
	body, feed := io.Pipe()
	defer feed.Close()
	failed := make(chan error, 1)
	go func() {
		_, err := a.Registry().PushBlob(context.Background(), "a", oci.Digest(digestOf("never")), 1<<20, body)
		failed <- err
	}()
	if _, err := feed.Write(make([]byte, 1<<16)); err != nil { // somebody reads: the push is under way
		t.Fatal(err)
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	feed.CloseWithError(errors.New("given up"))
	if err := <-failed; err == nil {
		t.Error("PushBlob: got no error although the server ended")
	}
	start(t, setup{root: s.root}).want(404, "GET", "/v2/a/blobs/"+digestOf("never"), "")
}
