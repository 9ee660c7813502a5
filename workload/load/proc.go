package load

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// clockTick is the unit of CPU times in /proc. It is 1/100 s on every Linux.
const clockTick = 10 * time.Millisecond

// usage is the processor time that has been used until now.
type usage struct {
	// own is the processor time of this process.
	own time.Duration
	// busy and all are the times of the machine, or 0 if they cannot be read.
	busy, all time.Duration
	// server is the processor time of the watched process.
	server time.Duration
}

// measureUsage measures the usage. pid is the process to watch, or 0 for none.
func measureUsage(pid int) usage {
	var u usage
	var self syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &self) == nil {
		u.own = time.Duration(self.Utime.Nano() + self.Stime.Nano())
	}
	if b, err := os.ReadFile("/proc/stat"); err == nil {
		u.busy, u.all = machine(b)
	}
	if pid > 0 {
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
			u.server, _ = processCPU(b) // a malformed line counts as 0
		}
	}
	return u
}

// machine parses the first line of /proc/stat: user, nice, system, idle, iowait, irq,
// softirq, steal. The time of guests is contained in user.
func machine(stat []byte) (busy, all time.Duration) {
	line, _, _ := bytes.Cut(stat, []byte("\n"))
	fields := strings.Fields(string(line))
	if len(fields) < 5 || fields[0] != "cpu" {
		return 0, 0
	}
	for i, f := range fields[1:min(len(fields), 9)] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil || n < 0 {
			return 0, 0
		}
		d := time.Duration(n) * clockTick
		all += d
		if i != 3 && i != 4 { // not idle, and not idle while waiting for the disk
			busy += d
		}
	}
	return busy, all
}

// processCPU parses /proc/PID/stat. The command's name in it may contain spaces and
// brackets.
func processCPU(stat []byte) (time.Duration, error) {
	i := bytes.LastIndexByte(stat, ')')
	fields := strings.Fields(string(stat[i+1:]))
	if i < 0 || len(fields) < 13 {
		return 0, errors.New("malformed /proc/PID/stat")
	}
	user, err1 := strconv.ParseInt(fields[11], 10, 64) // fields 14 and 15 of the line
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * clockTick, errors.Join(err1, err2)
}

// residentBytes returns the memory that a process uses now, or 0 if that cannot be read.
func residentBytes(pid int) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				return 0
			}
			return n << 10
		}
	}
	return 0
}
