package tiers

import (
	"context"

	"example.org/slipway/integration/bench/measure"
)

// bench is a run of some scenarios.
type bench struct {
	*measure.Bench
	o       *options
	results *Results
}

// pick returns quick in a quick look, and full otherwise.
func pick[T any](b *bench, full, quick T) T {
	if b.Run.Quick {
		return quick
	}
	return full
}

// slipway runs the binary and returns what it printed. An exit status of 3 or more is a verdict on
// the binary's work and not an error.
func (b *bench) slipway(ctx context.Context, args ...string) ([]byte, error) {
	out, _, err := b.Slipway(ctx, 0, args...)
	if measure.Judged(err) {
		b.Logf("a verdict: %v", err)
		err = nil
	}
	return out, err
}

// answer runs the binary and reads the JSON it prints.
func (b *bench) answer(ctx context.Context, into any, args ...string) error {
	_, err := b.Answer(ctx, 0, into, args...)
	return err
}
