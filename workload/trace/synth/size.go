package synth

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
)

// Knot is a point of a distribution: the share of all requests that are for Bytes or
// less.
type Knot struct {
	Share float64
	Bytes float64
}

// SizeModel is the distribution of the sizes of requested contents, weighted by requests:
// a content that is requested a thousand times counts a thousand times.
type SizeModel struct {
	// Knots are in ascending order, from share 0 to share 1. Between two knots the
	// logarithm of the size grows with the share.
	Knots []Knot
}

// BlobSizes returns the sizes of the layers and configurations that clients get from the
// IBM registry: the shares of requests below six published limits, and knots between them
// that give the published mean and the published share of bytes in large layers.
func BlobSizes() SizeModel {
	return SizeModel{Knots: []Knot{
		{0, 32}, {0.10, 150}, {0.35, 1200}, {0.53, 16384}, {0.68, 1 << 20}, {0.80, 10e6}, {0.9395, 64 << 20},
		{0.9727, 95e6}, {0.99479, 256 << 20}, {0.99759, 380e6}, {0.999455, 1 << 30}, {1, 4.2e9},
	}}
}

// Validate returns an error if the knots are invalid.
func (m SizeModel) Validate() error {
	n := len(m.Knots)
	if n < 2 || m.Knots[0].Share != 0 || m.Knots[n-1].Share != 1 {
		return fmt.Errorf("sizes need knots from share 0 to share 1")
	}
	for i, k := range m.Knots {
		if !(k.Bytes >= 1 && k.Bytes <= math.MaxInt64/2) {
			return fmt.Errorf("knot %d of the sizes has %g bytes", i, k.Bytes)
		}
		if i > 0 && !(k.Share >= m.Knots[i-1].Share && k.Bytes >= m.Knots[i-1].Bytes) {
			return fmt.Errorf("knots %d and %d of the sizes do not ascend", i-1, i)
		}
	}
	return nil
}

// Quantile returns the size in bytes below which a share u of the requests lies. u is
// clamped to 0 to 1.
func (m SizeModel) Quantile(u float64) int64 {
	k := m.Knots
	if !(u > 0) {
		return int64(math.Round(k[0].Bytes))
	}
	i := sort.Search(len(k), func(i int) bool { return k[i].Share >= u })
	if i == len(k) {
		return int64(math.Round(k[len(k)-1].Bytes))
	}
	a, b := k[i-1], k[i] // i is at least 1: the first share is 0
	f := (u - a.Share) / (b.Share - a.Share)
	return int64(math.Round(a.Bytes * math.Pow(b.Bytes/a.Bytes, f)))
}

// Mean returns the mean size of a request in bytes.
func (m SizeModel) Mean() float64 {
	sum := 0.0
	for i := 1; i < len(m.Knots); i++ {
		a, b := m.Knots[i-1], m.Knots[i]
		mean := a.Bytes
		if l := math.Log(b.Bytes / a.Bytes); l > 1e-9 {
			mean = (b.Bytes - a.Bytes) / l // of a log-uniform distribution
		}
		sum += (b.Share - a.Share) * mean
	}
	return sum
}

// WithMean changes only the sizes above the limit, so that the mean becomes meanBytes: it
// uses (size/limit)^e instead of size/limit. The smallest possible mean is the mean with
// all large sizes at the limit, and the largest is the mean with e = 1.2. If meanBytes is
// out of reach, WithMean comes as near as it can.
func (m SizeModel) WithMean(meanBytes, limitBytes float64) SizeModel {
	bend := func(e float64) SizeModel {
		out := SizeModel{Knots: slices.Clone(m.Knots)}
		for i, k := range out.Knots {
			if k.Bytes > limitBytes {
				out.Knots[i].Bytes = limitBytes * math.Pow(k.Bytes/limitBytes, e)
			}
		}
		return out
	}
	low, high := 0.0, 1.2
	for range 50 {
		if e := (low + high) / 2; bend(e).Mean() < meanBytes {
			low = e
		} else {
			high = e
		}
	}
	return bend((low + high) / 2)
}

// Assign gives each of len(requests) objects a size, where requests[i] is how often
// object i is requested. The sizes of the requests then have the distribution of the
// model as exactly as whole objects allow. The objects are put in random order. An object
// that begins at share u of all requests and ends at share v gets the size at the middle
// of u and v.
//
// rho, from -1 to 1, relates size to popularity: 0 is no relation; below 0 popular
// objects are small. The same arguments always give the same sizes.
func (m SizeModel) Assign(requests []int64, rho float64, seed uint64) []int64 {
	type object struct {
		index int
		tie   uint64
		key   float64
	}
	rnd := rand.New(rand.NewPCG(seed, 0x73697a6573))
	objects := make([]object, len(requests))
	var total float64
	for i := range objects {
		objects[i] = object{index: i, tie: rnd.Uint64(), key: rnd.NormFloat64()}
		total += float64(max(requests[i], 0))
	}
	if rho != 0 {
		// From the least to the most popular; equally popular ones in random order, as
		// otherwise the order of the argument would decide.
		slices.SortFunc(objects, func(a, b object) int {
			return cmp.Or(cmp.Compare(requests[a.index], requests[b.index]), cmp.Compare(a.tie, b.tie))
		})
		rest := math.Sqrt(max(0, 1-rho*rho))
		for rank := range objects {
			z := math.Sqrt2 * math.Erfinv(2*(float64(rank)+0.5)/float64(len(objects))-1)
			objects[rank].key = rho*z + rest*objects[rank].key
		}
	}
	slices.SortFunc(objects, func(a, b object) int {
		return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.tie, b.tie))
	})
	sizes := make([]int64, len(requests))
	before := 0.0
	for _, o := range objects {
		n := float64(max(requests[o.index], 0))
		u := 0.5
		if total > 0 {
			u = (before + n/2) / total
		}
		sizes[o.index] = m.Quantile(u)
		before += n
	}
	return sizes
}
