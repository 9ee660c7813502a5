package measure

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// Meter reads what processes have used. For server and client it reads each process's CPU clock
// from the kernel, in nanoseconds, including threads that have ended. For the rest of the machine
// it reads /proc/stat, in ticks of 10 ms.
type Meter struct {
	// PIDs are the server's processes.
	PIDs []int

	begin          time.Time
	server, client time.Duration
	machine        time.Duration
}

// Usage is what was used between the start of a meter and its stop.
type Usage struct {
	Elapsed        time.Duration
	Server, Client time.Duration // CPU time
	// OtherCPUs is the number of CPUs that everything else on the machine kept busy.
	OtherCPUs float64
}

// NewMeter begins to measure a server that starts later. The caller adds the server's
// processes to PIDs. Everything that they use counts.
func NewMeter() (*Meter, error) {
	m := &Meter{}
	var err error
	if _, m.client, m.machine, err = m.read(); err != nil {
		return nil, err
	}
	m.begin = time.Now()
	return m, nil
}

// StartMeter begins to measure a server, whose first process is pid.
func StartMeter(pid int) (*Meter, error) {
	m := &Meter{}
	var err error
	if m.PIDs, err = Family(pid); err != nil {
		return nil, err
	}
	if m.server, m.client, m.machine, err = m.read(); err != nil {
		return nil, err
	}
	m.begin = time.Now()
	return m, nil
}

// Stop returns what was used since the start.
func (m *Meter) Stop() (Usage, error) {
	u := Usage{Elapsed: time.Since(m.begin)}
	server, client, machine, err := m.read()
	if err != nil {
		return Usage{}, err
	}
	u.Server, u.Client = server-m.server, client-m.client
	// Ticks and clocks are not the same, so the difference can fall below 0.
	u.OtherCPUs = max(0, (machine-m.machine-u.Server-u.Client).Seconds()/u.Elapsed.Seconds())
	return u, nil
}

func (m *Meter) read() (server, client, machine time.Duration, err error) {
	for _, pid := range m.PIDs {
		t, err := CPUTime(pid)
		if err != nil {
			return 0, 0, 0, err
		}
		server += t
	}
	if client, err = CPUTime(os.Getpid()); err != nil {
		return 0, 0, 0, err
	}
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, 0, err
	}
	machine, err = busyTime(stat)
	return server, client, machine, err
}

// CPUTime returns the user and system CPU time that a process has used. The clock's id is computed
// from the process id as in clock_getcpuclockid(3).
func CPUTime(pid int) (time.Duration, error) {
	const cpuClockSched = 2
	var ts syscall.Timespec
	_, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, uintptr(^pid<<3|cpuClockSched), uintptr(unsafe.Pointer(&ts)), 0)
	if errno != 0 {
		return 0, fmt.Errorf("read the CPU clock of process %d: %w", pid, errno)
	}
	return time.Duration(ts.Nano()), nil
}

// busyTime returns the time during which the CPUs were not idle, from /proc/stat. Time
// that the hypervisor took counts as busy, because this machine did not get it.
func busyTime(stat []byte) (time.Duration, error) {
	line, _, _ := strings.Cut(string(stat), "\n")
	f := strings.Fields(line)
	// cpu user nice system idle iowait irq softirq steal ...; guest time is in user.
	if len(f) < 9 || f[0] != "cpu" {
		return 0, errors.New("/proc/stat does not begin with the sum of all CPUs")
	}
	var ticks int64
	for _, i := range []int{1, 2, 3, 6, 7, 8} {
		n, err := strconv.ParseInt(f[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("parse /proc/stat: %w", err)
		}
		ticks += n
	}
	const tick = 10 * time.Millisecond // USER_HZ is 100 on Linux, whatever the kernel's own rate
	return time.Duration(ticks) * tick, nil
}

// Family returns a process and its children. Servers such as nginx work in children.
func Family(pid int) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	pids := []int{pid}
	for _, e := range entries {
		child, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if parent, ok := parentOf(child); ok && parent == pid {
			pids = append(pids, child)
		}
	}
	return pids, nil
}

// parentOf returns the parent of a process. ok is false if the process has ended.
func parentOf(pid int) (parent int, ok bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	// pid (name) state ppid ...: the name may hold spaces and parentheses.
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 2 {
		return 0, false
	}
	parent, err = strconv.Atoi(f[1])
	return parent, err == nil
}

// Memory returns the resident set of processes and the sum of their peaks, in bytes. Pages that
// several processes share count in each.
func Memory(pids []int) (rss, peak int64, err error) {
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			return 0, 0, err
		}
		now, most, err := residentSet(b)
		if err != nil {
			return 0, 0, fmt.Errorf("status of process %d: %w", pid, err)
		}
		rss, peak = rss+now, peak+most
	}
	return rss, peak, nil
}

// residentSet reads VmRSS and VmHWM from a process's status.
func residentSet(status []byte) (rss, peak int64, err error) {
	for line := range bytes.Lines(status) {
		f := strings.Fields(string(line))
		if len(f) != 3 || (f[0] != "VmRSS:" && f[0] != "VmHWM:") {
			continue
		}
		kib, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil {
			return 0, 0, err
		}
		if f[0] == "VmRSS:" {
			rss = kib << 10
		} else {
			peak = kib << 10
		}
	}
	if rss == 0 || peak == 0 {
		return 0, 0, errors.New("no resident set")
	}
	return rss, peak, nil
}
