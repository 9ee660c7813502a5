package footprint

import (
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Available returns how many bytes of memory this process may use: the machine's
// memory, or the limit of its control groups or of GOMEMLIMIT if that is less.
func Available() int64 {
	var info unix.Sysinfo_t
	total := int64(1) << 30 // if nothing says how much there is
	if unix.Sysinfo(&info) == nil {
		total = int64(info.Totalram) * int64(info.Unit)
	}
	return min(total, cgroupMemory("/"), GoLimit())
}

// GoLimit returns the limit of GOMEMLIMIT in bytes.
func GoLimit() int64 {
	if os.Getenv("GOMEMLIMIT") == "" {
		return math.MaxInt64 // a limit that the program itself has set follows the use and does not count
	}
	return debug.SetMemoryLimit(-1)
}

// cgroupMemory returns the least memory limit, in bytes, of the control groups that this
// process is in: its own group and the groups above it, of version 1 or 2. root is where
// the file system begins. In a container, the process may see the host's path of its
// group. Then only the last part of that path can be read, which is the container's own
// group.
func cgroupMemory(root string) int64 {
	least := int64(math.MaxInt64)
	list, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return least
	}
	for line := range strings.Lines(string(list)) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, group, _ := strings.Cut(rest, ":")
		top, file := filepath.Join(root, "sys/fs/cgroup"), "memory.max"
		if slices.Contains(strings.Split(controllers, ","), "memory") {
			top, file = filepath.Join(top, "memory"), "memory.limit_in_bytes"
		} else if controllers != "" {
			continue
		}
		for group = filepath.Clean("/" + group); ; group = filepath.Dir(group) {
			if b, err := os.ReadFile(filepath.Join(top, group, file)); err == nil {
				if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil && n > 0 {
					least = min(least, n)
				}
			}
			if group == "/" {
				break
			}
		}
	}
	return least
}
