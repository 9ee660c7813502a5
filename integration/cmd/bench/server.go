package main

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"example.org/slipway/integration/internal/measure"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
	"example.org/slipway/integration/internal/wire"
)

// Names of the servers in the results.
const (
	nameSlipway   = "slipway"
	nameAccessLog = "slipway, access log on"
	nameNginx     = "nginx"
	nameZot       = "zot"
	nameZotCommit = "zot, commit: true"
	nameDist3     = "Distribution 3"
	nameDist2     = "Distribution 2.8"
)

// spec is a kind of server that can be measured.
type spec struct {
	name string
	// binary is the program; empty when it is not there, for the reason why.
	binary, why string
	// static servers have no API: content is written into their root.
	static bool
	// quick servers store thousands of tags in seconds.
	quick bool
	// singlePost servers accept a blob in one POST.
	singlePost bool
	// config is the configuration file for a directory and an address.
	config func(dir, addr string) string
	// args of the program; "{config}", "{dir}", "{addr}" and "{debug}", a
	// second address, are replaced.
	args []string
	// ready is the path that answers 200 when the server is ready, and
	// debugReady whether it is asked on the second address.
	ready      string
	debugReady bool
	env        []string
	version    []string // arguments that print the version
}

// specs returns all servers: those that are compared, whether installed or
// not, and the variants, which are other builds of Slipway.
func specs(binary string, variants []variant) []*spec {
	list := []*spec{slipwaySpec(nameSlipway, binary, true)}
	for _, v := range variants {
		list = append(list, slipwaySpec(v.name, v.binary, true))
	}
	list = append(list, slipwaySpec(nameAccessLog, binary, false), nginxSpec())
	list = append(list, zotSpec(nameZot, false), zotSpec(nameZotCommit, true))
	dist3 := distributionSpec(nameDist3)
	dist3.binary, dist3.why = fromEnv("SLIPWAY_BENCH_DISTRIBUTION")
	dist2 := distributionSpec(nameDist2)
	dist2.binary, dist2.why = fromSystem("docker-registry")
	return append(list, dist3, dist2)
}

// variant is another build of Slipway to measure beside the first.
type variant struct{ name, binary string }

func fromEnv(name string) (binary, why string) {
	path := os.Getenv(name)
	if path == "" {
		return "", name + " is not set"
	}
	if _, err := os.Stat(path); err != nil {
		return "", name + ": " + err.Error()
	}
	path, err := filepath.Abs(path) // servers have working directories of their own
	if err != nil {
		return "", name + ": " + err.Error()
	}
	return path, ""
}

func fromSystem(name string) (binary, why string) {
	path, err := tool.Find(name)
	if err != nil {
		return "", name + " is not installed"
	}
	return path, ""
}

// slipwaySpec is Slipway as it comes, but for the access log, which the others
// do not write either.
func slipwaySpec(name, binary string, quiet bool) *spec {
	return &spec{
		name: name, binary: binary, singlePost: true, quick: true,
		config: func(dir, _ string) string {
			access := "{disabled: true}"
			if !quiet {
				access = fmt.Sprintf("{file: %q}", filepath.Join(dir, "access.log"))
			}
			return "version: 0.1\nlog: {level: warn, accesslog: " + access + "}\nstorage: {delete: {enabled: true}}\n"
		},
		args:  []string{"serve", "--config", "{config}", "--root", "{dir}/root", "--addr", "{addr}", "--debug-addr", "{debug}"},
		ready: "/readyz", debugReady: true, version: []string{"version"},
	}
}

func nginxSpec() *spec {
	s := &spec{name: nameNginx, static: true, quick: true, args: []string{"-p", "{dir}/", "-c", "{config}"}, version: []string{"-v"}}
	s.binary, s.why = fromSystem("nginx")
	s.config = func(dir, addr string) string {
		return `worker_processes auto;
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
  default_type ` + binaryType + `;
  server {
    listen ` + addr + `;
    root ` + filepath.Join(dir, "static") + `;
    location ~ /manifests/ { default_type ` + manifestType + `; }
  }
}
`
	}
	return s
}

// zotSpec is zot with its defaults, or with blobs written through to the disk.
func zotSpec(name string, commit bool) *spec {
	s := &spec{name: name, singlePost: true, args: []string{"serve", "{config}"}, ready: "/v2/", version: []string{"--version"}}
	s.binary, s.why = fromEnv("SLIPWAY_BENCH_ZOT")
	s.config = func(dir, addr string) string {
		host, port, _ := strings.Cut(addr, ":")
		storage := map[string]any{"rootDirectory": filepath.Join(dir, "root"), "gc": true, "dedupe": true}
		if commit {
			storage["commit"] = true
		}
		return string(mustJSON(map[string]any{
			"distSpecVersion": "1.1.1",
			"storage":         storage,
			"http":            map[string]any{"address": host, "port": port},
			"log":             map[string]any{"level": "error", "output": filepath.Join(dir, "zot.log")},
		}))
	}
	return s
}

// distributionSpec is Distribution with its cache of descriptors, without
// access log and without the export of traces, which version 3 has on.
func distributionSpec(name string) *spec {
	return &spec{
		name: name,
		config: func(dir, addr string) string {
			return `version: 0.1
log: {level: error, accesslog: {disabled: true}}
storage:
  cache: {blobdescriptor: inmemory}
  filesystem: {rootdirectory: ` + filepath.Join(dir, "root") + `}
  delete: {enabled: true}
http: {addr: "` + addr + `"}
`
		},
		args: []string{"serve", "{config}"}, ready: "/v2/", version: []string{"--version"},
		env: []string{"OTEL_TRACES_EXPORTER=none"},
	}
}

// readVersion asks the program what it is, and reads from it what it was built
// with.
func (s *spec) readVersion(ctx context.Context) string {
	var parts []string
	out, err := exec.CommandContext(ctx, s.binary, s.version...).CombinedOutput()
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if err == nil && !strings.HasPrefix(line, "{") { // a line of a log says nothing to a reader
		parts = append(parts, strings.TrimPrefix(line, s.binary+" "))
	}
	if info, err := buildinfo.ReadFile(s.binary); err == nil {
		if len(parts) == 0 {
			parts = append(parts, info.Main.Path+" "+info.Main.Version)
		}
		parts = append(parts, "built with "+info.GoVersion)
	}
	if len(parts) == 0 {
		return "version unknown"
	}
	return strings.Join(parts, ", ")
}

// server is a running server with a directory of its own.
type server struct {
	*spec
	dir, addr string
	debug     string
	process   *proc.Process
	// http pulls and push pushes.
	http *http.Client
	push *wire.Client
}

const (
	readyTimeout = 60 * time.Second
	stopTimeout  = 20 * time.Second
)

// startServer starts a server on a directory, new or used before, and returns
// when it is ready.
func startServer(ctx context.Context, sp *spec, dir string) (*server, error) {
	s := &server{spec: sp, dir: dir}
	for _, d := range []string{dir, filepath.Join(dir, "root"), filepath.Join(dir, "static")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	var err error
	// A port can be taken between the look for it and the server's start.
	for range 3 {
		if err = s.launch(ctx); err == nil || !strings.Contains(s.log(), "address already in use") {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("start %s: %w; it printed:\n%s", s.name, err, s.log())
	}
	s.http = &http.Client{
		Timeout: 2 * time.Minute,
		Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true,
			ReadBufferSize: 64 << 10, WriteBufferSize: 64 << 10},
	}
	s.push = wire.New(s.addr)
	return s, nil
}

func (s *server) launch(ctx context.Context) (err error) {
	if s.addr, err = slipway.FindAddr(); err != nil {
		return err
	}
	if s.debug, err = slipway.FindAddr(); err != nil {
		return err
	}
	config := filepath.Join(s.dir, "config")
	if err := os.WriteFile(config, []byte(s.config(s.dir, s.addr)), 0o600); err != nil {
		return err
	}
	var args []string
	for _, a := range s.args {
		args = append(args, strings.NewReplacer("{config}", config, "{dir}", s.dir, "{addr}", s.addr, "{debug}", s.debug).Replace(a))
	}
	cmd := exec.Command(s.binary, args...)
	cmd.Dir = s.dir
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir}, s.env...)
	if s.process, err = proc.Launch(cmd, filepath.Join(s.dir, "output")); err != nil {
		return err
	}
	if err := s.waitReady(ctx); err != nil {
		s.process.Kill()
		return err
	}
	return nil
}

// waitReady asks every millisecond until the server says that it is ready.
func (s *server) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	addr := s.addr
	if s.debugReady {
		addr = s.debug
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+s.ready, nil)
		if err != nil {
			return err
		}
		if resp, err := client.Do(req); err == nil {
			resp.Body.Close()
			// A web server without a page for it is ready all the same.
			if resp.StatusCode == http.StatusOK || s.static {
				return nil
			}
		}
		select {
		case <-s.process.Exited():
			return fmt.Errorf("it ended: %s", s.process.State())
		case <-ctx.Done():
			return errors.New("it was not ready in time")
		case <-time.After(time.Millisecond):
		}
	}
}

// log returns the end of what the server printed.
func (s *server) log() string {
	if s.process == nil {
		return ""
	}
	return s.process.Log(4096)
}

// stop ends the server. Its directory stays.
func (s *server) stop() {
	s.http.CloseIdleConnections()
	s.push.Close()
	_ = s.process.Stop(stopTimeout) // how it ends is its own business: some exit with an error
}

// memory returns the server's resident set and the largest it has had, in
// bytes.
func (s *server) memory() (rss, peak int64, err error) {
	pids, err := measure.Family(s.process.Pid())
	if err != nil {
		return 0, 0, err
	}
	return measure.Memory(pids)
}
