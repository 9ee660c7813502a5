package volfs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/internal/mounttest"
	"example.org/slipway/node/fusetest"
	"example.org/slipway/volume/block"
	"example.org/slipway/volume/file"
	"example.org/slipway/volume/loop"
	"example.org/slipway/volume/volfs"
)

func newServer(m *mount) (*volfs.Server, error) {
	return volfs.New(m.dev, func(_ context.Context, mp block.Mapping) (block.Volume, error) { return openDisk(m.dir, mp) },
		&volfs.Options{State: m.state})
}

// tool runs a program of the machine, or skips the test.
func tool(t testing.TB, name string, args ...string) {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skip("no ", name, ": ", err)
	}
	if out, err := exec.Command(path, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", name, err, out)
	}
}

// tree makes a directory of files.
func (m *mount) tree() string {
	m.t.Helper()
	dir := filepath.Join(m.base, "tree")
	if err := os.MkdirAll(filepath.Join(dir, "d"), 0o755); err != nil {
		m.t.Fatal(err)
	}
	for i, size := range []int{0, 10, 5000, 3 << 20} {
		if err := os.WriteFile(filepath.Join(dir, "d", fmt.Sprint(i)), bytes.Repeat([]byte{byte(i), 7, 9}, size/3), 0o644); err != nil {
			m.t.Fatal(err)
		}
	}
	return dir
}

func (m *mount) sameTree(at string) {
	m.t.Helper()
	for i := range 4 {
		name := filepath.Join("d", fmt.Sprint(i))
		want, err := os.ReadFile(filepath.Join(m.base, "tree", name))
		if err != nil {
			m.t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(at, name)); err != nil || !bytes.Equal(got, want) {
			m.t.Errorf("%s: %d bytes, %v, want %d", name, len(got), err, len(want))
		}
	}
}

// mountpoint makes a directory whose mounts are removed at the end of the test.
func (m *mount) mountpoint(name string) string {
	m.t.Helper()
	dir := filepath.Join(m.base, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

func TestEROFS(t *testing.T) {
	m := newMount(t)
	tool(t, "mkfs.erofs", filepath.Join(m.dir, "v1"), m.tree())
	kill, _ := m.keep(mapping("image", "v1", false, ""))
	for _, options := range []string{"", "directio"} {
		at := m.mountpoint("erofs" + options)
		err := unix.Mount(m.path("image"), at, "erofs", unix.MS_RDONLY, options)
		if options != "" && errors.Is(err, unix.EINVAL) {
			t.Log("no ", options)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		kill()
		m.sameTree(at)
		if err := unix.Unmount(at, 0); err != nil {
			t.Error(err)
		}
	}
}

func TestExt4(t *testing.T) {
	m := newMount(t)
	m.disk("v1", 0)
	tool(t, "truncate", "-s", "32M", filepath.Join(m.dir, "v1"))
	tool(t, "mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-d", m.tree(), filepath.Join(m.dir, "v1"))
	kill, _ := m.keep(mapping("image", "v1", false, ""))
	d, err := loop.AttachPath(m.path("image"), loop.Options{ReadOnly: true, DirectIO: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	at := m.mountpoint("ext4")
	if err := unix.Mount(d.Path(), at, "ext4", unix.MS_RDONLY, "noload"); err != nil {
		t.Fatal(err)
	}
	kill()
	m.sameTree(at)
	if err := errors.Join(unix.Unmount(at, 0), d.Close()); err != nil {
		t.Error(err)
	}
}

// TestKilledUnderLoad kills the server repeatedly. One process reads a volume at random, another
// writes and reads a file system on a loop device, and a third uses direct I/O. No error and no
// wrong byte may be seen. It ends after VOLFS_STORM_SECONDS, by default one, and not before enough
// has happened.
func TestKilledUnderLoad(t *testing.T) {
	d := time.Second
	if s, err := time.ParseDuration(os.Getenv("VOLFS_STORM_SECONDS") + "s"); err == nil {
		d = s
	}
	m := newMount(t)
	want := m.disk("v1", 16<<20)
	m.disk("c-1", 0)
	tool(t, "truncate", "-s", "64M", filepath.Join(m.dir, "c-1"))
	tool(t, "mkfs.ext4", "-q", "-F", filepath.Join(m.dir, "c-1"))
	kill, stop := m.keep(mapping("r", "v1", false, ""), mapping("w", "c-1", true, ""))
	dev, err := loop.AttachPath(m.path("w"), loop.Options{DirectIO: true})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	at := m.mountpoint("ext4")
	if err := unix.Mount(dev.Path(), at, "ext4", 0, "discard"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	var reads, writes, kills atomic.Int64
	for i, flags := range []int{unix.O_RDONLY, unix.O_RDONLY | unix.O_DIRECT} {
		wg.Go(func() { m.readAtRandom(ctx, uint64(i), flags, want, &reads) })
	}
	wg.Go(func() { writeFiles(t, ctx, at, &writes) })
	wg.Go(func() {
		defer cancel()
		end := time.Now().Add(d)
		for time.Now().Before(end) || reads.Load() < 20 || writes.Load() < 3 || kills.Load() < 3 {
			if ctx.Err() != nil || t.Failed() {
				return
			}
			before := reads.Load()
			time.Sleep(100 * time.Millisecond)
			if reads.Load() == before {
				continue // the new one does not serve yet
			}
			kill()
			kills.Add(1)
		}
	})
	wg.Wait()
	t.Logf("%d reads, %d files written, %d kills", reads.Load(), writes.Load(), kills.Load())
	if err := errors.Join(unix.Unmount(at, 0), dev.Close()); err != nil {
		t.Fatal(err)
	}
	fusetest.Eventually(t, "the end of the loop device", func() bool { found, err := mounttest.LoopDevices(m.path("w")); return err == nil && len(found) == 0 })
	stop()
	tool(t, "e2fsck", "-fn", filepath.Join(m.dir, "c-1"))
}

func (m *mount) readAtRandom(ctx context.Context, seed uint64, flags int, want []byte, n *atomic.Int64) {
	f, err := fusetest.Open(m.path("r"), flags)
	if err != nil {
		m.t.Error(err)
		return
	}
	defer f.Close()
	rng := rand.New(rand.NewPCG(9, seed))
	for b := aligned(1 << 20); ctx.Err() == nil; n.Add(1) {
		off := rng.IntN(len(want)/4096) * 4096
		b := b[:min((1+rng.IntN(256))*4096, len(want)-off)]
		if _, err := f.ReadAt(b, int64(off)); err != nil || !bytes.Equal(b, want[off:off+len(b)]) {
			m.t.Errorf("%d bytes at %d: %v, or wrong bytes", len(b), off, err)
			return
		}
		if n.Load()%16 == 0 {
			unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
		}
	}
}

// writeFiles writes, syncs, drops from the page cache, reads again and removes files.
func writeFiles(t *testing.T, ctx context.Context, dir string, n *atomic.Int64) {
	rng := rand.New(rand.NewPCG(11, 12))
	noise := rand.NewChaCha8([32]byte{13})
	for i := 0; ctx.Err() == nil; i++ {
		b := make([]byte, rng.IntN(2<<20))
		noise.Read(b)
		path := filepath.Join(dir, fmt.Sprint(i%8))
		if err := writeChecked(path, b); err != nil {
			t.Errorf("file %d: %v", i, err)
			return
		}
		n.Add(1)
		if i%8 > 4 {
			if err := os.Remove(path); err != nil {
				t.Errorf("file %d: %v", i, err)
			}
		}
	}
}

func writeChecked(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteAt(b, 0); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return err
	}
	return same(f, b, 0)
}

// TestStore reads and writes volumes of a real store while servers are killed. What was written is
// in the clone and not in its parent.
func TestStore(t *testing.T) {
	m := newMount(t)
	m.store = filepath.Join(m.base, "store")
	if err := os.Mkdir(m.store, 0o700); err != nil {
		t.Fatal(err)
	}
	const size = 4 << 20
	want := m.disk("v1", size)
	store, err := file.Open(m.store, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	create := func(id, parent string, content []byte) {
		v, err := store.Create(t.Context(), id, parent, size)
		if err != nil {
			t.Fatal(err)
		}
		_, err = v.WriteAt(content, 0)
		if err := errors.Join(err, v.Flush(), v.Close()); err != nil {
			t.Fatal(err)
		}
	}
	create("v1", "", want)
	if err := store.Commit(t.Context(), "v1"); err != nil {
		t.Fatal(err)
	}
	create("c-1", "v1", nil)
	kill, stop := m.keep(mapping("r", "v1", false, ""), mapping("w", "c-1", true, ""))
	fusetest.Eventually(t, "the files", func() bool { _, err := os.Lstat(m.path("w")); return err == nil })
	r, w := m.open("r", unix.O_RDONLY|unix.O_DIRECT), m.open("w", unix.O_RDWR|unix.O_DIRECT)
	clone := bytes.Clone(want)
	for i := range 8 {
		b := aligned(256 << 10)
		for j := range b {
			b[j] = byte(i + j>>8)
		}
		off := int64(i) * 300 << 10
		if _, err := w.WriteAt(b, off); err != nil {
			t.Fatal(err)
		}
		copy(clone[off:], b)
		kill()
		if err := errors.Join(w.Sync(), sameDirect(w, clone), sameDirect(r, want)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(r.Close(), w.Close()); err != nil {
		t.Error(err)
	}
	stop()
	if err := store.Commit(t.Context(), "c-1"); err != nil {
		t.Fatal(err)
	}
	v, err := store.Open(t.Context(), "c-1")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(same(v, clone, 0), v.Close()); err != nil {
		t.Error(err)
	}
}

// sameDirect is like same, with direct I/O.
func sameDirect(f *os.File, want []byte) error {
	got := aligned(len(want))
	if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
		return fmt.Errorf("%s: wrong bytes, or %w", f.Name(), err)
	}
	return nil
}

// BenchmarkSequential reads 256 MiB that are in the page cache below the server, once through FUSE
// and once directly.
func BenchmarkSequential(b *testing.B) {
	const size = 256 << 20
	m := newMount(b)
	m.disk("v1", size)
	cmd := m.child(mapping("one", "v1", false, ""))
	defer func() { cmd.Process.Signal(syscall.SIGTERM); cmd.Wait() }()
	for name, path := range map[string]string{"file": filepath.Join(m.dir, "v1"), "fuse": m.path("one")} {
		for _, flags := range []int{0, unix.O_DIRECT} {
			if flags != 0 && name == "file" {
				continue
			}
			b.Run(fmt.Sprintf("%s/direct=%v", name, flags != 0), func(b *testing.B) {
				buf := aligned(1 << 20)
				b.SetBytes(size)
				for b.Loop() {
					f, err := fusetest.Open(path, unix.O_RDONLY|flags)
					if err != nil {
						b.Fatal(err)
					}
					if name == "fuse" {
						unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
					}
					for off := int64(0); off < size; off += int64(len(buf)) {
						if _, err := f.ReadAt(buf, off); err != nil {
							b.Fatal(err)
						}
					}
					f.Close()
				}
			})
		}
	}
}
