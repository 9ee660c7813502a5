package measure

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

// Machine describes where results were measured.
type Machine struct {
	CPU      string `json:"cpu"`
	Cores    int    `json:"cores"`
	MemoryMB int64  `json:"memory_mb"`
	Kernel   string `json:"kernel"`
	OS       string `json:"os"`
	// Disk is the file system that the servers' data lies on.
	Disk string `json:"disk"`
	Go   string `json:"go"`
}

// ThisMachine describes the machine and the disk below dir. It reports "unknown" for what
// it cannot find out, because a missing description is not a reason to fail.
func ThisMachine(dir string) Machine {
	m := Machine{CPU: "unknown", Cores: runtime.NumCPU(), Kernel: "unknown", OS: "unknown", Disk: "unknown", Go: runtime.Version()}
	if v, ok := field("/proc/cpuinfo", "model name", ":"); ok {
		m.CPU = v
	}
	if v, ok := field("/etc/os-release", "PRETTY_NAME", "="); ok {
		m.OS = strings.Trim(v, `"`)
	}
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(b))
	}
	var info syscall.Sysinfo_t
	if syscall.Sysinfo(&info) == nil {
		m.MemoryMB = int64(info.Totalram) * int64(info.Unit) / 1e6
	}
	if b, err := os.ReadFile("/proc/self/mountinfo"); err == nil {
		if abs, err := filepath.Abs(dir); err == nil {
			m.Disk = mountOf(string(b), abs)
		}
	}
	return m
}

// field returns the value behind a key in a file of lines like "key: value".
func field(file, key, separator string) (string, bool) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", false
	}
	for l := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(l, separator); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v), true
		}
	}
	return "", false
}

// mountOf returns the type and device of the file system that a path lies on, from the lines of
// /proc/self/mountinfo.
func mountOf(mountinfo, path string) string {
	best, disk := -1, "unknown"
	for l := range strings.Lines(mountinfo) {
		// id parent dev root MOUNT options [tags] - TYPE DEVICE superoptions
		head, tail, ok := strings.Cut(l, " - ")
		f, g := strings.Fields(head), strings.Fields(tail)
		if !ok || len(f) < 5 || len(g) < 2 {
			continue
		}
		point := f[4]
		if path == point || point == "/" || strings.HasPrefix(path, point+"/") {
			if len(point) >= best { // a later mount on the same point hides the earlier one
				best, disk = len(point), g[0]+" on "+g[1]
			}
		}
	}
	return disk
}

func (m Machine) String() string {
	return m.CPU + ", " + strconv.Itoa(m.Cores) + " cores, " + strconv.FormatInt(m.MemoryMB, 10) + " MB of memory; " +
		m.OS + ", kernel " + m.Kernel + "; " + m.Disk
}
