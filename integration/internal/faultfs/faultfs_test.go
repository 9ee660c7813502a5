package faultfs_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/integration/internal/faultfs"
)

// mounted returns a file system and its backing directory. These tests use the mount from the
// process that serves it, and start no other process.
func mounted(t *testing.T, opts *faultfs.Options) (*faultfs.FS, string) {
	t.Helper()
	backing := t.TempDir()
	return faultfs.Mount(t, backing, opts), backing
}

// TestPassThrough runs the operations that a registry uses, with no rule in force.
func TestPassThrough(t *testing.T) {
	f, backing := mounted(t, nil)
	a, b := filepath.Join(f.Dir, "a"), filepath.Join(f.Dir, "dir", "b")
	if err := os.WriteFile(a, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Dir(b), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(a, b); err != nil {
		t.Fatal(err)
	}
	if err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_NOREPLACE); !errors.Is(err, syscall.EEXIST) {
		t.Errorf("rename onto another name: %v, want EEXIST", err)
	}
	if err := os.Rename(b, b+"2"); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{f.Dir, filepath.Dir(b)} {
		d, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(d.Sync(), d.Close()); err != nil {
			t.Errorf("sync %s: %v", dir, err)
		}
	}
	if got, err := os.ReadFile(filepath.Join(backing, "dir", "b2")); err != nil || string(got) != "content" {
		t.Errorf("in the backing directory: %q, %v", got, err)
	}
	if entries, err := os.ReadDir(f.Dir); err != nil || len(entries) != 2 {
		t.Errorf("listing: %v, %v", entries, err)
	}
	if err := os.RemoveAll(filepath.Dir(b)); err != nil {
		t.Error(err)
	}
}

// mapEnv names the file that TestSharedMapping maps in a separate process.
const mapEnv = "FAULTFS_TEST_MAP"

// TestSharedMapping maps a file as SQLite maps its shared memory. Two mappings must see
// each other's writes, even after the file was opened once more. The mapping process must
// not be the one that serves the file system: a page fault is not a system call, so the
// scheduler would not know that the process waits for itself.
func TestSharedMapping(t *testing.T) {
	if name := os.Getenv(mapEnv); name != "" {
		mapTwice(t, name)
		return
	}
	f, _ := mounted(t, nil)
	f.Inject(faultfs.Rule{Ops: ^faultfs.Op(0), Path: regexp.MustCompile("db"), Err: syscall.EIO}) // strikes no shared memory
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSharedMapping$")
	cmd.Env = append(os.Environ(), mapEnv+"="+filepath.Join(f.Dir, "db-shm"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func mapTwice(t *testing.T, name string) {
	var maps [2][]byte
	for i := range maps {
		file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if err := file.Truncate(32 << 10); err != nil {
			t.Fatal(err)
		}
		if maps[i], err = unix.Mmap(int(file.Fd()), 0, 32<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
			t.Fatalf("map: %v", err)
		}
		defer unix.Munmap(maps[i])
		maps[0][100+i] = byte(i + 1)
	}
	if got := maps[1][100:102]; !bytes.Equal(got, []byte{1, 2}) {
		t.Errorf("the second mapping has %v", got)
	}
}

// TestRules makes each operation fail, and then work again.
func TestRules(t *testing.T) {
	f, backing := mounted(t, nil)
	path := func(name string) string { return filepath.Join(f.Dir, name) }
	if err := os.WriteFile(filepath.Join(backing, "file"), []byte("0123456789"), 0o600); err != nil {
		t.Fatal(err)
	}
	open := func(do func(*os.File) error) func() error {
		return func() error {
			file, err := os.OpenFile(path("file"), os.O_RDWR, 0)
			if err != nil {
				return err
			}
			return errors.Join(do(file), file.Close())
		}
	}
	n := 0
	fresh := func() string { n++; return path("new" + string(rune('a'+n))) }
	tests := map[string]struct {
		op faultfs.Op
		do func() error
	}{
		// After a failed read ahead the kernel retries by itself.
		"read":     {faultfs.Read, open(func(x *os.File) error { _, err := io.ReadAll(x); return err })},
		"write":    {faultfs.Write, open(func(x *os.File) error { _, err := x.WriteAt([]byte("x"), 3); return err })},
		"sync":     {faultfs.Sync, open((*os.File).Sync)},
		"flush":    {faultfs.Flush, open(func(*os.File) error { return nil })},
		"truncate": {faultfs.Truncate, open(func(x *os.File) error { return x.Truncate(10) })},
		"allocate": {faultfs.Allocate, open(func(x *os.File) error { return unix.Fallocate(int(x.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, 8192) })},
		"sync directory": {faultfs.SyncDir, func() error {
			d, err := os.Open(f.Dir)
			if err != nil {
				return err
			}
			return errors.Join(d.Sync(), d.Close())
		}},
		"create": {faultfs.Create, func() error { return os.WriteFile(fresh(), nil, 0o600) }},
		"mkdir":  {faultfs.Create, func() error { return os.Mkdir(fresh(), 0o700) }},
		"link":   {faultfs.Link, func() error { return os.Link(path("file"), fresh()) }},
		"rename": {faultfs.Rename, func() error {
			name := filepath.Base(fresh())
			return errors.Join(os.WriteFile(filepath.Join(backing, name), nil, 0o600), os.Rename(path(name), path(name+"x")))
		}},
		"unlink": {faultfs.Unlink, func() error {
			name := filepath.Base(fresh())
			return errors.Join(os.WriteFile(filepath.Join(backing, name), nil, 0o600), os.Remove(path(name)))
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			times := 1
			if tt.op == faultfs.Read {
				times = 2
			}
			rule := f.Inject(faultfs.Rule{Ops: tt.op, Err: syscall.ENOSPC, After: 1, Times: times, Path: regexp.MustCompile(`^(file|new.*|\.?)$`)})
			defer rule.Lift()
			for i, want := range []error{nil, syscall.ENOSPC, nil} {
				if err := tt.do(); !errors.Is(err, want) {
					t.Errorf("attempt %d: %v, want %v", i, err, want)
				}
			}
			if rule.Strikes() != times {
				t.Errorf("%d strikes, want %d", rule.Strikes(), times)
			}
			rule.Lift()
			f.Inject(faultfs.Rule{Ops: tt.op, Err: syscall.EIO, Path: regexp.MustCompile("^elsewhere$")})
			if err := tt.do(); err != nil {
				t.Errorf("with a rule for another path: %v", err)
			}
		})
	}
	if got, err := os.ReadFile(filepath.Join(backing, "file")); err != nil || string(got) != "012x456789" {
		t.Errorf("the file is %q, %v", got, err)
	}
}

// TestEffects checks what rules do besides failing.
func TestEffects(t *testing.T) {
	f, backing := mounted(t, nil)
	name := filepath.Join(f.Dir, "a")
	t.Run("short", func(t *testing.T) {
		defer f.Inject(faultfs.Rule{Ops: faultfs.Write, Short: true}).Lift()
		fd, err := unix.Open(name, unix.O_CREAT|unix.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if n, err := unix.Write(fd, []byte("12345678")); n != 4 || err != nil {
			t.Errorf("wrote %d bytes, %v; want 4", n, err)
		}
	})
	t.Run("done", func(t *testing.T) {
		defer f.Inject(faultfs.Rule{Ops: faultfs.Rename, Err: syscall.EIO, Done: true}).Lift()
		if err := os.Rename(name, name+"2"); !errors.Is(err, syscall.EIO) {
			t.Errorf("rename: %v, want EIO", err)
		}
		if _, err := os.Stat(filepath.Join(backing, "a2")); err != nil {
			t.Errorf("the rename was not carried out: %v", err)
		}
	})
	t.Run("delay", func(t *testing.T) {
		const delay = 50 * time.Millisecond
		defer f.Inject(faultfs.Rule{Ops: faultfs.Create, Delay: delay}).Lift()
		start := time.Now()
		if err := os.Mkdir(filepath.Join(f.Dir, "slow"), 0o700); err != nil || time.Since(start) < delay {
			t.Errorf("mkdir took %s, %v", time.Since(start), err)
		}
	})
	t.Run("probability", func(t *testing.T) {
		rule := f.Inject(faultfs.Rule{Ops: faultfs.Write, Err: syscall.EIO, P: 0.5, Seed: 1})
		defer rule.Lift()
		file, err := os.Create(filepath.Join(f.Dir, "dice"))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		failed := 0
		for range 100 {
			if _, err := file.WriteAt([]byte("x"), 0); err != nil {
				failed++
			}
		}
		if failed < 20 || failed > 80 || failed != rule.Strikes() {
			t.Errorf("%d of 100 writes failed, %d strikes", failed, rule.Strikes())
		}
	})
}

// TestPowerCut checks which pages survive: the pages of a successful fsync and, after a
// failed fsync, only pages that were written again.
func TestPowerCut(t *testing.T) {
	f, backing := mounted(t, &faultfs.Options{Volatile: true})
	const page = 4096
	file, err := os.Create(filepath.Join(f.Dir, "a"))
	if err != nil {
		t.Fatal(err)
	}
	write := func(c byte, at ...int64) {
		t.Helper()
		for _, i := range at {
			if _, err := file.WriteAt(bytes.Repeat([]byte{c}, page), i*page); err != nil {
				t.Fatal(err)
			}
		}
	}
	write('1', 0, 1, 2)
	if err := file.Sync(); err != nil {
		t.Fatal(err)
	}
	write('2', 1, 2, 3)
	failing := f.Inject(faultfs.Rule{Ops: faultfs.Sync, Err: syscall.EIO})
	if err := file.Sync(); !errors.Is(err, syscall.EIO) {
		t.Fatalf("sync: %v, want EIO", err)
	}
	failing.Lift()
	write('3', 2)
	if err := errors.Join(file.Sync(), file.Close()); err != nil {
		t.Fatal(err)
	}
	loss, err := f.PowerCut(rand.New(rand.NewPCG(1, 1)))
	if err != nil || loss != (faultfs.Loss{Lost: 2}) {
		t.Fatalf("power cut: %+v, %v", loss, err)
	}
	got, err := os.ReadFile(filepath.Join(backing, "a"))
	if err != nil || len(got) != 4*page {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	for i, want := range []byte{'1', '1', '3', 0} {
		if p := got[i*page:][:page]; !bytes.Equal(p, bytes.Repeat([]byte{want}, page)) {
			t.Errorf("page %d begins with %q, want %q", i, p[0], want)
		}
	}
}

// TestClose closes a file system while an operation on it hangs.
func TestClose(t *testing.T) {
	f, _ := mounted(t, nil)
	rule := f.Inject(faultfs.Rule{Ops: faultfs.Create, Delay: time.Hour})
	done := make(chan error)
	go func() { done <- os.Mkdir(filepath.Join(f.Dir, "never"), 0o700) }()
	for deadline := time.Now().Add(10 * time.Second); rule.Strikes() == 0; {
		if time.Now().After(deadline) {
			t.Fatal("the operation did not begin")
		}
		<-time.After(time.Millisecond)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; err == nil {
		t.Error("the operation succeeded after the file system was gone")
	}
	if err := f.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
}

// TestPowerCutNames checks that the names in directories that were synced survive, and no
// others.
func TestPowerCutNames(t *testing.T) {
	f, backing := mounted(t, &faultfs.Options{Volatile: true, Names: true})
	write := func(name string) {
		t.Helper()
		file, err := os.Create(filepath.Join(f.Dir, name))
		if err != nil {
			t.Fatal(err)
		}
		_, err = file.WriteString(name)
		if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
			t.Fatal(err)
		}
	}
	write("synced")
	write("removed")
	write("replaced")
	dir, err := os.Open(f.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(dir.Sync(), dir.Close()); err != nil {
		t.Fatal(err)
	}
	write("new")
	if err := errors.Join(os.Remove(filepath.Join(f.Dir, "removed")), os.Rename(filepath.Join(f.Dir, "new"), filepath.Join(f.Dir, "replaced"))); err != nil {
		t.Fatal(err)
	}
	random := rand.New(lowest{}) // loses everything that it may lose
	loss, err := f.PowerCut(random)
	if err != nil || loss.Names != 3 {
		t.Fatalf("power cut: %+v, %v; want 3 names lost", loss, err)
	}
	for name, want := range map[string]string{"synced": "synced", "removed": "removed", "replaced": "replaced"} {
		if got, err := os.ReadFile(filepath.Join(backing, name)); err != nil || string(got) != want {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
	if _, err := os.Stat(filepath.Join(backing, "new")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the new file is still there: %v", err)
	}
}

// lowest is a source for which every coin falls on the side that is not 0.
type lowest struct{}

func (lowest) Uint64() uint64 { return 1<<64 - 1 }
