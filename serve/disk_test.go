package serve_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"example.org/slipway/config"
	"example.org/slipway/serve/dataroot"
)

// ext4 mounts a new file system of the given size on a new directory. It passes the options to
// mkfs.ext4.
func ext4(t *testing.T, mib int64, options ...string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	image, dir := filepath.Join(t.TempDir(), "image"), t.TempDir()
	f, err := os.Create(image)
	if err == nil {
		err = errors.Join(f.Truncate(mib<<20), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	// -m 0: root may use the reserved blocks.
	for _, c := range [][]string{append(append([]string{"mkfs.ext4", "-q", "-F", "-m", "0"}, options...), image), {"mount", "-o", "loop", image, dir}} {
		if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", c, err, out)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// stuff writes a file into dir until at most left bytes are free.
func stuff(t *testing.T, dir string, left int64) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, "stuff"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for free := freeOf(t, dir); free > left; free = freeOf(t, dir) {
		_, err := f.Write(make([]byte, max(1024, min(free-left, 1<<20))))
		if err != nil && !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
		if err := errors.Join(err, f.Sync()); err != nil {
			return
		}
	}
}

func freeOf(t *testing.T, dir string) int64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Bavail) * st.Bsize
}

// contentOf returns the content of a test's nth push.
func contentOf(n, size int) string {
	b := make([]byte, size)
	rand.NewChaCha8([32]byte{byte(n), byte(n >> 8), byte(size)}).Read(b)
	return string(b)
}

// pushUntilFull pushes images until one is refused. It returns the numbers of those that were
// accepted.
func (s *instance) pushUntilFull(size int) (done []int) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	next, full := 0, false
	for range 8 {
		wg.Go(func() {
			for {
				mu.Lock()
				n := next
				next++
				stop := full
				mu.Unlock()
				if stop || n > 20_000 {
					return
				}
				c := contentOf(n, size)
				a := s.do("POST", "/v2/full/blobs/uploads/?digest="+digestOf(c), c)
				if a.status == http.StatusCreated {
					a = s.do("PUT", fmt.Sprintf("/v2/full/manifests/t%d", n), imageOf(c), isManifest)
				}
				mu.Lock()
				switch a.status {
				case http.StatusCreated:
					done = append(done, n)
				case http.StatusInsufficientStorage:
					full = true
				default:
					s.t.Errorf("push of image %d: got status %d: %s", n, a.status, a.body)
					full = true
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return done
}

// pullAll checks that images can be pulled.
func (s *instance) pullAll(images []int, size int) {
	s.t.Helper()
	for _, n := range images {
		c := contentOf(n, size)
		if a := s.want(http.StatusOK, "GET", fmt.Sprintf("/v2/full/manifests/t%d", n), ""); a.body != imageOf(c) {
			s.t.Errorf("manifest of image %d has other bytes", n)
		}
		if a := s.want(http.StatusOK, "GET", "/v2/full/blobs/"+digestOf(c), ""); a.body != c {
			s.t.Errorf("layer of image %d has other bytes", n)
		}
	}
}

// TestFullDisk fills a disk to the last byte, with layers or with the catalogue. Deleting and
// collecting must free space again without help from outside.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		mib, size int
		// to is the space that is left to the registry. 0 leaves all.
		to int64
	}{
		{"layers", 64, 1_000_000, 0},
		{"catalogue", 64, 12_000, 6 << 20},
		{"small disk", 24, 300_000, 0},
		{"catalogue on a small disk", 24, 12_000, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if testing.Short() && c.name != "small disk" {
				t.Skip("heavy, and another disk says as much about what happens at once")
			}
			t.Parallel()
			dir := ext4(t, int64(c.mib))
			o := setup{root: filepath.Join(dir, "root"), change: func(cfg *config.Config) { cfg.Storage.GC.Grace = 1 }}
			s := start(t, o)
			if c.to > 0 {
				stuff(t, dir, c.to)
			}
			done := s.pushUntilFull(c.size)
			if len(done) < 10 || freeOf(t, dir) == 0 {
				t.Fatalf("%d images were pushed, and %d bytes are free", len(done), freeOf(t, dir))
			}
			s.pullAll(done, c.size)

			stuff(t, dir, 0)
			if err := s.stop(); err != nil {
				t.Errorf("stop: %v", err)
			}
			stuff(t, dir, 0) // the space that the catalogue's log took
			s = start(t, o)
			s.pullAll(done, c.size)
			if a := s.want(http.StatusOK, "GET", s.debug+"/readyz", ""); !strings.Contains(a.body, "pushes are refused") {
				t.Errorf("/readyz says %q", a.body)
			}
			s.want(http.StatusInsufficientStorage, "POST", "/v2/full/blobs/uploads/?digest="+digestOf("new"), "new")

			gone, left := done[:len(done)/2], done[len(done)/2:]
			for _, n := range gone {
				s.want(http.StatusAccepted, "DELETE", "/v2/full/manifests/"+digestOf(imageOf(contentOf(n, c.size))), "")
			}
			s.collectNow()
			again := contentOf(gone[0], c.size)
			s.pushImage("full", "again", again)
			if err := s.stop(); err != nil {
				t.Errorf("stop: %v", err)
			}
			s = start(t, o)
			s.pullAll(left, c.size)
			s.want(http.StatusOK, "GET", "/v2/full/blobs/"+digestOf(again), "")
		})
	}
}

// TestFullDiskOfNeighbour checks that deleting, collecting and starting work again and again while
// another process takes whatever becomes free.
func TestFullDiskOfNeighbour(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	const images, size = 12, 300_000
	dir := ext4(t, 64)
	o := setup{root: filepath.Join(dir, "root"), change: func(cfg *config.Config) { cfg.Storage.GC.Grace = 1 }}
	s := start(t, o)
	for n := range images {
		s.pushImage("full", fmt.Sprintf("t%d", n), contentOf(n, size))
	}
	last := []int{images - 1}
	for n := range images - 1 {
		stuff(t, dir, 0)
		s.want(http.StatusAccepted, "DELETE", "/v2/full/manifests/"+digestOf(imageOf(contentOf(n, size))), "")
		stuff(t, dir, 0)
		s.collectNow()
		s.pullAll(last, size)
		if n%3 == 2 {
			stuff(t, dir, 0)
			if err := s.stop(); err != nil {
				t.Errorf("stop: %v", err)
			}
			stuff(t, dir, 0)
			s = start(t, o)
			s.pullAll(last, size)
		}
		s.want(http.StatusNotFound, "HEAD", "/v2/full/blobs/"+digestOf(contentOf(n, size)), "")
	}
}

// collectNow collects without a grace period.
func (s *instance) collectNow() {
	s.t.Helper()
	a, closeAdmin := openAdmin(s.t, s.cfg)
	defer closeAdmin()
	if _, err := a.Collect(s.t.Context(), dataroot.GCArgs{Now: true}, nil); err != nil {
		s.t.Errorf("collect: %v", err)
	}
}

// impaired checks the answer of a server whose disk is undamaged but cannot be used.
func (s *instance) impaired(status int, method, path, body, says string) {
	s.t.Helper()
	if a := s.want(status, method, path, body); status == http.StatusServiceUnavailable && a.header.Get("Retry-After") == "" {
		s.t.Errorf("%s %s: 503 without Retry-After", method, path)
	}
	if says != "" {
		if a := s.want(http.StatusServiceUnavailable, "GET", s.debug+"/readyz", ""); !strings.Contains(a.body, says) {
			s.t.Errorf("/readyz says %q, not %q", a.body, says)
		}
	}
	if strings.Contains(s.log.String(), "fsck") {
		s.t.Errorf("the log advises a check:\n%s", s.log)
	}
}

// TestReadOnlyDisk checks that a disk the kernel made read-only still serves pulls.
func TestReadOnlyDisk(t *testing.T) {
	t.Parallel()
	dir := ext4(t, 64)
	s := start(t, setup{root: filepath.Join(dir, "root")})
	large, small := contentOf(1, 200_000), contentOf(2, 100)
	s.pushImage("app", "large", large)
	s.pushImage("app", "small", small)
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT, "abort"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []string{contentOf(3, 200_000), contentOf(4, 100)} {
		s.impaired(http.StatusServiceUnavailable, "POST", "/v2/app/blobs/uploads/?digest="+digestOf(c), c, "read-only")
	}
	s.impaired(http.StatusServiceUnavailable, "DELETE", "/v2/app/manifests/"+digestOf(imageOf(small)), "", "")
	for _, c := range []string{large, small} {
		if a := s.want(http.StatusOK, "GET", "/v2/app/blobs/"+digestOf(c), ""); a.body != c {
			t.Error("a blob has other bytes")
		}
	}
	if err := s.stop(); err == nil {
		t.Error("what is only in RAM was saved on a read-only disk")
	}
	s.err = nil
}

// takeInodes makes files in dir until the file system has no free inodes.
func takeInodes(t *testing.T, dir string) {
	t.Helper()
	for {
		f, err := os.CreateTemp(dir, "")
		if errors.Is(err, syscall.ENOSPC) {
			return
		}
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNoInodes checks that without free inodes the server still accepts contents that need none,
// and that it starts and serves pulls.
func TestNoInodes(t *testing.T) {
	t.Parallel()
	dir := ext4(t, 64, "-N", "400")
	o := setup{root: filepath.Join(dir, "root")}
	s := start(t, o)
	large := contentOf(1, 200_000)
	s.pushImage("app", "large", large)
	takeInodes(t, dir)
	c := contentOf(2, 200_000)
	s.impaired(http.StatusServiceUnavailable, "POST", "/v2/app/blobs/uploads/?digest="+digestOf(c), c, "inodes")
	s.pushBlob("app", "small")
	s.want(http.StatusOK, "GET", "/v2/app/blobs/"+digestOf(large), "")
	if err := s.stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	takeInodes(t, dir) // also the inodes that the stop freed
	s = start(t, o)
	s.impaired(http.StatusServiceUnavailable, "POST", "/v2/app/blobs/uploads/?digest="+digestOf(c), c, "inodes")
	s.want(http.StatusOK, "GET", "/v2/app/blobs/"+digestOf(large), "")
}

// TestNoDescriptors checks that a pull which cannot open its blob gets an error that says to try again.
func TestNoDescriptors(t *testing.T) {
	s := start(t, setup{})
	large := contentOf(1, 200_000)
	s.pushImage("app", "large", large)
	s.want(http.StatusOK, "GET", s.debug+"/readyz", "") // both connections are open

	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
			t.Error(err)
		}
	}()
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 3, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	s.impaired(http.StatusServiceUnavailable, "GET", "/v2/app/blobs/"+digestOf(large), "", "too many open files")
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	s.want(http.StatusOK, "GET", "/v2/app/blobs/"+digestOf(large), "")
}
