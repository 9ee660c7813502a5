package fsdiff

import (
	"context"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxIO is the longest read or write, in bytes.
const maxIO = 256 << 10

// operation is a kind of operation that programs do with files. make chooses one at random and
// describes it; run carries it out in a tree and describes the result.
type operation struct {
	name   string
	weight int
	make   func(rng *rand.Rand) (what string, run func(t *tree) string)
	// many says that the operation may change many files. These are compared after it.
	many bool
}

// letters are the names in paths. There are few, so that operations often meet on the
// same files.
var letters = []string{"a", "b", "c", "d", "e"}

// name returns a random path of at most three names.
func name(rng *rand.Rand) string {
	parts := make([]string, 1+rng.IntN(3))
	for i := range parts {
		parts[i] = letters[rng.IntN(len(letters))]
	}
	return strings.Join(parts, "/")
}

func slot(rng *rand.Rand) int { return rng.IntN(slots) }

// offset returns a position in a file: near the start, at borders of blocks and chunks, or far out.
func offset(rng *rand.Rand) int64 {
	switch rng.IntN(4) {
	case 0:
		return rng.Int64N(5000)
	case 1:
		return 4096 * rng.Int64N(40)
	case 2:
		return 1<<20*(1+rng.Int64N(4)) - 10 + rng.Int64N(20)
	}
	return rng.Int64N(4 << 20)
}

// answer returns the outcome of a call: an error number, or a value.
func answer(value any, err error) string {
	if err != nil {
		if no, ok := err.(unix.Errno); ok {
			return unix.ErrnoName(no)
		}
		return err.Error()
	}
	return fmt.Sprint(value)
}

// simple returns an operation on a path, with no random choice except the path.
func simple(name1 string, weight int, do func(t *tree, path string) (any, error)) operation {
	return operation{name: name1, weight: weight, make: func(rng *rand.Rand) (string, func(*tree) string) {
		p := name(rng)
		return p, func(t *tree) string { return answer(do(t, p)) }
	}}
}

// onFile returns an operation on an open file.
func onFile(name1 string, weight int, do func(rng *rand.Rand) (string, func(t *tree, fd int) (any, error))) operation {
	return operation{name: name1, weight: weight, make: func(rng *rand.Rand) (string, func(*tree) string) {
		s := slot(rng)
		what, run := do(rng)
		return fmt.Sprintf("#%d %s", s, what), func(t *tree) string { return answer(run(t, t.fds[s])) }
	}}
}

func operations() []operation {
	return slices.Concat(fileOps(), nameOps(), attributeOps(), otherOps())
}

var openFlags = []int{unix.O_RDONLY, unix.O_RDONLY, unix.O_RDONLY, unix.O_RDWR, unix.O_WRONLY, unix.O_RDWR | unix.O_CREAT,
	unix.O_RDWR | unix.O_CREAT | unix.O_EXCL, unix.O_WRONLY | unix.O_TRUNC, unix.O_RDWR | unix.O_APPEND, unix.O_RDONLY | unix.O_DIRECT,
	unix.O_RDWR | unix.O_DIRECT, unix.O_RDONLY | unix.O_NOFOLLOW, unix.O_RDONLY | unix.O_DIRECTORY, unix.O_PATH | unix.O_NOFOLLOW,
	unix.O_RDONLY | unix.O_NOATIME, unix.O_RDWR | unix.O_CREAT | unix.O_TRUNC}

func fileOps() []operation {
	return []operation{
		{name: "open", weight: 24, make: func(rng *rand.Rand) (string, func(*tree) string) {
			p, s, flags := name(rng), slot(rng), openFlags[rng.IntN(len(openFlags))]
			return fmt.Sprintf("%s %#x as #%d", p, flags, s), func(t *tree) string {
				if t.fds[s] >= 0 {
					_ = unix.Close(t.fds[s]) // as in closeAll
				}
				if t.fds[s] = -1; flags&unix.O_DIRECT != 0 && t.empty(p) {
					return "empty" // see the limits in docs/nodes.md
				}
				fd, err := openat(t.top, p, flags, 0o640)
				t.fds[s] = fd
				return answer("open", err)
			}
		}},
		{name: "tmpfile", weight: 1, make: func(rng *rand.Rand) (string, func(*tree) string) {
			p, s := name(rng), slot(rng)
			return fmt.Sprintf("%s as #%d", p, s), func(t *tree) string {
				fd, err := unix.Openat(t.top, p, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
				if err == nil {
					if t.fds[s] >= 0 {
						_ = unix.Close(t.fds[s]) // as in closeAll
					}
					t.fds[s] = fd
				}
				return answer("open", err)
			}
		}},
		{name: "close", weight: 2, make: func(rng *rand.Rand) (string, func(*tree) string) {
			s := slot(rng)
			return fmt.Sprintf("#%d", s), func(t *tree) string {
				err := unix.Close(t.fds[s])
				t.fds[s] = -1
				return answer("closed", err)
			}
		}},
		onFile("pread", 14, func(rng *rand.Rand) (string, func(*tree, int) (any, error)) {
			off, n := offset(rng), extent(rng)
			return fmt.Sprintf("%d at %d", n, off), func(t *tree, fd int) (any, error) {
				got, err := unix.Pread(fd, t.scratch[:n], off)
				return fmt.Sprintf("%d bytes, sum %08x", got, crc32.ChecksumIEEE(t.scratch[:max(got, 0)])), err
			}
		}),
		onFile("read", 6, func(rng *rand.Rand) (string, func(*tree, int) (any, error)) {
			n := extent(rng)
			return fmt.Sprint(n), func(t *tree, fd int) (any, error) {
				got, err := unix.Read(fd, t.scratch[:n])
				return fmt.Sprintf("%d bytes, sum %08x", got, crc32.ChecksumIEEE(t.scratch[:max(got, 0)])), err
			}
		}),
		onFile("pwrite", 8, func(rng *rand.Rand) (string, func(*tree, int) (any, error)) {
			off, n, b := offset(rng), extent(rng), byte(rng.Uint32())
			return fmt.Sprintf("%d of %#x at %d", n, b, off), func(t *tree, fd int) (any, error) {
				for i := range t.scratch[:n] {
					t.scratch[i] = b
				}
				return wrap2(unix.Pwrite(fd, t.scratch[:n], off))
			}
		}),
		onFile("write", 4, func(rng *rand.Rand) (string, func(*tree, int) (any, error)) {
			n, b := extent(rng), byte(rng.Uint32())
			return fmt.Sprintf("%d of %#x", n, b), func(t *tree, fd int) (any, error) {
				for i := range t.scratch[:n] {
					t.scratch[i] = b
				}
				return wrap2(unix.Write(fd, t.scratch[:n]))
			}
		}),
		onFile("lseek", 3, func(rng *rand.Rand) (string, func(*tree, int) (any, error)) {
			off, whence := offset(rng), rng.IntN(3)
			return fmt.Sprintf("%d, %d", off, whence), func(_ *tree, fd int) (any, error) {
				var st unix.Stat_t
				if unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
					return "a directory's", nil // places in a directory are specific to the file system
				}
				return wrap2(unix.Seek(fd, off, whence))
			}
		}),
		onFile("ftruncate", 2, func(rng *rand.Rand) (string, func(*tree, int) (any, error)) {
			n := offset(rng)
			return fmt.Sprint(n), func(_ *tree, fd int) (any, error) { return "", unix.Ftruncate(fd, n) }
		}),
		onFile("fallocate", 2, func(rng *rand.Rand) (string, func(*tree, int) (any, error)) {
			modes := []uint32{0, unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_KEEP_SIZE | unix.FALLOC_FL_PUNCH_HOLE, unix.FALLOC_FL_ZERO_RANGE,
				unix.FALLOC_FL_COLLAPSE_RANGE, unix.FALLOC_FL_INSERT_RANGE}
			mode, off, n := modes[rng.IntN(len(modes))], offset(rng)&^4095, 4096*(1+rng.Int64N(8))
			return fmt.Sprintf("%#x %d+%d", mode, off, n), func(_ *tree, fd int) (any, error) { return "", unix.Fallocate(fd, mode, off, n) }
		}),
		onFile("fsync", 1, func(*rand.Rand) (string, func(*tree, int) (any, error)) {
			return "", func(_ *tree, fd int) (any, error) { return "", unix.Fdatasync(fd) }
		}),
		onFile("fadvise", 1, func(rng *rand.Rand) (string, func(*tree, int) (any, error)) {
			advice := rng.IntN(6)
			return fmt.Sprint(advice), func(_ *tree, fd int) (any, error) { return "", unix.Fadvise(fd, 0, 0, advice) }
		}),
		// The kernel answers EXDEV for copies between file systems. A file that can only
		// be read may not have been copied up, so copying from such a file is a different
		// operation.
		betweenFiles("copy_file_range", 2, func(to, from int, n int) (int, error) {
			if flags, err := unix.FcntlInt(uintptr(from), unix.F_GETFL, 0); err != nil || flags&unix.O_ACCMODE == unix.O_RDONLY {
				return 0, err
			}
			return unix.CopyFileRange(from, nil, to, nil, n, 0)
		}),
		betweenFiles("copy-lower", 1, func(to, from int, n int) (int, error) { return unix.CopyFileRange(from, nil, to, nil, n, 0) }),
		betweenFiles("sendfile", 2, func(to, from int, n int) (int, error) { return unix.Sendfile(to, from, nil, n) }),
		onFile("mmap-read", 3, func(rng *rand.Rand) (string, func(*tree, int) (any, error)) {
			off := offset(rng) &^ 4095
			return fmt.Sprint(off), func(_ *tree, fd int) (any, error) { return mapped(fd, off, unix.PROT_READ, unix.MAP_PRIVATE, 0) }
		}),
		onFile("mmap-write", 3, func(rng *rand.Rand) (string, func(*tree, int) (any, error)) {
			off, b := offset(rng)&^4095, byte(rng.Uint32())
			return fmt.Sprintf("%#x at %d", b, off), func(_ *tree, fd int) (any, error) {
				return mapped(fd, off, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED, b)
			}
		}),
		onFile("fstat", 4, func(*rand.Rand) (string, func(*tree, int) (any, error)) {
			return "", func(_ *tree, fd int) (any, error) {
				var st unix.Stat_t
				err := unix.Fstat(fd, &st)
				return describe(&st), err
			}
		}),
		{name: "truncate", weight: 2, make: func(rng *rand.Rand) (string, func(*tree) string) {
			p, n := name(rng), offset(rng)
			return fmt.Sprintf("%s %d", p, n), func(t *tree) string { return answer("", unix.Truncate(t.path(p), n)) }
		}},
		simple("readfile", 4, func(t *tree, p string) (any, error) {
			var st unix.Stat_t
			if err := unix.Fstatat(t.top, p, &st, 0); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
				return "no file", err
			}
			b, err := os.ReadFile(t.path(p))
			return fmt.Sprintf("%d bytes, sum %08x", len(b), crc32.ChecksumIEEE(b)), err
		}),
	}
}

// openat opens a file without waiting for the other end of a FIFO. Like an open without
// O_NONBLOCK, it does wait for the holder of a lease.
func openat(top int, p string, flags int, mode uint32) (fd int, err error) {
	for range 1000 {
		fd, err = unix.Openat(top, p, flags|unix.O_NONBLOCK|unix.O_CLOEXEC, mode)
		if err != unix.EAGAIN {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return fd, err
}

// empty reports whether a file has no bytes.
func (t *tree) empty(p string) bool {
	var st unix.Stat_t
	return unix.Fstatat(t.top, p, &st, 0) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Size == 0
}

// extent returns how much to read or write, most often little.
func extent(rng *rand.Rand) int {
	switch rng.IntN(4) {
	case 0:
		return 4096 * (1 + rng.IntN(4))
	case 1:
		return 1 + rng.IntN(maxIO)
	}
	return 1 + rng.IntN(2000)
}

func wrap2(n any, err error) (any, error) { return n, err }

// betweenFiles returns an operation from one open file to another.
func betweenFiles(name string, weight int, do func(to, from, n int) (int, error)) operation {
	return operation{name: name, weight: weight, make: func(rng *rand.Rand) (string, func(*tree) string) {
		to, from, n := slot(rng), slot(rng), extent(rng)
		return fmt.Sprintf("%d from #%d to #%d", n, from, to), func(t *tree) string {
			return answer(wrap2(do(t.fds[to], t.fds[from], n)))
		}
	}}
}

// mapped maps a page, reads it, and writes its first byte if the mapping is writable. It does not
// touch what lies beyond the end of the file.
func mapped(fd int, off int64, prot, flags int, b byte) (any, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	m, err := unix.Mmap(fd, off, 4096, prot, flags)
	if err != nil {
		return nil, err
	}
	defer unix.Munmap(m)
	if off >= st.Size {
		return "behind the end", nil
	}
	sum := crc32.ChecksumIEEE(m[:min(4096, st.Size-off)])
	if prot&unix.PROT_WRITE != 0 {
		m[0] = b
	}
	return fmt.Sprintf("sum %08x", sum), nil
}

func nameOps() []operation {
	return []operation{
		simple("mkdir", 4, func(t *tree, p string) (any, error) { return "", unix.Mkdirat(t.top, p, 0o755) }),
		simple("rmdir", 2, func(t *tree, p string) (any, error) { return "", unix.Unlinkat(t.top, p, unix.AT_REMOVEDIR) }),
		simple("unlink", 3, func(t *tree, p string) (any, error) { return "", unix.Unlinkat(t.top, p, 0) }),
		simple("mkfifo", 1, func(t *tree, p string) (any, error) { return "", unix.Mknodat(t.top, p, unix.S_IFIFO|0o600, 0) }),
		simple("mknod", 1, func(t *tree, p string) (any, error) {
			return "", unix.Mknodat(t.top, p, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3)))
		}),
		simple("readlink", 2, func(t *tree, p string) (any, error) {
			n, err := unix.Readlinkat(t.top, p, t.scratch[:4096])
			return string(t.scratch[:max(n, 0)]), err
		}),
		{name: "symlink", weight: 2, make: func(rng *rand.Rand) (string, func(*tree) string) {
			p, to := name(rng), name(rng)
			return p + " to " + to, func(t *tree) string { return answer("", unix.Symlinkat(to, t.top, p)) }
		}},
		{name: "link", weight: 4, make: func(rng *rand.Rand) (string, func(*tree) string) {
			p, to, flags := name(rng), name(rng), []int{0, unix.AT_SYMLINK_FOLLOW}[rng.IntN(2)]
			return fmt.Sprintf("%s as %s, %#x", p, to, flags), func(t *tree) string {
				return answer("", unix.Linkat(t.top, p, t.top, to, flags))
			}
		}},
		{name: "link-open", weight: 1, make: func(rng *rand.Rand) (string, func(*tree) string) {
			s, to := slot(rng), name(rng)
			return fmt.Sprintf("#%d as %s", s, to), func(t *tree) string {
				if t.fds[s] < 0 {
					return "closed"
				}
				return answer("", unix.Linkat(t.fds[s], "", t.top, to, unix.AT_EMPTY_PATH))
			}
		}},
		{name: "rename", weight: 5, make: func(rng *rand.Rand) (string, func(*tree) string) {
			p, to := name(rng), name(rng)
			flags := []uint{0, 0, 0, unix.RENAME_NOREPLACE, unix.RENAME_EXCHANGE}[rng.IntN(5)]
			return fmt.Sprintf("%s to %s, %d", p, to, flags), func(t *tree) string {
				return answer("", unix.Renameat2(t.top, p, t.top, to, flags))
			}
		}},
		simple("list", 4, func(t *tree, p string) (any, error) { return t.list(p) }),
		{name: "same-file", weight: 4, make: func(rng *rand.Rand) (string, func(*tree) string) {
			p, q := name(rng), name(rng)
			return p + " and " + q, func(t *tree) string {
				var st, other unix.Stat_t
				err := unix.Fstatat(t.top, p, &st, unix.AT_SYMLINK_NOFOLLOW)
				if err == nil {
					err = unix.Fstatat(t.top, q, &other, unix.AT_SYMLINK_NOFOLLOW)
				}
				return answer(st.Dev == other.Dev && st.Ino == other.Ino, err)
			}
		}},
		{name: "same-open", weight: 3, make: func(rng *rand.Rand) (string, func(*tree) string) {
			p, s := name(rng), slot(rng)
			return fmt.Sprintf("%s and #%d", p, s), func(t *tree) string {
				var st, other unix.Stat_t
				err := unix.Fstatat(t.top, p, &st, 0)
				if err == nil {
					err = unix.Fstat(t.fds[s], &other)
				}
				return answer(st.Dev == other.Dev && st.Ino == other.Ino, err)
			}
		}},
	}
}

// list reads a directory: the names, the types, and whether the inode numbers are the
// numbers that stat returns.
func (t *tree) list(p string) (any, error) {
	entries, err := os.ReadDir(t.path(p))
	if err != nil {
		return nil, err.(*os.PathError).Err
	}
	var lines []string
	for _, e := range entries {
		lines = append(lines, e.Name()+" "+e.Type().String())
	}
	slices.Sort(lines)
	return strings.Join(lines, ", "), nil
}

func attributeOps() []operation {
	names := []string{"user.x", "user.long", "trusted.y", "security.z", "security.capability", "system.posix_acl_access", "system.posix_acl_default"}
	settable, lists := names[:5], names[5:]
	return []operation{
		simple("lstat", 6, func(t *tree, p string) (any, error) {
			var st unix.Stat_t
			err := unix.Fstatat(t.top, p, &st, unix.AT_SYMLINK_NOFOLLOW)
			return describe(&st), err
		}),
		{name: "chmod", weight: 3, make: func(rng *rand.Rand) (string, func(*tree) string) {
			p, mode := name(rng), []uint32{0o644, 0o600, 0o755, 0o4755, 0o2770, 0o1777, 0}[rng.IntN(7)]
			return fmt.Sprintf("%s %#o", p, mode), func(t *tree) string { return answer("", unix.Fchmodat(t.top, p, mode, 0)) }
		}},
		{name: "chown", weight: 3, make: func(rng *rand.Rand) (string, func(*tree) string) {
			p, uid, gid := name(rng), []int{0, 1000, -1}[rng.IntN(3)], []int{0, 1000, -1}[rng.IntN(3)]
			return fmt.Sprintf("%s %d:%d", p, uid, gid), func(t *tree) string {
				return answer("", unix.Fchownat(t.top, p, uid, gid, unix.AT_SYMLINK_NOFOLLOW))
			}
		}},
		{name: "utimens", weight: 2, make: func(rng *rand.Rand) (string, func(*tree) string) {
			p, at := name(rng), rng.Int64N(1_500_000_000)
			ts := []unix.Timespec{{Sec: at, Nsec: 7}, {Sec: at + 1, Nsec: 123456789}}
			return fmt.Sprintf("%s %d", p, at), func(t *tree) string {
				return answer("", unix.UtimesNanoAt(t.top, p, ts, unix.AT_SYMLINK_NOFOLLOW))
			}
		}},
		{name: "setxattr", weight: 3, make: func(rng *rand.Rand) (string, func(*tree) string) {
			p, attr, flags := name(rng), settable[rng.IntN(len(settable))], []int{0, unix.XATTR_CREATE, unix.XATTR_REPLACE}[rng.IntN(3)]
			value := valueOf(rng, attr)
			return fmt.Sprintf("%s %s, %d bytes, %d", p, attr, len(value), flags), func(t *tree) string {
				return answer("", unix.Lsetxattr(t.path(p), attr, value, flags))
			}
		}},
		{name: "getxattr", weight: 3, make: func(rng *rand.Rand) (string, func(*tree) string) {
			p, attr := name(rng), names[rng.IntN(len(names))]
			return p + " " + attr, func(t *tree) string {
				n, err := unix.Lgetxattr(t.path(p), attr, t.scratch[:64<<10])
				return answer(fmt.Sprintf("%x", t.scratch[:max(n, 0)]), err)
			}
		}},
		{name: "removexattr", weight: 1, make: func(rng *rand.Rand) (string, func(*tree) string) {
			p, attr := name(rng), settable[rng.IntN(len(settable))]
			return p + " " + attr, func(t *tree) string { return answer("", unix.Lremovexattr(t.path(p), attr)) }
		}},
		{name: "acl", weight: 2, make: func(rng *rand.Rand) (string, func(*tree) string) {
			p, attr := name(rng), lists[rng.IntN(len(lists))]
			value := valueOf(rng, attr)
			return p + " " + attr, func(t *tree) string {
				// An overlay asks the lower file system whether it could set an ACL, so the
				// file is copied up first. The operation "acl-lower" changes an ACL without
				// this copy-up.
				if err := unix.Fchownat(t.top, p, -1, -1, unix.AT_SYMLINK_NOFOLLOW); err != nil {
					return answer("", err)
				}
				return answer("", unix.Lsetxattr(t.path(p), attr, value, 0))
			}
		}},
		{name: "acl-lower", weight: 1, make: func(rng *rand.Rand) (string, func(*tree) string) {
			p, attr := name(rng), lists[rng.IntN(len(lists))]
			return p + " " + attr, func(t *tree) string { return answer("", unix.Lremovexattr(t.path(p), attr)) }
		}},
		simple("listxattr", 2, func(t *tree, p string) (any, error) {
			n, err := unix.Llistxattr(t.path(p), t.scratch[:64<<10])
			list := strings.Split(string(t.scratch[:max(n, 0)]), "\x00")
			slices.Sort(list)
			return strings.Join(list, " "), err
		}),
		{name: "as-user", weight: 4, make: func(rng *rand.Rand) (string, func(*tree) string) {
			p, flags := name(rng), []int{unix.O_RDONLY, unix.O_RDWR, unix.O_RDWR | unix.O_CREAT}[rng.IntN(3)]
			return fmt.Sprintf("open %s %#x", p, flags), func(t *tree) string {
				_ = unix.Setfsgid(1000) // these calls return the previous id
				_ = unix.Setfsuid(1000)
				defer func() { _, _ = unix.Setfsuid(0), unix.Setfsgid(0) }()
				fd, err := openat(t.top, p, flags, 0o644)
				if err == nil {
					err = unix.Close(fd)
				}
				return answer("may", err)
			}
		}},
		simple("getflags", 1, func(t *tree, p string) (any, error) {
			fd, err := openat(t.top, p, unix.O_RDONLY, 0)
			if err != nil {
				return nil, err
			}
			defer unix.Close(fd)
			flags, err := unix.IoctlGetInt(fd, unix.FS_IOC_GETFLAGS)
			const extents = 0x80000 // this flag shows how ext4 keeps its blocks
			return flags &^ extents, err
		}),
	}
}

// valueOf returns a value for an extended attribute. If the kernel checks the attribute's
// values, the value is one that it accepts.
func valueOf(rng *rand.Rand, attr string) []byte {
	switch attr {
	case "security.capability": // version 2, some bits
		return append([]byte{0, 0, 0, 2, byte(rng.Uint32()), 0, 0, 0}, make([]byte, 12)...)
	case "system.posix_acl_access", "system.posix_acl_default":
		acl := []byte{2, 0, 0, 0}
		for _, e := range []struct {
			tag, perm uint16
			id        uint32
		}{{1, 7, ^uint32(0)}, {2, uint16(rng.IntN(8)), 1000}, {4, 5, ^uint32(0)}, {16, 7, ^uint32(0)}, {32, uint16(rng.IntN(8)), ^uint32(0)}} {
			acl = append(acl, byte(e.tag), byte(e.tag>>8), byte(e.perm), byte(e.perm>>8), byte(e.id), byte(e.id>>8), byte(e.id>>16), byte(e.id>>24))
		}
		return acl
	case "user.long":
		return make([]byte, 1+rng.IntN(2000))
	}
	return make([]byte, rng.IntN(40))
}

// describe returns the part of stat that depends neither on the tree's place nor on the time of
// day. Times before 2023 were set, or come from the image.
func describe(st *unix.Stat_t) string {
	at := "now"
	if st.Mtim.Sec < 1_670_000_000 {
		at = fmt.Sprintf("%d.%09d", st.Mtim.Sec, st.Mtim.Nsec)
	}
	size := st.Size
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		size = 0 // the file system decides
	}
	return fmt.Sprintf("mode %o, %d links, owner %d:%d, %d bytes, device %x, time %s", st.Mode, st.Nlink, st.Uid, st.Gid, size, st.Rdev, at)
}

func otherOps() []operation {
	return []operation{
		onFile("flock", 2, func(rng *rand.Rand) (string, func(*tree, int) (any, error)) {
			how := []int{unix.LOCK_EX, unix.LOCK_SH, unix.LOCK_UN}[rng.IntN(3)]
			return fmt.Sprint(how), func(_ *tree, fd int) (any, error) { return "", unix.Flock(fd, how|unix.LOCK_NB) }
		}),
		onFile("lock", 2, func(rng *rand.Rand) (string, func(*tree, int) (any, error)) {
			kind, at, n := []int16{unix.F_RDLCK, unix.F_WRLCK, unix.F_UNLCK}[rng.IntN(3)], rng.Int64N(20), rng.Int64N(20)
			return fmt.Sprintf("%d %d+%d", kind, at, n), func(_ *tree, fd int) (any, error) {
				return "", unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &unix.Flock_t{Type: kind, Start: at, Len: n})
			}
		}),
		// An overlay identifies a lower file that has several names by a number that it
		// keeps only in memory. When the kernel reclaims that memory, or a full cache
		// makes it do so, the file becomes a different file that nobody watches. The
		// operation "watch-linked" watches such files.
		simple("watch", 1, func(t *tree, p string) (any, error) {
			var st unix.Stat_t
			if unix.Lstat(t.path(p), &st) == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR && st.Nlink > 1 {
				return "has several names", nil
			}
			return t.watchPath(p)
		}),
		simple("watch-linked", 1, func(t *tree, p string) (any, error) { return t.watchPath(p) }),
		{name: "events", weight: 2, make: func(*rand.Rand) (string, func(*tree) string) {
			return "", func(t *tree) string { return answer(t.events()) }
		}},
		{name: "program", weight: 1, make: program, many: true},
	}
}

// watchPath watches a path for all events except reads.
func (t *tree) watchPath(p string) (any, error) {
	const events = unix.IN_ALL_EVENTS &^ (unix.IN_ACCESS | unix.IN_OPEN | unix.IN_CLOSE)
	return wrap2(unix.InotifyAddWatch(t.watch, t.path(p), events|unix.IN_DONT_FOLLOW))
}

// events returns what was noticed since the last call.
func (t *tree) events() (any, error) {
	var lines []string
	for {
		n, err := unix.Read(t.watch, t.scratch)
		if err == unix.EAGAIN {
			slices.Sort(lines) // programs walk a directory in its own order
			return strings.Join(lines, ", "), nil
		}
		if err != nil {
			return nil, err
		}
		for b := t.scratch[:n]; len(b) > 0; {
			e := (*unix.InotifyEvent)(unsafe.Pointer(&b[0]))
			text := string(b[unix.SizeofInotifyEvent : unix.SizeofInotifyEvent+e.Len])
			text = strings.TrimRight(text, "\x00")
			if strings.HasPrefix(text, "#") { // of a file without a name
				text = "#"
			}
			lines = append(lines, fmt.Sprintf("%d %#x %s", e.Wd, e.Mask, text))
			b = b[unix.SizeofInotifyEvent+e.Len:]
		}
	}
}

// tools are programs that walk trees, each with two paths as arguments. Their output is
// compared. None of them preserves hard links. In an overlay, names that were links below
// still have the same number after one of them was changed, so the result would depend on
// the order of a directory.
var tools = []string{
	`cp -aT --no-preserve=links --remove-destination -- "$1" "$2"`,
	`cp -rT --sparse=always --remove-destination -- "$1" "$2"`,
	`chown -R 1000:1000 -- "$1"`,
	`chmod -R u+w,g-x -- "$1"`,
	`tar -c --sort=name --mtime=@0 --numeric-owner --hard-dereference -f - -- "$1" | sha256sum`,
	`rsync -aX --exclude="${2##*/}" -- "$1" "$2"`,
	`mv -f -- "$1" "$2"`,
	`rm -rf -- "$1"`,
	`find "$1" -type f -size +0 -print -exec sha256sum {} + | sort`,
	`test -f "$1" && ln -f -- "$1" "$2" && sed -i s/a/b/ "$1"`,
}

// program runs one of tools in the root of a tree.
func program(rng *rand.Rand) (string, func(*tree) string) {
	p, to, script := name(rng), name(rng), tools[rng.IntN(len(tools))]
	if strings.HasPrefix(to+"/", p+"/") { // into itself
		to = p + "x"
	}
	return fmt.Sprintf("%s with %s %s", script, p, to), func(t *tree) string {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, "sh", "-c", script, "sh", p, to)
		cmd.Dir, cmd.Env = t.root, append(os.Environ(), "LC_ALL=C")
		out, err := cmd.Output() // standard error arrives in pieces
		lines := strings.Split(strings.ReplaceAll(string(out), t.root, "ROOT"), "\n")
		slices.Sort(lines) // several programs write at the same time
		_, _ = t.events()  // their operations and names depend on the order of directories
		return fmt.Sprintf("%v: %s", err, strings.Join(lines, "\n"))
	}
}
