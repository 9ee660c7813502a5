package cachedir_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"example.org/slipway/gear"
	"example.org/slipway/node/cachedir"
)

func must(t testing.TB, errs ...error) {
	t.Helper()
	for i, err := range errs {
		if err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
	}
}

// content returns incompressible bytes that depend on the seed.
func content(seed uint64, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)}).Read(b)
	return b
}

// fileOf describes a content.
func fileOf(b []byte) gear.File {
	f := gear.File{Name: sha256.Sum256(b), Size: int64(len(b))}
	if f.Size >= gear.LargeFile {
		for off := 0; off < len(b); off += gear.ChunkSize {
			f.Chunks = append(f.Chunks, sha256.Sum256(b[off:min(off+gear.ChunkSize, len(b))]))
		}
	}
	return f
}

func open(t testing.TB, dir string, o *cachedir.Options) *cachedir.Dir {
	t.Helper()
	d, err := cachedir.Open(dir, o)
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	return d
}

func put(t testing.TB, d *cachedir.Dir, b []byte) gear.File {
	t.Helper()
	f := fileOf(b)
	must(t, write(d, f, b))
	return f
}

func write(d *cachedir.Dir, f gear.File, b []byte) error {
	w, err := d.Create(f)
	if err != nil {
		return err
	}
	defer w.Cancel()
	for r := bytes.NewReader(b); ; {
		_, err := io.CopyN(w, r, 10_007) // in odd pieces
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	return w.Commit()
}

func read(t testing.TB, d *cachedir.Dir, f gear.File) []byte {
	t.Helper()
	r, err := d.OpenFile(f.Name)
	must(t, err)
	defer r.Close()
	b, err := io.ReadAll(r)
	must(t, err)
	return b
}

func pathOf(d *cachedir.Dir, f gear.File) string {
	hex := fmt.Sprintf("%x", f.Name)
	return filepath.Join(d.Files(), hex[:2], hex[2:])
}

func TestMain(m *testing.M) {
	if dir := os.Getenv("CACHEDIR_TEST_CHILD"); dir != "" {
		child(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

func TestPublish(t *testing.T) {
	d := open(t, t.TempDir(), nil)
	holes := append(append(content(1, 8192), make([]byte, 1<<20)...), content(2, 100)...)
	for name, b := range map[string][]byte{
		"small": []byte("x"), "block": content(3, 4096), "buffer": content(4, 128<<10), "more": content(5, 300_001),
		"zeros": make([]byte, 70_000), "holes": holes, "tail": append(content(6, 5000), make([]byte, 9000)...),
	} {
		t.Run(name, func(t *testing.T) {
			f := put(t, d, b)
			if got := read(t, d, f); !bytes.Equal(got, b) {
				t.Errorf("got other bytes, %d of %d", len(got), len(b))
			}
			st, err := os.Stat(pathOf(d, f))
			must(t, err)
			if st.Mode() != 0o444 {
				t.Errorf("mode %v, want 0444", st.Mode())
			}
			must(t, write(d, f, b)) // writing it again is no error
		})
	}
	var st unix.Stat_t
	must(t, unix.Stat(pathOf(d, fileOf(holes)), &st))
	if st.Blocks*512 > 64<<10 {
		t.Errorf("a file with a hole of 1 MiB takes %d bytes", st.Blocks*512)
	}
	if st, err := os.Stat(d.Files()); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("directory of files: %v, %v", st.Mode(), err)
	}
	if s := d.Stats(); s.Files != 7 || s.Published != 7 || s.ReservedBytes != 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestWrongContent(t *testing.T) {
	d := open(t, t.TempDir(), nil)
	b := content(1, 10_000)
	f := fileOf(b)
	other := bytes.Clone(b)
	other[9999] ^= 1
	for name, wrong := range map[string][]byte{"bytes": other, "short": b[:9999], "long": append(bytes.Clone(b), 0), "none": nil} {
		if err := write(d, f, wrong); !errors.Is(err, gear.ErrContent) {
			t.Errorf("%s: got %v, want ErrContent", name, err)
		}
	}
	w, err := d.Create(f)
	must(t, err)
	_, err = w.Write(b)
	must(t, err)
	w.Cancel()
	if err := w.Commit(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("commit after cancel: %v", err)
	}
	if _, err := d.OpenFile(f.Name); !errors.Is(err, fs.ErrNotExist) || d.Has(f.Name) {
		t.Errorf("open of what was never published: %v", err)
	}
	if s := d.Stats(); s.ReservedBytes != 0 || s.Files != 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestReopen(t *testing.T) {
	dir := t.TempDir()
	d, err := cachedir.Open(dir, nil)
	must(t, err)
	if _, err := cachedir.Open(dir, nil); !errors.Is(err, cachedir.ErrInUse) {
		t.Errorf("second open: got %v, want ErrInUse", err)
	}
	var files []gear.File
	for i := range 300 {
		files = append(files, put(t, d, content(uint64(i), 1+i*37)))
	}
	before := d.Stats()
	must(t, d.Close(), d.Close())
	must(t, os.WriteFile(filepath.Join(dir, "tmp", "left"), nil, 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "files", "ab", "stranger"), nil, 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "partial", "stranger.map"), nil, 0o600))
	d = open(t, dir, nil)
	for i, f := range files {
		if !bytes.Equal(read(t, d, f), content(uint64(i), 1+i*37)) {
			t.Fatalf("file %d is another one", i)
		}
	}
	if s := d.Stats(); s.Files != 300 || s.Bytes != before.Bytes || s.Rehashed != 0 || s.Partial != 0 {
		t.Errorf("stats %+v, before %+v", s, before)
	}
	for _, left := range []string{"tmp/left", "files/ab/stranger", "partial/stranger.map"} {
		if _, err := os.Lstat(filepath.Join(dir, left)); err == nil {
			t.Errorf("%s is still there", left)
		}
	}
}

// TestPowerCut checks what a power cut may leave: files newer than the last checkpoint, seen by
// another run of the kernel.
func TestPowerCut(t *testing.T) {
	dir := t.TempDir()
	o := &cachedir.Options{SyncEvery: -1, Boot: "one"}
	d, err := cachedir.Open(dir, o)
	must(t, err)
	old := put(t, d, content(1, 50_000))
	oldToo := put(t, d, content(2, 50_000))
	must(t, d.Sync())
	good := put(t, d, content(3, 50_000))
	zeroed := put(t, d, content(4, 50_000))
	cut := put(t, d, content(5, 50_000))
	copied := filepath.Join(t.TempDir(), "copy")
	must(t, os.CopyFS(copied, os.DirFS(dir))) // times are not kept: those of the originals are set below
	must(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		st, serr := os.Stat(path)
		rel, rerr := filepath.Rel(dir, path)
		return errors.Join(err, serr, rerr, os.Chtimes(filepath.Join(copied, rel), st.ModTime(), st.ModTime()))
	}))
	must(t, d.Close())
	at := func(f gear.File) string {
		return filepath.Join(copied, strings.TrimPrefix(pathOf(d, f), dir))
	}
	// A file system with delayed allocation leaves the name and the size, or only the name.
	keepTime := func(f gear.File, do func(path string)) {
		st, err := os.Stat(at(f))
		must(t, err, os.Chmod(at(f), 0o600))
		do(at(f))
		must(t, os.Chmod(at(f), 0o444), os.Chtimes(at(f), st.ModTime(), st.ModTime()))
	}
	keepTime(zeroed, func(path string) { must(t, os.WriteFile(path, make([]byte, 50_000), 0o600)) })
	keepTime(cut, func(path string) { must(t, os.Truncate(path, 0)) })

	same, err := cachedir.Open(copied, &cachedir.Options{Boot: "one"})
	must(t, err)
	if s := same.Stats(); s.Rehashed != 0 || s.Files != 5 {
		t.Errorf("same boot: %+v", s)
	}
	// This is the second kernel run. The first has made no checkpoint since.
	must(t, os.WriteFile(filepath.Join(copied, "state.json"), []byte(`{"version":1,"boot":"one","durable":1}`), 0o600))
	defer func() { must(t, same.Close()) }()
	lock := filepath.Join(copied, "lock")
	must(t, os.Remove(lock)) // the first copy stays open: it must not make a checkpoint
	d2 := open(t, copied, &cachedir.Options{Boot: "two", SyncEvery: -1})
	if s := d2.Stats(); s.Rehashed != 3 || s.Damaged != 2 || s.Files != 3 {
		t.Errorf("after the cut: %+v", s)
	}
	for i, f := range []gear.File{old, oldToo, good} {
		if got := sha256.Sum256(read(t, d2, f)); got != f.Name {
			t.Errorf("file %d has other bytes", i)
		}
	}
	for i, f := range []gear.File{zeroed, cut} {
		if d2.Has(f.Name) {
			t.Errorf("damaged file %d is still there", i)
		}
	}
}

func TestDamage(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir, nil)
	a, b, c := put(t, d, content(1, 9000)), put(t, d, content(2, 9000)), put(t, d, content(3, 9000))
	spoil := func(f gear.File, keepTime bool) {
		st, err := os.Stat(pathOf(d, f))
		must(t, err, os.Chmod(pathOf(d, f), 0o600))
		w, err := os.OpenFile(pathOf(d, f), os.O_WRONLY, 0)
		must(t, err)
		_, err = w.WriteAt([]byte("spoilt"), 100)
		must(t, err, w.Close())
		if keepTime {
			must(t, os.Chtimes(pathOf(d, f), time.Time{}, st.ModTime()))
		}
	}
	spoil(a, false)
	if _, err := d.OpenFile(a.Name); !errors.Is(err, fs.ErrNotExist) || d.Has(a.Name) {
		t.Errorf("open of a file that was written to: %v", err)
	}
	spoil(b, true) // as a bad disk does
	asked := 0
	files, damaged, err := d.Verify(t.Context(), func(_ context.Context, n int) error { asked += n; return nil })
	must(t, err)
	if files != 2 || damaged != 1 || d.Has(b.Name) || !d.Has(c.Name) || asked != 18_000 {
		t.Errorf("verified %d files of %d bytes, %d damaged", files, asked, damaged)
	}
	must(t, os.Remove(pathOf(d, c)))
	if _, err := d.OpenFile(c.Name); !errors.Is(err, fs.ErrNotExist) || d.Has(c.Name) {
		t.Errorf("open of a file that is gone: %v", err)
	}
	if s := d.Stats(); s.Damaged != 2 || s.Files != 0 || s.Bytes != 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestConcurrentSameFile(t *testing.T) {
	d := open(t, t.TempDir(), nil)
	b := content(1, 100_000)
	f := fileOf(b)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if err := write(d, f, b); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if s := d.Stats(); s.Files != 1 || s.Published != 1 || s.ReservedBytes != 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestDiskFull(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a small file system needs root")
	}
	dir := t.TempDir()
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"))
	t.Cleanup(func() { must(t, unix.Unmount(dir, 0)) })
	d := open(t, filepath.Join(dir, "cache"), nil)
	var files []gear.File
	for i := range 40 { // 20 MiB through 8
		files = append(files, put(t, d, content(uint64(i), 512<<10)))
	}
	if !d.Has(files[39].Name) || d.Has(files[0].Name) {
		t.Error("the newest file must be there, the oldest not")
	}
	huge := content(99, 16<<20)
	if err := write(d, fileOf(huge), huge); !errors.Is(err, cachedir.ErrFull) || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a file larger than the disk: %v", err)
	}
	if s := d.Stats(); s.ReservedBytes != 0 || s.Evicted == 0 {
		t.Errorf("stats %+v", s)
	}
	put(t, d, content(100, 1<<20)) // and it works again afterwards
}
