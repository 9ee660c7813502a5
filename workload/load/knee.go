package load

import (
	"math"
	"slices"
)

// Level is a rate at a number of pullers.
type Level struct {
	Pullers int     `json:"pullers"`
	Rate    float64 `json:"rate"`
}

// Knee is the number of pullers above which more pullers bring hardly any increase.
type Knee struct {
	// Pullers is the number of pullers at the bend of the curve. It may lie between
	// measured numbers.
	Pullers float64 `json:"pullers"`
	// Rate is the rate of the fitted line at the bend.
	Rate float64 `json:"rate"`
	// Peak is the measured level with the highest rate.
	Peak Level `json:"peak"`
	// Before and Behind are the increases of the rate for one more puller, below and
	// above the knee.
	Before float64 `json:"before"`
	Behind float64 `json:"behind"`
}

// flat bounds the slope behind a knee, as a share of the slope before it. A steeper curve
// has no knee.
const flat = 0.3

// FindKnee finds the knee of rates. It fits, by least squares, a line through the origin
// that bends once. ok is false if fewer than four levels were measured or the rate still
// rises.
func FindKnee(levels []Level) (k Knee, ok bool) {
	levels = mean(levels)
	if len(levels) < 4 {
		return k, false
	}
	k.Peak = levels[0]
	for _, l := range levels {
		if l.Rate > k.Peak.Rate {
			k.Peak = l
		}
	}
	if k.Peak.Rate <= 0 {
		return k, false
	}
	const steps = 400
	low, high := float64(levels[0].Pullers), float64(levels[len(levels)-2].Pullers)
	best := math.Inf(1)
	for i := range steps + 1 {
		bend := low + (high-low)*float64(i)/steps
		before, behind, missed := fit(levels, bend)
		if missed < best*(1-1e-9) {
			best = missed
			k.Pullers, k.Before, k.Behind, k.Rate = bend, before, behind, before*bend
		}
	}
	return k, k.Before > 0 && k.Behind <= flat*k.Before
}

// mean averages levels that have the same number of pullers, and sorts the result.
func mean(levels []Level) []Level {
	sum, n := map[int]float64{}, map[int]int{}
	for _, l := range levels {
		if l.Pullers > 0 && !math.IsNaN(l.Rate) && !math.IsInf(l.Rate, 0) {
			sum[l.Pullers] += l.Rate
			n[l.Pullers]++
		}
	}
	out := make([]Level, 0, len(n))
	for p, count := range n {
		out = append(out, Level{p, sum[p] / float64(count)})
	}
	slices.SortFunc(out, func(a, b Level) int { return a.Pullers - b.Pullers })
	return out
}

// fit fits before*min(x,bend) + behind*max(0,x-bend) by least squares.
func fit(levels []Level, bend float64) (before, behind, missed float64) {
	var aa, ab, bb, ay, by float64
	for _, l := range levels {
		x := float64(l.Pullers)
		a, b := min(x, bend), max(0, x-bend)
		aa, ab, bb = aa+a*a, ab+a*b, bb+b*b
		ay, by = ay+a*l.Rate, by+b*l.Rate
	}
	if det := aa*bb - ab*ab; det > 1e-12*aa*bb {
		before, behind = (ay*bb-by*ab)/det, (by*aa-ay*ab)/det
	} else if aa > 0 {
		before = ay / aa
	}
	for _, l := range levels {
		x := float64(l.Pullers)
		d := l.Rate - before*min(x, bend) - behind*max(0, x-bend)
		missed += d * d
	}
	return before, behind, missed
}

// saturated reports whether the measurement can stop: whether none of the last three
// levels was more than a twentieth better than the levels before.
func saturated(levels []Level) bool {
	const last = 3
	if len(levels) < last+2 {
		return false
	}
	best := 0.0
	for _, l := range levels[:len(levels)-last] {
		best = max(best, l.Rate)
	}
	for _, l := range levels[len(levels)-last:] {
		if l.Rate > 1.05*best {
			return false
		}
	}
	return best > 0
}

// nextLevel returns the number of pullers that follows n. It is larger by a third to a
// half.
func nextLevel(n int) int {
	if n < 4 {
		return n + 1
	}
	p := 1
	for 2*p <= n {
		p *= 2
	}
	if 2*n < 3*p { // 4, 8, 16: half as many more
		return 3 * p / 2
	}
	return 2 * p
}
