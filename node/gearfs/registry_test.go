package gearfs_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"example.org/slipway/gear"
	gearclient "example.org/slipway/gear/client"
	"example.org/slipway/gear/predict"
	"example.org/slipway/node/gearfs"
	"example.org/slipway/node/gearfs/starts"
	"example.org/slipway/node/poolfs"
	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
	"example.org/slipway/serve/servetest"
)

// regSource is a repository of a real registry.
type regSource struct {
	*gearclient.Source
	reg      *client.Client
	repo     string
	manifest oci.Digest
}

func (s *regSource) Profile(ctx context.Context) (starts.Profile, error) {
	p, err := s.reg.GearProfile(ctx, s.repo, s.manifest)
	if oci.HasCode(err, oci.CodeManifestUnknown) {
		err = fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return starts.Profile{Files: predict.Files(p.Names, p.Origins), Donor: string(p.Donor)}, err
}

func (s *regSource) Reconnect() { s.reg.Reconnect() }

func (s *regSource) ReportProfile(ctx context.Context, names []gear.Name, whole bool) error {
	return s.reg.GearReportProfile(ctx, s.repo, s.manifest, names, whole)
}

// pushLayer pushes an image of one layer and returns its manifest's digest.
func pushLayer(t testing.TB, reg *client.Client, repo string, contents [][]byte) oci.Digest {
	t.Helper()
	var layer, z bytes.Buffer
	w := tar.NewWriter(&layer)
	for i, c := range contents {
		must(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("dir%d/file%d", i%7, i), Mode: 0o644, Size: int64(len(c)), ModTime: time.Unix(1000, 0)}))
		_, err := w.Write(c)
		must(t, err)
	}
	must(t, w.Close())
	g, err := gzip.NewWriterLevel(&z, gzip.NoCompression) // the contents are random
	must(t, err)
	_, err = g.Write(layer.Bytes())
	must(t, err, g.Close())
	push := func(mediaType string, b []byte) oci.Descriptor {
		d := oci.Descriptor{MediaType: mediaType, Digest: oci.SHA256(b), Size: int64(len(b))}
		_, err := reg.PushBlob(t.Context(), repo, d.Digest, d.Size, bytes.NewReader(b))
		must(t, err)
		return d
	}
	l := push(ocispec.MediaTypeImageLayerGzip, z.Bytes())
	cfg := push(ocispec.MediaTypeImageConfig, fmt.Appendf(nil, `{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":[%q]}}`, oci.SHA256(layer.Bytes())))
	m := ocispec.Manifest{MediaType: oci.MediaTypeOCIManifest, Config: cfg, Layers: []oci.Descriptor{l}}
	m.SchemaVersion = 2
	raw, err := json.Marshal(m)
	must(t, err)
	res, err := reg.PutManifest(t.Context(), repo, oci.PutManifest{Bytes: raw, MediaType: oci.MediaTypeOCIManifest, Tags: []string{"v1"}})
	must(t, err)
	return res.Digest
}

// proxy passes requests on, cuts or refuses them, and counts them.
type proxy struct {
	gone, cut, refused, slow, spoils atomic.Bool
	fetches, files                   atomic.Int64
	url                              string
}

func newProxy(t testing.TB, to string) *proxy {
	t.Helper()
	u, err := url.Parse(to)
	must(t, err)
	p := &proxy{}
	rp := httputil.NewSingleHostReverseProxy(u)
	rp.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	tr := &http.Transport{DisableCompression: true}
	rp.Transport = tr
	rp.ModifyResponse = func(r *http.Response) error {
		if p.cut.Load() {
			r.Body = struct {
				io.Reader
				io.Closer
			}{io.LimitReader(r.Body, 3000), r.Body}
		}
		if path := r.Request.URL.Path; p.spoils.Load() && (strings.HasSuffix(path, "/fetch") || strings.Contains(path, "/chunks/")) {
			b, err := io.ReadAll(r.Body)
			if err != nil {
				return err
			}
			b[len(b)/2] ^= 1
			r.Body = struct {
				io.Reader
				io.Closer
			}{bytes.NewReader(b), r.Body}
		}
		if p.slow.Load() {
			r.Body = struct {
				io.Reader
				io.Closer
			}{slowly{r.Body}, r.Body}
		}
		return nil
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case p.gone.Load():
			panic(http.ErrAbortHandler)
		case p.refused.Load():
			w.WriteHeader(http.StatusUnauthorized)
			return
		case strings.HasSuffix(r.URL.Path, "/fetch"):
			p.fetches.Add(1)
		case strings.Contains(r.URL.Path, "/gear/files/"):
			p.files.Add(1)
		}
		rp.ServeHTTP(w, r)
	}))
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	t.Cleanup(func() { s.Close(); tr.CloseIdleConnections() })
	p.url = s.URL
	return p
}

// pushed pushes an image of one layer to a new registry. It returns the proxy before that registry,
// the image's source there and its index.
func pushed(t testing.TB, contents [][]byte) (*proxy, *regSource, *gear.Index) {
	t.Helper()
	p := newProxy(t, servetest.Start(t))
	reg, err := client.New(p.url, &client.Options{RetryWait: time.Millisecond, Retries: 1})
	must(t, err)
	t.Cleanup(func() { reg.Close() })
	manifest := pushLayer(t, reg, "r/app", contents)
	gc := gearclient.New(reg, &gearclient.Options{AskEvery: 10 * time.Millisecond, RetryWait: time.Millisecond})
	img, err := gc.One(t.Context(), "r/app", "v1", &oci.Platform{OS: "linux", Architecture: "amd64"})
	must(t, err)
	x, err := gc.Index(t.Context(), img)
	must(t, err)
	return p, &regSource{Source: gc.Files(img, x), reg: reg, repo: "r/app", manifest: manifest}, x
}

// TestSlowLink checks a link that takes longer for a content or chunk than the stall timeout. The
// bytes that arrive count as progress, although a content or chunk is delivered whole.
func TestSlowLink(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	contents := [][]byte{content(1, 2<<20), content(2, 4<<20), content(3, 17<<20)}
	tr := makeTree(t, contents...)
	p, src, x := pushed(t, contents)
	const patience = 1600 * time.Millisecond // a busy machine stands still for less
	n := newNode(t, gearfs.Options{Bound: patience, Stall: patience}, map[string]gearfs.Source{"a": src})
	must(t, n.AddImage(gearfs.ImageSpec{Chain: "sha256:1", Ref: "r/app:v1", Sources: []gearfs.SourceRef{{Registry: "a", Repo: "r/app"}}}, x))
	p.slow.Store(true)
	for i, f := range tr.files { // a small one, a large one as a whole, a part of another
		began := time.Now()
		if i < 2 {
			n.check(tr, f)
		} else {
			c, err := n.Open(t.Context(), poolfs.Key{Name: f.Name})
			must(t, err)
			buf := make([]byte, 100)
			if _, err := c.ReadAt(t.Context(), buf, 9<<20); err != nil || !bytes.Equal(buf, contents[i][9<<20:][:100]) {
				t.Errorf("a part of a large file: %v", err)
			}
			c.Close()
		}
		if took := time.Since(began); took < patience {
			t.Errorf("file %d came in %v: the link is not slow", i, took)
		}
	}
	if st := n.Status().Images[0]; st.Errors > 0 || p.files.Load() == 0 {
		t.Errorf("%d requests for files, %d for ranges; status %+v", p.fetches.Load(), p.files.Load(), st)
	}
}

// TestSpoilt checks that content which arrives wrong in its stored form is requested in the way in
// which the registry verifies it. The registry then notices what it has lost.
func TestSpoilt(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	zeros := make([]byte, 6<<20) // their frames break
	contents := [][]byte{content(1, 3<<20), content(2, 5<<20), content(3, 17<<20), zeros, zeros[:100_000]}
	tr := makeTree(t, contents...)
	p, src, x := pushed(t, contents)
	n := newNode(t, gearfs.Options{Bound: 10 * time.Second}, map[string]gearfs.Source{"a": src})
	must(t, n.AddImage(gearfs.ImageSpec{Chain: "sha256:1", Ref: "r/app:v1", Sources: []gearfs.SourceRef{{Registry: "a", Repo: "r/app"}}}, x))
	p.spoils.Store(true)
	for i, f := range tr.files {
		began := time.Now()
		n.check(tr, f)
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("file %d took %v", i, took)
		}
	}
	if st := n.Status().Images[0]; st.Errors > 0 {
		t.Errorf("status %+v", st)
	}
}

// slowly reads 16 KiB in 40 ms at most, and thus a chunk in more than two seconds.
type slowly struct{ r io.Reader }

func (s slowly) Read(p []byte) (int, error) {
	time.Sleep(40 * time.Millisecond)
	return s.r.Read(p[:min(len(p), 16<<10)])
}

// TestRegistry uses a real registry: index, batches, ranges, profiles, and failures on the way
// there.
func TestRegistry(t *testing.T) {
	contents := append(manyFiles(1, 200), content(1, 4<<20), content(2, 17<<20+1))
	tr := makeTree(t, contents...)
	p, src, x := pushed(t, contents)
	n := newNode(t, gearfs.Options{Mode: gearfs.Lazy, RecordFor: time.Minute}, map[string]gearfs.Source{"a": src})
	restart := func(bound time.Duration) {
		n.stop()
		n.opts.Bound = bound
		n.start()
	}
	must(t, n.AddImage(gearfs.ImageSpec{Chain: "sha256:1", Ref: "r/app:v1", Sources: []gearfs.SourceRef{{Registry: "a", Repo: "r/app", Manifest: string(src.manifest)}}}, x))

	must(t, n.ContainerStarted("first", "sha256:1", ""))
	for _, f := range tr.files[:20] {
		n.check(tr, f)
	}
	n.ContainerStopped("first")
	eventually(t, "the registry has the profile", func() bool {
		p, err := src.Profile(t.Context())
		return err == nil && len(p.Files) == 20
	})
	n.cache.Evict(1 << 40)
	before := p.fetches.Load()
	got, err := n.Prefetch(t.Context(), "sha256:1", nil)
	must(t, err)
	if asked := p.fetches.Load() - before; got.Files != 20 || got.Left != 0 || asked != 1 {
		t.Errorf("prefetched %+v in %d requests, want 20 files in 1", got, asked)
	}

	restart(2 * time.Second) // only what must fail fails soon, however busy the machine is
	p.cut.Store(true)        // every answer breaks off
	for _, f := range tr.files[20:22] {
		if b, err := n.read(f); err == nil && !bytes.Equal(b, tr.body[f.Name]) {
			t.Error("wrong bytes over a link that is cut")
		}
	}
	p.cut.Store(false)
	p.refused.Store(true)
	if _, err := n.read(tr.files[50]); err == nil || !strings.Contains(err.Error(), string(oci.CodeUnauthorized)) {
		t.Errorf("refused: %v", err)
	}
	p.refused.Store(false)
	p.gone.Store(true)
	restart(time.Second)
	n.check(tr, tr.files[0])
	if _, err := n.read(tr.files[51]); !errors.Is(err, gearfs.ErrTimeout) {
		t.Errorf("gone: %v", err)
	}
	p.gone.Store(false)
	restart(0)
	for _, f := range tr.files {
		n.check(tr, f)
	}
	if p.files.Load() == 0 {
		t.Error("no range was asked for")
	}
	must(t, n.Background("sha256:1", true))
	eventually(t, "the image is complete", func() bool { return n.Status().Images[0].Complete })
	p.gone.Store(true) // for good: everything is local
	restart(0)
	for _, f := range tr.files {
		n.check(tr, f)
	}
}
