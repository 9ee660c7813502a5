package synth

import "math"

// histogram counts values in steps of 2^(1/16), 4.4 %. 8 KiB.
type histogram struct {
	bins [64 * perDouble]int64
	n    int64
	min  int64
	max  int64
}

const perDouble = 16

// add counts a value. It ignores negative values.
func (h *histogram) add(v int64) {
	if v < 0 {
		return
	}
	if h.n == 0 || v < h.min {
		h.min = v
	}
	h.max = max(h.max, v)
	h.bins[bin(v)]++
	h.n++
}

func bin(v int64) int {
	return min(max(int(math.Log2(float64(max(v, 1)))*perDouble), 0), 64*perDouble-1)
}

// quantile returns the value below which a share q of the values lies, or 0 without
// values.
func (h *histogram) quantile(q float64) float64 {
	if h.n == 0 {
		return 0
	}
	want, before := q*float64(h.n), 0.0
	for i, c := range h.bins {
		if c == 0 || before+float64(c) < want {
			before += float64(c)
			continue
		}
		v := math.Exp2((float64(i) + (want-before)/float64(c)) / perDouble)
		return math.Min(math.Max(v, float64(h.min)), float64(h.max))
	}
	return float64(h.max)
}

// sizes makes a model with knots where most sizes lie, and at the large sizes that hold
// most of the bytes. Without values it returns the default.
func (h *histogram) sizes(byDefault SizeModel) SizeModel {
	if h.n == 0 {
		return byDefault
	}
	var m SizeModel
	last := 1.0
	for i := range 41 {
		q := float64(i) / 40
		if i == 40 {
			for _, q := range []float64{0.985, 0.99, 0.995, 0.9975, 0.999, 0.9995, 0.9999} {
				last = math.Max(h.quantile(q), last)
				m.Knots = append(m.Knots, Knot{q, last})
			}
		}
		last = math.Max(h.quantile(q), last)
		m.Knots = append(m.Knots, Knot{q, last})
	}
	return m
}
