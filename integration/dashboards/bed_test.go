package dashboards

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/node"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/wire"
	"example.org/slipway/internal/backendtest"
)

// configuration switches on everything that has its own metrics: an object store, cache and
// prefetch, redirects, a webhook, an upstream, volumes. The cache's memory is small, so that blobs
// move on to its disk.
const configuration = `version: 0.1
log: {accesslog: {disabled: true}}
storage:
  s3: {regionendpoint: "http://%[1]s", region: %[2]s, bucket: %[3]s, accesskey: %[4]s, secretkey: %[5]s, forcepathstyle: true}
  blob_cache: {ram: 2MiB, ssd: 64MiB, large: 1MiB, write_through: false}
  redirect: {mode: never, rules: [{repositories: ["models/**"], mode: always}]}
  gc: {interval: 2s}
  namespaces: [{repositories: ["**"]}]
notifications: {endpoints: [{name: ci, url: "%[6]s"}]}
proxy: {upstreams: [{name: up.example.com, url: "http://%[7]s", ttl: 1s}]}
replication: [{name: up, url: "http://%[7]s", repositories: ["none/**"]}]
volumes: {driver: file, file: {dir: "%[8]s"}, build: push}
`

// bed is a registry with an upstream, and what makes traffic for it.
type bed struct {
	t                     *testing.T
	server, upstream      *slipway.Server
	agentAddr, replayAddr string

	mu  sync.Mutex
	rng *rand.ChaCha8
}

func newBed(t *testing.T) *bed {
	t.Helper()
	b := &bed{t: t, rng: rand.NewChaCha8([32]byte{7}), agentAddr: slipway.FreeAddr(t), replayAddr: slipway.FreeAddr(t)}
	b.upstream = slipway.Start(t, t.TempDir(), nil)
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }))
	t.Cleanup(hook.Close)
	s3 := backendtest.S3(t)
	b.server = slipway.Start(t, t.TempDir(), &slipway.Options{Config: fmt.Sprintf(configuration,
		s3.Endpoint, s3.Region, s3.Bucket(t), s3.AccessKey, s3.SecretKey, hook.URL, b.upstream.Addr, t.TempDir())})
	b.server.Run("backup", filepath.Join(t.TempDir(), "backup"))
	return b
}

func (b *bed) random(size int) []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	data := make([]byte, size)
	_, _ = b.rng.Read(data)
	return data
}

// image returns an image whose layer has files that are in no other image.
func (b *bed) image(files, size int) *imagetest.Bundle {
	a := new(imagetest.Archive).Dir("files/")
	for i := range files {
		data := b.random(size)
		a.Add(tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("files/%d", i)}, data)
	}
	return imagetest.Compose(runtime.GOARCH, map[string]any{}, []imagetest.Layer{a.Layer()})
}

// round does a little of everything that clients do.
func (b *bed) round(ctx context.Context, n int) error {
	server, upstream := b.server.Client, b.upstream.Client
	app, mirrored := fmt.Sprintf("team%d/app", n%3), b.image(4, 60_000)
	if err := b.image(4, 60_000).Push(ctx, server, app, "latest"); err != nil {
		return err
	}
	if err := mirrored.Push(ctx, upstream, "library/app", "latest"); err != nil {
		return err
	}
	for range 3 { // first uncached, then from the cache
		if _, err := server.CheckImage(ctx, app, "latest"); err != nil {
			return err
		}
		if _, err := server.CheckImage(ctx, "up.example.com/library/app", mirrored.Top.Digest); err != nil {
			return err
		}
	}
	if _, err := server.CheckImage(ctx, "up.example.com/library/app", "latest"); err != nil {
		return err
	}
	model, err := server.PushBlob(ctx, "models/one", b.random(200_000))
	if err != nil {
		return err
	}
	if err := follow(ctx, "http://"+b.server.Addr+"/v2/models/one/blobs/"+model, model); err != nil {
		return err
	}
	for _, path := range []string{"/v2/" + app + "/manifests/none", "/v2/up.example.com/none/manifests/latest", "/v2/" + app + "/tags/list"} {
		if _, err := server.Do(ctx, http.MethodGet, path, nil, nil); err != nil {
			return err
		}
	}
	return server.DeleteManifest(ctx, app, "latest")
}

// follow fetches a blob from the object store, where the registry sends it.
func follow(ctx context.Context, url, digest string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if got := wire.Digest(data); got != digest || resp.Request.URL.String() == url {
		return fmt.Errorf("GET %s: status %d from %s, %s with %d bytes", url, resp.StatusCode, resp.Request.URL.Host, got, len(data))
	}
	return nil
}

// startTraffic runs rounds until the end of the test, or until something fails.
func (b *bed) startTraffic() {
	ctx, cancel := context.WithCancel(b.t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			if err := b.round(ctx, n); err != nil && ctx.Err() == nil {
				b.t.Errorf("round %d: %v", n, err)
				return
			}
			select {
			case <-time.After(100 * time.Millisecond): // leaves the machine to other work
			case <-ctx.Done():
			}
		}
	})
	b.t.Cleanup(func() { cancel(); done.Wait() })
}

// startAgent uses images on a node: one before the agent is first scraped, and one afterwards, so
// that its counters are seen to move.
func (b *bed) startAgent(m *monitor) {
	b.t.Helper()
	a := node.Start(b.t, "metrics: {addr: '"+b.agentAddr+"'}\npeers: {listen: '"+slipway.FreeAddr(b.t)+"'}\n")
	b.use(a, "first")
	proc.Poll(b.t, patience, "scrape of the agent", func() bool {
		files, err := m.values("slipway_agent_cache_files > 0")
		return err == nil && len(files) > 0
	})
	b.use(a, "second")
}

// use mounts an image and reads all of it, partly before it has arrived.
func (b *bed) use(a *node.Agent, tag string) {
	b.t.Helper()
	if err := b.image(60, 20_000).Push(b.t.Context(), b.server.Client, "node/app", tag); err != nil {
		b.t.Fatal(err)
	}
	var dir string
	proc.Poll(b.t, patience, "conversion of an image", func() bool {
		var err error
		if dir, err = os.MkdirTemp(filepath.Dir(a.Root), "mnt"); err != nil { // unmounted with the agent
			b.t.Fatal(err)
		}
		_, err = a.Try("mount", b.server.Addr+"/node/app:"+tag, dir)
		return err == nil
	})
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		_, err = os.ReadFile(path)
		return err
	})
	if err != nil {
		b.t.Errorf("read a mounted image: %v", err)
	}
}

// startReplay replays a generated trace for a while.
func (b *bed) startReplay() {
	b.t.Helper()
	dir := b.t.TempDir()
	store := filepath.Join(dir, "store")
	if out, err := slipway.Command(b.t, "trace", "generate", "--zone", "dal", "--requests", "2000", "--seed", "3", "-o", store); err != nil {
		b.t.Fatalf("make a trace: %v\n%s", err, out)
	}
	cmd := exec.Command(slipway.Binary(b.t), "trace", "replay", store, "-o", filepath.Join(dir, "result"), "--target", "it=http://"+b.server.Addr,
		"--rate", "50", "--speed", "100000", "--max-size", "20000", "--max-lag", "1h", "--metrics", b.replayAddr, "--quiet", "--no-docker-config", "--repo-prefix", "replay/")
	proc.Start(b.t, cmd, filepath.Join(dir, "log"))
}
