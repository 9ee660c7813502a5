package mirrors

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
	"example.org/slipway/integration/internal/wire"
)

const (
	// These are the public upstream, which anybody may pull through the mirror, and the private
	// one, which only user may. The clients' names for them are not their addresses.
	public  = "docker.io"
	private = "registry.test"
	// user and password are valid at the private upstream and at the mirror. The mirror has them
	// from its configuration, and clients send them to it.
	user, password = "bob", "secret"
	// htpasswd is the entry for the user in both password files.
	htpasswd = user + ":$2y$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a\n"

	readyTimeout = time.Minute
)

// upstream is a registry that is mirrored.
type upstream struct {
	t       *testing.T
	addr    string
	client  *wire.Client
	process *proc.Process
}

// kill kills the upstream.
func (u *upstream) kill() { u.process.Kill() }

// push stores an image in the upstream.
func (u *upstream) push(repo, tag string, b *imagetest.Bundle) {
	u.t.Helper()
	if err := b.Push(u.t.Context(), u.client, repo, tag); err != nil {
		u.t.Fatal(err)
	}
}

// start starts a registry with a configuration for its directory and address.
func start(t *testing.T, program string, config func(dir, addr string) string, args ...string) *upstream {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "htpasswd"), []byte(htpasswd), 0o600); err != nil {
		t.Fatal(err)
	}
	u := &upstream{t: t, addr: slipway.FreeAddr(t)}
	file := filepath.Join(dir, "config")
	if err := os.WriteFile(file, []byte(config(dir, u.addr)), 0o600); err != nil {
		t.Fatal(err)
	}
	for i, a := range args {
		args[i] = strings.ReplaceAll(a, "{config}", file)
	}
	cmd := exec.Command(program, args...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "OTEL_TRACES_EXPORTER=none", "SLIPWAY_STORAGE_DELETE_ENABLED=true"}
	u.process = proc.Start(t, cmd, filepath.Join(dir, "log"))
	proc.Poll(t, readyTimeout, filepath.Base(program)+" to serve", func() bool {
		select {
		case <-u.process.Exited():
			t.Fatalf("%s ended: %s\n%s", program, u.process.State(), u.process.Log(8192))
		default:
		}
		resp, err := http.Get("http://" + u.addr + "/v2/")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusUnauthorized
	})
	u.client = wire.New(u.addr)
	t.Cleanup(u.client.Close)
	return u
}

// distribution starts a Distribution registry that everybody may use.
func distribution(t *testing.T) *upstream {
	t.Helper()
	return start(t, tool.System(t, "docker-registry"), func(dir, addr string) string {
		return fmt.Sprintf("version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\nstorage:\n  filesystem: {rootdirectory: %q}\n  delete: {enabled: true}\nhttp: {addr: %q}\n",
			filepath.Join(dir, "root"), addr)
	}, "serve", "{config}")
}

// guarded starts a registry that only the user may use: zot, or if that is missing another Slipway.
func guarded(t *testing.T) *upstream {
	t.Helper()
	zot := os.Getenv("SLIPWAY_BENCH_ZOT")
	var u *upstream
	if zot != "" {
		u = start(t, zot, func(dir, addr string) string {
			host, port, _ := strings.Cut(addr, ":")
			return fmt.Sprintf(`{"distSpecVersion": "1.1.1", "storage": {"rootDirectory": %q}, "log": {"level": "error"},
 "http": {"address": %q, "port": %q, "realm": "zot", "auth": {"htpasswd": {"path": %q}, "failDelay": 1}}}`,
				filepath.Join(dir, "root"), host, port, filepath.Join(dir, "htpasswd"))
		}, "serve", "{config}")
	} else {
		t.Log("SLIPWAY_BENCH_ZOT is not set: the private upstream is another Slipway")
		u = start(t, slipway.Binary(t), func(dir, addr string) string {
			return fmt.Sprintf("version: 0.1\nlog: {level: warn, accesslog: {disabled: true}}\nstorage: {root: %q}\nhttp: {addr: %q}\nauth: {htpasswd: {path: %q}}\n",
				filepath.Join(dir, "root"), addr, filepath.Join(dir, "htpasswd"))
		}, "serve", "--config", "{config}")
	}
	u.client = u.client.As(user, password)
	return u
}

// bed is a mirror of two upstreams.
type bed struct {
	public, private *upstream
	// mirror is asked by clients.
	mirror *slipway.Server
}

// newBed starts a mirror whose tags expire so soon that each pull asks the upstream again.
func newBed(t *testing.T) *bed {
	t.Helper()
	b := &bed{public: distribution(t), private: guarded(t)}
	passwords := filepath.Join(t.TempDir(), "htpasswd")
	if err := os.WriteFile(passwords, []byte(htpasswd), 0o600); err != nil {
		t.Fatal(err)
	}
	b.mirror = slipway.Start(t, t.TempDir(), &slipway.Options{Config: fmt.Sprintf(`version: 0.1
log: {level: warn, accesslog: {disabled: true}}
auth:
  htpasswd: {path: %q}
  access:
    - {repositories: ["%s/**"], subjects: [anonymous, "*"], actions: [pull]}
    - {repositories: ["%s/**"], subjects: [%s], actions: [pull]}
proxy:
  default: %[2]s
  upstreams:
    - {name: %[2]s, url: "http://%[5]s", ttl: 1ms, negative_ttl: 1ms}
    - {name: %[3]s, url: "http://%[6]s", ttl: 1ms, negative_ttl: 1ms, username: %[4]s, password: %[7]s}
`, passwords, public, private, user, b.public.addr, b.private.addr, password)})
	return b
}
