// Package footprint keeps the resident memory of a process that has little to do small.
//
// Two things make up most of the memory of a quiet process of this project. Go keeps
// garbage until the heap has doubled, and returns freed memory only over minutes. And
// pages of the executable that were read at the start, while packages were initialised,
// and for rare work stay resident, together with the pages beside them that the kernel
// mapped.
package footprint

import (
	"bufio"
	"context"
	"io"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// look is the interval at which Keep looks whether there is memory to give back.
	look = time.Second
	// idleLooks is the number of consecutive looks that must find the process idle.
	idleLooks = 3
	// work is the number of bytes whose allocation between two looks counts as work.
	work = 256 << 10
	// gain is the number of bytes that must have been allocated since the last time.
	gain = 1 << 20
)

// Keep gives memory back whenever the process has been idle for some seconds after some
// work, until ctx ends.
func Keep(ctx context.Context) {
	tick := time.NewTicker(look)
	defer tick.Stop()
	k := keeper{idle: idleLooks - 1, since: gain} // what the start left behind
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if k.due(allocated()) {
			Trim()
			k.trimmed(allocated())
		}
	}
}

// keeper decides when to give memory back.
type keeper struct {
	last, since int64 // bytes allocated at the last look, and since memory was given back
	idle        int   // looks
}

// due reports whether it is time, given how many bytes have ever been allocated.
func (k *keeper) due(allocated int64) bool {
	n := allocated - k.last
	k.last = allocated
	k.since += n
	if n >= work {
		k.idle = 0
		return false
	}
	k.idle++
	return k.idle >= idleLooks && k.since >= gain
}

func (k *keeper) trimmed(allocated int64) { k.last, k.since = allocated, 0 }

func allocated() int64 {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	if s[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return int64(s[0].Value.Uint64())
}

// Trim gives back what work has left behind: garbage, and pages of the executable. It
// runs the garbage collector and takes milliseconds.
func Trim() {
	debug.FreeOSMemory()
	DropExecutable()
}

// DropExecutable unmaps the pages of the executable that were read so far. They stay in
// the page cache. Pages in use come back with minor faults (16 pages a fault, under a
// millisecond in all). The others were touched only once, by package initialisation and
// rare work. DropExecutable drops only read-only mappings that were never written to, so
// nothing can be lost. The dynamic linker writes addresses of functions into some pages
// before it makes them read-only (RELRO). Such a page would come back as it is in the
// file, without the addresses. It counts as anonymous, or as swap if it was swapped out.
func DropExecutable() {
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

// unwritten finds the mappings of an executable that cannot be written and never were, in
// a list of a process's mappings (/proc/PID/smaps). They are adjacent, and it does not
// read beyond them, because the kernel counts the pages of each mapping that is read, and
// the heap has many.
func unwritten(smaps io.Reader, exe string, found func(start, end uint64)) {
	var at []string // the mapping that the lines describe; nil if it is not wanted
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
		case fields[0] != "Swap:" || fields[1] != "0" || !clean: // comes after the line Anonymous
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
