package serve_test

import (
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"example.org/slipway/registry/catalog"
	"example.org/slipway/serve/dataroot"
)

// lastBackup returns the metric of the last backup.
func (s *instance) lastBackup() float64 {
	s.t.Helper()
	a := s.want(200, "GET", s.debug+"/metrics", "")
	m := regexp.MustCompile(`(?m)^slipway_backup_last_success_timestamp_seconds (\S+)$`).FindStringSubmatch(a.body)
	if m == nil {
		s.t.Fatal("the metric is missing")
	}
	v, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return v
}

// TestLastBackup checks that the metric has the time of the last backup that was completed,
// whether the server or a command made it, also after a restart. A backup that fails does not
// count.
func TestLastBackup(t *testing.T) {
	o := setup{root: filepath.Join(t.TempDir(), "root")}
	s := start(t, o)
	layer := strings.Repeat("layer", catalog.InlineMax) // in a file
	s.pushImage("ci/app", "1", layer)
	if v := s.lastBackup(); v != 0 {
		t.Errorf("before the first backup it is %v", v)
	}
	a, closeAdmin := openAdmin(t, s.cfg)
	dir := filepath.Join(t.TempDir(), "backup")
	before := float64(time.Now().UnixMilli()) / 1000
	if _, err := a.Backup(t.Context(), dataroot.BackupArgs{Dir: dir}, nil); err != nil {
		t.Fatal(err)
	}
	first := s.lastBackup()
	if first < before || first > float64(time.Now().UnixMilli()+1)/1000 {
		t.Errorf("after a backup it is %v", first)
	}
	closeAdmin()
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	a, closeAdmin = openAdmin(t, s.cfg)
	if _, err := a.Backup(t.Context(), dataroot.BackupArgs{Dir: dir}, nil); err != nil {
		t.Fatal(err)
	}
	closeAdmin()
	s = start(t, o)
	second := s.lastBackup()
	if second < first {
		t.Errorf("after a backup without a server it is %v, before it was %v", second, first)
	}
	damage(t, s.root, layer)
	a, closeAdmin = openAdmin(t, s.cfg)
	defer closeAdmin()
	if _, err := a.Backup(t.Context(), dataroot.BackupArgs{Dir: filepath.Join(t.TempDir(), "b")}, nil); err == nil {
		t.Error("a damaged registry was backed up")
	}
	if v := s.lastBackup(); v != second {
		t.Errorf("after a backup that failed it is %v, want %v", v, second)
	}
}
