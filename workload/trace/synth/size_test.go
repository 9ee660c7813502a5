package synth_test

import (
	"math"
	"testing"

	"example.org/slipway/workload/trace/synth"
)

func TestBlobSizesMeetPublishedShares(t *testing.T) {
	m := synth.BlobSizes()
	if err := m.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		share float64
		bytes int64
	}{{0.53, 16 << 10}, {0.68, 1 << 20}, {0.80, 10e6}, {0.9395, 64 << 20}, {0.99479, 256 << 20}, {0.999455, 1 << 30}, {0, 32}, {1, 4.2e9}, {-1, 32}, {2, 4.2e9}} {
		if got := m.Quantile(tt.share); got != tt.bytes {
			t.Errorf("Quantile(%v) = %d, want %d", tt.share, got, tt.bytes)
		}
	}
	if got := m.Mean(); math.Abs(got-14.43e6) > 0.02e6 {
		t.Errorf("mean %.0f, want 14.43 MB", got)
	}
	var sum, large float64
	const n = 1_000_000
	for i := range n {
		s := float64(m.Quantile((float64(i) + 0.5) / n))
		sum += s
		if s > 64<<20 {
			large += s
		}
	}
	if got := large / sum; math.Abs(got-0.675) > 0.002 {
		t.Errorf("share of bytes above 64 MiB is %.4f, want 0.675", got)
	}
	if got := m.WithMean(9e6, 1<<20); math.Abs(got.Mean()-9e6) > 1e4 || got.Quantile(0.68) != 1<<20 {
		t.Errorf("WithMean(9 MB) has mean %.0f and %d at 0.68", got.Mean(), got.Quantile(0.68))
	}
}

func TestAssignKeepsTheRequestWeightedDistribution(t *testing.T) {
	m := synth.BlobSizes()
	requests := make([]int64, 20000)
	var total float64
	for i := range requests {
		requests[i] = 1 + int64(10000/(i+5))
		total += float64(requests[i])
	}
	for _, rho := range []float64{0, -0.3, 0.5} {
		sizes := m.Assign(requests, rho, 7)
		var below, popular, others float64
		for i, s := range sizes {
			if s < 1<<20 {
				below += float64(requests[i])
			}
			if i < 2000 {
				popular += math.Log(float64(s)) / 2000
			} else {
				others += math.Log(float64(s)) / 18000
			}
		}
		if got := below / total; math.Abs(got-0.68) > 0.02 {
			t.Errorf("rho %v: %.3f of the requests below 1 MiB, want 0.68", rho, got)
		}
		if rho < 0 && popular > others-1 || rho > 0 && popular < others+1 {
			t.Errorf("rho %v: the mean logarithm of the size is %.2f for the popular tenth, %.2f for the others", rho, popular, others)
		}
		again := m.Assign(requests, rho, 7)
		for i := range sizes {
			if sizes[i] != again[i] {
				t.Fatalf("rho %v: object %d has %d and %d bytes with the same seed", rho, i, sizes[i], again[i])
			}
		}
	}
	if got := m.Assign(nil, 0, 1); len(got) != 0 {
		t.Errorf("sizes for nothing: %v", got)
	}
	if got := m.Assign([]int64{0, -3}, -0.3, 1); got[0] < 32 || got[1] < 32 {
		t.Errorf("objects without requests: %v", got)
	}
}
