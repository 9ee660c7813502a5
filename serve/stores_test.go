package serve_test

import (
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"example.org/slipway/config"
	"example.org/slipway/internal/backendtest"
	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
	"example.org/slipway/oci/ocitest"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/s3store"
	"example.org/slipway/registry/storage"
	"example.org/slipway/serve"
	"example.org/slipway/serve/dataroot"
)

// counter is a proxy before an object store that counts the requests by method and path.
type counter struct {
	addr string
	mu   sync.Mutex
	seen map[string]int
}

// countRequests starts a counter before a server.
func countRequests(t testing.TB, endpoint string) *counter {
	t.Helper()
	c := &counter{seen: map[string]int{}}
	transport := &http.Transport{DisableCompression: true}
	proxy := &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: endpoint})
			r.Out.Host = r.In.Host // the signature covers the host
		},
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		c.seen[r.Method+" "+r.URL.Path]++
		c.mu.Unlock()
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(func() { srv.Close(); transport.CloseIdleConnections() })
	c.addr = srv.Listener.Addr().String()
	return c
}

// reads returns how often a blob was read.
func (c *counter) reads(digest string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for what, k := range c.seen {
		if strings.HasPrefix(what, "GET ") && strings.HasSuffix(what, strings.TrimPrefix(digest, "sha256:")+"/data") {
			n += k
		}
	}
	return n
}

// all is how many requests there were, with those of reset.
func (c *counter) all() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.seen {
		n += k
	}
	return n
}

// s3Yaml returns a storage section with a new bucket. addr is the address of the server or of a
// proxy before it. more holds further keys of the section.
func s3Yaml(t testing.TB, s *backendtest.S3Server, addr, more string) string {
	t.Helper()
	return s3YamlOf(s, s.Bucket(t), addr, more)
}

func s3YamlOf(s *backendtest.S3Server, bucket, addr, more string) string {
	return fmt.Sprintf("storage:\n  s3: {regionendpoint: \"http://%s\", accesskey: %s, secretkey: %s, bucket: %s, region: %s}\n%s",
		addr, s.AccessKey, s.SecretKey, bucket, s.Region, more)
}

// withRAM gives a storage section a memory cache that holds everything the tests use.
const withRAM = "  blob_cache: {ram: 64MiB, large: 32MiB}\n"

// layerOf makes a unique layer of the given size in bytes.
func layerOf(size int) string {
	return strings.Repeat(rand.Text(), size/26+1)[:size]
}

// everyStore runs tests that take minutes on every store.
var everyStore = flag.Bool("every-store", false, "hold every store to the whole contract of a registry, which takes two minutes more")

// storeCase is a place for content.
type storeCase struct {
	name string
	// yaml returns a new storage section. It skips the test if the server is missing.
	yaml func(t testing.TB) string
	// quick is set if many registries can be made on the store in little time.
	quick bool
	// fixed is ocitest's FixedDigest.
	fixed bool
}

// storeCases returns all cases. Each server is started once.
func storeCases(t *testing.T) []storeCase {
	s3 := sync.OnceValue(func() *backendtest.S3Server { return backendtest.S3(t) })
	swift := sync.OnceValue(func() *backendtest.SwiftServer { return backendtest.Swift(t) })
	postgres := sync.OnceValue(func() *backendtest.PostgresServer { return backendtest.Postgres(t) })
	return []storeCase{
		{"s3", func(t testing.TB) string { return s3Yaml(t, s3(), s3().Endpoint, withRAM) }, true, true},
		{"s3 and PostgreSQL", func(t testing.TB) string {
			db := postgres().DSN(postgres().CreateDatabase(t))
			return s3Yaml(t, s3(), s3().Endpoint, withRAM+fmt.Sprintf("  catalog: {postgres: %q}\n", db))
		}, *everyStore, true},
		{"swift", func(t testing.TB) string {
			s := swift()
			return fmt.Sprintf("storage:\n  swift: {authurl: %q, username: %q, password: %q, container: %s}\n%s",
				s.AuthURL, s.User, s.Key, "c"+strings.ToLower(rand.Text()), withRAM)
		}, *everyStore, true},
		{"filesystem with a cache", func(t testing.TB) string {
			return "storage:\n  blob_cache: {ram: 64MiB, ssd: 256MiB, large: 32MiB}\n"
		}, true, false},
	}
}

// TestObjectStores checks that every function of a registry works on every store, and that the
// contents are there after a restart.
func TestObjectStores(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	for _, tc := range storeCases(t) {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			o := setup{yaml: tc.yaml(t), root: filepath.Join(t.TempDir(), "root")}
			s := start(t, o)
			small, large := layerOf(1000), layerOf(300<<10)
			s.pushImage("team/app", "small", small)
			d := s.pushImage("team/app", "large", large)
			check := func(s *instance) {
				t.Helper()
				if got := s.want(200, "GET", "/v2/team/app/manifests/large", "").header.Get("Docker-Content-Digest"); got != d {
					t.Errorf("the tag is at %s, want %s", got, d)
				}
				for _, content := range []string{small, large} {
					path := "/v2/team/app/blobs/" + digestOf(content)
					for range 2 { // from the store, and from the cache
						if got := s.want(200, "GET", path, "").body; got != content {
							t.Errorf("got %d bytes that are not the layer's %d", len(got), len(content))
						}
					}
					if got := s.want(206, "GET", path, "", header("Range", "bytes=500-899")).body; got != content[500:900] {
						t.Errorf("a range has %d bytes that are not the layer's", len(got))
					}
					s.want(200, "HEAD", path, "")
				}
				s.want(200, "GET", s.debug+"/readyz", "")
			}
			check(s)
			a, closeAdmin := openAdmin(t, s.cfg)
			if rep, err := a.Fsck(t.Context(), dataroot.FsckArgs{}, nil); err != nil || !rep.Clean() || rep.Contents == 0 {
				t.Errorf("fsck through the server: %+v, %v", rep.Problems, err)
			}
			closeAdmin()
			if err := s.stop(); err != nil {
				t.Fatal(err)
			}
			a, closeAdmin = openAdmin(t, s.cfg) // without a server
			if _, err := a.Backup(t.Context(), dataroot.BackupArgs{Dir: filepath.Join(t.TempDir(), "backup")}, nil); err != nil {
				t.Errorf("backup: %v", err)
			}
			if _, err := a.CacheStatus(t.Context()); err == nil {
				t.Error("a cache without a server has a status")
			}
			closeAdmin()
			s = start(t, o)
			check(s)
			s.want(202, "DELETE", "/v2/team/app/manifests/"+d, "")
			s.want(404, "GET", "/v2/team/app/manifests/large", "")
		})
	}
}

// TestStoreConformance checks the whole contract of a registry on every store behind a cache.
func TestStoreConformance(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	for _, tc := range storeCases(t) {
		if !tc.quick {
			continue // one store of each kind is quick enough for a test, but not many new ones of these
		}
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			ocitest.Run(t, func(t *testing.T) oci.Registry {
				s := start(t, setup{yaml: tc.yaml(t)})
				transport := &http.Transport{}
				t.Cleanup(transport.CloseIdleConnections)
				c, err := client.New(s.url, &client.Options{Transport: transport})
				if err != nil {
					t.Fatal(err)
				}
				return c
			}, &ocitest.Options{Remote: true, FixedDigest: tc.fixed})
		})
	}
}

// TestCacheReadsOnce checks that a blob is read from the store once, however often it is pulled. A
// blob that was just pushed is not read at all, unless that is switched off.
func TestCacheReadsOnce(t *testing.T) {
	t.Parallel()
	s3 := backendtest.S3(t)
	for _, through := range []bool{false, true} {
		c := countRequests(t, s3.Endpoint)
		s := start(t, setup{yaml: s3Yaml(t, s3, c.addr, fmt.Sprintf("  blob_cache: {ram: 64MiB, large: 32MiB, write_through: %t}\n  prefetch: {mode: off}\n", through))})
		layer := layerOf(200 << 10)
		d := digestOf(layer)
		s.pushImage("a", "v1", layer)
		before := c.reads(d) // for example reads of the conversion to Gear
		for range 3 {
			if got := s.want(200, "GET", "/v2/a/blobs/"+d, "").body; got != layer {
				t.Fatalf("got %d bytes that are not the layer's", len(got))
			}
		}
		want := 1
		if through {
			want = 0
		}
		if got := c.reads(d) - before; got != want {
			t.Errorf("write_through %t: the store was read %d times for three pulls, want %d", through, got, want)
		}
		a, _ := openAdmin(t, s.cfg)
		st, err := a.CacheStatus(t.Context())
		if err != nil || st.RAM.Entries == 0 || st.RAM.Hits < int64(3-want) || st.RAM.Limit == 0 {
			t.Errorf("status %+v, %v", st, err)
		}
		// A check reads the store and does not rely on the cache.
		before = c.reads(d)
		if rep, err := a.Fsck(t.Context(), dataroot.FsckArgs{}, nil); err != nil || !rep.Clean() {
			t.Errorf("fsck: %+v, %v", rep, err)
		}
		if c.reads(d) == before {
			t.Error("fsck did not read the layer from the store")
		}
		dropped, err := a.DropCached(t.Context(), dataroot.CacheDropArgs{Digests: []oci.Digest{oci.Digest(d)}})
		if err != nil || dropped.Dropped != 1 {
			t.Errorf("drop: %+v, %v", dropped, err)
		}
		if _, err := a.DropCached(t.Context(), dataroot.CacheDropArgs{Digests: []oci.Digest{"nonsense"}}); err == nil {
			t.Error("what is no digest was dropped")
		}
		before = c.reads(d)
		rep, err := a.WarmCache(t.Context(), dataroot.CacheWarmArgs{Images: []string{"a:v1"}}, nil)
		if err != nil || rep.Layers != 1 || rep.Held != 0 || rep.Bytes != int64(len(layer)) || c.reads(d) != before+1 {
			t.Errorf("warm: %+v, %v, %d reads", rep, err, c.reads(d)-before)
		}
		if rep, err = a.WarmCache(t.Context(), dataroot.CacheWarmArgs{Images: []string{"a@" + digestOf(imageOf(layer))}, Platform: "linux/amd64"}, nil); err != nil || rep.Held != 1 {
			t.Errorf("warm again: %+v, %v", rep, err)
		}
		if _, err := a.WarmCache(t.Context(), dataroot.CacheWarmArgs{Images: []string{"a:none"}}, nil); err == nil {
			t.Error("an image that is not here was warmed")
		}
	}
}

// TestPrefetchReadsAhead checks that a client that got a manifest finds its layers in the cache.
func TestPrefetchReadsAhead(t *testing.T) {
	t.Parallel()
	s3 := backendtest.S3(t)
	c := countRequests(t, s3.Endpoint)
	s := start(t, setup{yaml: s3Yaml(t, s3, c.addr, "  blob_cache: {ram: 64MiB, large: 32MiB, write_through: false}\n")})
	layer := layerOf(200 << 10)
	d := digestOf(layer)
	s.pushImage("a", "v1", layer)
	before := c.reads(d)
	s.want(200, "HEAD", "/v2/a/manifests/v1", "")
	s.want(200, "GET", "/v2/a/manifests/v1", "")
	a, _ := openAdmin(t, s.cfg)
	var st dataroot.CacheStatus
	poll(t, "the layer is fetched ahead", func() bool {
		var err error
		st, err = a.CacheStatus(t.Context())
		return err == nil && st.Prefetch != nil && st.Prefetch.Fetched == 1
	})
	if got := s.want(200, "GET", "/v2/a/blobs/"+d, "").body; got != layer {
		t.Fatalf("got %d bytes that are not the layer's", len(got))
	}
	if got := c.reads(d) - before; got != 1 {
		t.Errorf("the store was read %d times, want once", got)
	}
	if st, err := a.CacheStatus(t.Context()); err != nil || st.Prefetch.Hits != 1 || st.Prefetch.Used != 1 {
		t.Errorf("prefetching %+v, %v; want a hit", st.Prefetch, err)
	}
}

// TestStartAsksLittle checks that a start costs the same whatever the bucket holds, because it does
// not look at the objects.
func TestStartAsksLittle(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	s3 := backendtest.S3(t)
	c := countRequests(t, s3.Endpoint)
	o := setup{yaml: s3Yaml(t, s3, c.addr, withRAM), root: filepath.Join(t.TempDir(), "root")}
	s := start(t, o)
	for i := range 30 {
		s.pushImage(fmt.Sprintf("a%d", i), "v1", layerOf(100<<10))
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	before := c.all()
	s = start(t, o)
	s.want(200, "GET", s.debug+"/readyz", "")
	const most = 12 // to find the bucket, its abilities and whether it answers
	if n := c.all() - before; n > most {
		t.Errorf("a start took %d requests to the store, want at most %d: %v", n, most, c.seen)
	}
}

// TestUnknownBucket checks that a bucket of another catalogue is not served and that the error says
// why.
func TestUnknownBucket(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	s3 := backendtest.S3(t)
	o := setup{yaml: s3Yaml(t, s3, s3.Endpoint, "")}
	s := start(t, o)
	s.pushImage("a", "v1", layerOf(100<<10))
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	o.root = filepath.Join(t.TempDir(), "another")
	_, err := serve.New(t.Context(), configure(t, o), nil)
	if err == nil || !strings.Contains(err.Error(), "the object store holds blobs, and the catalogue is empty") {
		t.Errorf("got %v, want that the catalogue is another one", err)
	}
}

// TestKilledInFirstPush checks a server that was killed in its very first push. It left an object
// that the catalogue knows only as intended. The server must start again without help.
func TestKilledInFirstPush(t *testing.T) {
	t.Parallel()
	s3 := backendtest.S3(t)
	bucket := s3.Bucket(t)
	o := setup{yaml: s3YamlOf(s3, bucket, s3.Endpoint, ""), root: filepath.Join(t.TempDir(), "root")}
	if err := os.MkdirAll(o.root, 0o700); err != nil {
		t.Fatal(err)
	}
	cat, err := catalog.Open(t.Context(), filepath.Join(o.root, registry.CatalogFile), nil)
	if err != nil {
		t.Fatal(err)
	}
	layer := layerOf(100 << 10)
	err = cat.Uploads.Save(t.Context(), catalog.Upload{ID: "0123456789abcdef", Repo: "a", Intent: oci.Digest(digestOf(layer))})
	if err := errors.Join(err, cat.Close()); err != nil {
		t.Fatal(err)
	}
	store, err := s3store.New(t.Context(), s3store.Options{Endpoint: s3.Endpoint, Bucket: bucket, Region: s3.Region, AccessKey: s3.AccessKey, SecretKey: s3.SecretKey})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	key := storage.BlobKey(oci.Digest(digestOf(layer)))
	if err := store.Put(t.Context(), key, []byte(layer), false); err != nil {
		t.Fatal(err)
	}
	s := start(t, o)
	if _, err := store.Stat(t.Context(), key); !errors.Is(err, objstore.ErrNotExist) {
		t.Errorf("the object that nobody recorded: got %v, want ErrNotExist", err)
	}
	s.pushImage("a", "v1", layer)
}

// TestPolicyNames checks that the configuration and the policies use the same words.
func TestPolicyNames(t *testing.T) {
	for _, name := range policyNames() {
		text := fmt.Sprintf("version: 0.1\nstorage: {blob_cache: {ram: 1MiB, ssd: 1MiB, ram_policy: %s, ssd_policy: %s}}", name, name)
		if _, _, err := config.Parse(strings.NewReader(text), nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
