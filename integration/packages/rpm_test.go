package packages

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"example.org/slipway/integration/internal/tool"
)

// rpmSystem is a system in a directory, in which rpm installs packages and runs their scripts.
type rpmSystem struct {
	t    *testing.T
	root string
}

func newRPMSystem(t *testing.T) *rpmSystem {
	t.Helper()
	tool.NeedRoot(t)
	tool.System(t, "rpm")
	archives, _ := filepath.Glob(filepath.Join(filepath.Dir(tool.Dir()), "debian-*.tar"))
	if len(archives) == 0 {
		t.Skip("tool not installed: debian-*.tar (scripts/setup.sh test makes it)")
	}
	s := &rpmSystem{t, t.TempDir()}
	s.must("tar", "-x", "--numeric-owner", "--exclude=./dev/*", "-C", s.root, "-f", archives[0])
	s.must("mknod", "-m", "666", s.path("/dev/null"), "c", "1", "3")
	s.must("rpm", "--root", s.root, "--initdb")
	return s
}

func (s *rpmSystem) path(name string) string { return filepath.Join(s.root, name) }

func (s *rpmSystem) try(args ...string) (string, error) {
	out, err := exec.CommandContext(s.t.Context(), args[0], args[1:]...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

func (s *rpmSystem) must(args ...string) string {
	s.t.Helper()
	out, err := s.try(args...)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// file returns the package of a version.
func (s *rpmSystem) file(version string) string {
	s.t.Helper()
	arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	return filepath.Join(release(s.t, version, "rpm"), fmt.Sprintf("slipway-%s-1.%s.rpm", version, arch))
}

// rpm runs rpm on the system. The system has no database of rpm, so it has nothing that packages
// could depend on.
func (s *rpmSystem) rpm(args ...string) (string, error) {
	return s.try(append([]string{"rpm", "--root", s.root, "--nodeps"}, args...)...)
}

func (s *rpmSystem) has(version string) {
	s.t.Helper()
	if got := s.must("rpm", "--root", s.root, "-q", "--qf", "%{VERSION}", "slipway"); got != version {
		s.t.Errorf("installed is %s, want %s", got, version)
	}
	if got := s.must("chroot", s.root, "/usr/bin/slipway", "version"); !strings.HasPrefix(got, "slipway ") {
		s.t.Errorf("the program says %q", got)
	}
}

// TestRPM installs the rpm package in a system that has none, upgrades it, tries to go back, and
// removes it. What an administrator and the server wrote stays.
func TestRPM(t *testing.T) {
	t.Parallel()
	s := newRPMSystem(t)
	if _, err := s.rpm("-i", s.file(version)); err != nil {
		t.Fatal(err)
	}
	s.has(version)
	s.must("chroot", s.root, "getent", "passwd", "slipway")
	data := s.path("/var/lib/slipway")
	if got := s.must("chroot", s.root, "stat", "-c", "%U:%G %a", "/var/lib/slipway", "/var/log/slipway"); got != "slipway:slipway 700\nslipway:slipway 750\n" {
		t.Errorf("the directories of the server are:\n%s", got)
	}
	s.must("chroot", s.root, "slipway", "config", "check", "/etc/slipway/config.yml")
	write := func(name, text string) {
		t.Helper()
		f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = f.WriteString(text)
			f.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	write(s.path("/etc/slipway/config.yml"), "# mine\n")
	write(filepath.Join(data, "catalog.db"), "data")

	if _, err := s.rpm("-U", s.file(newer)); err != nil {
		t.Fatal(err)
	}
	s.has(newer)
	if b, _ := os.ReadFile(s.path("/etc/slipway/config.yml")); !strings.HasSuffix(string(b), "# mine\n") {
		t.Error("the upgrade replaced a configuration that was changed")
	}
	out, err := s.rpm("-U", s.file(version))
	if err == nil || !strings.Contains(err.Error(), "newer") {
		t.Errorf("an older package: got %q, %v", out, err)
	}
	s.has(newer)
	if _, err := s.rpm("-U", "--oldpackage", s.file(version)); err != nil {
		t.Errorf("an older package on purpose: %v", err)
	}
	s.has(version)

	if _, err := s.rpm("-e", "slipway"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(s.path("/usr/bin/slipway")); !os.IsNotExist(err) {
		t.Errorf("the program is still there: %v", err)
	}
	if b, _ := os.ReadFile(s.path("/etc/slipway/config.yml.rpmsave")); !strings.HasSuffix(string(b), "# mine\n") {
		t.Error("the configuration that was changed is gone")
	}
	info, err := os.Stat(filepath.Join(data, "catalog.db"))
	if err != nil {
		t.Fatalf("the data are gone: %v", err)
	}
	if dir, err := os.Stat(data); err != nil || dir.Sys().(*syscall.Stat_t).Uid == 0 || info.Size() == 0 {
		t.Errorf("the data directory: %v, %v", dir, err)
	}
}
