package serve_test

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"example.org/slipway/config"
	"example.org/slipway/registry"
	"example.org/slipway/registry/check"
	"example.org/slipway/serve/admin"
	"example.org/slipway/serve/dataroot"
)

// tarOf returns a layer with one file.
func tarOf(t testing.TB, name, content string) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content)), Format: tar.FormatUSTAR}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(content)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// pushLayer is like pushImage, with a layer that has the media type of a layer.
func (s *instance) pushLayer(repo, tag, layer string) {
	s.t.Helper()
	s.pushBlob(repo, layer)
	m := strings.Replace(imageOf(layer), `"layers":[{"mediaType":"application/vnd.example.text"`, `"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar"`, 1)
	s.want(201, "PUT", "/v2/"+repo+"/manifests/"+tag, m, isManifest)
}

const gearOff = "gear: {convert: 'off'}"

// pushGear pushes two images that can be converted and one that cannot.
func (s *instance) pushGear() {
	s.t.Helper()
	s.pushLayer("team/app", "v1", tarOf(s.t, "a", strings.Repeat("first ", 9000)))
	s.pushLayer("team/app", "v2", tarOf(s.t, "b", strings.Repeat("second ", 9000)))
	s.pushLayer("team/app", "bad", strings.Repeat("this is no tar. ", 4000))
}

func wantConverted(t *testing.T, a *admin.Admin, args admin.ConvertArgs, queued int, converted int64) {
	t.Helper()
	rep, err := a.Convert(t.Context(), args, nil)
	if err != nil || rep.Queued != queued || rep.Converted != converted || rep.Failed != 1 || rep.Waiting != 0 || len(rep.Failures) != 1 || rep.Failures[0].Reason == "" {
		t.Errorf("Convert(%+v): got %+v, %v; want %d queued, %d converted and a failure", args, rep, err, queued, converted)
	}
}

// TestGearTasks checks that missing conversions are made, with a server and without one.
func TestGearTasks(t *testing.T) {
	t.Parallel()
	for _, through := range []string{"a server", "none"} {
		t.Run(through, func(t *testing.T) {
			s := start(t, setup{yaml: gearOff})
			s.pushGear()
			if through == "none" {
				if err := s.stop(); err != nil {
					t.Fatal(err)
				}
			}
			a, _ := openAdmin(t, s.cfg)
			if st, err := a.GearStatus(t.Context()); err != nil || st.Layers != 0 || st.Waiting != 0 {
				t.Errorf("before: got %+v, %v", st, err)
			}
			wantConverted(t, a, admin.ConvertArgs{}, 3, 2)
			wantConverted(t, a, admin.ConvertArgs{}, 0, 0)
			wantConverted(t, a, admin.ConvertArgs{Again: true}, 1, 0)
			st, err := a.GearStatus(t.Context())
			if err != nil || st.Layers != 2 || st.Files != 4 || st.Packs != 2 || st.Failed != 1 || len(st.Active) != 0 {
				t.Errorf("after: got %+v, %v", st, err)
			}
			rep, err := a.Settle(t.Context(), admin.SettleArgs{All: true})
			if err != nil || rep.PacksBefore != 2 || rep.Packs != 1 || rep.PackBytes <= 0 {
				t.Errorf("Settle: got %+v, %v", rep, err)
			}
		})
	}
}

// TestGearTasksReadOnly checks that nothing waits for a conversion that is not allowed.
func TestGearTasksReadOnly(t *testing.T) {
	t.Parallel()
	s := start(t, setup{yaml: gearOff})
	s.pushGear()
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	s = start(t, setup{root: s.root, yaml: "storage: {maintenance: {readonly: {enabled: true}}}"})
	remote, _ := openAdmin(t, s.cfg)
	if _, err := remote.Convert(t.Context(), admin.ConvertArgs{}, nil); err == nil || !strings.Contains(err.Error(), "readonly") {
		t.Errorf("through a server: got %v", err)
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	local, _ := openAdmin(t, s.cfg)
	if _, err := local.Settle(t.Context(), admin.SettleArgs{}); err == nil || !strings.Contains(err.Error(), "readonly") {
		t.Errorf("without one: got %v", err)
	}
}

// packs returns the pack files of a root or a backup.
func packs(t testing.TB, root string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(root, "slipway/gear/packs"), func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestGearFsck checks that damaged and unknown packs are found and repaired.
func TestGearFsck(t *testing.T) {
	t.Parallel()
	s := start(t, setup{})
	s.pushLayer("team/app", "v1", tarOf(t, "a", strings.Repeat("first ", 9000)))
	a, _ := openAdmin(t, s.cfg)
	if _, err := a.Convert(t.Context(), admin.ConvertArgs{}, nil); err != nil {
		t.Fatal(err)
	}
	if rep, err := a.Fsck(t.Context(), dataroot.FsckArgs{}, nil); err != nil || !rep.Clean() {
		t.Fatalf("before: got %+v, %v", rep, err)
	}
	pack := packs(t, s.root)[0]
	b := []byte(readFile(t, pack))
	for i := range b { // content and index alike
		b[i] ^= 1
	}
	if err := os.Chmod(pack, 0o600); err != nil {
		t.Fatal(err)
	}
	writeFile(t, pack, string(b))
	writeFile(t, filepath.Join(filepath.Dir(pack), strings.Repeat("ab", 32)), "nobody knows this")
	rep, err := a.Fsck(t.Context(), dataroot.FsckArgs{}, nil)
	if err != nil || rep.Clean() || rep.Counts[dataroot.ProblemGear] != 3 || rep.Counts[dataroot.ProblemGearUnknown] != 1 || len(rep.Problems) != 4 {
		t.Fatalf("damaged: got %+v, %v", rep, err)
	}
	// None of the four problems remains: the lost contents are made again, and nobody needs
	// anything in the pack.
	rep, err = a.Fsck(t.Context(), dataroot.FsckArgs{Repair: true}, nil)
	if err != nil || !rep.Clean() || rep.Repaired[dataroot.ProblemGear] != 3 || rep.Repaired[dataroot.ProblemGearUnknown] != 1 {
		t.Errorf("repair: got %+v, %v", rep, err)
	}
	d := digestOf(tarOf(t, "a", strings.Repeat("first ", 9000)))
	poll(t, "the layer is converted again", func() bool {
		return s.do("GET", "/v2/team/app/_slipway/gear/layers/"+d, "").status == 200
	})
	if _, err := a.Settle(t.Context(), admin.SettleArgs{All: true}); err != nil {
		t.Error(err)
	}
	if rep, err := a.Fsck(t.Context(), dataroot.FsckArgs{}, nil); err != nil || !rep.Clean() {
		t.Errorf("in the end: got %+v, %v", rep, err)
	}
}

// TestGearRebuild checks that packs unknown to a new catalogue are recorded, and that the
// conversion writes no others.
func TestGearRebuild(t *testing.T) {
	t.Parallel()
	for _, through := range []string{"a server", "none"} {
		t.Run(through, func(t *testing.T) {
			s := start(t, setup{yaml: gearOff})
			layer := tarOf(t, "a", strings.Repeat("first ", 9000))
			s.pushLayer("team/app", "v1", layer)
			if err := s.stop(); err != nil {
				t.Fatal(err)
			}
			catalogue := readFile(t, filepath.Join(s.root, registry.CatalogFile))
			a, closeAdmin := openAdmin(t, s.cfg)
			wantAll(t, a, 1)
			closeAdmin()
			before := packs(t, s.root)
			writeFile(t, filepath.Join(s.root, registry.CatalogFile), catalogue)
			if through == "a server" {
				s = start(t, setup{root: s.root, yaml: gearOff})
			}
			a, _ = openAdmin(t, s.cfg)
			rep, err := a.Fsck(t.Context(), dataroot.FsckArgs{Rebuild: true}, nil)
			if err != nil || !rep.Clean() || rep.RebuiltPacks != 1 || rep.RebuiltFiles != 2 {
				t.Fatalf("rebuild: got %+v, %v; want one pack with 2 files", rep, err)
			}
			rep, err = a.Fsck(t.Context(), dataroot.FsckArgs{Rebuild: true, Repair: true}, nil)
			if err != nil || !rep.Clean() || rep.RebuiltPacks != 0 || len(rep.Repaired) != 0 {
				t.Errorf("once more: got %+v, %v; want nothing to do", rep, err)
			}
			wantAll(t, a, 1)
			if got := packs(t, s.root); len(before) != 1 || !slices.Equal(got, before) {
				t.Errorf("packs after the conversion: got %q, want %q", got, before)
			}
		})
	}
}

// wantAll converts everything and wants the given number of converted layers.
func wantAll(t *testing.T, a *admin.Admin, layers int64) {
	t.Helper()
	rep, err := a.Convert(t.Context(), admin.ConvertArgs{}, nil)
	if err != nil || rep.Converted != layers || rep.Failed != 0 {
		t.Fatalf("convert: got %+v, %v; want %d layers", rep, err, layers)
	}
}

// TestGearBackup checks that a backup contains the packs and that a restore brings them back.
func TestGearBackup(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	s := start(t, setup{})
	layer := tarOf(t, "a", strings.Repeat("first ", 9000))
	s.pushLayer("team/app", "v1", layer)
	s.pushLayer("team/app", "v2", tarOf(t, "b", strings.Repeat("second ", 9000)))
	a, closeAdmin := openAdmin(t, s.cfg)
	if _, err := a.Convert(t.Context(), admin.ConvertArgs{}, nil); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "backup")
	rep, err := a.Backup(t.Context(), dataroot.BackupArgs{Dir: dir}, nil)
	if err != nil || rep.Objects != 4 || rep.ObjectsTotal != 4 || rep.Copied != 4 || len(packs(t, dir)) != 2 {
		t.Fatalf("backup: got %+v, %v", rep, err)
	}
	if _, err := a.Settle(t.Context(), admin.SettleArgs{All: true}); err != nil {
		t.Fatal(err)
	}
	rep, err = a.Backup(t.Context(), dataroot.BackupArgs{Dir: dir}, nil)
	if err != nil || rep.Objects != 3 || rep.Copied != 1 || rep.Pruned != 2 || len(packs(t, dir)) != 1 {
		t.Fatalf("backup after settling: got %+v, %v", rep, err)
	}
	closeAdmin()

	cfg := configure(t, setup{root: filepath.Join(t.TempDir(), "back")})
	restored, err := admin.Restore(t.Context(), cfg, dir, admin.RestoreOptions{})
	if err != nil || restored.Restored.Objects != 3 {
		t.Fatalf("restore: got %+v, %v", restored, err)
	}
	wantCleanPacks(t, cfg)
	back := start(t, setup{root: cfg.Storage.FileSystem.RootDirectory})
	back.want(200, "GET", "/v2/team/app/_slipway/gear/layers/"+digestOf(layer), "")
	back.want(200, "GET", "/v2/team/app/_slipway/gear/files/"+digestOf(strings.Repeat("first ", 9000)), "")
}

func wantCleanPacks(t *testing.T, cfg *config.Config) {
	t.Helper()
	a, closeAdmin := openAdmin(t, cfg)
	defer closeAdmin()
	var rep check.Report
	rep, err := a.Fsck(t.Context(), dataroot.FsckArgs{}, nil)
	if err != nil || !rep.Clean() {
		t.Errorf("fsck: got %+v, %v", rep, err)
	}
}
