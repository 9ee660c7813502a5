package fsstore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// checkLayout makes sure that files can be renamed from the staging directory to each of
// the directories in dirs and to what is directly below them, as far as these exist. A
// symbolic link on the way would make objects look missing. Below a mount every commit
// would fail.
func (s *Store) checkLayout(dirs []string) error {
	for _, dir := range append([]string{stagingDir}, dirs...) {
		if err := s.checkWay(dir); err != nil {
			return err
		}
		list, err := os.ReadDir(filepath.Join(s.root, dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("look into %s: %w", filepath.Join(s.root, dir), err)
		}
		for _, e := range list {
			if !e.IsDir() && e.Type()&fs.ModeSymlink == 0 {
				continue
			}
			if err := s.checkPlace(dir + "/" + e.Name()); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkWay checks a directory and all above it.
func (s *Store) checkWay(dir string) error {
	for i := 0; i <= len(dir); i++ {
		if i < len(dir) && dir[i] != '/' {
			continue
		}
		if err := s.checkPlace(dir[:i]); err != nil {
			return err
		}
	}
	return nil
}

// checkPlace refuses a name that is a symbolic link or a mount.
func (s *Store) checkPlace(name string) error {
	path := filepath.Join(s.root, name)
	var own, st unix.Stat_t
	if err := unix.Fstat(s.paths.root, &own); err != nil {
		return err
	}
	err := unix.Lstat(path, &st)
	switch {
	case err == unix.ENOENT:
		return nil
	case err != nil:
		return fmt.Errorf("look at %s: %w", path, err)
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		return fmt.Errorf("%s is a symbolic link, which the object store does not follow: "+
			"move what it points at to its place, or have the whole of %s on the other disk", path, s.root)
	case st.Dev != own.Dev || s.isMount(name):
		return fmt.Errorf("%s is a file system of its own, and %s is not on it; an object is put into its place by one rename, "+
			"which cannot cross file systems: mount the other disk at %s itself", path, strings.TrimSuffix(s.root+"/"+stagingDir, "/"), s.root)
	}
	return nil
}

// isMount recognises a bind mount, which has the same device.
func (s *Store) isMount(name string) bool {
	if s.paths.walk {
		return false
	}
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV}
	var fd int
	err := retry(func() (err error) {
		fd, err = unix.Openat2(s.paths.root, name, &how)
		return err
	})
	if err == nil {
		closeDir(fd)
	}
	return err == unix.EXDEV
}
