package serve

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

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

// openLogFile opens a log for appending; others may read what the operator
// lets them.
func openLogFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, fs.FileMode(0o640))
}

// noSlash turns the configured "/registry/" or URL into what goes before "/v2/".
func noSlash(p string) string { return strings.TrimRight(p, "/") }
