package simulate

import (
	"testing"
)

// TestMeasuredTier checks the interpolation between measured points. Straight lines join
// the points. Below the first point its value holds, and beyond the last point the last
// slope continues.
func TestMeasuredTier(t *testing.T) {
	tier := Tier{Points: []TierPoint{{1000, 20}, {2000, 30}, {4000, 70}}}
	for _, c := range []struct {
		size int64
		link float64
		want float64
	}{{0, 0, 20}, {1000, 0, 20}, {1500, 0, 25}, {2000, 0, 30}, {3000, 0, 50}, {4000, 0, 70}, {5000, 0, 90},
		// A link of 10,000 bytes a second is slower than the measured times.
		{3000, 10e3, 300}, {3000, 1e9, 50}} {
		if got := tier.ms(c.size, c.link); got != c.want {
			t.Errorf("%d bytes over %g bytes/s take %g ms, want %g", c.size, c.link, got, c.want)
		}
	}
	one := Tier{Points: []TierPoint{{1000, 20}}}
	if got := one.ms(5000, 0); got != 20 {
		t.Errorf("with one point it takes %g ms, want 20", got)
	}
	falling := Tier{Points: []TierPoint{{1000, 20}, {2000, 10}}}
	if got := falling.ms(9000, 0); got != 10 {
		t.Errorf("what is larger than the last point takes %g ms, want 10", got)
	}
}

// TestKnee finds the knee by hand. The line from (1, 0.4) to (9, 0.8) rises by 0.05 for
// each GiB. The point (3, 0.65) lies 0.15 above it, (5, 0.72) 0.12.
func TestKnee(t *testing.T) {
	var list []Candidate
	for _, p := range []struct{ gib, ratio float64 }{{1, 0.4}, {3, 0.65}, {5, 0.72}, {9, 0.8}} {
		c := Candidate{Size: Size{RAM: int64(p.gib * (1 << 30))}}
		c.Result.ObjectRatio = p.ratio
		list = append(list, c)
	}
	curve(list)
	for i, want := range []float64{0, 0.125, 0.035, 0.02} {
		if got := list[i].Gain; got < want-1e-9 || got > want+1e-9 {
			t.Errorf("candidate %d gains %g for each GiB, want %g", i, got, want)
		}
		if list[i].Knee != (i == 1) {
			t.Errorf("candidate %d is a knee: %v", i, list[i].Knee)
		}
	}
}
