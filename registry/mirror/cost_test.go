package mirror_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/oci"
	"example.org/slipway/registry/mirror"
	"example.org/slipway/registry/server"
)

// canned answers requests from a table and uses almost no CPU.
type canned map[string][]byte

func (c canned) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, ok := c[r.URL.Path]
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	h := w.Header()
	h["Content-Length"] = []string{fmt.Sprint(len(b))}
	h["Docker-Content-Digest"] = []string{string(oci.SHA256(b))}
	switch {
	case strings.Contains(string(b), oci.MediaTypeOCIIndex):
		h["Content-Type"] = []string{oci.MediaTypeOCIIndex}
	case strings.Contains(r.URL.Path, "/manifests/"):
		h["Content-Type"] = []string{oci.MediaTypeOCIManifest}
	default:
		h["Content-Type"] = []string{oci.MediaTypeOctetStream}
	}
	w.Write(b)
}

// BenchmarkColdPull pulls images over HTTP that are not here. Each has eight objects: an index, a
// manifest, a config and five blobs of 2 KB. BenchmarkCachedPull pulls one image repeatedly,
// through the mirror and from the store alone. The CPU time is that of the whole process, including
// the upstream and the client.
func BenchmarkColdPull(b *testing.B) {
	b.StopTimer()
	c := canned{}
	var images [][]string
	for i := range b.N {
		images = append(images, c.image(fmt.Sprintf("app-%d", i)))
	}
	srv := httptest.NewServer(c)
	defer srv.Close()
	m := newBench(b, srv.URL)
	pull(b, srv.URL+"/v2/", images[:1]) // opens connections
	before := cpu()
	b.StartTimer()
	pull(b, m+"/v2/origin/", images)
	b.StopTimer()
	through := cpu() - before
	before = cpu()
	pull(b, srv.URL+"/v2/", images)
	direct := cpu() - before
	b.ReportMetric(float64(through.Microseconds())/float64(b.N), "cpu-µs/pull")
	b.ReportMetric(float64((through-direct).Microseconds())/float64(b.N), "mirror-cpu-µs/pull")
}

func BenchmarkCachedPull(b *testing.B) {
	c := canned{}
	image := c.image("app")
	srv := httptest.NewServer(c)
	defer srv.Close()
	bd := newBed(b, settings{})
	bd.opts.Sources = []mirror.Source{bd.source("origin", srv.URL, settings{})}
	bd.shut(bd.Registry)
	bd.open(settings{})
	for _, name := range []string{"mirror", "store"} {
		reg := map[string]oci.Registry{"mirror": bd.Registry, "store": bd.store}[name]
		front := httptest.NewServer(server.New(reg, nil))
		defer front.Close()
		if name == "mirror" {
			pull(b, front.URL+"/v2/origin/", [][]string{image})
			bd.settled()
			until(b, "the image is stored", func() bool {
				_, err := bd.store.ResolveManifest(b.Context(), "origin/app", "v1")
				return err == nil
			})
		}
		b.Run(name, func(b *testing.B) {
			before := cpu()
			for b.Loop() {
				pull(b, front.URL+"/v2/origin/", [][]string{image})
			}
			b.ReportMetric(float64((cpu()-before).Microseconds())/float64(b.N), "cpu-µs/pull")
		})
	}
}

// BenchmarkLargePull pulls a blob of 256 MiB that is not here, through the mirror and from the
// upstream alone. It also reports when the first byte arrives.
func BenchmarkLargePull(b *testing.B) {
	const size = 256 << 20
	blob := random(1, size)
	path := "app/blobs/" + string(oci.SHA256(blob))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(size))
		w.Write(blob)
	}))
	defer srv.Close()
	for _, through := range []bool{false, true} {
		b.Run(map[bool]string{false: "direct", true: "mirror"}[through], func(b *testing.B) {
			b.SetBytes(size)
			var first time.Duration
			for range b.N {
				b.StopTimer()
				base := srv.URL + "/v2/"
				if through {
					base = newBench(b, srv.URL) + "/v2/origin/"
				}
				b.StartTimer()
				first += large(b, base+path, size)
			}
			b.ReportMetric(float64(first.Microseconds())/float64(b.N), "first-byte-µs")
		})
	}
}

// large gets a large blob and returns when its first byte arrived.
func large(b *testing.B, url string, size int64) (first time.Duration) {
	b.Helper()
	began := time.Now()
	resp, err := http.Get(url)
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	buf := make([]byte, 1<<20)
	n, err := resp.Body.Read(buf)
	first = time.Since(began)
	rest, copyErr := io.CopyBuffer(struct{ io.Writer }{io.Discard}, resp.Body, buf)
	if err != nil || copyErr != nil || int64(n)+rest != size {
		b.Fatalf("%d bytes, %v, %v", int64(n)+rest, err, copyErr)
	}
	return first
}

// image adds an image and returns the paths of its objects below the repositories.
func (c canned) image(repo string) (paths []string) {
	add := func(path string, b []byte) {
		c["/v2/"+repo+path] = b
		paths = append(paths, repo+path)
	}
	layers := ""
	for i := range 5 {
		b := random(uint64(len(c)), 2000)
		copy(b, fmt.Sprint(repo, i))
		add("/blobs/"+string(oci.SHA256(b)), b)
		layers += fmt.Sprintf(`,{"mediaType":%q,"digest":%q,"size":2000}`, layerType, oci.SHA256(b))
	}
	config := []byte(fmt.Sprintf(`{"os":"linux","architecture":"amd64","name":%q}`, repo))
	add("/blobs/"+string(oci.SHA256(config)), config)
	m := []byte(fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":%q,"digest":%q,"size":%d},"layers":[%s]}`,
		oci.MediaTypeOCIManifest, configType, oci.SHA256(config), len(config), layers[1:]))
	add("/manifests/"+string(oci.SHA256(m)), m)
	index := []byte(fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"manifests":[{"mediaType":%q,"digest":%q,"size":%d}]}`,
		oci.MediaTypeOCIIndex, oci.MediaTypeOCIManifest, oci.SHA256(m), len(m)))
	add("/manifests/v1", index)
	return paths
}

func newBench(b *testing.B, url string) string {
	bd := newBed(b, settings{})
	bd.opts.Sources = []mirror.Source{bd.source("origin", url, settings{})}
	bd.opts.OnEvent = nil
	bd.shut(bd.Registry)
	bd.open(settings{})
	front := httptest.NewServer(server.New(bd.Registry, nil))
	b.Cleanup(front.Close)
	return front.URL
}

// pull gets all objects of images in the order of clients: the tag first.
func pull(b *testing.B, base string, images [][]string) {
	b.Helper()
	for _, paths := range images {
		for i := len(paths) - 1; i >= 0; i-- {
			resp, err := http.Get(base + paths[i])
			if err != nil {
				b.Fatal(err)
			}
			n, err := io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if err != nil || resp.StatusCode != http.StatusOK || n == 0 {
				b.Fatalf("%s: %s, %d bytes, %v", paths[i], resp.Status, n, err)
			}
		}
	}
}

// cpu returns how much CPU time this process has used.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestCounts checks that each request is counted once, under its right kind, and that the bytes are
// counted as transferred.
func TestCounts(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	b := newBed(t, settings{options: func(o *mirror.Options) { o.Patience = time.Millisecond }})
	layer := random(1, sizeSmall)
	d, _ := b.o.image("app", "v1", `{}`, layer)
	get := func(tag string) {
		_, _ = b.GetManifest(t.Context(), "origin/app", tag)
	}
	get("v1")
	get("v1")
	get("absent")
	get("absent")
	b.wantBlob("origin/app", layer)
	b.settled()
	b.wantBlob("origin/app", layer)
	b.clock.Add(2 * time.Hour)
	b.o.on(failAll(500))
	get("v1")
	_, err := b.get("origin/app", oci.SHA256([]byte("unknown")))
	if err == nil {
		t.Error("an unknown blob")
	}
	size := int64(0)
	if m, err := b.store.GetManifest(t.Context(), "origin/app", "v1"); err != nil {
		t.Error(err)
	} else {
		size = m.Size
	}
	got := b.gather("registry_proxy_bytes_total")
	want := map[string]float64{"pulled": float64(size + sizeSmall), "pushed": float64(3*size + 2*sizeSmall)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("registry_proxy_bytes_total (-want +got):\n%s", diff)
	}
	st := b.Status().Sources[0]
	for _, c := range []struct {
		kind, result string
		want         int64
	}{
		{"manifest", "miss", 1}, {"manifest", "hit", 1}, {"manifest", "stale", 1}, {"manifest", "negative", 2}, {"manifest", "error", 0},
		{"blob", "miss", 1}, {"blob", "hit", 1}, {"blob", "error", 1},
	} {
		if got := st.Requests[c.kind][c.result]; got != c.want {
			t.Errorf("%d requests for %ss were a %s, want %d", got, c.kind, c.result, c.want)
		}
	}
	if d.Size != size {
		t.Errorf("the stored manifest has %d bytes, the origin's %d", size, d.Size)
	}
}

// gather returns the values of a metric with two labels by the value of the first.
func (b *bed) gather(name string) map[string]float64 {
	b.t.Helper()
	reg := prometheus.NewPedanticRegistry()
	for _, c := range b.Metrics() {
		reg.MustRegister(c)
	}
	families, err := reg.Gather()
	if err != nil {
		b.t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name {
				got[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
			}
		}
	}
	return got
}
