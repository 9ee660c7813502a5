package load_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"example.org/slipway/workload/load"
)

// curve returns a function measured at numbers of pullers, with noise.
func curve(at []int, noise float64, rate func(n float64) float64) []load.Level {
	rnd := rand.New(rand.NewPCG(1, 1))
	var out []load.Level
	for _, n := range at {
		out = append(out, load.Level{Pullers: n, Rate: rate(float64(n)) * (1 + noise*rnd.NormFloat64())})
	}
	return out
}

func TestFindKnee(t *testing.T) {
	every := []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	grown := []int{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64}
	flat := func(knee, slope float64) func(float64) float64 {
		return func(n float64) float64 { return slope * min(n, knee) }
	}
	usl := func(sigma, kappa float64) func(float64) float64 { // Gunther's law: contention and coherency
		return func(n float64) float64 { return 100 * n / (1 + sigma*(n-1) + kappa*n*(n-1)) }
	}
	tests := []struct {
		name      string
		levels    []load.Level
		found     bool
		low, high float64 // of the knee
	}{
		{"flat from 6", curve(every, 0, flat(6, 300)), true, 5.9, 6.1},
		{"flat from 6, noisy", curve(every, 0.04, flat(6, 300)), true, 5, 7},
		{"flat from 10, in growing steps", curve(grown, 0.03, flat(10, 50)), true, 8.5, 11.5},
		{"falls behind 5", curve(every, 0, func(n float64) float64 { return 200*min(n, 5) - 30*max(0, n-5) }), true, 4.9, 5.1},
		{"flat from the first", curve(every, 0.01, flat(1, 500)), true, 1, 1.3},
		{"Gunther's law", curve(grown, 0, usl(0.02, 0.002)), true, 8, 25},
		{"rises on", curve(every, 0.01, flat(1000, 10)), false, 0, 0},
		{"rises less behind 8, but rises", curve(every, 0, func(n float64) float64 { return 100*min(n, 8) + 60*max(0, n-8) }), false, 0, 0},
		{"nothing at all", curve(every, 0, flat(0, 1)), false, 0, 0},
		{"three levels", curve([]int{1, 2, 3}, 0, flat(2, 100)), false, 0, 0},
	}
	for _, test := range tests {
		k, ok := load.FindKnee(test.levels)
		if ok != test.found {
			t.Errorf("%s: found is %v (%+v), want %v", test.name, ok, k, test.found)
			continue
		}
		if ok && (k.Pullers < test.low || k.Pullers > test.high) {
			t.Errorf("%s: the knee is at %.2f, want it between %g and %g", test.name, k.Pullers, test.low, test.high)
		}
	}
}

// TestFindKneeScales checks that neither the unit of the rate nor the order of the points
// changes the result.
func TestFindKneeScales(t *testing.T) {
	levels := curve([]int{1, 2, 3, 4, 6, 8, 12, 16}, 0.02, func(n float64) float64 { return 10 * min(n, 5) })
	want, _ := load.FindKnee(levels)
	scaled := make([]load.Level, len(levels))
	for i, l := range levels {
		scaled[len(levels)-1-i] = load.Level{Pullers: l.Pullers, Rate: 1000 * l.Rate}
	}
	got, ok := load.FindKnee(scaled)
	if !ok || math.Abs(got.Pullers-want.Pullers) > 1e-9 || math.Abs(got.Rate-1000*want.Rate) > 1e-6*got.Rate {
		t.Errorf("scaled by 1000 the knee is %+v, and before %+v", got, want)
	}
	bad := append(levels, load.Level{Pullers: 32, Rate: math.NaN()}, load.Level{Pullers: -1, Rate: 5})
	if again, _ := load.FindKnee(bad); again != want {
		t.Errorf("with levels that cannot be the knee is %+v, and without %+v", again, want)
	}
}
