// Package rival starts Slipway and the servers that it is measured against, as processes on free
// loopback ports. Each runs with its defaults, without access log, TLS and passwords.
package rival

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
)

// Spec is a kind of server to measure.
type Spec struct {
	Name string
	// Binary is the program's path. If it is empty, the program is missing, and Why says why.
	Binary, Why string
	// Static servers have no API: content is written into their root.
	Static bool
	// Quick servers store thousands of tags in seconds.
	Quick bool
	// SinglePost servers accept a blob in one POST.
	SinglePost bool
	// config is the configuration file for a directory and an address.
	config func(dir, addr string) string
	// args are the arguments of the program. "{config}", "{dir}", "{addr}" and "{debug}", a second
	// address, are replaced.
	args []string
	// ready is the path that answers 200 when the server is ready. debugReady says that
	// this path is on the second address.
	ready      string
	debugReady bool
	env        []string
	version    []string // arguments that print the version
}

func fromEnv(name string) (binary, why string) {
	path := os.Getenv(name)
	if path == "" {
		return "", name + " is not set"
	}
	if _, err := os.Stat(path); err != nil {
		return "", name + ": " + err.Error()
	}
	path, err := filepath.Abs(path) // servers have their own working directories
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

// Slipway returns a build of Slipway with its defaults. A quiet build writes no access
// log, because the other servers write none.
func Slipway(name, binary string, quiet bool) *Spec {
	return &Spec{
		Name: name, Binary: binary, SinglePost: true, Quick: true,
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

// SlipwayMirror returns a build of Slipway as a mirror of a registry at host:port. The registry's
// repositories begin with the given name in the mirror. Like other mirrors, it writes no access log
// and converts nothing.
func SlipwayMirror(name, binary, upstreamName, upstream string) *Spec {
	s := Slipway(name, binary, true)
	s.config = func(string, string) string {
		return fmt.Sprintf("version: 0.1\nlog: {level: warn, accesslog: {disabled: true}}\nstorage: {delete: {enabled: true}}\ngear: {convert: \"off\"}\n"+
			"proxy:\n  upstreams:\n    - {name: %s, url: \"http://%s\"}\n", upstreamName, upstream)
	}
	return s
}

// Ociregistry returns the server named by SLIPWAY_BENCH_OCIREGISTRY, as a mirror of a registry at
// host:port. The registry's repositories begin with this address in the mirror.
func Ociregistry(name, upstream string) *Spec {
	s := &Spec{Name: name, args: []string{"--config-file", "{config}", "serve"}, ready: "/v2/", version: []string{"version"}}
	s.Binary, s.Why = fromEnv("SLIPWAY_BENCH_OCIREGISTRY")
	s.config = func(dir, addr string) string {
		host, port, _ := strings.Cut(addr, ":")
		return fmt.Sprintf("logLevel: error\nimagePath: %s\nhost: %s\nport: %s\nregistries:\n  - {name: %q, description: upstream, scheme: http}\n",
			filepath.Join(dir, "root"), host, port, upstream)
	}
	return s
}

// Nginx returns a web server that serves files as they are, without the API.
func Nginx(name string) *Spec {
	s := &Spec{Name: name, Static: true, Quick: true, args: []string{"-p", "{dir}/", "-c", "{config}"}, ready: "/ready", version: []string{"-v"}}
	s.Binary, s.Why = fromSystem("nginx")
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
  default_type application/octet-stream;
  server {
    listen ` + addr + `;
    root ` + filepath.Join(dir, "static") + `;
    location ~ /manifests/ { default_type application/vnd.oci.image.manifest.v1+json; }
  }
}
`
	}
	return s
}

// Zot returns the zot named by SLIPWAY_BENCH_ZOT, with its defaults, or with blobs written through
// to the disk.
func Zot(name string, commit bool) *Spec {
	s := &Spec{Name: name, SinglePost: true, args: []string{"serve", "{config}"}, ready: "/v2/", version: []string{"--version"}}
	s.Binary, s.Why = fromEnv("SLIPWAY_BENCH_ZOT")
	s.config = func(dir, addr string) string {
		host, port, _ := strings.Cut(addr, ":")
		return fmt.Sprintf(`{"distSpecVersion": "1.1.1",
 "storage": {"rootDirectory": %q, "gc": true, "dedupe": true, "commit": %t},
 "http": {"address": %q, "port": %q},
 "log": {"level": "error", "output": %q}}
`, filepath.Join(dir, "root"), commit, host, port, filepath.Join(dir, "zot.log"))
	}
	return s
}

// Spegel returns the Spegel named by SLIPWAY_BENCH_SPEGEL. It runs beside a containerd, so package peers
// starts it.
func Spegel(name string) *Spec {
	s := &Spec{Name: name, version: []string{"version"}}
	s.Binary, s.Why = fromEnv("SLIPWAY_BENCH_SPEGEL")
	return s
}

// Distribution3 returns the Distribution named by SLIPWAY_BENCH_DISTRIBUTION, set up like
// [Distribution2].
func Distribution3(name string) *Spec {
	s := distribution(name)
	s.Binary, s.Why = fromEnv("SLIPWAY_BENCH_DISTRIBUTION")
	return s
}

// Distribution2 returns the Distribution that Debian packages as docker-registry. It has its cache
// of descriptors, no access log, and no export of traces, which version 3 enables by default.
func Distribution2(name string) *Spec {
	s := distribution(name)
	s.Binary, s.Why = fromSystem("docker-registry")
	return s
}

func distribution(name string) *Spec {
	return &Spec{
		Name: name,
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

// Version runs the program to get its version, and reads from the binary what it was built with.
func (s *Spec) Version(ctx context.Context) string {
	var parts []string
	out, err := exec.CommandContext(ctx, s.Binary, s.version...).CombinedOutput()
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if err == nil && !strings.HasPrefix(line, "{") { // a line of a log is useless to a reader
		parts = append(parts, strings.TrimPrefix(line, s.Binary+" "))
	}
	if info, err := buildinfo.ReadFile(s.Binary); err == nil {
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

// Server is a running server with its own directory.
type Server struct {
	*Spec
	// Dir holds its data, configuration and output.
	Dir string
	// Addr is its host:port.
	Addr    string
	Process *proc.Process

	debug string
}

const (
	readyTimeout = 60 * time.Second
	stopTimeout  = 20 * time.Second
)

// Start starts a server on a directory, which may be new or used, and returns when it is ready.
func Start(ctx context.Context, sp *Spec, dir string) (*Server, error) {
	s := &Server{Spec: sp, Dir: dir}
	for _, d := range []string{dir, filepath.Join(dir, "root"), filepath.Join(dir, "static")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	if sp.Static {
		if err := os.WriteFile(filepath.Join(dir, "static", "ready"), nil, 0o644); err != nil {
			return nil, err
		}
	}
	var err error
	// Somebody can take the port after it was found free and before the server starts.
	for range 3 {
		if err = s.launch(ctx); err == nil || !strings.Contains(s.log(), "address already in use") {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("start %s: %w; it printed:\n%s", s.Name, err, s.log())
	}
	return s, nil
}

func (s *Server) launch(ctx context.Context) (err error) {
	if s.Addr, err = slipway.FindAddr(); err != nil {
		return err
	}
	if s.debug, err = slipway.FindAddr(); err != nil {
		return err
	}
	config := filepath.Join(s.Dir, "config")
	if err := os.WriteFile(config, []byte(s.config(s.Dir, s.Addr)), 0o600); err != nil {
		return err
	}
	var args []string
	for _, a := range s.args {
		args = append(args, strings.NewReplacer("{config}", config, "{dir}", s.Dir, "{addr}", s.Addr, "{debug}", s.debug).Replace(a))
	}
	cmd := exec.Command(s.Binary, args...)
	cmd.Dir = s.Dir
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.Dir}, s.env...)
	if s.Process, err = proc.Launch(cmd, filepath.Join(s.Dir, "output")); err != nil {
		return err
	}
	if err := s.waitReady(ctx); err != nil {
		s.Process.Kill()
		return err
	}
	return nil
}

// waitReady asks until the server reports that it is ready.
func (s *Server) waitReady(ctx context.Context) error {
	addr := s.Addr
	if s.debugReady {
		addr = s.debug
	}
	return s.Process.AwaitURL(ctx, "http://"+addr+s.ready, readyTimeout)
}

// log returns the end of what the server printed.
func (s *Server) log() string {
	if s.Process == nil {
		return ""
	}
	return s.Process.Log(4096)
}

// Stop ends the server. Its directory stays.
func (s *Server) Stop() {
	_ = s.Process.Stop(stopTimeout) // how it ends does not matter: some exit with an error
}

// Memory returns the server's resident set and the largest it has had, in
// bytes.
func (s *Server) Memory() (rss, peak int64, err error) {
	pids, err := measure.Family(s.Process.Pid())
	if err != nil {
		return 0, 0, err
	}
	return measure.Memory(pids)
}
