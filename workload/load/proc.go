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

// clockTick is the unit of CPU times in /proc: 1/100 s on every Linux.
const clockTick = 10 * time.Millisecond

// usage is how much of the processors was used until now.
type usage struct {
	// own is this process's.
	own time.Duration
	// busy and all are the machine's, 0 where that cannot be learnt.
	busy, all time.Duration
	// server is that of the process that is watched.
	server time.Duration
}

// measureUsage measures; pid is a process to watch, 0 for none.
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
			u.server, _ = processCPU(b) // what is malformed counts as nothing
		}
	}
	return u
}

// machine reads the first line of /proc/stat: user, nice, system, idle, iowait, irq,
// softirq, steal; guests are in user already.
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
		if i != 3 && i != 4 { // idle, and idle for the disk
			busy += d
		}
	}
	return busy, all
}

// processCPU reads /proc/PID/stat. The command's name may have spaces and brackets.
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

// residentBytes is how much memory a process has now, 0 if that cannot be learnt.
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
