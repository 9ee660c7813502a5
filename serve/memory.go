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

// A registry whose caches are small stays within smallLimit. One whose caches
// have grown beyond what that can hold gets room for garbage beside what is live,
// and some more of it the more that is: most of it are the blocks of the RAM
// cache and tables of compression, which cost the collector little to pass over,
// but not all.
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

// memoryLimit is the soft limit for so many bytes of live heap, and so many that
// the limit counts beside the heap and that no collection gives back: the
// runtime's tables, and the stacks of what may be thousands of connections.
func memoryLimit(live, beside int64) int64 {
	return max(smallLimit, live+min(live/4, 16<<20+live/16)+beside+leastRoom)
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
