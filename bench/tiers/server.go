package tiers

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
)

// server is a running slipway serve.
type server struct {
	Name    string
	Addr    string
	Process *proc.Process
	// Ready is the time from the start until the server reported that it was ready.
	Ready time.Duration

	b     *bench
	dir   string
	debug string
	http  *http.Client
}

const (
	readyTimeout = 2 * time.Minute
	stopTimeout  = 30 * time.Second
	accessLog    = "access.log"
)

// serve starts a registry on a directory, which may be new or used. storage is the
// indented part of the configuration below "storage:", and may be followed by further
// sections. Unless storage says otherwise, the registry keeps no manifests and small
// blobs in memory. The registry writes its access log as a trace.
func (b *bench) serve(ctx context.Context, name, dir, storage string) (*server, error) {
	return b.serveAt(ctx, name, dir, storage, "")
}

// serveAt is like serve, at an address that was free a moment ago; an empty address means any.
func (b *bench) serveAt(ctx context.Context, name, dir, storage, addr string) (*server, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	r := &server{Name: name, b: b, dir: dir}
	r.http = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}}
	var err error
	for range 3 { // somebody can take a port after it was found free and before the start
		if err = r.launch(ctx, storage, addr); err == nil || r.Process == nil || !strings.Contains(r.Process.Log(4096), "address already in use") {
			break
		}
	}
	if err != nil {
		printed := ""
		if r.Process != nil {
			printed = r.Process.Log(4096)
		}
		return nil, fmt.Errorf("start %s: %w; it printed:\n%s", name, err, printed)
	}
	return r, nil
}

func (r *server) launch(ctx context.Context, storage, addr string) (err error) {
	if r.Addr = addr; addr == "" {
		if r.Addr, err = slipway.FindAddr(); err != nil {
			return err
		}
	}
	if r.debug, err = slipway.FindAddr(); err != nil {
		return err
	}
	config := filepath.Join(r.dir, "config.yml")
	if !strings.Contains(storage, "  memory:") {
		storage = "  memory: 0\n" + storage
	}
	text := fmt.Sprintf("version: 0.1\nlog:\n  level: warn\n  accesslog: {file: %q, format: trace}\nstorage:\n%s", filepath.Join(r.dir, accessLog), storage)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	args := []string{"serve", "--config", config, "--addr", r.Addr, "--debug-addr", r.debug}
	if !strings.Contains(storage, inMemory().driver) {
		args = append(args, "--root", filepath.Join(r.dir, "root"))
	}
	cmd := exec.Command(r.b.Binary, args...)
	cmd.Dir = r.dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + r.dir}
	began := time.Now()
	if r.Process, err = proc.Launch(cmd, filepath.Join(r.dir, "output")); err != nil {
		return err
	}
	if err := r.Process.AwaitURL(ctx, "http://"+r.debug+"/readyz", readyTimeout); err != nil {
		r.Process.Kill()
		return err
	}
	r.Ready = time.Since(began)
	return nil
}

// stop stops the registry. Its directory stays.
func (r *server) stop() {
	r.http.CloseIdleConnections()
	if err := r.Process.Stop(stopTimeout); err != nil {
		r.b.Logf("stop %s: %v; it printed:\n%s", r.Name, err, r.Process.Log(2048))
	}
}

// metrics returns the registry's metrics with a prefix, by name and labels as written.
func (r *server) metrics(ctx context.Context, prefix string) (map[string]float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.debug+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	resp, err := r.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET /metrics: status %d", resp.StatusCode)
	}
	return parseMetrics(resp.Body, prefix)
}

// parseMetrics parses the Prometheus text format.
func parseMetrics(from io.Reader, prefix string) (map[string]float64, error) {
	out := map[string]float64{}
	for lines := bufio.NewScanner(from); lines.Scan(); {
		line := lines.Text()
		if !strings.HasPrefix(line, prefix) {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		if at < 0 {
			continue
		}
		v, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("parse metric %q: %w", line, err)
		}
		out[line[:at]] = v
	}
	return out, nil
}

// push uploads a blob.
func (r *server) push(ctx context.Context, repo string, c measure.Content) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+r.Addr+"/v2/"+repo+"/blobs/uploads/?digest="+c.Digest, c.Reader())
	if err != nil {
		return err
	}
	req.ContentLength = c.Size
	req.Header.Set("Content-Type", "application/octet-stream")
	resp, err := r.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		var b bytes.Buffer
		_, _ = b.ReadFrom(io.LimitReader(resp.Body, 500))
		return fmt.Errorf("push of %s: status %d: %s", c.Digest, resp.StatusCode, b.String())
	}
	return nil
}

func (r *server) url(repo, digest string) string {
	return "http://" + r.Addr + "/v2/" + repo + "/blobs/" + digest
}

// meter begins to measure what the registry uses.
func (r *server) meter() (*measure.Meter, error) { return measure.StartMeter(r.Process.Pid()) }
