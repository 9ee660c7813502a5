package peers_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"example.org/slipway/agent/peers"
	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
	"example.org/slipway/node/cachedir"
	"example.org/slipway/node/gearfs"
	"example.org/slipway/node/gearfs/starts"
	"example.org/slipway/node/poolfs"
	"example.org/slipway/oci/peering"
	"example.org/slipway/registry/tracker"
)

// registry is a registry behind a link that all nodes share, and a tracker.
type registry struct {
	*tracker.Tracker
	body map[gear.Name][]byte
	link *rate.Limiter
	sent atomic.Int64
}

// send passes bytes over the link.
func (r *registry) send(ctx context.Context, b []byte) io.Reader {
	return readerFunc(func(p []byte) (int, error) {
		if len(b) == 0 {
			return 0, io.EOF
		}
		n := copy(p[:min(len(p), burst)], b)
		if err := r.link.WaitN(ctx, n); err != nil {
			return 0, err
		}
		r.sent.Add(int64(n))
		b = b[n:]
		return n, nil
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// Fetch implements gearfs.Source, as the other methods do.
func (r *registry) Fetch(ctx context.Context, files []gear.File, deliver func(int, io.Reader) error) error {
	for i, f := range files {
		if err := deliver(i, r.send(ctx, r.body[f.Name])); err != nil {
			return err
		}
	}
	return nil
}

func (r *registry) Range(ctx context.Context, f gear.File, off, n int64, _ bool) (io.ReadCloser, error) {
	return io.NopCloser(r.send(ctx, r.body[f.Name][off:off+n])), nil
}

func (r *registry) Profile(context.Context) (starts.Profile, error) { return starts.Profile{}, nil }

func (r *registry) ReportProfile(context.Context, []gear.Name, bool) error { return nil }

// image makes an image of random contents, and returns its files in their order.
func (r *registry) image(t *testing.T, seed uint64, sizes ...int) (*gear.Index, []gear.File) {
	t.Helper()
	rng := mathrand.NewChaCha8([32]byte{byte(seed)})
	b := gear.NewBuilder(nil)
	var files []gear.File
	for i, size := range sizes {
		c := make([]byte, size)
		_, _ = rng.Read(c)
		f := gear.File{Name: sha256.Sum256(c), Size: int64(size)}
		if size >= gear.LargeFile {
			for off := 0; off < size; off += gear.ChunkSize {
				f.Chunks = append(f.Chunks, sha256.Sum256(c[off:min(off+gear.ChunkSize, size)]))
			}
		}
		r.body[f.Name] = c
		files = append(files, f)
		if err := b.Add(rootfs.Entry{Path: fmt.Sprintf("d%d/f%d", i%3, i), Type: rootfs.File, Mode: 0o644, Size: f.Size, Sec: 1000}, f); err != nil {
			t.Fatal(err)
		}
	}
	x, err := b.Index()
	if err != nil {
		t.Fatal(err)
	}
	return x, files
}

// uplink is a listener whose connections share a link.
type uplink struct {
	net.Listener
	link *rate.Limiter
}

func (u *uplink) Accept() (net.Conn, error) {
	c, err := u.Listener.Accept()
	return &slow{c, u.link}, err
}

type slow struct {
	net.Conn
	link *rate.Limiter
}

func (c *slow) Write(b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		part := b[n:min(len(b), n+burst)]
		if err := c.link.WaitN(context.Background(), len(part)); err != nil {
			return n, err
		}
		m := 0
		m, err = c.Conn.Write(part)
		n += m
	}
	return n, err
}

// burst is how many bytes a link carries at once.
const burst = 16 << 10

// node is what an agent has of this: a cache of files, and an exchange.
type node struct {
	*gearfs.Service
	x    *peers.Exchange
	kill func()
}

// join starts a node whose link carries so many bytes a second in the direction of other nodes.
func (r *registry) join(t *testing.T, rateBytes int) *node {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{}
	n.x, err = peers.New(&peers.Options{Announce: func(_ context.Context, ref gearfs.SourceRef, a *peering.Announcement) (*peering.Answer, error) {
		return r.Announce(ref.Repo, l.Addr().String(), a)
	}}, l.Addr().(*net.TCPAddr).Port)
	if err != nil {
		t.Fatal(err)
	}
	cache, err := cachedir.Open(filepath.Join(t.TempDir(), "cache"), &cachedir.Options{SyncEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	n.Service, err = gearfs.New(filepath.Join(t.TempDir(), "images"), cache, n.x.Dial(func(gearfs.SourceRef) (gearfs.Source, error) { return r, nil }),
		&gearfs.Options{Mode: gearfs.Lazy, RetryWait: 10 * time.Millisecond, RetryMaxWait: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() {
		if err := n.x.Serve(&uplink{l, rate.NewLimiter(rate.Limit(rateBytes), burst)}, n.Share); err != nil {
			t.Error(err)
		}
	})
	n.kill = sync.OnceFunc(func() {
		if err := errors.Join(n.x.Close(), n.Close(), cache.Close()); err != nil {
			t.Error(err)
		}
		work.Wait()
	})
	t.Cleanup(n.kill)
	return n
}

// read opens files one after the other, as a container does, and compares them.
func (n *node) read(t *testing.T, r *registry, files []gear.File) {
	t.Helper()
	for i, f := range files {
		c, err := n.Open(t.Context(), poolfs.Key{Name: f.Name})
		if err != nil {
			t.Errorf("file %d: %v", i, err)
			return
		}
		b := make([]byte, f.Size)
		if m, err := c.ReadAt(t.Context(), b, 0); m != len(b) || err != nil && !errors.Is(err, io.EOF) || !bytes.Equal(b, r.body[f.Name]) {
			t.Errorf("file %d has %d other bytes, error %v", i, m, err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

func newRegistry(t *testing.T, rateBytes int) *registry {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &registry{Tracker: tracker.New(key, nil), body: map[gear.Name][]byte{}, link: rate.NewLimiter(rate.Limit(rateBytes), burst)}
}

// start has nodes add an image and use it at the same moment. It returns how long the slowest took,
// and how many bytes the registry sent.
func (r *registry) start(t *testing.T, nodes []*node, x *gear.Index, manifest string, use func(i int, n *node)) (time.Duration, int64) {
	t.Helper()
	before := r.sent.Load()
	var work sync.WaitGroup
	began := time.Now()
	for i, n := range nodes {
		work.Go(func() {
			sources := []gearfs.SourceRef{{Registry: "r", Repo: "team/app", Manifest: manifest}}
			if err := n.AddImage(gearfs.ImageSpec{Chain: manifest, Ref: "r/" + manifest, Sources: sources}, x); err != nil {
				t.Error(err)
				return
			}
			use(i, n)
		})
	}
	work.Wait()
	return time.Since(began), r.sent.Load() - before
}

// TestTogether has nodes open the same files one after the other, which nothing predicted. All links
// are slow: a node that sent each file to all others would take nodes - 1 times as long for it as the
// registry takes for one node.
func TestTogether(t *testing.T) {
	const size, count = 96 << 10, 24
	r := newRegistry(t, slowRate)
	x, files := r.image(t, 1, slices.Repeat([]int{size}, count)...)
	r.together(t, x, func(_ int, n *node) { n.read(t, r, files) })
}

// slowRate is the rate of a link in bytes per second at which a test notices what goes over it.
const slowRate = 2 << 20

// together has one node start an image, and then nine at the same moment.
func (r *registry) together(t *testing.T, x *gear.Index, use func(i int, n *node)) {
	t.Helper()
	const nodes = 9
	alone, one := r.start(t, []*node{r.join(t, slowRate)}, x, "sha256:one", use)
	var list []*node
	for range nodes {
		list = append(list, r.join(t, slowRate))
	}
	all, sent := r.start(t, list, x, "sha256:all", use)
	var from int64
	for _, n := range list {
		from += n.x.Moved().FromPeers
	}
	t.Logf("one node: %v and %d bytes; %d nodes: %v and %d bytes, %.2f and %.2f times as much; %d bytes from nodes", alone, one, nodes, all, sent,
		all.Seconds()/alone.Seconds(), float64(sent)/float64(one), from)
	if sent > one+one/2 {
		t.Errorf("%d nodes take %d bytes of the registry, and one takes %d", nodes, sent, one)
	}
	if all > 3*alone+2*time.Second { // the machine may be busy; if one node sent a file to all others, it would take 8 times as long
		t.Errorf("%d nodes take %v, and one takes %v", nodes, all, alone)
	}
}

// TestApart has nodes open different files of an image at the same moment, some small and some large,
// so that what one opens tells the others nothing.
func TestApart(t *testing.T) {
	const nodes = 5
	r := newRegistry(t, 64<<20)
	var sizes []int
	for i := range 60 {
		sizes = append(sizes, 1000+i*997)
		if i%20 == 7 {
			sizes[i] = gear.LargeFile + i*12345
		}
	}
	x, files := r.image(t, 2, sizes...)
	var list []*node
	for range nodes {
		list = append(list, r.join(t, 64<<20))
	}
	_, sent := r.start(t, list, x, "sha256:apart", func(i int, n *node) {
		mine := slices.Clone(files)
		mathrand.New(mathrand.NewPCG(uint64(i), 1)).Shuffle(len(mine), func(a, b int) { mine[a], mine[b] = mine[b], mine[a] })
		n.read(t, r, mine)
	})
	total := int64(0)
	for _, f := range files {
		total += f.Size
	}
	t.Logf("%d nodes in different orders: the registry sent %.2f times the image", nodes, float64(sent)/float64(total))
	if sent > 3*total {
		t.Errorf("the registry sent %d bytes for an image of %d", sent, total)
	}
}

// TestLeaderEnds has the first node of an image end while others follow it.
func TestLeaderEnds(t *testing.T) {
	const nodes, size, count = 5, 64 << 10, 24
	r := newRegistry(t, slowRate)
	x, files := r.image(t, 3, slices.Repeat([]int{size}, count)...)
	first := r.join(t, slowRate)
	r.start(t, []*node{first}, x, "sha256:ends", func(_ int, n *node) { n.read(t, r, files[:4]) })
	var list []*node
	for range nodes {
		list = append(list, r.join(t, slowRate))
	}
	time.AfterFunc(150*time.Millisecond, first.kill)
	took, sent := r.start(t, list, x, "sha256:ends", func(_ int, n *node) { n.read(t, r, files) })
	t.Logf("%d nodes whose leader ends: %v, %d bytes for an image of %d", nodes, took, sent, count*size)
	if took > 20*time.Second {
		t.Errorf("%d nodes take %v after the leader ended", nodes, took)
	}
}

// TestLaterGroup has nodes begin after others that have everything, except that they do not say so. What
// the later ones own comes from the earlier ones, and not from the registry again.
func TestLaterGroup(t *testing.T) {
	const nodes, size, count = 4, 32 << 10, 60
	r := newRegistry(t, 64<<20)
	x, files := r.image(t, 4, slices.Repeat([]int{size}, count)...)
	all := func(_ int, n *node) { n.read(t, r, files) }
	group := func() (list []*node) {
		for range nodes {
			list = append(list, r.join(t, 64<<20))
		}
		return list
	}
	_, one := r.start(t, group(), x, "sha256:groups", all)
	time.Sleep(3500 * time.Millisecond) // the next ones are of another generation
	_, two := r.start(t, group(), x, "sha256:groups", all)
	t.Logf("the registry sent %d bytes to the first group, and %d to the second, of an image of %d", one, two, count*size)
	if two > count*size/10 {
		t.Errorf("the registry sent %d bytes to the second group, although the first has all %d", two, count*size)
	}
}
