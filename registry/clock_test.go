package registry_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"example.org/slipway/registry"
	"example.org/slipway/registry/registrytest"
)

// TestClockSetAhead checks that content has its grace period, and no more than that, whatever the
// clock says.
func TestClockSetAhead(t *testing.T) {
	const grace = time.Hour
	for _, tc := range []struct {
		name string
		// before and after are the steps by which the clock is set before and after the push, each
		// after a minute.
		before, after []time.Duration
		back          time.Duration // how far the clock is behind at the end
	}{
		{name: "an honest clock"},
		{name: "a year ahead", after: []time.Duration{365 * 24 * time.Hour}},
		{name: "a little ahead", after: []time.Duration{5 * time.Minute}},
		{name: "ahead in small steps", after: []time.Duration{5 * time.Minute, 5 * time.Minute, 50 * time.Minute}},
		{name: "ahead before the push", before: []time.Duration{365 * 24 * time.Hour}},
		{name: "ahead before and after", before: []time.Duration{24 * time.Hour}, after: []time.Duration{24 * time.Hour}},
		{name: "ahead, and back again", after: []time.Duration{24 * time.Hour, -24 * time.Hour}},
		{name: "back, and ahead again", before: []time.Duration{-24 * time.Hour}, after: []time.Duration{24 * time.Hour}},
		{name: "back", after: []time.Duration{-24 * time.Hour}, back: 24 * time.Hour},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newSteadyBed(t, grace)
			b.collect()
			for _, step := range tc.before {
				b.pass(time.Minute)
				b.Clock.Add(step)
				b.collect()
			}
			b.PushBytes("a", registrytest.Content(1, 50_000))
			left := grace
			for _, step := range tc.after {
				b.pass(time.Minute)
				left -= time.Minute
				b.Clock.Add(step)
				if n := b.collect(); n != 0 {
					t.Errorf("after the clock was set by %s: got %d contents collected, want none", step, n)
				}
			}
			b.pass(left - time.Minute)
			if n := b.collect(); n != 0 {
				t.Errorf("before the grace period was over: got %d contents collected, want none", n)
			}
			b.pass(2 * time.Minute)
			b.pass(tc.back) // the due time was recorded before
			if n := b.collect(); n != 1 {
				t.Errorf("after the grace period: got %d contents collected, want 1", n)
			}
		})
	}
}

// TestMachineSleeps checks that the collector works on a machine that sleeps more than once in a
// grace period.
func TestMachineSleeps(t *testing.T) {
	b := newSteadyBed(t, 24*time.Hour)
	b.PushBytes("a", registrytest.Content(1, 50_000))
	awake, collected := 0, 0
	for ; collected == 0 && awake < 200; awake++ {
		if awake%16 == 15 {
			b.Clock.Add(8 * time.Hour)
		}
		b.pass(time.Hour)
		collected = b.collect()
	}
	if awake < 24 || awake > 25 {
		t.Errorf("got %d contents collected after %d hours awake, want 1 after 24", collected, awake)
	}
}

// TestPromiseOutlivesStep checks that what a client has learnt about stays for a grace period of
// elapsed time, even if it had already been waiting for the collector.
func TestPromiseOutlivesStep(t *testing.T) {
	const grace = time.Hour
	b := newSteadyBed(t, grace)
	d := b.PushBytes("a", registrytest.Content(1, 50_000)).Digest
	b.pass(grace - time.Minute)
	if _, err := b.ResolveBlob(t.Context(), "a", d); err != nil {
		t.Fatal(err)
	}
	b.Clock.Add(365 * 24 * time.Hour)
	b.pass(grace - time.Minute)
	if n := b.collect(); n != 0 {
		t.Errorf("within a grace period of the answer: got %d contents collected, want none", n)
	}
	b.pass(2 * time.Minute)
	if n := b.collect(); n != 1 {
		t.Errorf("after it: got %d contents collected, want 1", n)
	}
}

// TestClockSetAheadWhileStopped checks content that waits for the collector when the registry
// starts, after a possible jump of the clock or after a crash. It has a grace period of elapsed
// time, however often the registry is stopped and started meanwhile.
func TestClockSetAheadWhileStopped(t *testing.T) {
	const grace = time.Hour
	for _, tt := range []struct {
		name  string
		ahead time.Duration
		crash bool
		held  bool
	}{
		{name: "a night", ahead: 12 * time.Hour},
		{name: "a year", ahead: 365 * 24 * time.Hour, held: true},
		{name: "a crash", ahead: 12 * time.Hour, crash: true, held: true},
	} {
		b := newSteadyBed(t, grace)
		b.PushBytes("a", registrytest.Content(1, 50_000))
		start := func(stop bool) {
			t.Helper()
			if stop {
				registrytest.NoError(t, b.Close(t.Context()))
			}
			reg, err := registry.New(t.Context(), b.Cat, b.Store, &registry.Options{Clock: b.Clock.Now, Grace: grace,
				Steady: func() time.Duration { return time.Duration(b.steady.Now().UnixNano()) }, Logger: slog.New(slog.DiscardHandler)})
			registrytest.NoError(t, err)
			t.Cleanup(func() { reg.Close(context.Background()) })
			b.Registry = reg
		}
		b.pass(time.Minute)
		registrytest.NoError(t, b.Close(t.Context()))
		if tt.crash {
			_, err := b.Cat.Settings.Begin(t.Context(), "boot", b.Clock.Now(), grace, time.Hour)
			registrytest.NoError(t, err)
		}
		b.Clock.Add(tt.ahead)
		start(false)
		for range 5 {
			b.pass(grace / 6)
			if n := b.collect(); (n == 0) != tt.held {
				t.Errorf("%s: got %d contents collected, held %v", tt.name, n, tt.held)
			}
			start(true)
			if !tt.held {
				break
			}
		}
		b.pass(grace / 2)
		if n := b.collect(); (n == 1) != tt.held {
			t.Errorf("%s, after a grace period: got %d contents collected", tt.name, n)
		}
	}
}

// steadyBed is a registry with a second clock, which is never set.
type steadyBed struct {
	*bed
	steady *registrytest.Clock
}

func newSteadyBed(t *testing.T, grace time.Duration) *steadyBed {
	b := &steadyBed{steady: registrytest.NewClock()}
	begin := b.steady.Now()
	b.bed = newBed(t, nil, registry.Options{Grace: grace, Steady: func() time.Duration { return b.steady.Now().Sub(begin) }})
	return b
}

// pass lets time pass on both clocks.
func (b *steadyBed) pass(d time.Duration) {
	b.Clock.Add(d)
	b.steady.Add(d)
}

// collect returns the number of contents that a collection removed.
func (b *steadyBed) collect() int {
	b.T.Helper()
	rep, err := b.Collect(b.T.Context(), registry.CollectOptions{})
	if err != nil {
		b.T.Fatal(err)
	}
	return rep.Contents
}
