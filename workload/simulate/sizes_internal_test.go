package simulate

import (
	"math"
	"testing"
)

// TestNormal compares with the numbers of NumPy 2: default_rng(seed).standard_normal.
func TestNormal(t *testing.T) {
	for _, c := range []struct {
		seed uint64
		want []float64
		// sum of the first million, which covers all layers of the ziggurat and the tail
		sum float64
	}{
		{0, []float64{0.1257302210933933, -0.1321048632913019, 0.6404226504432821, 0.10490011715303971, -0.535669373161111}, 1599241.9297638484},
		{1, []float64{0.345584192064786, 0.8216181435011584, 0.33043707618338714, -1.303157231604361, 0.9053558666731177}, 1591390.343550973},
		{2017, []float64{1.3755087449918917, -0.5739603884998232, 1.160371528946314, -1.9895769457490178, -0.6155463802639844}, 1600404.6655720249},
		{1099511627776, []float64{-1.3670605025457785, -0.06290412277759001, -2.173397734609074, 0.6437558794376946, 0.7744003135562746}, 1599414.7538140398},
	} {
		r := newNormal(c.seed)
		for i, want := range c.want {
			if got := r.next(); math.Abs(got-want) > 1e-12 {
				t.Errorf("seed %d: number %d is %v, want %v", c.seed, i, got, want)
			}
		}
		r = newNormal(c.seed)
		var sum float64
		for range 1_000_000 {
			x := r.next()
			sum += math.Abs(x) * x * x
		}
		if math.Abs(sum-c.sum) > 1e-4 {
			t.Errorf("seed %d: the sum of cubes of a million is %v, want %v", c.seed, sum, c.sum)
		}
	}
}
