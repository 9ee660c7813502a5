package serve

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
)

// ErrInUse says that another process serves the data root.
var ErrInUse = errors.New("the data directory is in use by another slipway process")

// lockFile keeps a data root to one process. The kernel releases it with the
// process, however that ends.
type lockFile struct {
	f         *os.File
	dir       string
	removeDir bool // an in-memory root's directory goes with it
}

func lockRoot(dir string) (*lockFile, error) {
	f, err := os.OpenFile(filepath.Join(dir, "slipway.lock"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the data directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, inUse(dir)
		}
		return nil, fmt.Errorf("lock the data directory %s: %w", dir, err)
	}
	return &lockFile{f: f, dir: dir}, nil
}

func inUse(dir string) error { return fmt.Errorf("%w: %s", ErrInUse, dir) }

func (l *lockFile) release() error {
	err := l.f.Close()
	if l.removeDir {
		err = errors.Join(err, os.RemoveAll(l.dir))
	}
	return err
}

// checkOwner refuses to work as root on a directory of another user: the files
// made would be unreadable to the server that runs as that user.
func checkOwner(dir string) error {
	fi, err := os.Stat(dir)
	if err != nil {
		return nil // opening it will say what is wrong
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok || os.Geteuid() != 0 || st.Uid == 0 {
		return nil
	}
	return fmt.Errorf("%s belongs to user %d; run this as that user, so that the server can read what it writes: sudo -u '#%d' slipway ...", dir, st.Uid, st.Uid)
}

// logFile is a log that can be rotated.
type logFile struct {
	path string
	mu   sync.Mutex
	f    *os.File
}

// openLogFile opens a log for appending; others may read what the operator
// lets them.
func openLogFile(path string) (*logFile, error) {
	l := &logFile{path: path}
	return l, l.reopen()
}

func (l *logFile) reopen() error {
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o640)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.f
	l.f = f
	if old != nil {
		return old.Close()
	}
	return nil
}

// Write implements io.Writer.
func (l *logFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.f.Write(p)
}

// Close implements io.Closer.
func (l *logFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.f.Close()
}

// freeSpace is the free space of the file system a directory is on, as a metric.
func freeSpace(dir string) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "slipway_storage_free_bytes",
		Help: "Bytes free for this process on the file system of the data directory."}, func() float64 {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			return -1
		}
		return float64(st.Bavail) * float64(st.Bsize)
	})
}

// noSlash turns the configured "/registry/" or URL into what goes before "/v2/".
func noSlash(p string) string { return strings.TrimRight(p, "/") }
