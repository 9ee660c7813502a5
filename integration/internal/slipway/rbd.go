package slipway

import (
	"debug/buildinfo"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// librbd is the header that a build with the driver needs.
const librbd = "/usr/include/rbd/librbd.h"

// RBDBinary returns the path of a binary with the rbd driver. This is SLIPWAY_CEPH_BIN,
// or SLIPWAY_BIN if that has the driver. Otherwise it is a binary built from the source
// tree, once per test process. RBDBinary skips the test if librbd is missing.
func RBDBinary(t testing.TB) string {
	t.Helper()
	path, err := buildRBD()
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("tool not installed: librbd-dev (scripts/setup.sh test installs it)")
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var buildRBD = sync.OnceValues(func() (string, error) {
	for _, name := range []string{os.Getenv("SLIPWAY_CEPH_BIN"), os.Getenv("SLIPWAY_BIN")} {
		if name != "" && hasRBD(name) {
			return name, nil
		}
	}
	if _, err := os.Stat(librbd); err != nil {
		return "", err
	}
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	path := filepath.Join(root, "bin", "integration", "slipway-ceph")
	cmd := exec.Command("go", "build", "-tags", "ceph pacific", "-o", path, "./cmd/slipway")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build slipway: %s\n%s", err, out) // whatever the reason is, librbd is not missing
	}
	return path, nil
})

// hasRBD reports whether a binary was built with the driver.
func hasRBD(name string) bool {
	info, err := buildinfo.ReadFile(name)
	if err != nil {
		return false
	}
	for _, s := range info.Settings {
		if s.Key == "-tags" {
			return slices.Contains(strings.FieldsFunc(s.Value, func(r rune) bool { return r == ',' || r == ' ' }), "ceph")
		}
	}
	return false
}
