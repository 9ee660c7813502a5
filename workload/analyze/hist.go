package analyze

import (
	"math"
	"math/bits"
)

// Hist is a distribution of whole numbers from 0 on in logarithmic buckets. Numbers below
// 256 have a bucket each. Above, a bucket is at most 1/128 of its value wide. A quantile
// is therefore exact below 256 and within 0.4 % above. Shares at the ends of buckets are
// exact, and CDF draws only these. A Hist takes at most 60 kB.
type Hist struct {
	counts   []int64
	n        int64
	min, max int64
	sum      float64
}

// subBits is the binary logarithm of the number of buckets per doubling.
const subBits = 7

// QuantileError is the largest error of a quantile of a Hist, relative to its value.
const QuantileError = 0.5 / (1 << subBits)

func bucketOf(v int64) int {
	e := max(bits.Len64(uint64(v))-(subBits+1), 0)
	return e<<subBits + int(v>>e)
}

// bucketRange returns the smallest and the largest number of a bucket.
func bucketRange(i int) (low, high int64) {
	if i < 2<<subBits {
		return int64(i), int64(i)
	}
	e := i>>subBits - 1
	low = int64(i-e<<subBits) << e
	return low, low + 1<<e - 1
}

// Add counts a number. A negative number counts as 0.
func (h *Hist) Add(v int64) { h.AddN(v, 1) }

// AddN counts a number n times.
func (h *Hist) AddN(v, n int64) {
	if n <= 0 {
		return
	}
	v = max(v, 0)
	i := bucketOf(v)
	if i >= len(h.counts) {
		h.counts = append(h.counts, make([]int64, i+1-len(h.counts))...)
	}
	h.counts[i] += n
	if h.n == 0 || v < h.min {
		h.min = v
	}
	h.max = max(h.max, v)
	h.n += n
	h.sum += float64(v) * float64(n)
}

// N returns how many numbers were counted.
func (h *Hist) N() int64 { return h.n }

// Mean returns the exact mean, or NaN if nothing was counted.
func (h *Hist) Mean() float64 {
	if h.n == 0 {
		return math.NaN()
	}
	return h.sum / float64(h.n)
}

// Max returns the largest number, or NaN if nothing was counted.
func (h *Hist) Max() float64 {
	if h.n == 0 {
		return math.NaN()
	}
	return float64(h.max)
}

// Quantile returns the number of rank ceil(q n), or NaN if nothing was counted. It
// returns the middle of the bucket that holds the number, and never a value beyond the
// smallest or the largest number.
func (h *Hist) Quantile(q float64) float64 {
	if h.n == 0 {
		return math.NaN()
	}
	rank := min(max(int64(math.Ceil(q*float64(h.n)-1e-9)), 1), h.n)
	var seen int64
	for i, c := range h.counts {
		if seen += c; seen >= rank {
			low, high := bucketRange(i)
			low, high = max(low, h.min), min(high, h.max)
			return float64(low) + float64(high-low)/2
		}
	}
	return float64(h.max)
}

// maxPoints is about how many points a curve has.
const maxPoints = 250

// CDF returns the cumulative distribution, with numbers divided by per. Its points lie at
// the ends of buckets, so their shares are exact. If there are many points, it keeps only
// as many as the eye can tell apart.
func (h *Hist) CDF(per float64) []Point {
	var out []Point
	var seen int64
	lastX, lastY := 0.0, -1.0
	for i, c := range h.counts {
		if c == 0 {
			continue
		}
		seen += c
		_, high := bucketRange(i)
		x, y := float64(min(high, h.max))/per, float64(seen)/float64(h.n)
		if y-lastY >= 1.0/maxPoints || lastX <= 0 || x >= lastX*1.12 || seen == h.n {
			out = append(out, Point{X: x, Y: y})
			lastX, lastY = x, y
		}
	}
	return out
}

// quantiles adds the usual numbers of a distribution.
func (r *Result) quantiles(h *Hist, u Unit, per float64) {
	for _, q := range []struct {
		name string
		q    float64
	}{{"p10", 0.1}, {"p25", 0.25}, {"median", 0.5}, {"p75", 0.75}, {"p90", 0.9}, {"p99", 0.99}} {
		r.add(q.name, u, h.Quantile(q.q)/per)
	}
	r.add("mean", u, h.Mean()/per)
	r.add("max", u, h.Max()/per)
}

// limits counts exactly how many numbers are below each of a few limits.
type limits struct {
	at    []int64
	below []int64
	n     int64
}

func newLimits(at ...int64) limits { return limits{at: at, below: make([]int64, len(at))} }

func (l *limits) add(v int64) {
	l.n++
	for i, at := range l.at {
		if v < at {
			l.below[i]++
		}
	}
}
