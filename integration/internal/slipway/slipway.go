// Package slipway starts the server under test: a real process with its own root directory on free
// loopback ports.
package slipway

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/wire"
)

const (
	// readyTimeout is the maximum time of a start. A server is specified to be ready within a
	// second; the rest is for a busy machine.
	readyTimeout = 30 * time.Second
	// stopTimeout is the maximum time of a graceful stop with no open request.
	stopTimeout = 20 * time.Second
	// foreignEnv names a command that starts another registry instead of Slipway.
	foreignEnv = "SLIPWAY_TEST_REGISTRY_CMD"
)

// Options are the options of a server. The zero value is a server without a configuration file,
// whose environment only enables deletion.
type Options struct {
	// Config is the text of a configuration file; empty for none.
	Config string
	// Env is added to the server's environment, as "NAME=value".
	Env []string
	// Host is the address that the registry listens on; default 127.0.0.1. Any other address needs
	// a configuration that allows it.
	Host string
}

// Server is a registry process that can be stopped, killed and started again
// on the same root and ports.
type Server struct {
	// Root is the storage directory.
	Root string
	// Addr and DebugAddr are the registry's and the debug port's host:port.
	Addr, DebugAddr string
	// Client talks to the server.
	Client *wire.Client
	// Process is the running process, or the last one.
	Process *proc.Process

	t    testing.TB
	opts Options
	dir  string // of the configuration and the log
}

// Start starts a server on root and waits until it is ready. The server ends with the test.
func Start(t testing.TB, root string, opts *Options) *Server {
	t.Helper()
	s := &Server{Root: root, t: t, dir: t.TempDir()}
	if opts != nil {
		s.opts = *opts
	}
	// Another process can take a port after it was found free and before the server binds
	// it. Then another pair is tried.
	for try := 1; ; try++ {
		s.Addr, s.DebugAddr = FreeAddr(t), FreeAddr(t)
		if s.opts.Host != "" {
			s.Addr = strings.Replace(s.Addr, "127.0.0.1", s.opts.Host, 1)
		}
		err := s.start()
		if err == nil {
			break
		}
		if try == 3 || !strings.Contains(s.Process.Log(4096), "address already in use") {
			t.Fatalf("%v; it printed:\n%s", err, s.Process.Log(4096))
		}
	}
	s.Client = wire.New(s.Addr)
	t.Cleanup(s.Client.Close)
	return s
}

// Restart starts the server again on its root and ports, after Stop or Kill,
// and returns how long it took to become ready.
func (s *Server) Restart() time.Duration {
	s.t.Helper()
	s.Client.Close()
	begin := time.Now()
	if err := s.start(); err != nil {
		s.t.Fatalf("restart: %v; it printed:\n%s", err, s.Process.Log(8192))
	}
	return time.Since(begin)
}

// Kill ends the server with SIGKILL and returns when it is gone.
func (s *Server) Kill() { s.Process.Kill() }

// Stop ends the server with SIGTERM. The test fails unless the server exits cleanly in time.
func (s *Server) Stop() {
	s.t.Helper()
	if err := s.Process.Stop(stopTimeout); err != nil && !s.foreign() {
		s.t.Errorf("stop server: %v; it printed:\n%s", err, s.Process.Log(8192))
	}
}

// Alive fails the test if the server's process has ended.
func (s *Server) Alive() {
	s.t.Helper()
	select {
	case <-s.Process.Exited():
		s.t.Fatalf("the server has ended (%s); it printed:\n%s", s.Process.State(), s.Process.Log(8192))
	default:
	}
}

func (s *Server) foreign() bool { return os.Getenv(foreignEnv) != "" }

func (s *Server) start() error {
	s.t.Helper()
	cmd, ready, err := s.command()
	if err != nil {
		return err
	}
	s.Process = proc.Start(s.t, cmd, filepath.Join(s.dir, "log"))
	ctx, cancel := context.WithTimeout(s.t.Context(), readyTimeout)
	defer cancel()
	for {
		if ok(ctx, ready) {
			return nil
		}
		select {
		case <-s.Process.Exited():
			return fmt.Errorf("the server ended before it was ready: %s", s.Process.State())
		case <-ctx.Done():
			s.Process.Kill()
			return fmt.Errorf("the server was not ready within %s", readyTimeout)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// command returns the command that starts the server, and the URL that answers 200 when the server
// is ready.
func (s *Server) command() (*exec.Cmd, string, error) {
	if c := os.Getenv(foreignEnv); c != "" {
		args := strings.Fields(strings.NewReplacer("{root}", s.Root, "{addr}", s.Addr).Replace(c))
		return exec.Command(args[0], args[1:]...), "http://" + s.Addr + "/v2/", nil
	}
	args := []string{"serve", "--root", s.Root, "--addr", s.Addr, "--debug-addr", s.DebugAddr}
	if s.opts.Config != "" {
		file := filepath.Join(s.dir, "config.yml")
		if err := os.WriteFile(file, []byte(s.opts.Config), 0o600); err != nil {
			return nil, "", err
		}
		args = append(args, "--config", file)
	}
	cmd := exec.Command(Binary(s.t), args...)
	cmd.Dir = s.dir
	cmd.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir,
		// Deletion is off by default, and every test deletes.
		"SLIPWAY_STORAGE_DELETE_ENABLED=true",
	}, s.opts.Env...)
	return cmd, "http://" + s.DebugAddr + "/readyz", nil
}

func ok(ctx context.Context, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// Run runs a subcommand of the binary, such as fsck, on the server's root, and returns
// what it printed. It fails the test unless the exit status is 0. If another registry
// than Slipway is tested, it does nothing, because that registry has no subcommands.
func (s *Server) Run(subcommand string, args ...string) string {
	s.t.Helper()
	if s.foreign() {
		return ""
	}
	out, err := Command(s.t, append([]string{subcommand, "--root", s.Root}, args...)...)
	if err != nil {
		s.t.Fatalf("slipway %s on %s: %v; it printed:\n%s", subcommand, s.Root, err, out)
	}
	return out
}

// Command runs the binary with any arguments and returns its output.
func Command(t testing.TB, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, Binary(t), args...).CombinedOutput()
	return string(out), err
}

// Binary returns the path of the binary under test. This is SLIPWAY_BIN, or a binary
// built from the source tree, once per test process.
func Binary(t testing.TB) string {
	t.Helper()
	if b := os.Getenv("SLIPWAY_BIN"); b != "" {
		return b
	}
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// build links the binary into a directory that belongs to the checkout, not to one test
// process. So the next process finds the binary up to date.
var build = sync.OnceValues(func() (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	path := filepath.Join(root, "bin", "integration", "slipway")
	cmd := exec.Command("go", "build", "-o", path, "./cmd/slipway")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build slipway: %w\n%s", err, out)
	}
	return path, nil
})

// moduleRoot returns the directory of the product's module: the first parent
// of the working directory that holds cmd/slipway.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "cmd", "slipway")); err == nil {
			return dir, nil
		}
	}
	return "", errors.New("no cmd/slipway above the test; set SLIPWAY_BIN")
}

// FreeAddr returns a loopback address that nothing listens on.
func FreeAddr(t testing.TB) string {
	t.Helper()
	addr, err := FindAddr()
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// FindAddr returns a loopback address on which nothing listens. The port is below the
// range from which the kernel takes the ports of outgoing connections, so that no such
// connection can take it meanwhile.
func FindAddr() (string, error) {
	for range 100 {
		addr := fmt.Sprintf("127.0.0.1:%d", 20000+rand.IntN(10000))
		l, err := net.Listen("tcp", addr)
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("look for a free port: %w", err)
		}
		l.Close()
		return addr, nil
	}
	return "", errors.New("no free port found")
}
