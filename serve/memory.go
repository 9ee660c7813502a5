package serve

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/internal/footprint"
)

// A registry with small caches stays within smallLimit. A registry with larger caches
// gets room for garbage beside its live heap, and this room grows slowly with the live
// heap. Most of a large heap is blocks of the RAM cache and tables of compression.
// Scanning these costs the collector little, but not nothing.
const (
	gcPercent = 300
	// smallLimit is the least soft limit of Go's memory, in bytes. With the executable
	// and SQLite, the process then stays below 40 MB of resident memory.
	smallLimit = 19 << 20
	// leastRoom is the least room for garbage, in bytes. It is enough for some 1,500
	// requests.
	leastRoom = 4 << 20
)

// idleFor is how long the server must have had no request before memory is given back.
const idleFor = 5 * time.Second

// keepSmall keeps the process's memory small until ctx ends. It bounds the heap by the
// live data, drops pages of the executable that are no longer used, and gives memory back
// after each burst of requests. served returns how many requests were served so far. GOGC
// and GOMEMLIMIT in the environment switch off the bound of the heap.
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
	// The loop waits before its first round. The first requests are those that waited for
	// the start, and a collection beside them was seen to cost each request some 4 ms.
	for started := false; ; started = true {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if l := memoryLimit(memoryInUse()); tune && l != limit { // setting the limit stops the world
			limit = l
			debug.SetMemoryLimit(limit)
		}
		n := served()
		switch {
		case !started:
			seen = n
			footprint.Trim()
			continue
		case n != seen:
			seen, idle = n, 0
			footprint.DropExecutable()
			continue
		}
		if idle += time.Second; idle >= idleFor && trimmed != n {
			trimmed = n
			footprint.Trim()
		}
	}
}

// memoryLimit returns the soft limit for the given bytes of live heap. beside is memory
// that the limit counts in addition to the heap and that no collection frees: the
// runtime's tables, and the stacks of what may be thousands of connections.
func memoryLimit(live, beside int64) int64 {
	return max(smallLimit, live+min(live/4, 16<<20+live/16)+beside+leastRoom)
}

// memoryInUse returns how many bytes the last collection found live, and how many the
// process has beside the heap.
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

// machineMemory returns how many bytes of memory this process may use: the machine's
// memory, or the limit of its control groups or of GOMEMLIMIT if that is less.
func machineMemory() int64 {
	var info unix.Sysinfo_t
	total := int64(1) << 30 // if nothing says how much there is
	if unix.Sysinfo(&info) == nil {
		total = int64(info.Totalram) * int64(info.Unit)
	}
	return min(total, cgroupMemory("/"), goMemory())
}

// goMemory returns the limit of GOMEMLIMIT in bytes.
func goMemory() int64 {
	if os.Getenv("GOMEMLIMIT") == "" {
		return math.MaxInt64 // a limit that keepSmall has set follows the use and does not count
	}
	return debug.SetMemoryLimit(-1)
}

// cgroupMemory returns the least memory limit, in bytes, of the control groups that this
// process is in: its own group and those above it, of version 1 or 2. root is where the
// file system begins. In a container, the process may see the host's path of its group.
// Then only the last part of that path can be read, which is the container's own group.
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
