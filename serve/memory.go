package serve

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

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

// memoryLimit returns the soft limit for the given bytes of live heap. The argument named
// beside is the memory that the limit counts in addition to the heap and that no
// collection frees: the runtime's tables, and the stacks of what may be thousands of
// connections.
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
