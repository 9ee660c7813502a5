package synth

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
)

// zipf returns the shares of n items, the most popular first. They fall as
// (rank+offset)^-slope and add up to total.
func zipf(n int, slope, offset, total float64) []float64 {
	out := make([]float64, n)
	sum := 0.0
	for i := range out {
		out[i] = math.Pow(float64(i+1)+offset, -slope)
		sum += out[i]
	}
	for i := range out {
		out[i] *= total / sum
	}
	return out
}

// point is a point of a curve of popularity: all items up to a rank together have the
// share.
type point struct {
	rank  int
	share float64
}

// curve returns the shares of items, the most popular first, from the cumulated shares at
// some ranks. Between two points the cumulated share grows with the logarithm of the
// rank.
func curve(points ...point) []float64 {
	var out []float64
	before := point{}
	for _, p := range points {
		from := max(before.rank, 1)
		for rank := before.rank + 1; rank <= p.rank; rank++ {
			f := 1.0
			if p.rank > from {
				f = math.Log(float64(rank)/math.Max(float64(rank-1), 1)) / math.Log(float64(p.rank)/float64(from))
			}
			out = append(out, f*(p.share-before.share))
		}
		before = p
	}
	slices.SortFunc(out, func(a, b float64) int { return cmp.Compare(b, a) })
	return out
}

// table draws indexes with given weights in constant time (Walker's alias method). It
// takes 12 B for each item.
type table struct {
	keep  []float64
	other []int32
}

func newTable(weights []float64) *table {
	n := len(weights)
	t := &table{keep: make([]float64, n), other: make([]int32, n)}
	sum := 0.0
	for _, w := range weights {
		sum += w
	}
	if sum <= 0 {
		sum = 1
	}
	var small, large []int32
	for i, w := range weights {
		t.keep[i], t.other[i] = w*float64(n)/sum, int32(i)
		if t.keep[i] < 1 {
			small = append(small, int32(i))
		} else {
			large = append(large, int32(i))
		}
	}
	for len(small) > 0 && len(large) > 0 {
		s, l := small[len(small)-1], large[len(large)-1]
		small = small[:len(small)-1]
		t.other[s] = l
		if t.keep[l] -= 1 - t.keep[s]; t.keep[l] < 1 {
			large = large[:len(large)-1]
			small = append(small, l)
		}
	}
	return t
}

// draw returns a random index, or 0 if the table is empty.
func (t *table) draw(r *rand.Rand) int {
	if len(t.keep) == 0 {
		return 0
	}
	f := r.Float64() * float64(len(t.keep))
	i := min(int(f), len(t.keep)-1)
	if f-float64(i) < t.keep[i] {
		return i
	}
	return int(t.other[i])
}

func sum(shares []float64) float64 {
	s := 0.0
	for _, x := range shares {
		s += x
	}
	return s
}
