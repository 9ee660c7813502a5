package fsstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// copyStep is how many bytes of an adopted file are copied at once.
const copyStep = 256 << 10

// errNotRegular is the error for a file that cannot be adopted.
var errNotRegular = errors.New("it is no regular file")

// AdoptFile turns a file into an object. See [objstore.Adopter]. It removes permissions
// that the store's own files do not have.
//
// A file with a second name is copied, because whoever knows that name could write to the
// object.
func (s *Store) AdoptFile(ctx context.Context, key, path string) error {
	if err := s.beginKey(ctx, key); err != nil {
		return err
	}
	if err := s.adopt(ctx, key, path); err != nil {
		return fmt.Errorf("adopt file %s as object %s: %w", filepath.Base(path), key, err)
	}
	return nil
}

func (s *Store) adopt(ctx context.Context, key, path string) error {
	dir, err := unix.Open(filepath.Dir(path), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer closeDir(dir)
	base := filepath.Base(path)
	fd, err := openat(dir, base, unix.O_RDONLY|unix.O_NONBLOCK, 0) // not blocked by a FIFO, as in Get
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), base)
	defer f.Close() // nothing is written to it, and it is synced below
	var st, own unix.Stat_t
	if err := errors.Join(unix.Fstat(fd, &st), unix.Fstat(s.staging, &own)); err != nil {
		return err
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return errNotRegular
	case st.Dev != own.Dev || st.Nlink != 1:
		return s.copyIn(ctx, key, f, st.Size)
	}
	if mode := st.Mode & 0o7777; mode&^s.fileMode != 0 {
		if err := unix.Fchmod(fd, mode&s.fileMode); err != nil {
			return err
		}
	}
	if err := retry(func() error { return unix.Fdatasync(fd) }); err != nil {
		// The next sync might succeed without the bytes being on the disk.
		return errors.Join(fmt.Errorf("sync it: %w", err), ignore(unix.Unlinkat(dir, base, 0), unix.ENOENT))
	}
	err = s.place(dir, base, key, false)
	if errors.Is(err, unix.EXDEV) { // the same device, mounted twice
		return s.copyIn(ctx, key, f, st.Size)
	}
	return s.spaceError(err)
}

// copyIn makes an object by copying a file, which has exactly size bytes.
func (s *Store) copyIn(ctx context.Context, key string, f *os.File, size int64) error {
	u := s.newUpload(size)
	buf := make([]byte, min(copyStep, max(size, 1)))
	for u.size < size {
		if err := ctx.Err(); err != nil {
			return errors.Join(err, u.drop())
		}
		n, err := f.ReadAt(buf[:min(int64(len(buf)), size-u.size)], u.size)
		if n > 0 {
			if _, err := u.Write(buf[:n]); err != nil {
				return errors.Join(err, u.drop())
			}
		}
		if err != nil && u.size < size {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return errors.Join(fmt.Errorf("read it: %w", err), u.drop())
		}
	}
	return u.commit(key, false)
}
