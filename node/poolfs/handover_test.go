package poolfs_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/node/fuse"
	"example.org/slipway/node/fusetest"
	"example.org/slipway/node/poolfs"
)

// start runs a reader of one file in a separate process.
func (p *pool) start(kind, path string) (wait func() string) {
	p.t.Helper()
	cmd := fusetest.Command(kind, nil, path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	return func() string {
		b, _ := io.ReadAll(out)
		cmd.Wait()
		return strings.TrimSpace(string(b))
	}
}

// marked reports whether a worker began to fetch a content.
func marked(path string, name [32]byte) bool {
	b, err := os.ReadFile(path)
	return err == nil && string(b) == poolfs.PathOf(name)
}

func TestKilledInTheMiddleOfAFetch(t *testing.T) {
	p := newPool(t, patience)
	names := p.fill(t, 20, 3_000_000, 1000)
	mark := filepath.Join(p.base, "mark")
	h := p.hold(nil, "POOLFS_DELAY=300ms", "POOLFS_MARK="+mark)
	p.check(names[1])
	open, err := fusetest.Open(p.path(names[1]), unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	wait := p.start("read", p.path(names[0]))
	fusetest.Eventually(t, "a fetch", func() bool { return marked(mark, names[0]) })
	first := h.Pid()
	h.Signal(syscall.SIGKILL)
	if got, want := wait(), fmt.Sprintf("%x", names[0]); got != want {
		t.Errorf("reader: got %s, want %s", got, want)
	}
	if h.Pid() == first {
		t.Error("the worker is the first one")
	}
	if b, err := io.ReadAll(open); err != nil || len(b) != 1000 {
		t.Errorf("a file opened before: %d bytes, %v", len(b), err)
	}
	p.check(names...)
}

func TestModeIsKeptAcrossWorkers(t *testing.T) {
	p := newPool(t, patience)
	name := p.fill(t, 21, 1<<20)[0]
	p.partial = true
	_, stop := p.serve(nil)
	f, err := fusetest.Open(p.path(name), unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	stop()
	p.set(func(o *origin) { o.partial = false })
	s, stop := p.serve(nil)
	p.check(name)
	if st := s.Stats(); st.OpensCached != 1 || st.Open < 1 {
		t.Errorf("the successor: got %+v, want an open in cached mode", st)
	}
	if b, err := io.ReadAll(f); err != nil || len(b) != 1<<20 {
		t.Errorf("the old descriptor: %d bytes, %v", len(b), err)
	}
	stop()
	f.Close()
	s, stop = p.serve(nil)
	fusetest.Eventually(t, "passthrough after the last close", func() bool {
		p.check(name)
		st := s.Stats()
		return st.OpensPassthrough == 1 && st.Backing == 1
	})
	stop()
	opens := p.opens.Load()
	s, _ = p.serve(nil)
	p.check(name)
	if st := s.Stats(); st.OpensPassthrough != 1 || st.Backing != 1 || p.opens.Load() != opens {
		t.Errorf("the backing id was not taken over: %+v", st)
	}
}

// storm reads random files with many readers until ctx ends. It returns how many opens there were
// and the failures.
func (p *pool) storm(ctx context.Context, readers int, names [][32]byte) (opens int64, failures []error) {
	var n atomic.Int64
	var mu sync.Mutex
	var wg sync.WaitGroup
	for r := range readers {
		rng := rand.New(rand.NewPCG(1, uint64(r)))
		wg.Go(func() {
			for ctx.Err() == nil {
				name := names[rng.IntN(len(names))]
				err := check(p.path(name), name)
				n.Add(1)
				if err != nil {
					mu.Lock()
					failures = append(failures, err)
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return n.Load(), failures
}

func stormSizes(n int) []int {
	sizes := make([]int, n)
	for i := range sizes {
		sizes[i] = 1 + i*37%30_000
	}
	return sizes
}

// TestKillStorm kills the worker repeatedly while many readers open hundreds of files.
// POOLFS_STORM_SECONDS makes it longer.
func TestKillStorm(t *testing.T) {
	seconds := envInt("POOLFS_STORM_SECONDS", 3)
	for _, mode := range []string{"", "POOLFS_PARTIAL=1", "POOLFS_NOPASS=1"} {
		t.Run(mode, func(t *testing.T) {
			d := time.Duration(seconds) * time.Second / 3
			p := newPool(t, patience+2*d)
			names := p.fill(t, 22, stormSizes(500)...)
			h := p.hold(nil, "POOLFS_DELAY=2ms", mode)
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			kills := 0
			done := make(chan struct{})
			go func() {
				defer close(done)
				for tick := time.NewTicker(200 * time.Millisecond); ; {
					select {
					case <-ctx.Done():
						tick.Stop()
						return
					case <-tick.C:
						h.Signal(syscall.SIGKILL)
						kills++
					}
				}
			}()
			opens, failures := p.storm(ctx, 16, names)
			<-done
			t.Logf("%d opens, %d kills, %d failures", opens, kills, len(failures))
			for _, err := range failures[:min(len(failures), 10)] {
				t.Error(err)
			}
			if opens < 16 || kills < 1 {
				t.Errorf("only %d opens and %d kills", opens, kills)
			}
		})
	}
}

func TestReplaceUnderLoad(t *testing.T) {
	for _, mode := range []string{"", "POOLFS_PARTIAL=1", "POOLFS_NORESEND=1"} {
		t.Run(mode, func(t *testing.T) {
			p := newPool(t, patience)
			names := p.fill(t, 23, stormSizes(200)...)
			h := p.hold(nil, "POOLFS_DELAY=2ms", mode)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			upgrades := make(chan int)
			go func() {
				n := 0
				for tick := time.NewTicker(200 * time.Millisecond); ; n++ {
					select {
					case <-ctx.Done():
						tick.Stop()
						upgrades <- n
						return
					case <-tick.C:
						h.Signal(syscall.SIGTERM) // its successor may be another version of the program
					}
				}
			}()
			opens, failures := p.storm(ctx, 8, names)
			n := <-upgrades
			t.Logf("%d opens, %d upgrades, %d failures", opens, n, len(failures))
			for _, err := range failures[:min(len(failures), 10)] {
				t.Error(err)
			}
		})
	}
}

// TestKilledWithoutResend checks that without RESEND only those requests fail that a killed
// worker was processing.
func TestKilledWithoutResend(t *testing.T) {
	p := newPool(t, patience)
	names := p.fill(t, 24, 1000, 2000)
	mark := filepath.Join(p.base, "mark")
	h := p.hold(nil, "POOLFS_NORESEND=1", "POOLFS_DELAY=400ms", "POOLFS_MARK="+mark)
	p.check(names[1])
	wait := p.start("read", p.path(names[0]))
	fusetest.Eventually(t, "a fetch", func() bool { return marked(mark, names[0]) })
	h.Signal(syscall.SIGKILL)
	if got, want := wait(), "error software caused connection abort"; got != want {
		t.Errorf("reader in hand: got %s, want %s", got, want)
	}
	p.check(names...)
}

// TestNobodyWaitsForAWorkerThatCannotStart checks that a worker which cannot start leaves nobody
// waiting for ever.
func TestNobodyWaitsForAWorkerThatCannotStart(t *testing.T) {
	p := newPool(t, patience)
	names := p.fill(t, 25, 1000, 2000)
	_, stop := p.serve(nil)
	kept, err := fusetest.Open(p.path(names[0]), unix.O_RDONLY) // otherwise the kernel may forget its name, and then nobody finds it
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	stop()
	h := poolfs.NewHolder(p.dev, func() *exec.Cmd { return fusetest.Command("crash", nil) },
		&poolfs.HolderOptions{State: p.state, Bound: 200 * time.Millisecond, MaxBackoff: 500 * time.Millisecond})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	if err := check(p.path(names[1]), names[1]); !errors.Is(err, unix.EIO) {
		t.Errorf("a file that needs a worker: got %v, want %v", err, unix.EIO)
	}
	p.check(names[0]) // the kernel has its file
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the holder ended with %v", err)
	}
	p.serve(nil)
	p.check(names...)
}

func TestHolderEnds(t *testing.T) {
	t.Run("when the connection does", func(t *testing.T) {
		p := newPool(t, patience)
		h := poolfs.NewHolder(p.dev, func() *exec.Cmd {
			return fusetest.Command("worker", []string{"POOLFS_ORIGIN=" + p.origin.dir, "POOLFS_DELAY=0s"})
		}, nil)
		done := make(chan error, 1)
		go func() { done <- h.Run(t.Context()) }()
		if _, err := os.Stat(p.mnt); err != nil {
			t.Fatal(err)
		}
		if err := poolfs.Teardown(p.mnt); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil || !h.Gone() || h.Pid() != 0 {
			t.Errorf("got %v, gone %v, worker %d", err, h.Gone(), h.Pid())
		}
	})
	t.Run("when nothing uses the mount", func(t *testing.T) {
		p := newPool(t, patience)
		var busy atomic.Bool
		busy.Store(true)
		asked := make(chan struct{}, 100)
		h := poolfs.NewHolder(p.dev, func() *exec.Cmd {
			return fusetest.Command("worker", []string{"POOLFS_ORIGIN=" + p.origin.dir, "POOLFS_DELAY=0s"})
		}, &poolfs.HolderOptions{Busy: func() bool { asked <- struct{}{}; return busy.Load() }})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- h.Run(ctx) }()
		cancel()
		<-asked
		if _, err := os.Stat(p.mnt); err != nil { // still served
			t.Error(err)
		}
		busy.Store(false)
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want %v", err, context.Canceled)
		}
	})
}

// overlay mounts an overlay whose lower layer has, for each name, a file that points to the pool.
// It returns the overlay's directory.
func (p *pool) overlay(files map[string][32]byte) string {
	t := p.t
	lower, merged := filepath.Join(p.base, "lower"), filepath.Join(p.base, "merged")
	for _, d := range []string{lower, merged} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for file, name := range files {
		path := filepath.Join(lower, file)
		size, _ := p.Size(poolfs.Key{Name: name})
		err := os.WriteFile(path, nil, 0o755)
		if err == nil {
			err = os.Truncate(path, size)
		}
		if err == nil {
			err = unix.Setxattr(path, "trusted.overlay.metacopy", nil, 0)
		}
		if err == nil {
			err = unix.Setxattr(path, "trusted.overlay.redirect", []byte("/"+poolfs.PathOf(name)), 0)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount("overlay", merged, "overlay", 0, "metacopy=on,lowerdir="+lower+"::"+p.mnt); err != nil {
		t.Skip("no overlay with data-only layers: ", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(merged, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return merged
}

func TestOverlay(t *testing.T) {
	for _, mode := range []string{"", "POOLFS_NOPASS=1", "POOLFS_PARTIAL=1"} {
		t.Run(mode, func(t *testing.T) {
			p := newPool(t, patience)
			program, err := os.ReadFile("/proc/self/exe") // static: it needs no other file
			if err != nil {
				t.Fatal(err)
			}
			exe := p.put(t, program)
			names := p.fill(t, 26, 0, 1, 100_000, 3_000_000)
			h := p.hold(nil, mode)
			files := map[string][32]byte{}
			for i, n := range names {
				if i > 0 { // an empty file has no data elsewhere
					files[fmt.Sprint("file", i)] = n
				}
			}
			files["program"] = exe
			merged := p.overlay(files)
			delete(files, "program") // large, and read by being started
			for round := range 2 {
				for file, n := range files {
					want := fmt.Sprintf("%x", n)
					for _, kind := range []string{"read", "mmap"} {
						if got := p.start(kind, filepath.Join(merged, file))(); got != want {
							t.Errorf("round %d: %s %s: got %s, want %s", round, kind, file, got, want)
						}
					}
				}
				cmd := fusetest.Command("mmap", nil, filepath.Join(merged, "file3"))
				cmd.Path = filepath.Join(merged, "program")
				out, err := cmd.Output()
				if want := fmt.Sprintf("%x\n", names[3]); err != nil || string(out) != want {
					t.Errorf("round %d: program run from the pool: got %s, %v, want %s", round, out, err, want)
				}
				pid := h.Pid()
				h.Signal(syscall.SIGKILL)
				fusetest.Eventually(t, "the next worker", func() bool { return h.Pid() != pid && h.Pid() != 0 })
			}
		})
	}
}

func TestStoreAndInherited(t *testing.T) {
	p := newPool(t, patience)
	path := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	t.Setenv("NOTIFY_SOCKET", "")
	if ok, err := poolfs.Store(p.dev, "pool"); ok || err != nil {
		t.Errorf("without systemd: got %v, %v, want false", ok, err)
	}
	t.Setenv("NOTIFY_SOCKET", path)
	if ok, err := poolfs.Store(p.dev, "pool"); !ok || err != nil {
		t.Fatalf("got %v, %v", ok, err)
	}
	buf, oob := make([]byte, 100), make([]byte, 100)
	n, on, _, _, err := l.ReadMsgUnix(buf, oob)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(buf[:n]), "FDSTORE=1\nFDNAME=pool"; got != want {
		t.Errorf("message: got %q, want %q", got, want)
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:on])
	if err != nil || len(msgs) != 1 {
		t.Fatalf("control messages: %v, %v", msgs, err)
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 1 {
		t.Fatalf("descriptors: %v, %v", fds, err)
	}
	dev := os.NewFile(uintptr(fds[0]), "received")
	defer dev.Close()
	if conn, err := fuse.Connection(dev); err != nil || conn != p.conn {
		t.Errorf("connection of the stored descriptor: got %d, %v, want %d", conn, err, p.conn)
	}
	t.Setenv("LISTEN_PID", fmt.Sprint(os.Getpid()))
	t.Setenv("LISTEN_FDS", "1")
	t.Setenv("LISTEN_FDNAMES", "other")
	if _, err := poolfs.Inherited("pool"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a name that is not kept: got %v", err)
	}
}
