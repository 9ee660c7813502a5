package serve

import (
	"bufio"
	"context"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A registry whose caches are small stays within smallLimit. One whose caches
// have grown beyond what that can hold gets room for garbage beside what is live,
// and some more of it the more that is: most of it are the blocks of the RAM
// cache, which cost the collector little to pass over, but not all.
const (
	gcPercent = 300
	// smallLimit is the least soft limit of Go's memory, in bytes: with the
	// executable and SQLite below 40 MB of resident memory.
	smallLimit = 19 << 20
	// leastRoom is the least room for garbage, in bytes: some 1,500 requests.
	leastRoom = 4 << 20
)

// idleFor is how long no request may have come before memory is given back.
const idleFor = 5 * time.Second

// keepSmall holds the process's memory down until ctx ends: it bounds the heap
// by what is live, drops pages of the executable that are no longer used, and
// after each burst of requests gives back what the burst left behind. served
// returns how many requests were served so far. GOGC and GOMEMLIMIT in the
// environment switch the first off.
func keepSmall(ctx context.Context, served func() int64) {
	tune := os.Getenv("GOGC") == "" && os.Getenv("GOMEMLIMIT") == ""
	if tune {
		defer debug.SetMemoryLimit(debug.SetMemoryLimit(smallLimit))
		defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var seen, trimmed int64
	var idle time.Duration
	limit := int64(smallLimit)
	// Not at once: the first requests are those that waited for the start, and the
	// collection beside them was seen to cost them some 4 ms each.
	for started := false; ; started = true {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if l := memoryLimit(memoryInUse()); tune && l != limit { // setting it stops the world
			limit = l
			debug.SetMemoryLimit(limit)
		}
		n := served()
		switch {
		case !started:
			seen = n
			debug.FreeOSMemory()
			dropUnusedPages()
			continue
		case n != seen:
			seen, idle = n, 0
			dropUnusedPages()
			continue
		}
		if idle += time.Second; idle >= idleFor && trimmed != n {
			trimmed = n
			debug.FreeOSMemory()
			dropUnusedPages()
		}
	}
}

// memoryLimit is the soft limit for so many bytes of live heap, and so many that
// the limit counts beside the heap and that no collection gives back: the
// runtime's tables, and the stacks of what may be thousands of connections.
func memoryLimit(live, beside int64) int64 {
	return max(smallLimit, live*5/4+beside+leastRoom)
}

// memoryInUse is what the last collection found in use, and what the process has
// beside the heap, in bytes.
func memoryInUse() (live, beside int64) {
	s := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/total:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
		{Name: "/memory/classes/heap/released:bytes"},
	}
	metrics.Read(s)
	var v [6]int64
	for i := range s {
		if s[i].Value.Kind() == metrics.KindUint64 {
			v[i] = int64(s[i].Value.Uint64())
		}
	}
	return v[0], max(0, v[1]-v[2]-v[3]-v[4]-v[5])
}

// dropUnusedPages unmaps the pages of the executable that were read so far. They
// stay in the page cache, and those in use come back with a minor fault each (16
// pages a fault, under a millisecond in all); the rest is what package
// initialisation and rare work touched once. Only read-only mappings are
// dropped that nobody has written to, where nothing can be lost: what the dynamic
// linker writes before it takes the right to write away (RELRO) would come back as
// it is in the file, without the addresses of functions. Such a page counts as
// anonymous, or as swap once it lies there.
func dropUnusedPages() {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return
	}
	defer f.Close()
	unwritten(f, exe, func(start, end uint64) {
		_ = unix.Madvise(mapping(uintptr(start), int(end-start)), unix.MADV_DONTNEED)
	})
}

// unwritten finds the mappings of an executable in a list of a process's mappings
// (/proc/PID/smaps) that cannot be written and never were. They lie beside each other, and
// it reads no further: the kernel counts the pages of each mapping that it is asked for,
// and those of the heap are many.
func unwritten(smaps io.Reader, exe string, found func(start, end uint64)) {
	var at []string // the mapping that the lines are of; nil: not to be found
	var clean bool  // it has no anonymous page in memory
	var seen bool   // there was one of the executable
	for sc := bufio.NewScanner(smaps); sc.Scan(); {
		// start-end perms offset dev inode path, or Key: number kB
		fields := strings.Fields(sc.Text())
		switch {
		case len(fields) >= 5 && strings.Contains(fields[0], "-"):
			at, clean = nil, false
			switch ours := len(fields) >= 6 && fields[5] == exe; {
			case !ours && seen:
				return
			case ours && fields[1][1] != 'w':
				at = fields
			}
			seen = seen || at != nil
			continue
		case at == nil || len(fields) < 2:
			continue
		case fields[0] == "Anonymous:":
			clean = fields[1] == "0"
			continue
		case fields[0] != "Swap:" || fields[1] != "0" || !clean: // comes behind Anonymous
			continue
		}
		from, to, ok := strings.Cut(at[0], "-")
		start, err1 := strconv.ParseUint(from, 16, 64)
		end, err2 := strconv.ParseUint(to, 16, 64)
		if ok && err1 == nil && err2 == nil && end > start {
			found(start, end)
		}
	}
}

// mapping is a mapping of the executable as a slice. It is only ever given to
// madvise and never read through.
func mapping(start uintptr, n int) []byte {
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&start))), n)
}

// machineMemory is how much memory this process may use, in bytes: the machine's, or
// what its control groups or GOMEMLIMIT allow if that is less.
func machineMemory() int64 {
	var info unix.Sysinfo_t
	total := int64(1) << 30 // where nobody tells
	if unix.Sysinfo(&info) == nil {
		total = int64(info.Totalram) * int64(info.Unit)
	}
	return min(total, cgroupMemory("/"), goMemory())
}

// goMemory is what GOMEMLIMIT allows, in bytes.
func goMemory() int64 {
	if os.Getenv("GOMEMLIMIT") == "" {
		return math.MaxInt64 // keepSmall's limit follows what is in use
	}
	return debug.SetMemoryLimit(-1)
}

// cgroupMemory is the least of what the control groups allow that this process is in,
// in bytes: its own and those above it, of version 1 or 2. The file system begins at
// root. In a container the path that the process is told may be the host's, of which
// only the end of the way up is there to be read: the container's own group.
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
