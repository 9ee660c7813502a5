// Package tool finds the programs that the tests run, and runs the short-lived ones.
//
// If a tool is absent, its test is skipped with a reason that begins "tool not installed:
// NAME". The test summary treats this as a failure unless SLIPWAY_ALLOW_SKIP names the
// tool.
package tool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// timeout bounds every command. The slowest legitimate one, a push of 2 GiB on a busy machine,
// takes about a minute.
const timeout = 5 * time.Minute

// Dir returns the directory of the Go-built tools that scripts/setup.sh fills.
func Dir() string {
	if d := os.Getenv("SLIPWAY_TOOLS"); d != "" {
		return filepath.Join(d, "bin")
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(cache, "slipway", "tools", "bin")
}

// Built returns the path of a Go-built tool, or skips the test.
func Built(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join(Dir(), name)
	if !executable(path) {
		t.Skipf("tool not installed: %s (scripts/setup.sh test builds it)", name)
	}
	return path
}

// Kept returns the path of a file or directory that scripts/setup.sh keeps beside the tools,
// or skips the test.
func Kept(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join(filepath.Dir(Dir()), filepath.FromSlash(name))
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("tool not installed: %s (scripts/setup.sh test fetches it)", name)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// File returns the content of a file that scripts/setup.sh keeps beside the tools, such as
// axe-core-1.2.3/axe.min.js, or skips the test.
func File(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(Kept(t, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// System returns the path of a program of the operating system, or skips the
// test.
func System(t testing.TB, name string) string {
	t.Helper()
	path, err := Find(name)
	if err != nil {
		t.Skipf("tool not installed: %s (scripts/setup.sh test installs it)", name)
	}
	return path
}

// Find returns the path of a program of the operating system. It looks in the distribution's
// directories before PATH, which may hold another version of the same program. It fails with
// exec.ErrNotFound.
func Find(name string) (string, error) {
	for _, dir := range []string{"/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		if path := filepath.Join(dir, name); executable(path) {
			return path, nil
		}
	}
	return exec.LookPath(name)
}

func executable(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.Mode().IsRegular() && fi.Mode().Perm()&0o111 != 0
}

// NeedRoot skips the test unless it runs as root.
func NeedRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// Env is the environment in which a test's commands run. It contains only what the test
// sets, and nothing of the user's configuration or credentials.
type Env struct {
	dir  string
	vars []string
}

// NewEnv returns an environment whose home is dir. vars have the form "NAME=value".
func NewEnv(dir string, vars ...string) *Env {
	return &Env{dir: dir, vars: append([]string{
		"HOME=" + dir,
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"LANG=C.UTF-8",
		"TMPDIR=" + dir,
		"XDG_RUNTIME_DIR=" + dir,
	}, vars...)}
}

// Vars returns the environment's variables for a command started elsewhere.
func (e *Env) Vars() []string { return e.vars }

// Dir returns the home and working directory of the commands.
func (e *Env) Dir() string { return e.dir }

// Run runs a command and returns its standard output without surrounding
// white space. It fails the test if the command fails.
func (e *Env) Run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := e.Try(t.Context(), name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// RunFailing runs a command that must fail and returns everything it printed.
func (e *Env) RunFailing(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := e.Try(t.Context(), name, args...)
	if err == nil {
		t.Fatalf("%s %s: succeeded, want a failure; it printed:\n%s",
			filepath.Base(name), strings.Join(args, " "), out)
	}
	return err.Error()
}

// Try runs a command and returns its standard output without surrounding white space. An error
// holds everything that the command printed. The input is empty, and a command that does not end
// within five minutes is killed.
func (e *Env) Try(ctx context.Context, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env, cmd.Dir = e.vars, e.dir
	// A child that is left behind must not hold the pipes open for ever.
	cmd.WaitDelay = 5 * time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s%s",
			filepath.Base(name), strings.Join(args, " "), err, stderr.Bytes(), stdout.Bytes())
	}
	return strings.TrimSpace(stdout.String()), nil
}

// ShortTempDir returns a new directory with a path short enough for Unix
// sockets below it (at most 107 bytes), removed at the end of the test.
func ShortTempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "swt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove %s: %v", dir, err)
		}
	})
	return dir
}
