package volfs_test

import (
	"bytes"
	"context"
	"encoding/json"
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
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/node/fuse"
	"example.org/slipway/node/fusetest"
	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/block"
	"example.org/slipway/volume/file"
	"example.org/slipway/volume/volfs"
)

func TestMain(m *testing.M) { fusetest.Main(m, map[string]func() error{"server": serveChild}) }

// disk is a volume in a plain file. A writer has exclusive use of it.
type disk struct {
	*os.File
	size     int64
	readOnly bool
}

func openDisk(dir string, m block.Mapping) (*disk, error) {
	flags := os.O_RDONLY
	if m.Writable {
		flags = os.O_RDWR
	}
	f, err := os.OpenFile(filepath.Join(dir, m.ID), flags, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, block.ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err == nil && m.Writable && unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		err = block.ErrInUse
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &disk{f, fi.Size(), !m.Writable}, nil
}

func (d *disk) Size() int64  { return d.size }
func (d *disk) Flush() error { return d.Sync() }
func (d *disk) Zero(off, n int64) error {
	return unix.Fallocate(int(d.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
}

// faults controls the faults of the volumes of a server in this process.
type faults struct {
	mu      sync.Mutex
	gate    map[string]chan struct{} // by ID: reads and writes wait until it is closed
	fail    map[string]error         // reads, writes and flushes fail
	deny    string                   // user whose volumes can be neither opened nor read
	opens   atomic.Int64
	closed  atomic.Int64
	flushes atomic.Int64
}

func (s *faults) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// hold blocks the reads and writes of a volume until the returned function is called.
func (s *faults) hold(id string) (letGo func()) {
	gate := make(chan struct{})
	s.set(func() { s.gate[id] = gate })
	return sync.OnceFunc(func() { s.set(func() { delete(s.gate, id) }); close(gate) })
}

func (s *faults) pass(m block.Mapping) error {
	s.mu.Lock()
	gate, err := s.gate[m.ID], s.fail[m.ID]
	if err == nil && s.deny != "" && m.Credential.User == s.deny {
		err = block.ErrDenied
	}
	s.mu.Unlock()
	if gate != nil {
		<-gate
	}
	return err
}

type faulty struct {
	*disk
	s *faults
	m block.Mapping
}

func (v *faulty) ReadAt(p []byte, off int64) (int, error) {
	if err := v.s.pass(v.m); err != nil {
		return 0, err
	}
	return v.disk.ReadAt(p, off)
}

func (v *faulty) WriteAt(p []byte, off int64) (int, error) {
	if err := v.s.pass(v.m); err != nil {
		return 0, err
	}
	return v.disk.WriteAt(p, off)
}

func (v *faulty) Flush() error {
	v.s.flushes.Add(1)
	if err := v.s.pass(v.m); err != nil {
		return err
	}
	return v.disk.Flush()
}

func (v *faulty) Close() error {
	v.s.closed.Add(1)
	return v.disk.Close()
}

// mount is a mount with its volumes in a directory.
type mount struct {
	faults
	t                     testing.TB
	dir, mnt, state, base string
	store                 string // of block/file, for servers in processes of their own
	dev                   *os.File
}

func newMount(t testing.TB) *mount {
	t.Helper()
	fusetest.Need(t)
	base := t.TempDir()
	m := &mount{t: t, base: base, dir: filepath.Join(base, "disks"), mnt: filepath.Join(base, "mnt"), state: fusetest.StateFile(t)}
	m.gate, m.fail = map[string]chan struct{}{}, map[string]error{}
	for _, d := range []string{m.dir, m.mnt} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if m.dev, err = volfs.Mount(m.mnt); err != nil {
		t.Fatal(err)
	}
	fusetest.Guard(t, m.dev, m.mnt, fusetest.Patience)
	return m
}

// disk makes a volume of random bytes and returns the bytes.
func (m *mount) disk(id string, size int) []byte {
	m.t.Helper()
	b := make([]byte, size)
	var key [32]byte
	copy(key[:], id)
	rand.NewChaCha8(key).Read(b)
	if err := os.WriteFile(filepath.Join(m.dir, id), b, 0o600); err != nil {
		m.t.Fatal(err)
	}
	return b
}

func (m *mount) path(name string) string { return filepath.Join(m.mnt, name) }

// server makes a server in this process, which serves until the test ends or stop is called.
func (m *mount) server(bound time.Duration) (s *volfs.Server, stop func()) {
	m.t.Helper()
	s, err := volfs.New(m.dev, func(_ context.Context, mp block.Mapping) (block.Volume, error) {
		m.opens.Add(1)
		denied := false
		m.set(func() { denied = m.deny != "" && mp.Credential.User == m.deny })
		if denied {
			return nil, block.ErrDenied
		}
		d, err := openDisk(m.dir, mp)
		if err != nil {
			return nil, err
		}
		return &faulty{d, &m.faults, mp}, nil
	}, &volfs.Options{State: m.state, Bound: bound})
	if err != nil {
		m.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			m.t.Errorf("Serve ended with %v, want %v", err, context.Canceled)
		}
		if err := s.Close(); err != nil {
			m.t.Error(err)
		}
	})
	m.t.Cleanup(stop)
	return s, stop
}

func (m *mount) add(s *volfs.Server, name, id string, writable bool) {
	m.t.Helper()
	if err := s.Add(m.t.Context(), mapping(name, id, writable, "")); err != nil {
		m.t.Fatal(err)
	}
}

func mapping(name, id string, writable bool, user string) block.Mapping {
	return block.Mapping{Name: name, ID: id, Place: volref.Place{Driver: "file", Cluster: "test"}, Writable: writable,
		Credential: volref.Credential{User: user, Key: "secret"}}
}

// serveChild serves descriptor 3 until SIGTERM.
func serveChild() error {
	unix.CloseOnExec(3)
	dir := os.Getenv("VOLFS_DIR")
	opener := func(_ context.Context, m block.Mapping) (block.Volume, error) { return openDisk(dir, m) }
	if place := os.Getenv("VOLFS_STORE"); place != "" {
		store, err := file.Open(place, nil)
		if err != nil {
			return err
		}
		defer store.Close()
		opener = storeOpener(store)
	}
	s, err := volfs.New(os.NewFile(3, fuse.Device), opener, &volfs.Options{State: os.Getenv("VOLFS_STATE"), Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	if err != nil {
		return err
	}
	var add []block.Mapping
	if err := json.Unmarshal([]byte(os.Getenv("VOLFS_ADD")), &add); err != nil {
		return err
	}
	for _, m := range add {
		if err := s.Add(context.Background(), m); err != nil {
			return err
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := s.Serve(ctx); err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, fuse.ErrAborted) {
		return err
	}
	return s.Close()
}

// storeOpener opens the volumes of a store.
func storeOpener(s block.Store) volfs.Opener {
	return func(ctx context.Context, m block.Mapping) (block.Volume, error) {
		if m.Writable {
			return s.OpenWriter(ctx, m.ID)
		}
		return s.Open(ctx, m.ID)
	}
}

// child starts a server in a new process, which adds mappings first.
func (m *mount) child(add ...block.Mapping) *exec.Cmd {
	m.t.Helper()
	b, err := json.Marshal(add)
	if err != nil {
		m.t.Fatal(err)
	}
	cmd := fusetest.Command("server", []string{"VOLFS_DIR=" + m.dir, "VOLFS_STATE=" + m.state, "VOLFS_ADD=" + string(b), "VOLFS_STORE=" + m.store})
	cmd.ExtraFiles = []*os.File{m.dev}
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	return cmd
}

// keep runs servers one after the other until stop is called. Each starts as soon as the previous
// one was killed.
func (m *mount) keep(add ...block.Mapping) (kill func(), stop func()) {
	m.t.Helper()
	cur := m.child(add...)
	var mu sync.Mutex
	kill = func() {
		mu.Lock()
		defer mu.Unlock()
		cur.Process.Kill()
		cur.Wait()
		cur = m.child()
	}
	stop = sync.OnceFunc(func() {
		mu.Lock()
		defer mu.Unlock()
		cur.Process.Signal(syscall.SIGTERM)
		if err := cur.Wait(); err != nil {
			m.t.Errorf("server: %v", err)
		}
	})
	m.t.Cleanup(stop)
	return kill, stop
}

func (m *mount) open(name string, flags int) *os.File {
	m.t.Helper()
	f, err := fusetest.Open(m.path(name), flags)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { f.Close() })
	return f
}

// same compares a part of a file with the expected bytes.
func same(f io.ReaderAt, want []byte, off int64) error {
	got := make([]byte, len(want))
	if n, err := f.ReadAt(got, off); n < len(got) {
		return fmt.Errorf("%d bytes of %d at %d: %w", n, len(got), off, err)
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("wrong bytes in %d at %d", len(want), off)
	}
	return nil
}
