package gear

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
)

// server is a running server with its own directory.
type server struct {
	name, binary string
	dir, addr    string
	process      *proc.Process
	http         *http.Client
}

const (
	readyTimeout = 60 * time.Second
	stopTimeout  = 60 * time.Second
)

// start starts a server and returns when it answers. args receives two free addresses,
// and returns the arguments and the URL at which to check readiness.
func start(ctx context.Context, s *server, env []string, args func(addr, other string) (list []string, ready string, err error)) error {
	var err error
	// Somebody can take the port after it was found free and before the server starts.
	for range 3 {
		if err = s.launch(ctx, env, args); err == nil {
			s.http = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true,
				ReadBufferSize: 64 << 10, WriteBufferSize: 64 << 10}}
			return nil
		}
		if s.process == nil || !strings.Contains(s.process.Log(4096), "address already in use") {
			break
		}
	}
	printed := ""
	if s.process != nil {
		printed = s.process.Log(4096)
	}
	return fmt.Errorf("start %s: %w; it printed:\n%s", s.name, err, printed)
}

func (s *server) launch(ctx context.Context, env []string, args func(addr, other string) ([]string, string, error)) error {
	var err error
	if s.addr, err = slipway.FindAddr(); err != nil {
		return err
	}
	other, err := slipway.FindAddr()
	if err != nil {
		return err
	}
	list, ready, err := args(s.addr, other)
	if err != nil {
		return err
	}
	cmd := exec.Command(s.binary, list...)
	cmd.Dir = s.dir
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir}, env...)
	if s.process, err = proc.Launch(cmd, filepath.Join(s.dir, "output")); err != nil {
		return err
	}
	if err := s.process.AwaitURL(ctx, ready, readyTimeout); err != nil {
		_ = s.process.Stop(stopTimeout) // a kill would leave nginx's workers behind
		return err
	}
	return nil
}

// stop stops the server. Its directory stays.
func (s *server) stop() {
	s.http.CloseIdleConnections()
	_ = s.process.Stop(stopTimeout) // how it ends is not measured
}

// startSlipway starts Slipway on a directory. It runs the given number of conversions at once and
// does not settle by itself.
func startSlipway(ctx context.Context, binary, dir string, workers int, env ...string) (*server, error) {
	s := &server{name: "slipway", binary: binary, dir: dir}
	if err := os.MkdirAll(s.root(), 0o700); err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, err
	}
	config := "version: 0.1\nlog: {level: warn, accesslog: {disabled: true}}\ngear: {workers: " + strconv.Itoa(workers) + ", settle: {disabled: true}}\n"
	if err := os.WriteFile(s.config(), []byte(config), 0o600); err != nil {
		return nil, err
	}
	return s, start(ctx, s, env, func(addr, other string) ([]string, string, error) {
		return []string{"serve", "--config", s.config(), "--root", s.root(), "--addr", addr, "--debug-addr", other}, "http://" + other + "/readyz", nil
	})
}

func (s *server) root() string   { return filepath.Join(s.dir, "root") }
func (s *server) config() string { return filepath.Join(s.dir, "config.yml") }

// url returns the URL of a path of a repository.
func (s *server) url(repo, path string) string {
	return "http://" + s.addr + "/v2/" + repo + "/" + path
}

// gear returns the URL of a path of the Gear extension.
func (s *server) gear(repo, path string) string { return s.url(repo, "_slipway/gear/"+path) }

// command runs a subcommand on the server's data and reads the JSON it prints.
func (s *server) command(ctx context.Context, out any, args ...string) error {
	args = append(args, "--json", "--config", s.config(), "--root", s.root())
	cmd := exec.CommandContext(ctx, s.binary, args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir}
	b, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return fmt.Errorf("slipway %s: %w", args[0], err)
	}
	return json.Unmarshal(b, out)
}

// status is what the program reports of its Gear side.
type status struct {
	Layers, Files, Packs, Waiting, Failed int64
	PackBytes                             int64 `json:"pack_bytes"`
	Active                                []struct{ Layer string }
}

func (s *server) status(ctx context.Context) (st status, err error) {
	err = s.command(ctx, &st, "status")
	return st, err
}

// waitStored waits until no conversion is running or waiting: the files of a layer may be stored
// only after its index exists.
func (s *server) waitStored(ctx context.Context) error {
	for {
		st, err := s.status(ctx)
		if err != nil || st.Waiting == 0 && len(st.Active) == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// startNginx starts nginx on a directory of files. The error wraps exec.ErrNotFound if nginx is not
// installed.
func startNginx(ctx context.Context, dir string) (*server, error) {
	s := &server{name: "nginx", dir: dir}
	var err error
	if s.binary, err = tool.Find("nginx"); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(s.static(), 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(s.static(), "ready"), nil, 0o644); err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "nginx.conf")
	return s, start(ctx, s, nil, func(addr, _ string) ([]string, string, error) {
		text := `worker_processes auto;
daemon off;
pid nginx.pid;
error_log error.log warn;
events { worker_connections 1024; }
http {
  access_log off;
  sendfile on;
  tcp_nopush on;
  keepalive_requests 1000000000;
  client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
  default_type application/octet-stream;
  server { listen ` + addr + `; root ` + s.static() + `; }
}
`
		err := os.WriteFile(config, []byte(text), 0o644)
		return []string{"-p", dir + "/", "-c", config}, "http://" + addr + "/ready", err
	})
}

// static returns the directory that nginx serves.
func (s *server) static() string { return filepath.Join(s.dir, "static") }
