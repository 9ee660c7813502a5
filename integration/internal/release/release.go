// Package release makes packages of a built program, in the way that scripts/release.sh does.
package release

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// epoch is the time of everything in the packages: 2023-11-14.
const epoch = "1700000000"

// Make makes packages that contain the program, of the given kinds and version, in a
// directory. It must be called from a directory two levels below the root of the
// repository.
func Make(ctx context.Context, program, version, dir string, kinds ...string) error {
	binaries, err := os.MkdirTemp("", "slipway-binaries")
	if err != nil {
		return err
	}
	defer os.RemoveAll(binaries)
	if err := os.Symlink(program, filepath.Join(binaries, "slipway-"+runtime.GOARCH)); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "../../scripts/release.sh", kinds...)
	cmd.Env = append(os.Environ(), "VERSION="+version, "SOURCE_DATE_EPOCH="+epoch, "RELEASE_DIRTY=1", "RELEASE_QUICK=1",
		"RELEASE_ARCH="+runtime.GOARCH, "RELEASE_BINARIES="+binaries, "RELEASE_DIR="+dir)
	if b, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("scripts/release.sh: %w\n%s", err, b)
	}
	return nil
}

// Deb returns the name of the Debian package of a version.
func Deb(version string) string { return fmt.Sprintf("slipway_%s_%s.deb", version, runtime.GOARCH) }
