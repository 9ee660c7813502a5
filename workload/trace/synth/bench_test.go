package synth_test

import (
	"context"
	"testing"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/synth"
)

// BenchmarkGenerate generates requests of dal, one per iteration.
func BenchmarkGenerate(b *testing.B) {
	p, err := synth.Zone("dal")
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	n := 0
	err = p.Generate(context.Background(), &synth.Options{Seed: 1, Requests: int64(b.N)}, func(*trace.Record) error { n++; return nil })
	if err != nil || n != b.N {
		b.Fatalf("%d requests, %v", n, err)
	}
}
