package poolfs_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/node/fusetest"
	"example.org/slipway/node/poolfs"
)

func TestMain(m *testing.M) {
	fusetest.Main(m, map[string]func() error{
		"worker": worker,
		"read": func() error { // opens and reads its argument, and prints the result
			fmt.Println(describe(readRaw(os.Args[1])))
			return nil
		},
		"mmap": func() error {
			fmt.Println(describe(readMapped(os.Args[1])))
			return nil
		},
		"crash": func() error { os.Exit(3); return nil },
	})
}

func describe(b []byte, err error) string {
	if err != nil {
		return "error " + err.Error()
	}
	return fmt.Sprintf("%x", sha256.Sum256(b))
}

// readRaw opens with one system call, like a C program that does not handle EINTR.
func readRaw(path string) ([]byte, error) {
	fd, err := syscall.Open(path, syscall.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer syscall.Close(fd)
	var out []byte
	buf := make([]byte, 64<<10)
	for {
		n, err := syscall.Read(fd, buf)
		if err != nil || n == 0 {
			return out, err
		}
		out = append(out, buf[:n]...)
	}
}

func readMapped(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	b, err := unix.Mmap(int(f.Fd()), 0, int(fi.Size()), unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE)
	if err != nil {
		return nil, err
	}
	return bytes.Clone(b), unix.Munmap(b)
}

// contents is a Resolver of the node IDs that a server must know.
type contents struct{ of sync.Map } // node id: known

type known struct {
	name [32]byte
	size int64
}

func (c *contents) add(name [32]byte, size int64) {
	c.of.Store(poolfs.NodeID(poolfs.Key{Name: name}), known{name, size})
}

func (c *contents) Resolve(node uint64) (key poolfs.Key, size int64, ok bool) {
	k, ok := c.of.Load(node)
	if !ok {
		return key, 0, false
	}
	return poolfs.Key{Name: k.(known).name}, k.(known).size, true
}

func (c *contents) Views() []uint64 { return []uint64{0} }

func (c *contents) size(name [32]byte) (int64, bool) {
	key := poolfs.Key{Name: name}
	got, size, ok := c.Resolve(poolfs.NodeID(key))
	return size, ok && got == key
}

// origin is a backend over a directory of complete files, named as in the pool. It can be slow,
// fail, or pretend that files are partial.
type origin struct {
	dir   string
	nodes contents

	mu      sync.Mutex
	delay   time.Duration
	failure error
	gate    chan struct{} // opens wait until it is closed
	partial bool
	mark    string // file that names the content opened last

	opens     atomic.Int64
	cancelled atomic.Int64
}

func (o *origin) Size(k poolfs.Key) (int64, bool) { return o.nodes.size(k.Name) }

func (o *origin) set(f func(*origin)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f(o)
}

func (o *origin) Open(ctx context.Context, k poolfs.Key) (poolfs.Content, error) {
	name := k.Name
	o.opens.Add(1)
	o.mu.Lock()
	delay, failure, gate, partial := o.delay, o.failure, o.gate, o.partial
	o.mu.Unlock()
	if o.mark != "" {
		if err := os.WriteFile(o.mark, []byte(poolfs.PathOf(name)), 0o644); err != nil {
			return nil, err
		}
	}
	if delay > 0 {
		gate = make(chan struct{})
		time.AfterFunc(delay, func() { close(gate) })
	}
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			o.cancelled.Add(1)
			return nil, context.Cause(ctx)
		}
	}
	if failure != nil {
		return nil, failure
	}
	f, err := os.Open(filepath.Join(o.dir, poolfs.PathOf(name)))
	if err != nil {
		return nil, err
	}
	return &content{o: o, f: f, partial: partial}, nil
}

type content struct {
	o       *origin
	f       *os.File
	partial bool
}

func (c *content) File() *os.File {
	c.o.mu.Lock()
	defer c.o.mu.Unlock()
	if c.partial && c.o.partial {
		return nil
	}
	return c.f
}

func (c *content) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	c.o.mu.Lock()
	gate, failure := c.o.gate, c.o.failure
	c.o.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			c.o.cancelled.Add(1)
			return 0, context.Cause(ctx)
		}
	}
	if failure != nil {
		return 0, failure
	}
	return c.f.ReadAt(p, off)
}

func (c *content) Close() error { return c.f.Close() }

// fill writes n files of the given sizes and returns their names and contents' sums.
func (o *origin) fill(t testing.TB, seed uint64, sizes ...int) [][32]byte {
	t.Helper()
	var names [][32]byte
	for i, size := range sizes {
		b := make([]byte, size)
		var key [32]byte
		binary.LittleEndian.PutUint64(key[:], seed)
		binary.LittleEndian.PutUint64(key[8:], uint64(i))
		r := rand.NewChaCha8(key)
		if _, err := r.Read(b); err != nil {
			t.Fatal(err)
		}
		names = append(names, o.put(t, b))
	}
	return names
}

func (o *origin) put(t testing.TB, b []byte) [32]byte {
	t.Helper()
	name := sha256.Sum256(b)
	path := filepath.Join(o.dir, poolfs.PathOf(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o444); err != nil {
		t.Fatal(err)
	}
	o.nodes.add(name, int64(len(b)))
	return name
}

// load fills the table from the directory.
func (o *origin) load() error {
	return filepath.WalkDir(o.dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(o.dir, p)
		if err != nil {
			return err
		}
		var name [32]byte
		b, err := hex.DecodeString(strings.ReplaceAll(rel, "/", ""))
		if err != nil || copy(name[:], b) != len(name) {
			return nil
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		o.nodes.add(name, fi.Size())
		return nil
	})
}

// worker serves the inherited pool until SIGTERM. The environment controls it.
func worker() error {
	dev, err := poolfs.Inherited("pool")
	if err != nil {
		return err
	}
	o := &origin{dir: os.Getenv("POOLFS_ORIGIN"), partial: os.Getenv("POOLFS_PARTIAL") != "", mark: os.Getenv("POOLFS_MARK")}
	if o.delay, err = time.ParseDuration(os.Getenv("POOLFS_DELAY")); err != nil {
		return err
	}
	if err := o.load(); err != nil {
		return err
	}
	s, err := poolfs.New(dev, o, &o.nodes, &poolfs.Options{
		State: os.Getenv("POOLFS_STATE"), MaxReadBytes: envInt("POOLFS_MAXREAD", 0), NoPassthrough: os.Getenv("POOLFS_NOPASS") != "", NoResend: os.Getenv("POOLFS_NORESEND") != "",
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err = s.Serve(ctx)
	if cerr := s.Close(); cerr != nil {
		return cerr
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, poolfs.ErrAborted) {
		return nil
	}
	return err
}

// pool is a mounted pool in its own directory.
type pool struct {
	*origin
	t     testing.TB
	base  string
	mnt   string
	dev   *os.File
	conn  uint32
	state string
}

const patience = fusetest.Patience

func newPool(t testing.TB, limit time.Duration) *pool {
	t.Helper()
	fusetest.Need(t)
	base := t.TempDir()
	p := &pool{origin: &origin{dir: filepath.Join(base, "origin")}, t: t, base: base, mnt: filepath.Join(base, "mnt"),
		state: fusetest.StateFile(t)}
	for _, d := range []string{p.mnt, p.origin.dir} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	dev, err := poolfs.Mount(p.mnt, nil)
	if err != nil {
		t.Fatal(err)
	}
	p.dev = dev
	p.conn = fusetest.Guard(t, dev, p.mnt, limit)
	return p
}

// serve serves in this process until the test ends or stop is called.
func (p *pool) serve(o *poolfs.Options) (s *poolfs.Server, stop func()) {
	p.t.Helper()
	if o == nil {
		o = &poolfs.Options{}
	}
	o.State = p.state
	s, err := poolfs.New(p.dev, p.origin, &p.nodes, o)
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			p.t.Errorf("Serve ended with %v, want %v", err, context.Canceled)
		}
		if err := s.Close(); err != nil {
			p.t.Error(err)
		}
	})
	p.t.Cleanup(stop)
	return s, stop
}

// hold starts a holder with workers in separate processes.
func (p *pool) hold(o *poolfs.HolderOptions, env ...string) *poolfs.Holder {
	p.t.Helper()
	env = append([]string{"POOLFS_ORIGIN=" + p.origin.dir, "POOLFS_STATE=" + p.state, "POOLFS_DELAY=0s"}, env...)
	if o == nil {
		o = &poolfs.HolderOptions{Healthy: 50 * time.Millisecond}
	}
	o.State = p.state
	h := poolfs.NewHolder(p.dev, func() *exec.Cmd { return fusetest.Command("worker", env) }, o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	p.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			p.t.Errorf("the holder ended with %v", err)
		}
		if pid := h.Pid(); pid != 0 {
			p.t.Errorf("worker %d is left", pid)
		}
	})
	fusetest.Eventually(p.t, "a worker", func() bool { return h.Pid() != 0 })
	return h
}

func (p *pool) path(name [32]byte) string { return filepath.Join(p.mnt, poolfs.PathOf(name)) }

// check reads a file and compares its sum with its name.
func check(path string, name [32]byte) error {
	f, err := fusetest.Open(path, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return err
	}
	if [32]byte(h.Sum(nil)) != name {
		return fmt.Errorf("%s: wrong bytes", path)
	}
	return nil
}

func (p *pool) check(names ...[32]byte) {
	p.t.Helper()
	for _, n := range names {
		if err := check(p.path(n), n); err != nil {
			p.t.Error(err)
		}
	}
}

func envInt(name string, def int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return def
}
