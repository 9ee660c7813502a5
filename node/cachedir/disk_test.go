package cachedir_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"example.org/slipway/gear"
	"example.org/slipway/node/cachedir"
)

// disk is a separate ext4, so that the space a cache takes can be measured, whoever has it open.
type disk struct {
	t    testing.TB
	dir  string
	base int64
}

func newDisk(t testing.TB, mib int) *disk {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting a file system needs root")
	}
	image, dir := filepath.Join(t.TempDir(), "image"), t.TempDir()
	must(t, os.WriteFile(image, nil, 0o600), os.Truncate(image, int64(mib)<<20))
	for _, c := range [][]string{{"mkfs.ext4", "-q", "-F", "-m", "0", image}, {"mount", "-o", "loop", image, dir}} {
		if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", c[0], err, out)
		}
	}
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return &disk{t: t, dir: dir}
}

// used returns the space that the file system has allocated since base was set.
func (k *disk) used() int64 {
	k.t.Helper()
	fd, err := unix.Open(k.dir, unix.O_RDONLY, 0)
	must(k.t, err, unix.Syncfs(fd), unix.Close(fd))
	var st unix.Statfs_t
	must(k.t, unix.Statfs(k.dir, &st))
	return int64(st.Blocks-st.Bfree)*st.Bsize - k.base
}

// overlays are mounts over the files of a cache. They remember where they found the files.
type overlays struct {
	mu      sync.Mutex
	dirs    []string
	forgets int
}

// Release implements cachedir.Holders.
func (o *overlays) Release(gear.Name) {}

// Forget implements cachedir.Holders.
func (o *overlays) Forget([]gear.Name) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.forgets++
	for _, dir := range o.dirs {
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			panic(err)
		}
	}
}

// mount adds another mount.
func (o *overlays) mount(t testing.TB, d *cachedir.Dir, dir string) {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o700), os.MkdirAll(dir+".empty", 0o700))
	must(t, unix.Mount("overlay", dir, "overlay", unix.MS_RDONLY, "lowerdir="+d.Files()+":"+dir+".empty"))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	o.mu.Lock()
	defer o.mu.Unlock()
	o.dirs = append(o.dirs, dir)
}

// TestDiskModel does what containers and the pool do with the files of a cache, and compares the
// books with the disk. The books contain everything that is on the disk. Only files in use exceed
// the budget by more than one file. Files in use are not evicted, and no more files are evicted
// than necessary.
func TestDiskModel(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	must(t, flag.Set("rapid.checks", "6"), flag.Set("rapid.steps", "60"))
	k := newDisk(t, 96)
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		diskModel(t, rt, k, filepath.Join(k.dir, fmt.Sprint(n)))
	})
}

// user is a user that has a file open or mapped.
type user struct {
	f      *os.File
	mapped []byte
	size   int64
}

func (u *user) close(t testing.TB) {
	if u.mapped != nil {
		must(t, unix.Munmap(u.mapped))
	}
	if u.f != nil {
		must(t, u.f.Close())
	}
}

func diskModel(t *testing.T, rt *rapid.T, k *disk, dir string) {
	const (
		budget  = 16 << 20
		largest = 6 << 20
		// slop is the file system's own use: directories, extent trees, the tail of the journal.
		slop = 1 << 20
	)
	c := &clock{at: time.Now().Add(time.Hour)}
	d, err := cachedir.Open(dir, &cachedir.Options{MaxBytes: budget, SyncEvery: -1, Clock: c.now})
	must(t, err)
	over := &overlays{}
	d.SetHolders(over)
	k.base = 0
	k.base = k.used()
	users := map[int]*user{}
	parts := map[int]*cachedir.Partial{}
	gone := map[int]bool{} // deleted, but in use
	evicted := int64(0)
	defer func() {
		for _, u := range users {
			u.close(t)
		}
		for _, p := range parts {
			p.Close()
		}
		for _, dir := range over.dirs {
			must(t, unix.Unmount(dir, 0))
		}
		must(t, d.Close(), os.RemoveAll(dir))
	}()
	for i := range 2 {
		over.mount(t, d, filepath.Join(dir, fmt.Sprint("mount", i)))
	}
	var files []gear.File
	var bodies [][]byte
	for i := range 16 {
		b := content(uint64(i), 1<<20*(1+i*i%6))
		files, bodies = append(files, fileOf(b)), append(bodies, b)
	}
	pick := rapid.IntRange(0, len(files)-1)
	add := func(rt *rapid.T) {
		i := pick.Draw(rt, "file")
		if !d.Has(files[i].Name) && parts[i] == nil {
			must(t, write(d, files[i], bodies[i]))
		}
	}
	// path returns a file's path through the cache or one of the mounts.
	path := func(rt *rapid.T, i int) string {
		base := rapid.SampledFrom(append([]string{d.Files()}, over.dirs...)).Draw(rt, "through")
		name := fmt.Sprintf("%x", files[i].Name)
		return filepath.Join(base, name[:2], name[2:])
	}
	use := func(rt *rapid.T, keep func(*os.File) *user) {
		i := pick.Draw(rt, "file")
		f, err := os.Open(path(rt, i))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESTALE) {
			return
		}
		must(t, err)
		b, err := io.ReadAll(f)
		must(t, err)
		if !bytes.Equal(b, bodies[i]) {
			rt.Fatalf("file %d has other bytes", i)
		}
		if old := users[i]; keep == nil || old != nil {
			must(t, f.Close())
			return
		}
		var is, old unix.Stat_t
		must(t, unix.Fstat(int(f.Fd()), &old))
		_ = unix.Lstat(pathOf(d, files[i]), &is)
		users[i] = keep(f)
		users[i].size = files[i].Size
		gone[i] = old.Ino != is.Ino // a mount may still know a deleted file
	}
	rt.Repeat(map[string]func(*rapid.T){
		"put": add, "put another": add, "put a third": add, "put a fourth": add,
		"read":       func(rt *rapid.T) { use(rt, nil) },
		"read again": func(rt *rapid.T) { use(rt, nil) },
		"open":       func(rt *rapid.T) { use(rt, func(f *os.File) *user { return &user{f: f} }) },
		"map": func(rt *rapid.T) {
			use(rt, func(f *os.File) *user {
				b, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
				must(t, err, f.Close())
				return &user{mapped: b}
			})
		},
		"close": func(rt *rapid.T) {
			i := pick.Draw(rt, "file")
			if users[i] != nil {
				users[i].close(t)
				delete(users, i)
				delete(gone, i)
			}
			if parts[i] != nil {
				parts[i].Close()
				delete(parts, i)
			}
		},
		"chunk": func(rt *rapid.T) {
			i := pick.Draw(rt, "file")
			if files[i].Size < gear.LargeFile || d.Has(files[i].Name) || parts[i] == nil && len(parts) > 1 {
				return
			}
			if parts[i] == nil {
				p, err := d.Partial(files[i])
				must(t, err)
				parts[i] = p
			}
			j := rapid.IntRange(0, len(files[i].Chunks)-1).Draw(rt, "chunk")
			must(t, parts[i].PutChunk(j, chunk(bodies[i], j)))
			if parts[i].Left() == 0 {
				must(t, parts[i].Complete(background))
			}
		},
		"damage": func(rt *rapid.T) {
			i := pick.Draw(rt, "file")
			gone[i] = users[i] != nil
			d.Damaged(files[i].Name, "the model says so")
		},
		"": func(rt *rapid.T) {
			disk := k.used()
			_, counted := d.Counted()
			if disk > counted+slop {
				rt.Fatalf("%d bytes counted, %d on the disk", counted, disk)
			}
			held, late := int64(0), int64(0)
			for i, u := range users {
				held += u.size
				if gone[i] {
					late += u.size
				} else if !d.Has(files[i].Name) {
					rt.Fatalf("file %d was evicted while it is in use", i)
				}
			}
			for i := range parts {
				held += files[i].Size
			}
			if disk > max(budget, held)+largest+slop {
				rt.Fatalf("%d bytes on the disk, %d in use, budget %d", disk, held, int64(budget))
			}
			st := d.Stats()
			if st.Evicted > evicted && st.Bytes+st.PartialBytes+late < budget-2*largest+slop {
				rt.Fatalf("%d bytes are left after an eviction, budget %d", st.Bytes+st.PartialBytes, int64(budget))
			}
			evicted = st.Evicted
		},
	})
}

// TestForeignFull has somebody else fill the disk. Each new file evicts about as much as it needs,
// and what containers need is evicted last.
func TestForeignFull(t *testing.T) {
	k := newDisk(t, 64)
	d := open(t, filepath.Join(k.dir, "cache"), nil)
	var files []gear.File
	for i := range 20 {
		files = append(files, put(t, d, content(uint64(i), 1<<20)))
	}
	d.Lease("container", []gear.Name{files[0].Name})
	k.fill("foreign")
	for i := range 40 {
		f := put(t, d, content(uint64(100+i), 1<<20))
		if st := d.Stats(); !d.Has(f.Name) || st.Bytes < 16<<20 {
			t.Fatalf("after %d files %d bytes are left of 20 MiB: %+v", i+1, st.Bytes, st)
		}
	}
	if !d.Has(files[0].Name) || d.Has(files[1].Name) {
		t.Error("the leased file must be there, the oldest other not")
	}
	// A large file arrives in chunks. It is in use and therefore not evicted itself.
	b := content(200, 8<<20)
	p := partial(t, d, fileOf(b))
	for i := range 8 {
		must(t, p.PutChunk(i, chunk(b, i)))
	}
	must(t, p.Complete(background))
	p.Close()
	if st := d.Stats(); st.Bytes < 16<<20 {
		t.Errorf("after a large file: %+v", st)
	}
}

// fill has somebody else take all of the disk that is free.
func (k *disk) fill(name string) {
	k.t.Helper()
	f, err := os.Create(filepath.Join(k.dir, name))
	must(k.t, err)
	for _, size := range []int{64 << 10, 512} {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
	}
	if !errors.Is(err, unix.ENOSPC) {
		k.t.Fatal(err)
	}
	must(k.t, f.Sync(), f.Close())
}

// TestFullAnytime fills the disk before each operation that writes: the cache gives up files and
// the operation succeeds.
func TestFullAnytime(t *testing.T) {
	k := newDisk(t, 64)
	dir := filepath.Join(k.dir, "cache")
	d := open(t, dir, nil)
	for i := range 20 {
		put(t, d, content(uint64(i), 1<<20))
	}
	n := 0
	full := func(what string, do func() error) {
		t.Helper()
		n++
		k.fill(fmt.Sprint("foreign", n))
		if err := do(); err != nil {
			t.Errorf("%s on a full disk: %v", what, err)
		}
	}
	full("the end", d.Close)
	full("the start", func() (err error) { d, err = cachedir.Open(dir, nil); return err })
	t.Cleanup(func() { must(t, d.Close()) })
	b := content(100, 8<<20)
	var p *cachedir.Partial
	full("the first use of a large file", func() (err error) { p, err = d.Partial(fileOf(b)); return err })
	defer p.Close()
	for i := range 8 {
		full("a chunk", func() error { return p.PutChunk(i, chunk(b, i)) })
	}
	full("the end of a large file", func() error { return p.Complete(background) })
	full("a file", func() error { return write(d, fileOf(content(101, 1<<20)), content(101, 1<<20)) })
	full("what is not in the cache", func() error {
		d.Room(1 << 20)
		return os.WriteFile(filepath.Join(k.dir, "other"), make([]byte, 1<<20), 0o600)
	})
	if st := d.Stats(); st.Files == 0 {
		t.Errorf("nothing is left: %+v", st)
	}
}

// TestGiveUp writes a file to a disk that is too small while others read it. What they get is right
// or missing.
func TestGiveUp(t *testing.T) {
	k := newDisk(t, 40)
	d := open(t, filepath.Join(k.dir, "cache"), nil)
	b := content(1, 48<<20)
	p := partial(t, d, fileOf(b))
	defer p.Close()
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for r := range 2 {
		readers.Go(func() {
			buf := make([]byte, 100_000)
			for at := int64(r); ; at = (at*7919 + 12345) % int64(len(b)-len(buf)) {
				select {
				case <-stop:
					return
				default:
				}
				n, err := p.ReadAt(buf, at)
				if !bytes.Equal(buf[:n], b[at:][:n]) || err != nil && !errors.Is(err, cachedir.ErrMissing) {
					t.Errorf("read at %d: %d bytes, %v", at, n, err)
					return
				}
			}
		})
	}
	gave := 0
	for round := range 2 {
		for j := range 48 {
			i := (j*(1+6*round) + round) % 48 // in order, and then across
			err := p.PutChunk(i, chunk(b, i))
			for errors.Is(err, cachedir.ErrFull) {
				ok, other := p.GiveUp(i)
				if must(t, other); !ok {
					t.Fatal("nothing is given up")
				}
				gave++
				err = p.PutChunk(i, chunk(b, i))
			}
			must(t, err)
			if !p.Has(i) || p.Left() == 0 {
				t.Fatalf("chunk %d is there: %v, %d are missing", i, p.Has(i), p.Left())
			}
		}
	}
	close(stop)
	readers.Wait()
	if gave == 0 || gave > 40 {
		t.Errorf("%d times some were given up", gave)
	}
	if err := p.Complete(background); !errors.Is(err, cachedir.ErrMissing) {
		t.Errorf("complete: %v", err)
	}
}
