// Package fusetest is for tests of FUSE servers. The test binary plays every role that
// needs a separate process. Another process takes down the mounts of tests that hang.
package fusetest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/internal/mounttest"
	"example.org/slipway/node/fuse"
)

// Patience is the time after which a test counts as hanging.
const Patience = 60 * time.Second

// roleEnv names the role of a child process.
const roleEnv = "SLIPWAY_FUSE_TEST_ROLE"

// watchdog is a role that every test binary can play.
const watchdog = "watchdog"

// Main runs the tests of a package, or plays the role for which [Command] started this process. A package's
// TestMain calls it.
func Main(m *testing.M, roles map[string]func() error) {
	name := os.Getenv(roleEnv)
	play := roles[name]
	switch {
	case name == "":
		mounttest.Main(m)
	case name == watchdog:
		play = watch
	case play == nil:
		play = func() error { return errors.New("there is no such role") }
	}
	if err := play(); err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Command returns a process that plays a role, with variables added to its environment.
func Command(role string, env []string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	// This avoids the second that the race detector waits at the end of a process.
	cmd.Env = append(os.Environ(), append(env, roleEnv+"="+role, "GORACE=atexit_sleep_ms=0")...)
	cmd.Stderr = os.Stderr
	return cmd
}

// Need skips a test if no FUSE file system can be mounted.
func Need(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	if _, err := os.Stat(fuse.Device); err != nil {
		t.Skip("no FUSE: ", err)
	}
}

// Guard tears down the mount of dev at mnt when the test ends. A separate process does so
// if the test takes longer than limit or dies, because the test's process may hang in the
// kernel or be killed. Guard returns the number of the connection.
func Guard(t testing.TB, dev *os.File, mnt string, limit time.Duration) (conn uint32) {
	t.Helper()
	conn, err := fuse.Connection(dev)
	if err != nil {
		t.Fatal(err)
	}
	dog := Command(watchdog, nil, strconv.Itoa(int(conn)), mnt, limit.String())
	dog.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a signal to the test must not end the watchdog
	leash, err := dog.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := dog.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = leash.Write([]byte("ok")) // the write fails if the watchdog has ended, which Wait reports
		leash.Close()
		if err := dog.Wait(); err != nil {
			t.Errorf("the test hung: its connection was aborted: %v", err)
		}
		if err := fuse.Teardown(mnt); err != nil {
			t.Error(err)
		}
		dev.Close()
		if _, err := fuse.ConnectionAt(mnt); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("after the teardown: %v, want no mount", err)
		}
	})
	return conn
}

// watch waits for the end of a test. It tears the test's mount down if that takes too long or the test dies.
func watch() error {
	conn, err := strconv.ParseUint(os.Args[1], 10, 32)
	if err != nil {
		return err
	}
	limit, err := time.ParseDuration(os.Args[3])
	if err != nil {
		return err
	}
	end := make(chan bool, 1)
	go func() {
		b, _ := io.ReadAll(os.Stdin)
		end <- string(b) == "ok"
	}()
	select {
	case ok := <-end:
		if ok {
			return nil
		}
	case <-time.After(limit):
	}
	return errors.Join(errors.New("teardown by the watchdog"), fuse.Abort(uint32(conn)), fuse.Unmount(os.Args[2]))
}

// StateFile returns the path of a server's state. It is on tmpfs, as on a node.
func StateFile(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "slipway-fuse-test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "state")
}

// Open opens a file without adding it to Go's poller. os.Open adds a file to the poller,
// and the kernel then sends a request to the file's server. If this process is the
// server, it would wait for itself.
func Open(path string, flags int) (*os.File, error) {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Eventually waits until f returns true.
func Eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	const limit = 20 * time.Second
	for deadline := time.Now().Add(limit); !f(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}
