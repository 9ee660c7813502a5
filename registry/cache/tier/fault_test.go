package tier_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"example.org/slipway/registry/cache/tier"
)

// TestReopen checks that the content of the SSD is available again in the order of use, without
// reading its files.
func TestReopen(t *testing.T) {
	dir := t.TempDir()
	o := &tier.Options{SSDBytes: 100_000, Dir: dir}
	m := newMade()
	s, err := tier.New(m, o)
	if err != nil {
		t.Fatal(err)
	}
	keys := []string{madeKey(30_000, 1), madeKey(30_000, 2), madeKey(30_000, 3)}
	for _, i := range []int{0, 1, 2, 0} { // 1 is the oldest now
		mustGet(t, s, keys[i])
		idle(t, s)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, m, o)
	if st := s.Status(); st.SSD.Entries != 3 || st.SSD.Bytes != 90_000 || st.SSD.Taken != 90_000 || !st.SSDUsable {
		t.Fatalf("after a restart: %+v", st.SSD)
	}
	before := m.gets.Load()
	mustGet(t, s, madeKey(30_000, 4))
	idle(t, s)
	for i, want := range []string{"ssd", "nowhere", "ssd"} {
		if at := s.Holds(keys[i]); at.String() != want {
			t.Errorf("object %d is in %s, want %s", i, at, want)
		}
	}
	mustGet(t, s, keys[0])
	mustGet(t, s, keys[2])
	if n := m.gets.Load() - before; n != 1 {
		t.Errorf("%d objects were fetched, want 1", n)
	}
	if _, err := tier.New(m, o); err == nil {
		t.Error("a directory was given to two")
	}
	limits(t, s)
}

func TestReopenSmaller(t *testing.T) {
	dir := t.TempDir()
	m := newMade()
	s, err := tier.New(m, &tier.Options{SSDBytes: 1_000_000, Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(20) {
		mustGet(t, s, madeKey(10_000, i))
	}
	idle(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, m, &tier.Options{SSDBytes: 100_000, Dir: dir})
	if n, files := diskBytes(t, dir); n != 90_000 || files != 9 || s.Status().SSD.Taken != 90_000 {
		t.Errorf("%d files of %d bytes are left, %+v", files, n, s.Status().SSD)
	}
	if s.Holds(madeKey(10_000, 19)).String() != "ssd" {
		t.Error("the newest is gone")
	}
}

// TestBadFiles checks that a damaged file is a miss and is removed.
func TestBadFiles(t *testing.T) {
	const size = 300_000
	key := madeKey(size, 1)
	rewrite := func(path string, change func(b []byte) []byte) error {
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(path, change(b), 0o600)
	}
	for name, spoil := range map[string]func(path string) error{
		"vanished":  os.Remove,
		"truncated": func(path string) error { return os.Truncate(path, 1000) },
		"longer":    func(path string) error { return os.Truncate(path, size+1000) },
		"empty":     func(path string) error { return os.Truncate(path, 0) },
		"a bit": func(path string) error {
			return rewrite(path, func(b []byte) []byte { b[size/2] ^= 1; return b })
		},
		"footer": func(path string) error {
			return rewrite(path, func(b []byte) []byte { b[size+20] ^= 1; return b })
		},
		"zeros": func(path string) error {
			return rewrite(path, func(b []byte) []byte { return make([]byte, len(b)) })
		},
		"a directory": func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) },
		"a link":      func(path string) error { return errors.Join(os.Remove(path), os.Symlink("/etc/passwd", path)) },
	} {
		for _, restart := range []string{"running", "after a restart", "after a crash"} {
			t.Run(name+", "+restart, func(t *testing.T) {
				dir := t.TempDir()
				m := newMade()
				o := &tier.Options{SSDBytes: 1 << 20, Dir: dir}
				s, err := tier.New(m, o)
				if err != nil {
					t.Fatal(err)
				}
				mustGet(t, s, key)
				idle(t, s)
				if restart != "running" {
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
				}
				files := cacheFiles(t, dir)
				if len(files) != 1 {
					t.Fatalf("there are %d files", len(files))
				}
				if err := spoil(files[0]); err != nil {
					t.Fatal(err)
				}
				if restart == "after a crash" {
					if err := os.Remove(filepath.Join(dir, "clean")); err != nil {
						t.Fatal(err)
					}
				}
				if restart != "running" {
					if s, err = tier.New(m, o); err != nil {
						t.Fatal(err)
					}
				}
				defer s.Close()
				for range 2 {
					var wg sync.WaitGroup
					for range 4 {
						wg.Go(func() {
							if err := get(t.Context(), s, key, 0, -1); err != nil {
								t.Error(err)
							}
						})
					}
					wg.Wait()
					idle(t, s)
				}
				want := int64(1)
				if name == "vanished" && restart != "running" {
					want = 0 // no file was known
				}
				if st := s.Status(); m.gets.Load() != 2 || st.Damaged != want || s.Holds(key).String() != "ssd" {
					t.Errorf("fetched %d times, %d damaged; want 2, %d", m.gets.Load(), st.Damaged, want)
				}
				limits(t, s)
			})
		}
	}
}

// TestCrashWithGoodFiles checks that files are read once before they are used after a crash.
func TestCrashWithGoodFiles(t *testing.T) {
	dir := t.TempDir()
	m := newMade()
	o := &tier.Options{SSDBytes: 1 << 20, Dir: dir}
	s, err := tier.New(m, o)
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(5) {
		mustGet(t, s, madeKey(1000, i))
	}
	idle(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "clean")); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the doubt outlasts a clean restart
		if s, err = tier.New(m, o); err != nil {
			t.Fatal(err)
		}
		mustGet(t, s, madeKey(1000, 0))
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if s, err = tier.New(m, o); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i := range uint64(5) {
		mustGet(t, s, madeKey(1000, i))
	}
	if m.gets.Load() != 5 || s.Status().Damaged != 0 {
		t.Errorf("fetched %d, damaged %d; want 5, 0", m.gets.Load(), s.Status().Damaged)
	}
}

// TestForeignFiles checks that files of others are left alone.
func TestForeignFiles(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"notes", "ab/notes", "ab/" + fmt.Sprintf("%032x-1-0", 1), "tmp/left"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, newMade(), &tier.Options{SSDBytes: 1 << 20, Dir: dir})
	mustGet(t, s, madeKey(1000, 1))
	for name, want := range map[string]bool{"notes": true, "ab/notes": true, "tmp/left": false} {
		if _, err := os.Stat(filepath.Join(dir, name)); (err == nil) != want {
			t.Errorf("%s is there: %t, want %t", name, err == nil, want)
		}
	}
	if st := s.Status(); st.SSD.Entries != 1 {
		t.Errorf("%d entries, want 1", st.SSD.Entries)
	}
}

// TestNoDirectory checks that everything works while the directory cannot be used, and that the
// directory is used as soon as it can be.
func TestNoDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	m := newMade()
	s := open(t, m, &tier.Options{RAMBytes: 10_000, LargeObject: -1, RAMPolicy: "lru", SSDBytes: 1 << 20, Dir: dir})
	for range 2 {
		for i := range uint64(5) {
			mustGet(t, s, madeKey(5000, i))
			mustGet(t, s, madeKey(500_000, i))
			idle(t, s)
		}
	}
	st := s.Status()
	if st.SSDUsable || st.SSDErrors == 0 || st.SSD.Entries != 0 {
		t.Errorf("without a directory: %+v", st)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	s.Remount()
	mustGet(t, s, madeKey(500_000, 1))
	idle(t, s)
	if st := s.Status(); !st.SSDUsable || st.SSD.Entries == 0 {
		t.Errorf("with the directory: %+v", st)
	}
	limits(t, s)
}

// tmpfs mounts a file system of the given size on a new directory. TestMain makes sure that it is
// removed.
func tmpfs(t *testing.T, size int) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=700", size)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// TestFullAndReadOnly checks that a full or read-only SSD fails no request of any kind and is used
// again when it can be.
func TestFullAndReadOnly(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	// The size is less than the cache may have.
	dir := tmpfs(t, 4<<20)
	m := newMade()
	s := open(t, m, &tier.Options{RAMBytes: 1 << 20, SSDBytes: 64 << 20, LargeObject: 100_000, RAMPolicy: "lru", Dir: dir, WriteThrough: true})
	requests := func() {
		t.Helper()
		var wg sync.WaitGroup
		for c := range uint64(4) {
			wg.Go(func() {
				r := rnd(c)
				for range 40 {
					key := madeKey(1+r.Int64N(3)*r.Int64N(500_000), r.Uint64N(20))
					if err := get(t.Context(), s, key, 0, -1); err != nil {
						t.Error(err)
						return
					}
				}
				u, err := s.NewUpload(t.Context(), -1)
				for i := 0; i < 20 && err == nil; i++ {
					_, err = u.Write(make([]byte, 100_000))
				}
				if err == nil {
					err = u.Commit(t.Context(), fmt.Sprintf("up/%d", c))
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		idle(t, s)
	}
	requests()
	if st := s.Status(); st.SSDUsable || st.SSDErrors == 0 {
		t.Errorf("the SSD is full and in use: %+v", st)
	}
	s.DropAll()
	s.Remount()
	if st := s.Status(); !st.SSDUsable {
		t.Errorf("the SSD is not used again: %+v", st)
	}
	mustGet(t, s, madeKey(500_000, 1))
	idle(t, s)
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	before := m.gets.Load()
	mustGet(t, s, madeKey(500_000, 1))
	if m.gets.Load() != before {
		t.Error("what can be read was not")
	}
	requests()
	s.DropAll()
	s.Remount()
	if st := s.Status(); st.SSDUsable {
		t.Error("a read-only SSD is in use")
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT, ""); err != nil {
		t.Fatal(err)
	}
	s.Remount()
	s.Remount()
	if n, files := diskBytes(t, dir); files != 0 || !s.Status().SSDUsable || s.Status().SSD.Taken != 0 {
		t.Errorf("what could not be removed is still there: %d files of %d bytes, %+v", files, n, s.Status())
	}
	requests()
	limits(t, s)
}

// TestTooManyOpenFiles checks that a file stays valid if it cannot be opened because this process
// has too many open files.
func TestTooManyOpenFiles(t *testing.T) {
	m := newMade()
	s := open(t, m, &tier.Options{SSDBytes: 1 << 20, Dir: t.TempDir()})
	key := madeKey(30_000, 1)
	mustGet(t, s, key)
	idle(t, s)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	next, err := os.Open(os.DevNull) // gets the lowest free number
	if err != nil {
		t.Fatal(err)
	}
	low := limit
	low.Cur = uint64(next.Fd())
	if err := next.Close(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	_, openErr := os.Open(os.DevNull)
	err = get(t.Context(), s, key, 0, -1)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(openErr, unix.EMFILE) {
		t.Fatalf("opening a file with none allowed: %v", openErr)
	}
	if err != nil {
		t.Errorf("with too many open files: %v", err)
	}
	before := m.gets.Load()
	mustGet(t, s, key)
	if st := s.Status(); m.gets.Load() != before || st.Damaged != 0 || s.Holds(key).String() != "ssd" {
		t.Errorf("afterwards it is in %s: %+v", s.Holds(key), st)
	}
}
