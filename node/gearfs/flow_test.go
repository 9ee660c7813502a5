package gearfs_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"example.org/slipway/gear"
	gearclient "example.org/slipway/gear/client"
	"example.org/slipway/node/gearfs"
	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
	"example.org/slipway/serve/servetest"
)

// line is a way to a registry over which all connections together get a limited rate. One
// connection can be held: from some byte on it gets much less, or nothing.
type line struct {
	t      testing.TB
	to     string
	url    string
	shared atomic.Pointer[rate.Limiter]
	// hold chooses a connection: the next one that brings as many bytes as this in one answer.
	// 0 means none. held is the rate of that connection in bytes a second, 0 for a stall.
	hold, held atomic.Int64
	rtt        atomic.Int64 // nanoseconds; it delays what the client sends
	victims    atomic.Int64 // connections that were held
	brought    atomic.Int64 // bytes for the client
	ctx        context.Context
	work       sync.WaitGroup
}

const linePiece = 8 << 10

func newLine(t testing.TB, to string) *line {
	t.Helper()
	u, err := url.Parse(to)
	must(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ln := &line{t: t, to: u.Host, url: "http://" + l.Addr().String(), ctx: ctx}
	ln.limit(1 << 40)
	ln.work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			ln.work.Go(func() { ln.forward(c) })
		}
	})
	t.Cleanup(func() {
		cancel()
		l.Close()
		ln.work.Wait()
	})
	return ln
}

// limit sets what all connections get together, in bytes a second.
func (l *line) limit(perSec int) {
	l.shared.Store(rate.NewLimiter(rate.Limit(perSec), max(perSec/100, linePiece)))
}

func (l *line) forward(near net.Conn) {
	defer near.Close()
	far, err := net.Dial("tcp", l.to)
	if err != nil {
		return
	}
	defer far.Close()
	stop := context.AfterFunc(l.ctx, func() { near.Close(); far.Close() })
	defer stop()
	// A buffer would hide how slow the line is.
	_ = near.(*net.TCPConn).SetWriteBuffer(4 * linePiece)
	var answer atomic.Int64 // bytes since the last request
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		defer far.Close()
		b := make([]byte, 64<<10)
		for {
			n, err := near.Read(b)
			answer.Store(0)
			time.Sleep(time.Duration(l.rtt.Load()))
			if _, werr := far.Write(b[:n]); err != nil || werr != nil {
				return
			}
		}
	})
	var own *rate.Limiter
	b := make([]byte, linePiece)
	for {
		n, err := far.Read(b)
		if n > 0 {
			if hold := l.hold.Load(); hold > 0 && answer.Add(int64(n)) >= hold && l.hold.CompareAndSwap(hold, 0) {
				own = rate.NewLimiter(rate.Limit(l.held.Load()), linePiece)
				l.victims.Add(1)
			}
			if own != nil && l.waits(own, n) != nil {
				break
			}
			if l.waits(l.shared.Load(), n) != nil {
				break
			}
			l.brought.Add(int64(n))
			if _, err := near.Write(b[:n]); err != nil {
				break
			}
		}
		if err != nil {
			break
		}
	}
	near.Close()
}

// waits waits until a limiter lets n bytes pass. A limiter of rate 0 never does.
func (l *line) waits(r *rate.Limiter, n int) error {
	if r.Limit() == 0 {
		<-l.ctx.Done()
		return l.ctx.Err()
	}
	return r.WaitN(l.ctx, n)
}

// lineTo pushes an image to a new registry behind a line. It returns the line, the index and a
// function that makes a node that has nothing, with connections of its own.
func lineTo(t testing.TB, contents [][]byte) (*line, *gear.Index, func(o gearfs.Options) *node) {
	t.Helper()
	url := servetest.Start(t)
	connect := func(url string) (*client.Client, *gearclient.Client) {
		reg, err := client.New(url, &client.Options{RetryWait: time.Millisecond, Retries: 1})
		must(t, err)
		t.Cleanup(func() { reg.Close() })
		return reg, gearclient.New(reg, &gearclient.Options{AskEvery: 10 * time.Millisecond, RetryWait: time.Millisecond})
	}
	reg, gc := connect(url)
	manifest := pushLayer(t, reg, "r/app", contents)
	platform := &oci.Platform{OS: "linux", Architecture: "amd64"}
	img, err := gc.One(t.Context(), "r/app", "v1", platform)
	must(t, err)
	x, err := gc.Index(t.Context(), img)
	must(t, err)
	l := newLine(t, url)
	return l, x, func(o gearfs.Options) *node {
		reg, gc := connect(l.url)
		img, err := gc.One(t.Context(), "r/app", "v1", platform)
		must(t, err)
		n := newNode(t, o, map[string]gearfs.Source{"a": &regSource{Source: gc.Files(img, x), reg: reg, repo: "r/app", manifest: manifest}})
		must(t, n.AddImage(gearfs.ImageSpec{Chain: "sha256:1", Ref: "r/app:v1", Sources: []gearfs.SourceRef{{Registry: "a", Repo: "r/app"}}}, x))
		return n
	}
}

// TestSlowConnection fetches the same files over an unimpeded line and over one with a connection
// that gets 1 MiB/s or nothing any more. The start must not wait for that connection.
func TestSlowConnection(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	const perSec = 12_500_000
	var small [][]byte
	for i := range 320 {
		small = append(small, content(uint64(i), 60_000+i*100))
	}
	large := [][]byte{content(1001, 24<<20)}
	for name, contents := range map[string][][]byte{"files": small, "a large file": large} {
		l, _, newNode := lineTo(t, contents)
		tr := makeTree(t, contents...)
		start := func(t *testing.T, hold, held int64) (took time.Duration, brought int64) {
			l.limit(perSec)
			l.hold.Store(hold)
			l.held.Store(held)
			n := newNode(gearfs.Options{Mode: gearfs.Lazy, PrefetchWait: 10 * time.Minute})
			before, began := l.brought.Load(), time.Now()
			var profile []gear.Name
			for _, f := range tr.files {
				profile = append(profile, f.Name)
			}
			got, err := n.Prefetch(t.Context(), "sha256:1", profile)
			if err != nil || got.Left > 0 {
				t.Fatalf("prefetched %+v, %v", got, err)
			}
			took, brought = time.Since(began), l.brought.Load()-before
			for _, f := range tr.files[:1] {
				n.check(tr, f)
			}
			n.stop()
			return took, brought
		}
		for _, c := range []struct {
			name       string
			hold, held int64
			most       float64
		}{
			{"1 MiB/s from the beginning", 100, 1 << 20, 1.15},
			{"1 MiB/s later", 2 << 20, 1 << 20, 1.15},
			{"stalls", 2 << 20, 0, 1.2},
		} {
			t.Run(name+" "+c.name, func(t *testing.T) {
				// A busy machine delays either run, so only the best of some ratios counts.
				best := 0.0
				for range 4 {
					free, bytes := start(t, 0, 0)
					victims := l.victims.Load()
					held, moved := start(t, c.hold, c.held)
					if l.victims.Load() == victims {
						t.Fatal("no connection was held")
					}
					ratio := held.Seconds() / free.Seconds()
					t.Logf("unimpeded %v, with one held connection %v, %.2f times as long; %d and %d bytes", free, held, ratio, bytes, moved)
					if best == 0 || ratio < best {
						best = ratio
					}
					if best <= c.most && float64(moved) < 1.1*float64(bytes) {
						return
					}
				}
				t.Errorf("a held connection makes the start last %.2f times as long, or moves many more bytes", best)
			})
		}
	}
}

// TestShares opens a part of an image, one file after the other. Whether a profile names the files
// or nothing is known, that must not take much longer than to fetch the whole image at once, in
// whatever order the files are opened.
func TestShares(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	const perSec, rtt = 12_500_000, 20 * time.Millisecond
	var contents [][]byte
	for i := range 400 {
		contents = append(contents, content(uint64(i), 30_000+i*150))
	}
	l, x, newNode := lineTo(t, contents)
	l.limit(perSec)
	start := func(o gearfs.Options, files []gear.File, profile []gear.Name) (took time.Duration, brought int64, mode gearfs.Mode) {
		n := newNode(o)
		defer n.stop()
		n.ObserveLink("a", rtt, 4<<20, 4<<20*time.Second/perSec)
		l.rtt.Store(int64(rtt))
		defer l.rtt.Store(0)
		before, began := l.brought.Load(), time.Now()
		must(t, n.ContainerStarted("c", "sha256:1", ""))
		_, err := n.Prefetch(t.Context(), "sha256:1", profile)
		must(t, err)
		for _, f := range files {
			_, err := n.read(f)
			must(t, err)
		}
		took, brought = time.Since(began), l.brought.Load()-before
		return took, brought, n.Status().Images[0].Decision.Mode
	}
	random := slices.Clone(x.Files)
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(random), func(i, j int) { random[i], random[j] = random[j], random[i] })
	for _, percent := range []int{1, 10, 50, 80, 100} {
		for _, c := range []struct {
			name  string
			order []gear.File
			known bool
			// slack is how much more than their share of the time the files may take, and most
			// what they may take as a share of the whole.
			slack, most float64
		}{
			{"with a profile", x.Files, true, 0.35, 1.15},
			// A busy machine reads late, and then more is fetched in advance.
			{"nothing is known", x.Files, false, 0.55, 1.15},
			{"nothing is known, in a random order", random, false, 0.75, 1.5},
		} {
			t.Run(fmt.Sprintf("%d %%, %s", percent, c.name), func(t *testing.T) {
				files := c.order[:len(x.Files)*percent/100]
				profile := []gear.Name{}
				for _, f := range files {
					if c.known {
						profile = append(profile, f.Name)
					}
				}
				most := min(float64(percent)/100+c.slack, c.most)
				bytes := min(2*float64(percent)/100+0.05, 1.03)
				if !c.known && percent == 10 { // it cannot be known that no more is wanted
					bytes = 1.03
				}
				for try := range 3 { // a busy machine delays either run
					whole, all, _ := start(gearfs.Options{Mode: gearfs.Eager}, x.Files, []gear.Name{})
					took, brought, mode := start(gearfs.Options{Completes: true}, files, profile)
					ratio, moved := took.Seconds()/whole.Seconds(), float64(brought)/float64(all)
					t.Logf("all files %v; %d of them %v, %.2f of it, %.2f of the bytes, %s", whole, len(files), took, ratio, moved, mode)
					if ratio <= most && moved <= bytes {
						return
					}
					if try == 2 {
						t.Errorf("it takes %.2f of the time and %.2f of the bytes of the whole image, want %.2f of the time at most", ratio, moved, most)
					}
				}
			})
		}
	}
}

// TestTurnsEager opens files in no order, of which nothing is known. A few of them bring no others.
// When it was a quarter of the bytes, all the others come.
func TestTurnsEager(t *testing.T) {
	t.Parallel()
	var contents [][]byte
	for i := range 200 {
		contents = append(contents, content(uint64(i), 10_000))
	}
	tr := makeTree(t, contents...)
	src := newSource(tr)
	src.request = func(context.Context, []gear.File) error {
		time.Sleep(5 * time.Millisecond) // the container waits all the time
		return nil
	}
	n := newNode(t, gearfs.Options{}, map[string]gearfs.Source{"a": src})
	n.add("sha256:1", tr, "a")
	must(t, n.ContainerStarted("c", "sha256:1", ""))
	_, err := n.Prefetch(t.Context(), "sha256:1", []gear.Name{})
	must(t, err)
	for i := range 49 {
		n.check(tr, tr.index.Files[i*83%200])
	}
	if st := n.Status().Images[0]; st.LocalFiles != 49 || st.Decision.Mode != gearfs.Lazy {
		t.Errorf("after 49 of 200 files %d are local, %s", st.LocalFiles, st.Decision.Mode)
	}
	for i := range 5 {
		n.check(tr, tr.index.Files[(49+i)*83%200])
	}
	eventually(t, "all files are local", func() bool { return n.Status().Images[0].LocalFiles == 200 })
	if d := n.Status().Images[0].Decision; d.Mode != gearfs.Eager {
		t.Errorf("the decision is %+v", d)
	}
}
