// Package mounttest runs the tests of a package where their mounts disturb nothing else,
// and finds the loop devices that tests have left.
package mounttest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Main runs the tests of a package that mounts; its TestMain calls it. As root it runs
// them in a new mount namespace. Their mounts go with the namespace, however the tests
// end.
func Main(m *testing.M) {
	const inside = "SLIPWAY_TEST_MOUNTS"
	if os.Getuid() != 0 || os.Getenv(inside) != "" {
		os.Exit(m.Run())
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		fmt.Fprintln(os.Stderr, "run the tests in a mount namespace:", err)
		os.Exit(1)
	}
	os.Exit(cmd.ProcessState.ExitCode())
}

// LoopDevices returns the paths of the loop devices of a file, by the path under which it
// was opened, without asking the file's own file system. It does not find a file that was
// removed since.
func LoopDevices(path string) ([]string, error) {
	all, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	var found []string
	for _, name := range all {
		b, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			continue // freed meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("find the loop devices of %s: %w", path, err)
		}
		if strings.TrimSuffix(string(b), "\n") == path {
			found = append(found, "/dev/"+strings.Split(name, "/")[3])
		}
	}
	return found, nil
}
