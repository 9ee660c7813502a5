package poolfs_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/node/fuse"
	"example.org/slipway/node/fusetest"
	"example.org/slipway/node/poolfs"
)

var sizes = []int{0, 1, 4095, 4096, 4097, 100_000, 1<<20 + 3, 5 << 20}

func TestRead(t *testing.T) {
	for _, tt := range []struct {
		name    string
		o       poolfs.Options
		partial bool
		cached  bool
	}{
		{name: "passthrough"},
		{name: "no passthrough", o: poolfs.Options{NoPassthrough: true}, cached: true},
		{name: "no passthrough, no resend", o: poolfs.Options{NoPassthrough: true, NoResend: true}, cached: true},
		{name: "partial", partial: true, cached: true},
		{name: "small reads, little memory", o: poolfs.Options{MaxReadBytes: 4096, ReadMemory: 4096}, partial: true, cached: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPool(t, patience)
			names := p.fill(t, 1, sizes...)
			p.partial = tt.partial
			s, _ := p.serve(&tt.o)
			p.check(names...)
			p.check(names...)
			st := s.Stats()
			if got := st.Reads > 0; got != tt.cached {
				t.Errorf("reads that came to the server: %d, want some: %v", st.Reads, tt.cached)
			}
			if got := st.OpensPassthrough > 0; got == tt.cached {
				t.Errorf("opens in passthrough mode: %d, want some: %v", st.OpensPassthrough, !tt.cached)
			}
			if !tt.cached && st.Backing != len(names) {
				t.Errorf("backing files: got %d, want %d", st.Backing, len(names))
			}
			fusetest.Eventually(t, "no open file", func() bool { return s.Stats().Open == 0 })
		})
	}
}

func TestTree(t *testing.T) {
	p := newPool(t, patience)
	name := p.fill(t, 2, 10)[0]
	p.serve(nil)
	unknown := [32]byte{1, 2, 3}
	for path, want := range map[string]error{
		p.path(unknown):                                fs.ErrNotExist,
		filepath.Join(p.mnt, "xy"):                     fs.ErrNotExist,
		filepath.Join(p.mnt, "abc"):                    fs.ErrNotExist,
		strings.ToUpper(p.path(name)):                  fs.ErrNotExist,
		p.path(name) + "/x":                            syscall.ENOTDIR,
		filepath.Join(p.mnt, strings.Repeat("a", 200)): fs.ErrNotExist,
	} {
		if _, err := os.Lstat(path); !errors.Is(err, want) {
			t.Errorf("stat %s: got %v, want %v", path, err, want)
		}
	}
	fi, err := os.Stat(p.path(name))
	if err != nil {
		t.Fatal(err)
	}
	if fi.Size() != 10 || fi.Mode() != 0o444 {
		t.Errorf("file: got %d bytes, mode %v, want 10 bytes, 0444", fi.Size(), fi.Mode())
	}
	fi, err = os.Stat(p.mnt)
	if err != nil {
		t.Fatal(err)
	}
	if fi.Mode() != fs.ModeDir|0o700 {
		t.Errorf("root: got mode %v, want drwx------", fi.Mode())
	}
	for _, d := range []string{p.mnt, filepath.Join(p.mnt, "ab")} {
		if l, err := os.ReadDir(d); err != nil || len(l) != 0 {
			t.Errorf("list %s: got %v, %v, want nothing", d, l, err)
		}
	}
	if err := os.WriteFile(p.path(name), nil, 0o644); !errors.Is(err, unix.EROFS) {
		t.Errorf("write: got %v, want %v", err, unix.EROFS)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(p.mnt, &st); err != nil || st.Namelen != 62 {
		t.Errorf("statfs: got %+v, %v", st, err)
	}
	// A name that was missing is found as soon as it is known.
	late := p.fill(t, 3, 20)[0]
	p.check(late)
}

func TestModeIsKept(t *testing.T) {
	p := newPool(t, patience)
	name := p.fill(t, 4, 1<<20)[0]
	p.partial = true
	s, _ := p.serve(nil)
	first, err := fusetest.Open(p.path(name), unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	p.set(func(o *origin) { o.partial = false }) // the file is complete now
	p.check(name)                                // would be EIO in passthrough mode
	if st := s.Stats(); st.OpensPassthrough != 0 || st.OpensCached != 2 {
		t.Errorf("while it is open in cached mode: got %+v", st)
	}
	if _, err := io.Copy(io.Discard, first); err != nil {
		t.Error(err)
	}
	first.Close()
	// The last read may count as a user for a moment after its answer.
	fusetest.Eventually(t, "an open in passthrough mode after the last close", func() bool { p.check(name); return s.Stats().OpensPassthrough == 1 })
	cached := s.Stats().OpensCached
	// The reverse also holds: what is open in passthrough mode stays so.
	second, err := fusetest.Open(p.path(name), unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	p.set(func(o *origin) { o.partial = true })
	s.Evict(name)
	p.check(name)
	if st := s.Stats(); st.OpensPassthrough != 3 || st.Backing != 1 {
		t.Errorf("after eviction while open: got %+v", st)
	}
	second.Close()
	fusetest.Eventually(t, "the release", func() bool { return s.Stats().Backing == 0 })
	p.check(name)
	if st := s.Stats(); st.OpensCached != cached+1 {
		t.Errorf("after eviction: got %+v, want another open in cached mode after %d", st, cached)
	}
}

func TestRacingOpens(t *testing.T) {
	for _, partial := range []bool{false, true} {
		p := newPool(t, patience)
		name := p.fill(t, 5, 300_000)[0]
		gate := make(chan struct{})
		p.gate, p.partial = gate, partial
		s, _ := p.serve(nil)
		var wg sync.WaitGroup
		for range 40 {
			wg.Go(func() { p.check(name) })
		}
		fusetest.Eventually(t, "40 waiting opens", func() bool { return s.Stats().Waiting == 40 })
		close(gate)
		wg.Wait()
		if got := p.opens.Load(); got != 1 {
			t.Errorf("partial %v: the backend opened %d times, want once", partial, got)
		}
		if got := s.Stats().Backing; !partial && got != 1 {
			t.Errorf("backing files: got %d, want 1", got)
		}
	}
}

func TestFailuresAreNotRemembered(t *testing.T) {
	p := newPool(t, patience)
	names := p.fill(t, 6, 1000, 2_000_000)
	s, _ := p.serve(nil)
	for _, tt := range []struct {
		fail, want error
	}{{errors.New("registry gone"), unix.EIO}, {fs.ErrNotExist, unix.ENOENT}} {
		p.set(func(o *origin) { o.failure = tt.fail })
		if err := check(p.path(names[0]), names[0]); !errors.Is(err, tt.want) {
			t.Errorf("open with %v: got %v, want %v", tt.fail, err, tt.want)
		}
	}
	p.set(func(o *origin) { o.failure = nil })
	p.check(names...)

	// The same holds for reads of a partial file.
	for _, n := range names {
		s.Evict(n)
	}
	fusetest.Eventually(t, "no backing file", func() bool { return s.Stats().Backing == 0 })
	p.set(func(o *origin) { o.partial = true })
	f, err := fusetest.Open(p.path(names[1]), unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	p.set(func(o *origin) { o.failure = errors.New("registry gone") })
	if _, err := f.ReadAt(make([]byte, 100), 1_000_000); !errors.Is(err, unix.EIO) {
		t.Errorf("read: got %v, want %v", err, unix.EIO)
	}
	p.set(func(o *origin) { o.failure = nil })
	p.check(names[1])
}

func TestTruncatedContentIsAnError(t *testing.T) {
	p := newPool(t, patience)
	name := p.fill(t, 7, 100_000)[0]
	if err := os.Truncate(filepath.Join(p.origin.dir, poolfs.PathOf(name)), 50_000); err != nil {
		t.Fatal(err)
	}
	p.serve(&poolfs.Options{NoPassthrough: true})
	if err := check(p.path(name), name); !errors.Is(err, unix.EIO) {
		t.Errorf("got %v, want %v", err, unix.EIO)
	}
}

func TestBound(t *testing.T) {
	p := newPool(t, patience)
	names := p.fill(t, 8, 1000, 100_000)
	gate := make(chan struct{})
	p.gate = gate
	s, _ := p.serve(&poolfs.Options{Bound: 150 * time.Millisecond})
	if err := check(p.path(names[0]), names[0]); !errors.Is(err, unix.EIO) {
		t.Errorf("open without progress: got %v, want %v", err, unix.EIO)
	}
	fusetest.Eventually(t, "the backend is told", func() bool { return p.cancelled.Load() == 1 })
	p.set(func(o *origin) { o.gate, o.partial = nil, true })
	f, err := fusetest.Open(p.path(names[1]), unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p.set(func(o *origin) { o.gate = gate })
	if _, err := f.Read(make([]byte, 10)); !errors.Is(err, unix.EIO) {
		t.Errorf("read without progress: got %v, want %v", err, unix.EIO)
	}
	p.set(func(o *origin) { o.gate = nil })
	p.check(names...)
	if s.Stats().OpensFailed != 1 {
		t.Errorf("got %+v, want one failed open", s.Stats())
	}
}

// TestInterrupt checks that a signal that does not kill does not fail an open, and that one that
// kills ends the fetch.
func TestInterrupt(t *testing.T) {
	p := newPool(t, patience)
	names := p.fill(t, 9, 1000, 2000)
	gate := make(chan struct{})
	p.gate = gate
	s, _ := p.serve(nil)
	start := func(name [32]byte) (*exec.Cmd, io.Reader) {
		cmd := fusetest.Command("read", nil, p.path(name))
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd, out
	}
	kept, out := start(names[0])
	killed, _ := start(names[1])
	fusetest.Eventually(t, "two waiting opens", func() bool { return s.Stats().Waiting == 2 })
	for _, c := range []*exec.Cmd{kept, killed} {
		if err := c.Process.Signal(syscall.SIGURG); err != nil { // Go programs send it to themselves
			t.Fatal(err)
		}
	}
	fusetest.Eventually(t, "two interrupts", func() bool { return s.Stats().Interrupts >= 2 })
	if err := killed.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	killed.Wait()
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("the killed process took %v to end", d)
	}
	fusetest.Eventually(t, "end of its fetch", func() bool { return p.cancelled.Load() == 1 })
	close(gate)
	got, err := io.ReadAll(out)
	if err != nil {
		t.Fatal(err)
	}
	kept.Wait()
	want, _ := os.ReadFile(filepath.Join(p.origin.dir, poolfs.PathOf(names[0])))
	if strings.TrimSpace(string(got)) != describe(want, nil) {
		t.Errorf("the signalled process: got %s", got)
	}
}

func TestEvict(t *testing.T) {
	p := newPool(t, patience)
	name := p.fill(t, 10, 500_000)[0]
	s, _ := p.serve(nil)
	file := filepath.Join(p.origin.dir, poolfs.PathOf(name))
	for range 3 {
		f, err := fusetest.Open(p.path(name), unix.O_RDONLY)
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		s.Evict(name)
		if got, err := io.ReadAll(f); err != nil || describe(got, nil) != describe(b, nil) {
			t.Errorf("open file after its eviction: %d bytes, %v", len(got), err)
		}
		f.Close()
		fusetest.Eventually(t, "no backing file", func() bool { return s.Stats().Backing == 0 })
		if err := os.WriteFile(file, b, 0o444); err != nil { // fetched again: another inode
			t.Fatal(err)
		}
		p.check(name)
		s.Evict(name)
		fusetest.Eventually(t, "no backing file", func() bool { return s.Stats().Backing == 0 })
	}
}

// TestRenew replaces a content by another one, of any size, while a process has a part of
// it open, and while none has. The kernel has read the old content first. Afterwards
// every reader gets the right bytes, even one that has the content open.
func TestRenew(t *testing.T) {
	p := newPool(t, patience)
	p.partial = true
	s, _ := p.serve(nil)
	put := func(name [32]byte, b []byte) {
		t.Helper()
		file := filepath.Join(p.origin.dir, poolfs.PathOf(name))
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, b, 0o444); err != nil {
			t.Fatal(err)
		}
		p.nodes.add(name, int64(len(b)))
	}
	seed := uint64(20)
	for _, grow := range []int{0, -70_000, 70_000} {
		for _, kept := range []bool{false, true} {
			right := bytes.Repeat([]byte("right"), 40_000)
			wrong := bytes.Repeat([]byte("wrong"), (len(right)+grow)/5)
			name := p.fill(t, seed, 1000)[0]
			seed++
			put(name, wrong)
			f, err := fusetest.Open(p.path(name), unix.O_RDONLY)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, wrong) {
				t.Fatalf("before: %d bytes, %v", len(got), err)
			}
			if !kept {
				f.Close()
			}
			put(name, right)
			s.Renew(poolfs.Key{Name: name})
			again, err := fusetest.Open(p.path(name), unix.O_RDONLY)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(again); err != nil || !bytes.Equal(got, right) {
				t.Errorf("size by %d, kept open %v: %d bytes that begin with %.5q, %v", grow, kept, len(got), got, err)
			}
			again.Close()
			if !kept {
				continue
			}
			if got, err := io.ReadAll(io.NewSectionReader(f, 0, int64(len(right)))); err != nil || !bytes.Equal(got, right) {
				t.Errorf("size by %d: who had it open reads %d bytes that begin with %.5q, %v", grow, len(got), got, err)
			}
			f.Close()
		}
	}
}

func TestIdleBackingIsBounded(t *testing.T) {
	p := newPool(t, patience)
	sizes := make([]int, 50)
	for i := range sizes {
		sizes[i] = 100 + i
	}
	names := p.fill(t, 11, sizes...)
	s, _ := p.serve(&poolfs.Options{IdleBacking: 8})
	for range 2 {
		p.check(names...)
	}
	fusetest.Eventually(t, "8 backing files", func() bool { return s.Stats().Backing == 8 })
}

func TestOpenedIsTold(t *testing.T) {
	p := newPool(t, patience)
	name := p.fill(t, 12, 100)[0]
	var mu sync.Mutex
	var told [][32]byte
	p.serve(&poolfs.Options{Opened: func(n [32]byte) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, n)
	}})
	for range 3 {
		p.check(name)
	}
	fusetest.Eventually(t, "two opens told", func() bool { // reported after their answer
		mu.Lock()
		defer mu.Unlock()
		return len(told) >= 2
	})
	mu.Lock()
	defer mu.Unlock()
	if p.opens.Load() != 1 || len(told) != 2 || told[0] != name {
		t.Errorf("backend asked %d times, told of %d opens, want 1 and 2", p.opens.Load(), len(told))
	}
}

func TestAbortEndsServe(t *testing.T) {
	p := newPool(t, patience)
	s, err := poolfs.New(p.dev, p.origin, &p.nodes, nil)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(t.Context()) }()
	if _, err := os.Stat(p.mnt); err != nil {
		t.Fatal(err)
	}
	if err := fuse.Abort(p.conn); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, poolfs.ErrAborted) {
		t.Errorf("got %v, want %v", err, poolfs.ErrAborted)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := fuse.Abort(p.conn + 10_000); err != nil {
		t.Errorf("abort of what is not there: %v", err)
	}
}

func TestUnmountEndsServe(t *testing.T) {
	p := newPool(t, patience)
	s, err := poolfs.New(p.dev, p.origin, &p.nodes, nil)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(t.Context()) }()
	if err := fuse.Unmount(p.mnt); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("got %v, want nil", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
