package footprint

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
)

// TestDue checks that memory is given back after the start and once after each burst of
// work. It is not given back during work or without any work.
func TestDue(t *testing.T) {
	k := keeper{idle: idleLooks - 1, since: gain}
	var total int64
	looks := func(each int64, n int) (due int) {
		for range n {
			total += each
			if k.due(total) {
				due++
				total += work / 2 // trimming allocates too
				k.trimmed(total)
			}
		}
		return due
	}
	for i, step := range []struct {
		each  int64
		looks int
		want  int
	}{
		{0, 5, 1}, {gain, 10, 0}, {0, 10, 1}, {work, 3, 0}, {0, 10, 0}, {work - 1, 100, 20}, {10 << 20, 1, 0}, {0, 2, 0}, {0, 1, 1}, {0, 100, 0},
	} {
		if got := looks(step.each, step.looks); got != step.want {
			t.Errorf("step %d: memory was given back %d times, want %d", i, got, step.want)
		}
	}
}

// TestTrim checks that garbage and pages of the executable are given back.
func TestTrim(t *testing.T) {
	resident := func() int {
		b, err := os.ReadFile("/proc/self/statm")
		if err != nil {
			t.Skip(err)
		}
		n, err := strconv.Atoi(strings.Fields(string(b))[1])
		if err != nil {
			t.Fatal(err)
		}
		return n * os.Getpagesize()
	}
	garbage := make([]byte, 64<<20)
	for i := 0; i < len(garbage); i += os.Getpagesize() {
		garbage[i] = 1
	}
	before := resident()
	garbage = nil
	Trim()
	if after := resident(); before-after < 60<<20 {
		t.Errorf("%d bytes before, %d after, garbage of 64 MiB between", before, after)
	}
	_ = garbage
}

// TestUnwritten checks that the code is found. Pages that the program or the dynamic
// linker has written must not be found, whether they are in memory or in swap.
func TestUnwritten(t *testing.T) {
	entry := func(at, perms, path string, anonymous, swap int) string {
		return fmt.Sprintf("%s %s 00000000 08:01 42 %s\nSize: 16 kB\nAnonymous: %d kB\nSwap: %d kB\nSwapPss: 0 kB\nVmFlags: rd ex mr\n", at, perms, path, anonymous, swap)
	}
	smaps := entry("800-1000", "r-xp", "/lib/ld.so", 0, 0) + entry("1000-5000", "r-xp", "/bin/slipway", 0, 0) +
		entry("5000-6000", "r--p", "/bin/slipway", 4, 0) + entry("6000-7000", "r--p", "/bin/slipway", 0, 4) +
		entry("7000-8000", "rw-p", "/bin/slipway", 0, 0) + entry("9000-a000", "r--p", "/bin/slipway", 0, 0) +
		entry("a000-b000", "rw-p", "", 4, 0)
	var got []string
	unwritten(strings.NewReader(smaps), "/bin/slipway", func(start, end uint64) { got = append(got, fmt.Sprintf("%x-%x", start, end)) })
	if want := "1000-5000 9000-a000"; strings.Join(got, " ") != want {
		t.Errorf("found %v, want %s", got, want)
	}
	heap := &countingReader{r: strings.NewReader(strings.Repeat(entry("b000-c000", "rw-p", "", 4, 0), 1000))}
	unwritten(io.MultiReader(strings.NewReader(smaps), heap), "/bin/slipway", func(uint64, uint64) {})
	if heap.n > 64<<10 {
		t.Errorf("%d bytes were read behind the mappings of the executable", heap.n)
	}
}

// countingReader counts the bytes that are read.
type countingReader struct {
	r io.Reader
	n int
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += n
	return n, err
}
