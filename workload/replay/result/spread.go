package result

import "math/bits"

// Spread is a coarse histogram of times in microseconds for one block of a series. It
// takes 4 KiB, and each value is known to 3 %. Whole runs are counted with HdrHistogram.
// Spreads serve to draw confidence intervals, which need many histograms.
type Spread struct {
	n [spreadSize]uint32
	// Count and Sum are exact.
	Count int64
	Sum   int64
}

const (
	subBits    = 5
	spreadSize = 1024 // values up to 2^36 µs, which is 19 hours
)

func spreadIndex(v int64) int {
	if v < 1<<subBits {
		return int(max(0, v))
	}
	shift := bits.Len64(uint64(v)) - subBits - 1
	return min(spreadSize-1, (shift+1)<<subBits+int(v>>shift)&(1<<subBits-1))
}

// spreadValue returns the middle of a bucket.
func spreadValue(i int) float64 {
	if i < 1<<subBits {
		return float64(i)
	}
	shift := i>>subBits - 1
	low := int64(1<<subBits+i&(1<<subBits-1)) << shift
	return float64(low) + float64(int64(1)<<shift-1)/2
}

// Add counts a value. A negative value counts as 0.
func (s *Spread) Add(v int64) {
	s.n[spreadIndex(v)]++
	s.Count++
	s.Sum += v
}

// Merge adds all that o counts.
func (s *Spread) Merge(o *Spread) {
	if o.Count == 0 {
		return
	}
	for i, n := range o.n {
		s.n[i] += n
	}
	s.Count += o.Count
	s.Sum += o.Sum
}

// Quantile returns the value that the share q of all values do not exceed, or 0 if there
// are none.
func (s *Spread) Quantile(q float64) float64 {
	if s.Count == 0 {
		return 0
	}
	want, sum := int64(q*float64(s.Count)+0.5), int64(0)
	last := 0
	for i, n := range s.n {
		if n == 0 {
			continue
		}
		last = i
		if sum += int64(n); sum >= max(1, want) {
			break
		}
	}
	return spreadValue(last)
}

// Mean returns the mean, or 0 if there are no values.
func (s *Spread) Mean() float64 {
	if s.Count == 0 {
		return 0
	}
	return float64(s.Sum) / float64(s.Count)
}
