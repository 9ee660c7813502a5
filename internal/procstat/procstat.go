// Package procstat reads how much processor time and memory processes use.
package procstat

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

// Usage is the processor time that has been used until now.
type Usage struct {
	// Own is the processor time of this process.
	Own time.Duration
	// Busy and All are the times of the machine, or 0 if they cannot be read.
	Busy, All time.Duration
	// Process is the processor time of the watched process.
	Process time.Duration
}

// Measure measures the usage. pid is the process to watch, or 0 for none.
func Measure(pid int) Usage {
	var u Usage
	var self syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &self) == nil {
		u.Own = time.Duration(self.Utime.Nano() + self.Stime.Nano())
	}
	if b, err := os.ReadFile("/proc/stat"); err == nil {
		u.Busy, u.All = machine(b)
	}
	if pid > 0 {
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
			u.Process, _ = processCPU(b) // a malformed line counts as 0
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

// ResidentBytes returns the memory that a process uses now, or 0 if that cannot be read.
func ResidentBytes(pid int) int64 {
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
