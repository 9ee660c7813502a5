package view

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Mount is a line of mountinfo: a mount in the mount namespace of this process.
type Mount struct {
	// ID is unique while the mount exists. Parent is the ID of the mount on which it
	// lies.
	ID, Parent int
	// Dir is the directory where it is mounted.
	Dir string
	// Type is the type of the file system, such as "erofs", "overlay" or "fuse.slipway".
	Type string
	// Source is what is mounted. For an image it is the image file or a loop device.
	Source   string
	ReadOnly bool
	// Options are the options of the file system as the kernel writes them, split at
	// commas.
	Options []string
}

// Mounts returns the mounts at root or below. A mount on top of another one comes after
// it. Mounts does not access the mounted file systems, so it works even if file systems
// in user space do not answer.
func Mounts(root string) ([]Mount, error) {
	root, err := realPath(root)
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	f, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	defer f.Close()
	all, err := parseMounts(f)
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	return slices.DeleteFunc(all, func(m Mount) bool {
		return m.Dir != root && root != "/" && !strings.HasPrefix(m.Dir, root+"/")
	}), nil
}

// Mounted returns the mount at a directory, or the topmost if there are several.
func Mounted(dir string) (Mount, bool, error) {
	all, err := Mounts(dir)
	if err != nil {
		return Mount{}, false, err
	}
	dir, err = realPath(dir)
	if err != nil {
		return Mount{}, false, err
	}
	for _, m := range slices.Backward(all) {
		if m.Dir == dir {
			return m, true, nil
		}
	}
	return Mount{}, false, nil
}

// realPath returns the path in the form of mountinfo. It does not access the last
// segment, because what is mounted there may not answer.
func realPath(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil || path == "/" {
		return path, err
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(path))
	if errors.Is(err, os.ErrNotExist) {
		return path, nil // nothing is mounted there
	}
	return filepath.Join(parent, filepath.Base(path)), err
}

// parseMounts parses a mountinfo file.
func parseMounts(r io.Reader) ([]Mount, error) {
	var all []Mount
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			m, err := parseMount(strings.TrimSuffix(line, "\n"))
			if err != nil {
				return nil, err
			}
			all = append(all, m)
		}
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// parseMount parses one line:
//
//	36 35 98:0 / /mnt rw,noatime master:1 - ext3 /dev/root rw,errors=continue
func parseMount(line string) (Mount, error) {
	var m Mount
	before, after, ok := strings.Cut(line, " - ")
	head, tail := strings.Split(before, " "), strings.Split(after, " ")
	if !ok || len(head) < 6 || len(tail) < 2 {
		return m, fmt.Errorf("mountinfo has a line that is not understood: %.200q", line)
	}
	var err1, err2 error
	m.ID, err1 = strconv.Atoi(head[0])
	m.Parent, err2 = strconv.Atoi(head[1])
	if err := errors.Join(err1, err2); err != nil {
		return m, fmt.Errorf("mountinfo has a line that is not understood: %w", err)
	}
	m.Dir = unescape(head[4])
	flags := strings.Split(head[5], ",")
	m.Type, m.Source = unescape(tail[0]), unescape(tail[1])
	if len(tail) > 2 {
		m.Options = strings.Split(tail[2], ",")
	}
	m.ReadOnly = slices.Contains(flags, "ro") || slices.Contains(m.Options, "ro")
	return m, nil
}

// unescape decodes the octal escapes of the kernel: "\040" is a space.
func unescape(s string) string {
	if strings.IndexByte(s, '\\') < 0 {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// Layers returns the directories of an overlay, as far as its options show them. If the
// overlay has no data-only or upper directory, the result has none either.
func (m *Mount) Layers() OverlayOptions {
	o := OverlayOptions{ReadOnly: m.ReadOnly}
	for _, opt := range m.Options {
		key, value, _ := strings.Cut(opt, "=")
		value = unescape(value)
		switch key {
		case "lowerdir":
			o.Lower, o.Data = splitLower(value)
		case "lowerdir+":
			o.Lower = append(o.Lower, value)
		case "datadir+":
			o.Data = append(o.Data, value)
		case "upperdir":
			o.Upper = unslash(value)
		case "workdir":
			o.Work = unslash(value)
		case "metacopy":
			o.Metacopy = value == "on"
		case "volatile":
			o.Volatile = true
		case "fsync": // the form in which newer kernels show it
			o.Volatile = value == "volatile"
		case "userxattr":
			o.UserXattr = true
		}
	}
	return o
}

// splitLower splits the option of mount(2): a:b::data, with a backslash before each
// character that is not a separator.
func splitLower(s string) (lower, data []string) {
	for i, part := range splitUnescaped(s, "::") {
		if i > 0 {
			data = append(data, unslash(part))
			continue
		}
		for _, dir := range splitUnescaped(part, ":") {
			lower = append(lower, unslash(dir))
		}
	}
	return lower, data
}

func splitUnescaped(s, sep string) (parts []string) {
	from := 0
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' {
			i++
		} else if strings.HasPrefix(s[i:], sep) {
			parts = append(parts, s[from:i])
			i += len(sep) - 1
			from = i + 1
		}
	}
	return append(parts, s[from:])
}

// unslash removes the backslash before each escaped byte.
func unslash(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			i++
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// Unmount unmounts the topmost mount at a directory. A mount that is in use is detached
// and disappears when it is no longer used; lazy reports this. It is no error if nothing
// is mounted there.
func Unmount(dir string) (lazy bool, err error) {
	err = unix.Unmount(dir, unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EBUSY) {
		lazy = true
		err = unix.Unmount(dir, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
	}
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("unmount %s: %w", dir, err)
	}
	return lazy, nil
}

// UnmountBelow unmounts everything at root and below, the last mounted first. It cleans
// up after a process that is gone. It tries all mounts and returns the joined errors.
func UnmountBelow(root string) error {
	all, err := Mounts(root)
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range slices.Backward(all) {
		if _, err := Unmount(m.Dir); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
