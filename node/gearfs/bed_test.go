package gearfs_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"example.org/slipway/gear"
	"example.org/slipway/gear/predict"
	"example.org/slipway/gear/rootfs"
	"example.org/slipway/node/cachedir"
	"example.org/slipway/node/gearfs"
	"example.org/slipway/node/gearfs/starts"
	"example.org/slipway/node/poolfs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, errs ...error) {
	t.Helper()
	for i, err := range errs {
		if err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
	}
}

// eventually waits until a condition holds.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// content returns incompressible bytes that depend on the seed.
func content(seed uint64, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)}).Read(b)
	return b
}

func fileOf(b []byte) gear.File {
	f := gear.File{Name: sha256.Sum256(b), Size: int64(len(b))}
	if f.Size >= gear.LargeFile {
		for c := range slices.Chunk(b, gear.ChunkSize) {
			f.Chunks = append(f.Chunks, sha256.Sum256(c))
		}
	}
	return f
}

// tree is an image: contents under made-up paths.
type tree struct {
	index *gear.Index
	files []gear.File // in the order of the contents
	body  map[gear.Name][]byte
}

func makeTree(t testing.TB, contents ...[]byte) *tree {
	t.Helper()
	b := gear.NewBuilder(nil)
	out := &tree{body: map[gear.Name][]byte{}}
	for i, c := range contents {
		f := fileOf(c)
		out.files = append(out.files, f)
		out.body[f.Name] = c
		must(t, b.Add(rootfs.Entry{Path: fmt.Sprintf("dir%d/file%d", i%7, i), Type: rootfs.File, Mode: 0o644, Size: f.Size, Sec: int64(1000 + i)}, f))
	}
	x, err := b.Index()
	must(t, err)
	out.index = x
	return out
}

// manyFiles returns n small contents.
func manyFiles(seed, n int) [][]byte {
	var out [][]byte
	for i := range n {
		out = append(out, content(uint64(seed*100_000+i), 100+i*13%5000))
	}
	return out
}

// fakeSource delivers contents and misbehaves as configured.
type fakeSource struct {
	body map[gear.Name][]byte
	// hook, when set, is called before a content is delivered and may replace its
	// reader or fail.
	hook func(f gear.File, r io.Reader) (io.Reader, error)
	// request, when set, is called at the beginning of each request.
	request func(ctx context.Context, files []gear.File) error
	profile []gear.Name
	origins string // of the names of profile
	whole   bool   // what the last report said about itself

	requests, ranges atomic.Int64
	mu               sync.Mutex
	asked            map[gear.Name]int
	order            []gear.Name
	spans            []string
	reported         []gear.Name
}

func newSource(trees ...*tree) *fakeSource {
	src := &fakeSource{body: map[gear.Name][]byte{}, asked: map[gear.Name]int{}}
	for _, tr := range trees {
		for n, b := range tr.body {
			src.body[n] = b
		}
	}
	return src
}

func (s *fakeSource) Fetch(ctx context.Context, files []gear.File, deliver func(i int, content io.Reader) error) error {
	s.requests.Add(1)
	s.mu.Lock()
	for _, f := range files {
		s.asked[f.Name]++
		s.order = append(s.order, f.Name)
	}
	s.mu.Unlock()
	if s.request != nil {
		if err := s.request(ctx, files); err != nil {
			return err
		}
	}
	for i, f := range files {
		if err := ctx.Err(); err != nil {
			return err
		}
		b, ok := s.body[f.Name]
		if !ok {
			return fmt.Errorf("no such file: %w", fs.ErrNotExist)
		}
		var r io.Reader = bytes.NewReader(b)
		if s.hook != nil {
			var err error
			if r, err = s.hook(f, r); err != nil {
				return err
			}
		}
		if err := deliver(i, &ctxReader{ctx, r}); err != nil {
			return err
		}
	}
	return nil
}

// ctxReader ends with its context, as a connection does.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (r *ctxReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

func (s *fakeSource) Range(ctx context.Context, f gear.File, off, n int64, _ bool) (io.ReadCloser, error) {
	s.ranges.Add(1)
	s.mu.Lock()
	s.spans = append(s.spans, fmt.Sprintf("%d+%d", off>>20, (n+1<<20-1)>>20))
	s.mu.Unlock()
	if s.request != nil {
		if err := s.request(ctx, []gear.File{f}); err != nil {
			return nil, err
		}
	}
	if off+n > int64(len(s.body[f.Name])) {
		return nil, fmt.Errorf("file %x has %d bytes", f.Name, len(s.body[f.Name]))
	}
	var r io.Reader = bytes.NewReader(s.body[f.Name][off : off+n])
	if s.hook != nil {
		var err error
		if r, err = s.hook(f, r); err != nil {
			return nil, err
		}
	}
	return io.NopCloser(&ctxReader{ctx, r}), nil
}

func (s *fakeSource) Profile(context.Context) (starts.Profile, error) {
	if s.profile == nil {
		return starts.Profile{}, fmt.Errorf("no profile: %w", fs.ErrNotExist)
	}
	return starts.Profile{Files: predict.Files(s.profile, s.origins)}, nil
}

func (s *fakeSource) ReportProfile(_ context.Context, names []gear.Name, whole bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reported, s.whole = slices.Clone(names), whole
	return nil
}

func (s *fakeSource) report() []gear.Name {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reported
}

// mostAsked returns how often the most requested file was requested.
func (s *fakeSource) mostAsked() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.asked {
		n = max(n, a)
	}
	return n
}

// node is a service over a cache.
type node struct {
	*gearfs.Service
	t     testing.TB
	dir   string
	cache *cachedir.Dir
	opts  gearfs.Options
	src   map[string]gearfs.Source // by registry
}

func newNode(t testing.TB, o gearfs.Options, src map[string]gearfs.Source) *node {
	t.Helper()
	if o.RetryWait == 0 {
		o.RetryWait, o.RetryMaxWait = 2*time.Millisecond, 20*time.Millisecond
	}
	if o.WatchWait == 0 {
		o.WatchWait = time.Minute // so that tests also see all opens on a busy machine
	}
	n := &node{t: t, dir: t.TempDir(), opts: o, src: src}
	n.start()
	t.Cleanup(n.stop)
	return n
}

func (n *node) start() {
	n.t.Helper()
	var err error
	n.cache, err = cachedir.Open(filepath.Join(n.dir, "cache"), &cachedir.Options{SyncEvery: -1})
	must(n.t, err)
	n.Service, err = gearfs.New(filepath.Join(n.dir, "images"), n.cache, func(ref gearfs.SourceRef) (gearfs.Source, error) {
		if s := n.src[ref.Registry]; s != nil {
			return s, nil
		}
		return nil, errors.New("no such registry")
	}, &n.opts)
	must(n.t, err)
}

func (n *node) stop() {
	if n.Service != nil {
		must(n.t, n.Close(), n.cache.Close())
		n.Service = nil
	}
}

// add adds an image with the registries that have it.
func (n *node) add(chain string, tr *tree, registries ...string) {
	n.t.Helper()
	spec := gearfs.ImageSpec{Chain: chain, Ref: "r/" + chain}
	for _, r := range registries {
		spec.Sources = append(spec.Sources, gearfs.SourceRef{Registry: r, Repo: "repo"})
	}
	must(n.t, n.AddImage(spec, tr.index))
}

// read opens a file as the pool does and reads all of it.
func (n *node) read(f gear.File) ([]byte, error) {
	c, err := n.Open(n.t.Context(), poolfs.Key{Name: f.Name})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	b := make([]byte, f.Size)
	for off := 0; off < len(b); {
		m, err := c.ReadAt(n.t.Context(), b[off:min(off+128<<10, len(b))], int64(off))
		if off += m; err != nil && !(errors.Is(err, io.EOF) && off == len(b)) {
			return nil, err
		}
	}
	return b, nil
}

// check reads a file and compares it.
func (n *node) check(tr *tree, f gear.File) {
	n.t.Helper()
	b, err := n.read(f)
	if err != nil {
		n.t.Fatalf("read a file of %d bytes: %v", f.Size, err)
	}
	if !bytes.Equal(b, tr.body[f.Name]) {
		n.t.Fatalf("file of %d bytes has other bytes", f.Size)
	}
}
