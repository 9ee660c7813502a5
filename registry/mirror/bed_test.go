package mirror_test

import (
	"bytes"
	"context"
	"crypto/sha512"
	"encoding/hex"
	"encoding/json"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/mirror"
	"example.org/slipway/registry/mirror/upstream"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/fsstore"
	"example.org/slipway/registry/objstore/memstore"
	"example.org/slipway/registry/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for something that must happen.
const patience = time.Minute

// clock is a clock that only a test moves.
type clock struct{ offset atomic.Int64 }

func (c *clock) Now() time.Time      { return time.Now().Add(time.Duration(c.offset.Load())) }
func (c *clock) Add(d time.Duration) { c.offset.Add(int64(d)) }

// random returns n bytes that depend on seed.
func random(seed uint64, n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 'm'}).Read(b)
	return b
}

// newRegistry returns a stored registry.
func newRegistry(t testing.TB, store objstore.Store, o *registry.Options) *registry.Registry {
	t.Helper()
	o.Logger = slog.New(slog.DiscardHandler)
	cat, err := catalog.Open(context.Background(), filepath.Join(t.TempDir(), registry.CatalogFile), &catalog.Options{Clock: o.Clock})
	if err != nil {
		t.Fatal(err)
	}
	r, err := registry.New(context.Background(), cat, store, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, err := range []error{r.Close(context.Background()), cat.Close(), store.Close()} {
			if err != nil {
				t.Errorf("close: %v", err)
			}
		}
	})
	return r
}

// fault describes what is wrong with an origin's answer. The zero value is no fault.
type fault struct {
	status int               // instead of the answer
	header map[string]string // of the replacement answer
	body   string
	// cutAt, if positive, resets the connection after that many bytes of the body.
	cutAt int64
	// gate blocks the body after gateAt bytes until it is closed.
	gate   <-chan struct{}
	gateAt int64
	// flip changes the byte at flipAt of the body.
	flip   bool
	flipAt int64
	// noRange hides the range from the registry.
	noRange bool
	// chunked hides how long the body is.
	chunked bool
	// more bytes are appended to the body, or less bytes are left out. The length is adjusted.
	more, less int64
}

// origin is the mirrored registry: the project's own server with fault injection.
type origin struct {
	*registry.Registry
	t       testing.TB
	url     string
	handler http.Handler
	srv     *httptest.Server

	mu       sync.Mutex
	requests map[string]int   // by "METHOD path"
	sent     map[string]int64 // bytes of bodies by path
	faults   func(r *http.Request) *fault
}

// newOrigin starts an upstream. If lying is set, it accepts every manifest, including those that
// lie about the sizes of blobs.
func newOrigin(t testing.TB, lying bool) *origin {
	t.Helper()
	o := &origin{t: t, Registry: newRegistry(t, memstore.New(nil), &registry.Options{MissingBlobs: lying}), requests: map[string]int{}, sent: map[string]int64{}}
	o.handler = server.New(o.Registry, &server.Options{Logger: slog.New(slog.DiscardHandler)})
	o.srv = httptest.NewServer(o)
	o.url = o.srv.URL
	t.Cleanup(o.srv.Close)
	return o
}

// on sets the faults from now on. nil means none.
func (o *origin) on(f func(r *http.Request) *fault) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.faults = f
}

// count returns how many requests there were whose method and path contain text.
func (o *origin) count(text string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := 0
	for k, c := range o.requests {
		if strings.Contains(k, text) {
			n += c
		}
	}
	return n
}

// sentOf returns how many bytes of a blob were sent.
func (o *origin) sentOf(d oci.Digest) int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := int64(0)
	for path, c := range o.sent {
		if strings.HasSuffix(path, string(d)) {
			n += c
		}
	}
	return n
}

func (o *origin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	o.requests[r.Method+" "+r.URL.Path]++
	faults := o.faults
	o.mu.Unlock()
	f := &fault{}
	if faults != nil {
		if g := faults(r); g != nil {
			f = g
		}
	}
	if f.status != 0 {
		for k, v := range f.header {
			w.Header().Set(k, v)
		}
		w.WriteHeader(f.status)
		io.WriteString(w, f.body)
		return
	}
	if f.noRange {
		r.Header.Del("Range")
	}
	o.handler.ServeHTTP(&faultyWriter{ResponseWriter: w, o: o, f: f, path: r.URL.Path, ctx: r.Context()}, r)
	if f.more > 0 {
		w.Write(make([]byte, f.more))
	}
}

// faultyWriter writes an answer with a fault.
type faultyWriter struct {
	http.ResponseWriter
	o    *origin
	f    *fault
	path string
	ctx  context.Context
	at   int64
	size int64
}

func (w *faultyWriter) WriteHeader(status int) {
	h := w.Header()
	w.size, _ = strconv.ParseInt(h.Get("Content-Length"), 10, 64)
	switch {
	case w.f.chunked:
		h.Del("Content-Length")
	case w.f.more > 0 || w.f.less > 0:
		h.Set("Content-Length", strconv.FormatInt(w.size+w.f.more-w.f.less, 10))
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *faultyWriter) Write(p []byte) (int, error) {
	if w.at == 0 && w.size == 0 {
		w.WriteHeader(http.StatusOK)
	}
	total := len(p)
	if w.f.less > 0 {
		p = p[:min(int64(len(p)), max(0, w.size-w.f.less-w.at))]
	}
	for len(p) > 0 {
		n := int64(len(p))
		if w.f.gate != nil && w.at < w.f.gateAt {
			n = min(n, w.f.gateAt-w.at)
		}
		if w.f.cutAt > 0 {
			n = min(n, w.f.cutAt-w.at)
		}
		part := p[:n]
		if w.f.flip && w.at <= w.f.flipAt && w.f.flipAt < w.at+n {
			part = bytes.Clone(part)
			part[w.f.flipAt-w.at] ^= 1
		}
		if _, err := w.ResponseWriter.Write(part); err != nil {
			return 0, err
		}
		w.at += n
		w.o.mu.Lock()
		w.o.sent[w.path] += n
		w.o.mu.Unlock()
		p = p[n:]
		if w.f.cutAt > 0 && w.at == w.f.cutAt {
			_ = http.NewResponseController(w.ResponseWriter).Flush()
			panic(http.ErrAbortHandler)
		}
		if w.f.gate != nil && w.at == w.f.gateAt {
			_ = http.NewResponseController(w.ResponseWriter).Flush()
			select {
			case <-w.f.gate:
			case <-w.ctx.Done():
				panic(http.ErrAbortHandler)
			}
		}
	}
	return total, nil
}

// push stores a blob at the origin.
func (o *origin) push(repo string, data []byte) oci.Descriptor {
	o.t.Helper()
	d, err := o.PushBlob(context.Background(), repo, oci.SHA256(data), int64(len(data)), bytes.NewReader(data))
	if err != nil {
		o.t.Fatalf("push a blob to %s: %v", repo, err)
	}
	return d
}

// put stores a manifest at the origin.
func (o *origin) put(repo, tag string, m any) oci.Descriptor {
	o.t.Helper()
	b, err := json.Marshal(m)
	if err != nil {
		o.t.Fatal(err)
	}
	p := oci.PutManifest{Bytes: b}
	if tag != "" {
		p.Tags = []string{tag}
	}
	res, err := o.PutManifest(context.Background(), repo, p)
	if err != nil {
		o.t.Fatalf("put a manifest to %s: %v", repo, err)
	}
	return res.Descriptor
}

// manifest is the JSON of a manifest or index.
type manifest struct {
	SchemaVersion int              `json:"schemaVersion"`
	MediaType     string           `json:"mediaType"`
	ArtifactType  string           `json:"artifactType,omitempty"`
	Config        *oci.Descriptor  `json:"config,omitempty"`
	Layers        []oci.Descriptor `json:"layers,omitempty"`
	Manifests     []oci.Descriptor `json:"manifests,omitempty"`
	Subject       *oci.Descriptor  `json:"subject,omitempty"`

	Annotations map[string]string `json:"annotations,omitempty"`
}

const (
	configType = "application/vnd.oci.image.config.v1+json"
	layerType  = "application/vnd.oci.image.layer.v1.tar"
)

// image pushes an image with a config and layers, and returns it.
func (o *origin) image(repo, tag, config string, layers ...[]byte) (oci.Descriptor, *manifest) {
	o.t.Helper()
	c := o.push(repo, []byte(config))
	c.MediaType = configType
	m := &manifest{SchemaVersion: 2, MediaType: oci.MediaTypeOCIManifest, Config: &c}
	for _, l := range layers {
		d := o.push(repo, l)
		d.MediaType = layerType
		m.Layers = append(m.Layers, d)
	}
	return o.put(repo, tag, m), m
}

// bed is a mirror under test, with everything below it.
type bed struct {
	*mirror.Registry
	t     testing.TB
	o     *origin
	store *registry.Registry
	clock *clock
	dir   string
	opts  mirror.Options

	mu     sync.Mutex
	events []mirror.Event
}

// settings configure a bed.
type settings struct {
	source   func(*mirror.Source)
	options  func(*mirror.Options)
	upstream func(*upstream.Options)
	// wrap wraps the store of the mirror.
	wrap func(mirror.Store) mirror.Store
	// lying is passed to newOrigin.
	lying bool
}

func newBed(t testing.TB, s settings) *bed {
	t.Helper()
	b := &bed{t: t, o: newOrigin(t, s.lying), clock: &clock{}}
	root := t.TempDir()
	store, err := fsstore.New(root, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.store = newRegistry(t, store, &registry.Options{Partial: mirror.Names("origin", "second", "first.test"), Clock: b.clock.Now})
	b.dir = filepath.Join(root, "fills")
	b.opts = mirror.Options{Dir: b.dir, Clock: b.clock.Now, Logger: slog.New(slog.DiscardHandler), OnEvent: b.record}
	b.opts.Sources = []mirror.Source{b.source("origin", b.o.url, s)}
	if s.options != nil {
		s.options(&b.opts)
	}
	b.open(s)
	return b
}

func (b *bed) source(name, url string, s settings) mirror.Source {
	b.t.Helper()
	uo := &upstream.Options{Name: name, URL: url, Clock: b.clock.Now}
	if s.upstream != nil {
		s.upstream(uo)
	}
	up, err := upstream.New(uo)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(up.Close)
	src := mirror.Source{Name: name, Upstream: up}
	if s.source != nil {
		s.source(&src)
	}
	return src
}

// open starts the mirror.
func (b *bed) open(s settings) {
	b.t.Helper()
	var store mirror.Store = b.store
	if s.wrap != nil {
		store = s.wrap(store)
	}
	m, err := mirror.New(store, &b.opts)
	if err != nil {
		b.t.Fatal(err)
	}
	b.Registry = m
	b.t.Cleanup(func() { b.shut(m) })
}

// shut closes a mirror.
func (b *bed) shut(m *mirror.Registry) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := m.Close(ctx); err != nil {
		b.t.Errorf("close the mirror: %v", err)
	}
}

func (b *bed) record(e mirror.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.events = append(b.events, e)
}

// happened returns how many events of an action there were.
func (b *bed) happened(action string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for _, e := range b.events {
		if e.Action == action {
			n++
		}
	}
	return n
}

// until waits until a condition holds.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not after %v", what, patience)
		}
	}
}

// settled waits until nothing is being fetched any more.
func (b *bed) settled() {
	b.t.Helper()
	until(b.t, "nothing is being fetched", func() bool { return len(b.Status().Fills) == 0 })
}

// get reads a whole blob.
func (b *bed) get(repo string, d oci.Digest) ([]byte, error) {
	return read(b.GetBlob(b.t.Context(), repo, d))
}

func read(c oci.Content, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var buf bytes.Buffer
	_, err = c.WriteTo(&buf)
	return buf.Bytes(), err
}

// wantBlob checks that a blob is served unchanged.
func (b *bed) wantBlob(repo string, want []byte) {
	b.t.Helper()
	got, err := b.get(repo, oci.SHA256(want))
	if err != nil || !bytes.Equal(got, want) {
		b.t.Errorf("blob of %d bytes of %s: got %d bytes, %v", len(want), repo, len(got), err)
	}
}

// wantManifest checks the digest that a reference stands for.
func (b *bed) wantManifest(repo, ref string, want oci.Digest) {
	b.t.Helper()
	m, err := b.GetManifest(b.t.Context(), repo, ref)
	if err != nil || m.Digest != want || oci.SHA256(m.Bytes) != want {
		b.t.Errorf("manifest %s of %s: got %+v, %v, want %s", ref, repo, m, err, want)
	}
	d, err := b.ResolveManifest(b.t.Context(), repo, ref)
	if err != nil || d.Digest != want {
		b.t.Errorf("resolve manifest %s of %s: got %+v, %v, want %s", ref, repo, d, err, want)
	}
}

// wantCode checks an error.
func wantCode(t testing.TB, what string, err error, code oci.Code) {
	t.Helper()
	if !oci.HasCode(err, code) {
		t.Errorf("%s: got %v, want %s", what, err, code)
	}
}

// parts returns the files of the fills.
func (b *bed) parts() []string {
	b.t.Helper()
	list, err := os.ReadDir(b.dir)
	if err != nil {
		b.t.Fatal(err)
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// isBlob reports whether a request fetches a blob.
func isBlob(r *http.Request, d oci.Digest) bool {
	return r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/blobs/"+string(d))
}

func sha512Of(b []byte) oci.Digest {
	sum := sha512.Sum512(b)
	return oci.Digest("sha512:" + hex.EncodeToString(sum[:]))
}
