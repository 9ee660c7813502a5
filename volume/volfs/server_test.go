package volfs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"example.org/slipway/node/fuse"
	"example.org/slipway/node/fusetest"
	"example.org/slipway/volume/block"
	"example.org/slipway/volume/volfs"
)

const bound = 10 * time.Second

func TestRead(t *testing.T) {
	m := newMount(t)
	want := m.disk("v1", 5<<20+4096)
	s, _ := m.server(bound)
	m.add(s, "one", "v1", false)
	f := m.open("one", unix.O_RDONLY)
	if fi, err := f.Stat(); err != nil || fi.Size() != int64(len(want)) {
		t.Errorf("size: got %v, %v, want %d", fi.Size(), err, len(want))
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		off := rng.Int64N(int64(len(want)))
		n := min(rng.Int64N(3<<20), int64(len(want))-off)
		if err := same(f, want[off:off+n], off); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := f.ReadAt(make([]byte, 8192), int64(len(want))-4096); n != 4096 || err != io.EOF {
		t.Errorf("over the end: %d bytes, %v, want 4096 and EOF", n, err)
	}
	if st := s.List(); len(st) != 1 || !st[0].Open || st[0].ReadBytes == 0 || st[0].Mapping.Credential.Key != "" || st[0].Errors != 0 {
		t.Errorf("status: %+v", st)
	}
	for _, flags := range []int{unix.O_RDWR, unix.O_WRONLY} {
		if _, err := fusetest.Open(m.path("one"), flags); !errors.Is(err, unix.EROFS) {
			t.Errorf("open with %d: got %v, want %v", flags, err, unix.EROFS)
		}
	}
}

func TestNames(t *testing.T) {
	m := newMount(t)
	v1, v2 := m.disk("v1", 64<<10), m.disk("v2", 64<<10)
	s, _ := m.server(bound)
	m.add(s, "a", "v1", false)
	m.add(s, "b", "v1", false)
	list := func() []string {
		dir := m.open("", unix.O_RDONLY|unix.O_DIRECTORY)
		names, err := dir.Readdirnames(-1)
		if err != nil {
			t.Error(err)
		}
		return names
	}
	if got := list(); len(got) != 2 || got[0] != "a" || got[1] != "b" {
		t.Errorf("files: got %v, want a and b", got)
	}
	f := m.open("a", unix.O_RDONLY)
	if err := s.Remove(t.Context(), "a"); !errors.Is(err, block.ErrInUse) {
		t.Errorf("remove an open file: got %v, want %v", err, block.ErrInUse)
	}
	if err := same(f, v1, 0); err != nil {
		t.Error(err)
	}
	f.Close()
	for range 2 {
		if err := s.Remove(t.Context(), "a"); err != nil {
			t.Error(err)
		}
	}
	if _, err := fusetest.Open(m.path("a"), unix.O_RDONLY); !errors.Is(err, unix.ENOENT) {
		t.Errorf("a removed file: got %v, want %v", err, unix.ENOENT)
	}
	// Another volume of the same name is another file to the kernel as well.
	m.add(s, "a", "v2", false)
	if err := same(m.open("a", unix.O_RDONLY), v2, 0); err != nil {
		t.Error(err)
	}
	if err := s.Add(t.Context(), mapping("a", "v1", false, "")); !errors.Is(err, block.ErrExists) {
		t.Errorf("a name twice: got %v, want %v", err, block.ErrExists)
	}
	for _, name := range []string{"", ".", "..", "a/b", string(make([]byte, 300))} {
		if err := s.Add(t.Context(), mapping(name, "v1", false, "")); err == nil {
			t.Errorf("name %q was taken", name)
		}
	}
	if err := s.Add(t.Context(), mapping("c", "none", false, "")); !errors.Is(err, block.ErrNotFound) {
		t.Errorf("a volume that is not there: got %v, want %v", err, block.ErrNotFound)
	}
	for what, err := range map[string]error{
		"unlink": unix.Unlink(m.path("a")), "mkdir": unix.Mkdir(m.path("d"), 0o700), "truncate": unix.Truncate(m.path("a"), 0),
		"rename": unix.Rename(m.path("a"), m.path("x")), "chmod": unix.Chmod(m.path("a"), 0o777),
	} {
		if err == nil {
			t.Errorf("%s succeeded", what)
		}
	}
}

func TestWrite(t *testing.T) {
	m := newMount(t)
	const size = 4 << 20
	want := m.disk("c-1", size)
	s, stop := m.server(bound)
	m.add(s, "w", "c-1", true)
	f := m.open("w", unix.O_RDWR)
	rng := rand.New(rand.NewPCG(3, 4))
	write := func(f *os.File, b []byte, off int64) {
		t.Helper()
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		if n, err := f.WriteAt(b, off); err != nil || n != len(b) {
			t.Fatalf("write %d at %d: %d, %v", len(b), off, n, err)
		}
		copy(want[off:], b)
	}
	for range 30 {
		off := rng.Int64N(size)
		write(f, make([]byte, min(rng.Int64N(1<<20), size-off)), off)
	}
	direct := m.open("w", unix.O_RDWR|unix.O_DIRECT)
	write(direct, aligned(2<<20), 1<<20)
	if err := f.Sync(); err != nil || m.flushes.Load() == 0 {
		t.Errorf("fsync: %v, %d flushes", err, m.flushes.Load())
	}
	for _, mode := range []uint32{unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_ZERO_RANGE} {
		off := int64(mode) << 16
		if err := unix.Fallocate(int(f.Fd()), mode, off, 100_000); err != nil {
			t.Errorf("fallocate %x: %v", mode, err)
		}
		clear(want[off : off+100_000])
	}
	if _, err := f.WriteAt([]byte("x"), size); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a write behind the end: got %v, want %v", err, unix.ENOSPC)
	}
	if err := f.Truncate(0); !errors.Is(err, unix.EPERM) {
		t.Errorf("truncate: got %v, want %v", err, unix.EPERM)
	}
	if err := same(f, want, 0); err != nil {
		t.Error(err)
	}
	if err := errors.Join(f.Close(), direct.Close()); err != nil {
		t.Error(err)
	}
	before := m.flushes.Load()
	if err := s.Remove(t.Context(), "w"); err != nil || m.flushes.Load() == before || m.opens.Load() != m.closed.Load() {
		t.Errorf("remove: %v, flushes %d and %d, opens %d, closed %d", err, before, m.flushes.Load(), m.opens.Load(), m.closed.Load())
	}
	stop()
	if got, err := os.ReadFile(m.dir + "/c-1"); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the volume differs, %v", err)
	}
}

// aligned returns memory for direct I/O.
func aligned(n int) []byte {
	b := make([]byte, n+4096)
	at := uintptr(unsafe.Pointer(&b[0])) & 4095
	return b[4096-at:][:n]
}

// TestStorageThatFailsForAWhile checks that operations which fail for a while are tried again, with
// a volume opened anew.
func TestStorageThatFailsForAWhile(t *testing.T) {
	m := newMount(t)
	want := m.disk("v1", 256<<10)
	s, _ := m.server(bound)
	m.add(s, "one", "v1", false)
	f := m.open("one", unix.O_RDONLY)
	m.set(func() { m.fail["v1"] = block.ErrAway })
	done := make(chan error, 1)
	go func() { done <- same(f, want, 0) }()
	fusetest.Eventually(t, "a volume opened anew", func() bool { return m.opens.Load() > 2 })
	select {
	case err := <-done:
		t.Fatalf("a read ended before storage was back: %v", err)
	default:
	}
	m.set(func() { delete(m.fail, "v1") })
	if err := <-done; err != nil {
		t.Error(err)
	}
	if st := s.List()[0]; st.Errors == 0 || st.LastError == "" || st.Failed != 0 {
		t.Errorf("status: %+v", st)
	}
}

// TestBound checks that others continue while the storage of a volume hangs, and that it fails at
// the bound and not before.
func TestBound(t *testing.T) {
	m := newMount(t)
	one, two := m.disk("v1", 4<<20), m.disk("v2", 1<<20)
	s, stop := m.server(time.Minute)
	m.add(s, "one", "v1", false)
	m.add(s, "two", "v2", false)
	f1, f2 := m.open("one", unix.O_RDONLY), m.open("two", unix.O_RDONLY)
	read := func(check func(began time.Time, i int) error) (wait func()) {
		var wg sync.WaitGroup
		began := time.Now()
		for i := range 64 {
			wg.Go(func() {
				if err := check(began, i); err != nil {
					t.Error(err)
				}
			})
		}
		return wg.Wait
	}
	letGo := m.hold("v1")
	defer letGo()
	wait := read(func(_ time.Time, i int) error { return same(f1, one[i<<12:][:4096], int64(i)<<12) })
	time.Sleep(20 * time.Millisecond) // until they are being processed
	if err := same(f2, two, 0); err != nil {
		t.Errorf("another volume: %v", err)
	}
	letGo()
	wait()
	stop()

	const short = 300 * time.Millisecond
	s, _ = m.server(short)
	letGo = m.hold("v1")
	defer letGo()
	read(func(began time.Time, i int) error {
		_, err := f1.ReadAt(make([]byte, 4096), 3<<20+int64(i)<<12)
		if took := time.Since(began); !errors.Is(err, unix.EIO) || took < short || took > short+20*time.Second {
			return fmt.Errorf("got %v after %v, want %v after %v", err, took, unix.EIO, short)
		}
		return nil
	})()
	letGo()
	fusetest.Eventually(t, "a read", func() bool { _, err := f1.ReadAt(make([]byte, 4096), 3<<20); return err == nil })
	if st := s.List()[0]; st.Failed == 0 {
		t.Errorf("status: %+v", st)
	}
}

// TestGivenUpWriteDoesNotOvertake checks that a write which was given up at the bound does not come
// after a later one.
func TestGivenUpWriteDoesNotOvertake(t *testing.T) {
	m := newMount(t)
	m.disk("c-1", 64<<10)
	s, _ := m.server(300 * time.Millisecond)
	m.add(s, "w", "c-1", true)
	f := m.open("w", unix.O_RDWR|unix.O_DIRECT)
	old, later := aligned(4096), aligned(4096)
	for i := range old {
		old[i], later[i] = 'o', 'l'
	}
	letGo := m.hold("c-1")
	if _, err := f.WriteAt(old, 0); !errors.Is(err, unix.EIO) {
		t.Fatalf("got %v, want %v", err, unix.EIO)
	}
	// Storage answers again, but the old write is still running.
	m.set(func() { delete(m.gate, "c-1") })
	if _, err := f.WriteAt(later, 0); !errors.Is(err, unix.EIO) {
		t.Errorf("a write beside one under way: got %v, want %v", err, unix.EIO)
	}
	letGo()
	fusetest.Eventually(t, "a write", func() bool { _, err := f.WriteAt(later, 0); return err == nil })
	if err := same(f, later, 0); err != nil {
		t.Error(err)
	}
}

func TestKilledReaderIsLetGo(t *testing.T) {
	m := newMount(t)
	m.disk("v1", 64<<10)
	s, _ := m.server(time.Minute)
	m.add(s, "one", "v1", false)
	letGo := m.hold("v1")
	defer letGo()
	cat := fusetest.Command("none", nil)
	cat.Path, cat.Args = "/bin/cat", []string{"cat", m.path("one")}
	if err := cat.Start(); err != nil {
		t.Fatal(err)
	}
	fusetest.Eventually(t, "a read", func() bool { return s.List()[0].Open })
	time.Sleep(50 * time.Millisecond) // until it reads
	cat.Process.Kill()
	began := time.Now()
	cat.Wait()
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %v to die", took)
	}
	letGo()
}

// TestCredentialIsReplaced checks that another credential is accepted while the volume is in use,
// and that a bad one changes nothing.
func TestCredentialIsReplaced(t *testing.T) {
	for _, writable := range []bool{false, true} {
		m := newMount(t)
		want := m.disk("c-1", 256<<10)
		s, stop := m.server(bound)
		if err := s.Add(t.Context(), mapping("one", "c-1", writable, "first")); err != nil {
			t.Fatal(err)
		}
		f := m.open("one", unix.O_RDONLY)
		m.set(func() { m.deny = "bad" })
		if err := s.Add(t.Context(), mapping("one", "c-1", writable, "bad")); !errors.Is(err, block.ErrDenied) {
			t.Errorf("a bad credential: got %v, want %v", err, block.ErrDenied)
		}
		if err := same(f, want[:64<<10], 0); err != nil {
			t.Error(err)
		}
		m.set(func() { m.deny = "first" })
		done := make(chan error, 1)
		go func() { done <- same(f, want[128<<10:], 128<<10) }()
		fusetest.Eventually(t, "a refusal", func() bool { return s.List()[0].Errors > 0 && s.List()[0].Denied })
		if err := s.Add(t.Context(), mapping("one", "c-1", writable, "second")); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if got := s.List()[0]; got.Mapping.Credential.User != "second" || got.Denied {
			t.Errorf("user: got %s, denied %t, want second", got.Mapping.Credential.User, got.Denied)
		}
		f.Close()
		if err := s.Remove(t.Context(), "one"); err != nil {
			t.Error(err)
		}
		stop()
	}
}

// TestHandOver checks that a server which was told to stop leaves files, opens and credentials to
// the next.
func TestHandOver(t *testing.T) {
	m := newMount(t)
	want := m.disk("v1", 1<<20)
	s, stop := m.server(bound)
	m.add(s, "one", "v1", false)
	m.add(s, "two", "v1", false)
	f := m.open("one", unix.O_RDONLY)
	letGo := m.hold("v1")
	done := make(chan error, 1)
	go func() { done <- same(f, want, 0) }()
	time.Sleep(20 * time.Millisecond) // until it is being processed
	go func() { time.Sleep(100 * time.Millisecond); letGo() }()
	stop()
	opens := m.opens.Load()
	s, _ = m.server(bound)
	if m.opens.Load() != opens {
		t.Error("the next server opened volumes that nobody asked for")
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if st := s.List(); len(st) != 2 || !st[0].Open || st[1].Open || st[0].Size != 1<<20 {
		t.Errorf("the next server: %+v", st)
	}
	if err := s.Remove(t.Context(), "one"); !errors.Is(err, block.ErrInUse) {
		t.Errorf("remove: got %v, want %v", err, block.ErrInUse)
	}
	f.Close()
	m.add(s, "three", "v1", false)
	if err := same(m.open("three", unix.O_RDONLY), want, 0); err != nil {
		t.Error(err)
	}
	if err := s.Remove(t.Context(), "one"); err != nil {
		t.Error(err)
	}
}

// TestRefuse checks that operations that need storage fail while no server can be started, and that
// nothing is lost for the next one.
func TestRefuse(t *testing.T) {
	m := newMount(t)
	want := m.disk("v1", 64<<10)
	s, stop := m.server(bound)
	m.add(s, "one", "v1", false)
	f := m.open("one", unix.O_RDONLY)
	stop()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- volfs.Refuse(ctx, m.dev, m.state) }()
	if _, err := f.ReadAt(make([]byte, 4096), 0); !errors.Is(err, unix.EIO) {
		t.Errorf("got %v, want %v", err, unix.EIO)
	}
	if _, err := fusetest.Open(m.path("none"), unix.O_RDONLY); !errors.Is(err, unix.ENOENT) {
		t.Errorf("got %v, want %v", err, unix.ENOENT)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	m.server(bound)
	if err := same(f, want, 0); err != nil {
		t.Error(err)
	}
}

// TestDamagedState checks that an unreadable state file does not count as a missing one. Users of
// the files would find them gone otherwise.
func TestDamagedState(t *testing.T) {
	m := newMount(t)
	for _, b := range []string{"", "{", `{"version":2}`} {
		if err := os.WriteFile(m.state, []byte(b), 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err := newServer(m); err == nil {
			s.Close()
			t.Errorf("state %q was taken", b)
		}
	}
	// The state of another connection does not count.
	if err := os.WriteFile(m.state, []byte(`{"version":1,"connection":1000000}`), 0o600); err != nil {
		t.Fatal(err)
	}
	m.server(bound)
}

func TestAbortEndsServe(t *testing.T) {
	m := newMount(t)
	m.disk("v1", 4096)
	s, err := newServer(m)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(context.Background()) }()
	m.add(s, "one", "v1", false)
	m.open("one", unix.O_RDONLY)
	if err := fuse.Teardown(m.mnt); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, fuse.ErrAborted) && err != nil {
		t.Errorf("Serve: got %v, want %v", err, fuse.ErrAborted)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
