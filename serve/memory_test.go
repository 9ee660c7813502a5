package serve

import (
	"context"
	"runtime/debug"
	"testing"
	"time"
)

// TestLimitCountsStacks checks that the stacks of many connections do not use up the memory meant
// for the heap. The collector would run all the time otherwise.
func TestLimitCountsStacks(t *testing.T) {
	t.Setenv("GOGC", "")
	t.Setenv("GOMEMLIMIT", "")
	const goroutines = 2000 // of 16 KiB each
	end, ready := make(chan struct{}), make(chan struct{})
	defer close(end)
	for range goroutines {
		go waitDeep(ready, end)
	}
	for range goroutines {
		<-ready
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		keepSmall(ctx, func() int64 { return 0 })
	}()
	defer func() { cancel(); <-done }()
	for deadline := time.Now().Add(10 * time.Second); ; <-time.After(50 * time.Millisecond) {
		live, beside := memoryInUse()
		limit := debug.SetMemoryLimit(-1)
		if beside < 16<<20 {
			t.Fatalf("%d bytes beside the heap, so few that this tells nothing", beside)
		}
		// A second passes between two measurements. A little may have been added since.
		if room := limit - live - beside; room >= leastRoom*3/4 && limit < 1<<40 {
			return
		} else if time.Now().After(deadline) {
			t.Fatalf("the limit of %d bytes leaves room for %d beside the %d that are live and the %d beside the heap, want %d",
				limit, room, live, beside, leastRoom)
		}
	}
}

// waitDeep waits on a stack that had to grow and is in use.
func waitDeep(ready chan<- struct{}, end <-chan struct{}) {
	var frame [8 << 10]byte
	ready <- struct{}{}
	<-end
	for i := range frame {
		frame[i]++
	}
}
