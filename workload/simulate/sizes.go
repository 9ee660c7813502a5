package simulate

import (
	"cmp"
	"math"
	"math/bits"
	"slices"

	"example.org/slipway/workload/trace/synth"
)

// ModelSizes gives a size to each content of a trace that has none. requests holds how
// often each content is requested, in the order of their first request. The distribution
// of sizes over the requests is [synth.BlobSizes] for every seed. Which content gets
// which size is random.
//
// Rho is the correlation of size and rank in popularity, from -1 to 1. 0 gives none, and
// a negative one makes popular contents small.
//
// The random numbers are the same as from NumPy's default_rng(seed).standard_normal, so
// that the same sizes can be made elsewhere. The sizes of [synth.SizeModel.Assign]
// cannot.
func ModelSizes(requests []int64, seed uint64, rho float64) []int64 {
	n := len(requests)
	rnd := newNormal(seed)
	score := make([]float64, n)
	for i := range score {
		score[i] = rnd.next()
	}
	if rho != 0 {
		rho = max(-1, min(1, rho))
		rest := math.Sqrt(1 - rho*rho)
		for rank, i := range sortedBy(requests) { // the most requested last
			// The rank as a number of the normal distribution.
			z := math.Sqrt2 * math.Erfinv(2*(float64(rank)+0.5)/float64(n)-1)
			score[i] = rho*z + rest*score[i]
		}
	}
	order := sortedBy(score)
	var total, before float64
	for _, r := range requests {
		total += float64(r)
	}
	model := synth.BlobSizes()
	sizes := make([]int64, n)
	for _, i := range order {
		r := float64(requests[i])
		sizes[i] = model.Quantile((before + r/2) / max(total, 1))
		before += r
	}
	return sizes
}

// sortedBy returns the indices of values, in ascending order of the values. Equal values
// keep their order.
func sortedBy[T cmp.Ordered](values []T) []int {
	order := make([]int, len(values))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(values[a], values[b]) })
	return order
}

// normal draws from the standard normal distribution as NumPy's default generator does:
// PCG-64 (O'Neill 2014, XSL-RR output), seeded by NumPy's SeedSequence, and a ziggurat
// (Marsaglia and Tsang 2000) of 256 layers.
type normal struct {
	hi, lo       uint64 // state
	incHi, incLo uint64
	layers       ziggurat
}

// pcgMultiplier is the multiplier of PCG's 128-bit generator, as upper and lower half.
const (
	pcgMultiplierHi = 0x2360ed051fc65da4
	pcgMultiplierLo = 0x4385df649fccf645
)

func newNormal(seed uint64) *normal {
	s := seedSequence(seed)
	r := &normal{incHi: s[2]<<1 | s[3]>>63, incLo: s[3]<<1 | 1}
	r.layers.init()
	r.step()
	var carry uint64
	r.lo, carry = bits.Add64(r.lo, s[1], 0)
	r.hi, _ = bits.Add64(r.hi, s[0], carry)
	r.step()
	return r
}

// step multiplies the state and adds the increment, modulo 2^128.
func (r *normal) step() {
	hi, lo := bits.Mul64(r.lo, pcgMultiplierLo)
	hi += r.hi*pcgMultiplierLo + r.lo*pcgMultiplierHi
	var carry uint64
	r.lo, carry = bits.Add64(lo, r.incLo, 0)
	r.hi, _ = bits.Add64(hi, r.incHi, carry)
}

func (r *normal) uint64() uint64 {
	r.step()
	return bits.RotateLeft64(r.hi^r.lo, -int(r.hi>>58))
}

// float64 returns a uniform random number in [0, 1).
func (r *normal) float64() float64 { return float64(r.uint64()>>11) / (1 << 53) }

func (r *normal) next() float64 {
	for {
		u := r.uint64()
		layer := u & 0xff
		negative := u>>8&1 == 1
		mantissa := u >> 9 & (1<<52 - 1)
		x := float64(mantissa) * r.layers.width[layer]
		if negative {
			x = -x
		}
		if mantissa < r.layers.inside[layer] {
			return x
		}
		if layer == 0 {
			return r.tail(mantissa>>8&1 == 1)
		}
		above, below := r.layers.density[layer-1], r.layers.density[layer]
		if (above-below)*r.float64()+below < math.Exp(-0.5*x*x) {
			return x
		}
	}
}

// tail draws from the tail beyond the lowest layer.
func (r *normal) tail(negative bool) float64 {
	for {
		x := -math.Log1p(-r.float64()) / zigguratEnd
		y := -math.Log1p(-r.float64())
		if y+y > x*x {
			if negative {
				return -(zigguratEnd + x)
			}
			return zigguratEnd + x
		}
	}
}

// zigguratEnd is where the tail of the normal distribution begins if all 256 layers have
// the same area. The lowest layer includes the tail.
const zigguratEnd = 3.6541528853610087963519472518

// ziggurat holds for each layer the width of a step of 2^-52 of it, the number of steps
// that are surely below the curve, and the density at its outer edge.
type ziggurat struct {
	width, density [256]float64
	inside         [256]uint64
}

func (z *ziggurat) init() {
	const steps = 1 << 52
	density := func(x float64) float64 { return math.Exp(-0.5 * x * x) }
	// The area of a layer: the lowest's rectangle and the tail.
	area := zigguratEnd*density(zigguratEnd) + math.Sqrt(math.Pi/2)*math.Erfc(zigguratEnd/math.Sqrt2)
	base := area / density(zigguratEnd) // the lowest layer as a rectangle
	z.width[0], z.density[0] = base/steps, 1
	z.inside[0] = uint64(zigguratEnd / base * steps)
	x := zigguratEnd
	for i := 255; i >= 1; i-- {
		z.width[i], z.density[i] = x/steps, density(x)
		inner := 0.0
		if i > 1 {
			inner = math.Sqrt(-2 * math.Log(area/x+density(x)))
		}
		z.inside[i] = uint64(inner / x * steps)
		x = inner
	}
}

// seedSequence spreads a seed over the 256 bits that PCG-64 wants, as NumPy's
// SeedSequence does.
func seedSequence(seed uint64) [4]uint64 {
	const xshift = 16
	hash := uint32(0x43b0d7e5)
	hashmix := func(v uint32) uint32 {
		v ^= hash
		hash *= 0x931e8875
		v *= hash
		return v ^ v>>xshift
	}
	pool := [4]uint32{uint32(seed), uint32(seed >> 32)}
	for i := range pool {
		pool[i] = hashmix(pool[i])
	}
	for src := range pool {
		for dst := range pool {
			if src != dst {
				v := 0xca01f9dd*pool[dst] - 0x4973f715*hashmix(pool[src])
				pool[dst] = v ^ v>>xshift
			}
		}
	}
	hash = 0x8b51f9dd
	var words [8]uint32
	for i := range words {
		v := pool[i%4] ^ hash
		hash *= 0x58f38ded
		v *= hash
		words[i] = v ^ v>>xshift
	}
	var out [4]uint64
	for i := range out {
		out[i] = uint64(words[2*i]) | uint64(words[2*i+1])<<32
	}
	return out
}
