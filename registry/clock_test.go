package registry_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"example.org/slipway/registry/registrytest"

	"example.org/slipway/registry"
)

// TestClockSetAhead: whatever the clock says, content has its grace period, and
// no more than that.
func TestClockSetAhead(t *testing.T) {
	const grace = time.Hour
	for _, tc := range []struct {
		name string
		// steps are what the clock is set by, each after a minute, before the
		// push and after it.
		before, after []time.Duration
		back          time.Duration // by how much the clock is behind in the end
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
			b.pass(tc.back) // the due time was written down before
			if n := b.collect(); n != 1 {
				t.Errorf("after the grace period: got %d contents collected, want 1", n)
			}
		})
	}
}

// TestMachineSleeps: a machine that sleeps more often than once in a grace
// period collects all the same.
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

// TestPromiseOutlivesStep: what a client was told of stays for a grace period of
// time that passed, also where it had waited for the collector before.
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

// TestClockSetAheadWhileStopped: after a start that may come after a jump of the clock, or
// after a crash, content that waits for the collector has a grace period of time that
// passed, however often the registry is stopped and started meanwhile.
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
			_, err := b.Cat.Begin(t.Context(), "boot", b.Clock.Now(), grace, time.Hour)
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

// collect returns how many contents a collection took.
func (b *steadyBed) collect() int {
	b.T.Helper()
	rep, err := b.Collect(b.T.Context(), registry.CollectOptions{})
	if err != nil {
		b.T.Fatal(err)
	}
	return rep.Contents
}
