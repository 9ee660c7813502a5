package gear

import (
	"errors"
	"strings"
)

// These are the bounds of a path, as in package rootfs: the number of bytes that Linux
// accepts (PATH_MAX counts a closing NUL, NAME_MAX does not), and the depth that follows
// from that.
const (
	maxPath    = 4095
	maxSegment = 255
	maxDepth   = (maxPath + 1) / 2
)

// ComparePaths orders paths as a walk of the tree visits them: first the root, then each
// directory before its contents, and the names in a directory by their bytes. Everything
// below a directory follows it without a gap.
func ComparePaths(a, b string) int {
	n := min(len(a), len(b))
	i := 0
	for i < n && a[i] == b[i] {
		i++
	}
	switch {
	case i == len(a) && i == len(b):
		return 0
	case a == "." || i == len(a):
		return -1
	case b == "." || i == len(b):
		return 1
	case a[i] == '/':
		return -1
	case b[i] == '/':
		return 1
	case a[i] < b[i]:
		return -1
	}
	return 1
}

// within reports whether path is below the directory dir. dir is not the root.
func within(path, dir string) bool {
	return len(path) > len(dir) && path[len(dir)] == '/' && path[:len(dir)] == dir
}

// parent returns the directory that holds path. The parent of the root is the root.
func parent(path string) string {
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		return path[:i]
	}
	return "."
}

// validPath returns an error unless a path has the form that rootfs.Entry promises.
func validPath(p string) error {
	if p == "." {
		return nil
	}
	if p == "" || len(p) > maxPath {
		return errors.New("path is empty or too long")
	}
	start := 0
	for i := 0; i <= len(p); i++ {
		if i < len(p) && p[i] != '/' {
			if p[i] == 0 {
				return errors.New("path has a NUL")
			}
			continue
		}
		switch p[start:i] {
		case "", ".", "..":
			return errors.New("path is not clean")
		}
		if i-start > maxSegment {
			return errors.New("path has a segment that is too long")
		}
		start = i + 1
	}
	return nil
}

// JoinPath appends a name to the path of a directory.
func JoinPath(dir, name string) string {
	if dir == "." {
		return name
	}
	return dir + "/" + name
}
