package file

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"example.org/slipway/volume/block"
)

// TestOrder checks that after a write was given up, no other write begins before it has ended,
// while reads do.
func TestOrder(t *testing.T) {
	t.Parallel()
	g, o := newGuard(20*time.Millisecond), &order{}
	hang, ended := make(chan struct{}), false
	err := o.do(g, true, func(beat) error { <-hang; ended = true; return nil })
	if !errors.Is(err, block.ErrAway) {
		t.Fatalf("a write that hangs: got error %v", err)
	}
	err = o.do(g, true, func(beat) error { t.Error("a write overtook it"); return nil })
	if !errors.Is(err, block.ErrAway) {
		t.Errorf("a write behind it: got error %v", err)
	}
	if err := o.do(newGuard(time.Minute), false, func(beat) error { return nil }); err != nil {
		t.Errorf("a read: %v", err)
	}
	released := make(chan struct{})
	if !o.close(func() { close(released) }) || o.close(nil) {
		t.Error("it is not closed once")
	}
	select {
	case <-released:
		t.Error("it was given back while a write may land")
	default:
	}
	close(hang)
	<-released
	if !ended {
		t.Error("the write has not ended")
	}
	if err := o.do(g, false, func(beat) error { return nil }); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after the close: got error %v", err)
	}
}

// TestGuard checks that a step which makes progress is waited for, and that the number of hanging
// steps is bounded.
func TestGuard(t *testing.T) {
	t.Parallel()
	g := newGuard(time.Second)
	err := g.do(t.Context(), func(_ context.Context, alive beat) error {
		for range 12 {
			time.Sleep(100 * time.Millisecond) // a part of the step
			alive()
		}
		return nil
	})
	if err != nil {
		t.Errorf("a long step: %v", err)
	}
	g = newGuard(time.Millisecond)
	hang := make(chan struct{})
	defer close(hang)
	for more := 3; more > 0; {
		if len(g.slots) == maxPending {
			more--
		}
		err := g.do(t.Context(), func(context.Context, beat) error { <-hang; return nil })
		if !errors.Is(err, block.ErrAway) {
			t.Fatalf("a step that hangs: got error %v", err)
		}
	}
	if n := len(g.slots); n != maxPending {
		t.Errorf("%d steps hang", n)
	}
}

// TestLateNumber checks that a process which is late in making a number of the lock that already
// exists does not own it.
func TestLateNumber(t *testing.T) {
	s, err := Open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for range 5 {
		if err := s.Remove(t.Context(), "none"); err != nil {
			t.Fatal(err)
		}
	}
	highest, _, err := s.highest(0)
	if err != nil || highest < 5 {
		t.Fatalf("the highest number is %d, %v", highest, err)
	}
	for _, n := range []uint64{1, highest - 1, highest} {
		if h, err := s.number(n); h != nil || err != nil {
			t.Errorf("number %d of %d was taken: %v", n, highest, err)
		}
	}
	if left, err := os.ReadDir(s.path("locks")); err != nil || len(left) != 1 {
		t.Errorf("left: %v, %v", left, err)
	}
	if h, err := s.number(highest + 1); h == nil || err != nil {
		t.Errorf("the next number was not taken: %v", err)
	}
}
