package policy

import "math/rand/v2"

// bag holds entries in no order, for random draws. An entry's Slot is its place.
type bag []*Entry

func (b *bag) add(e *Entry) {
	e.Slot = len(*b)
	*b = append(*b, e)
}

func (b *bag) remove(e *Entry) {
	n := len(*b) - 1
	last := (*b)[n]
	(*b)[e.Slot], last.Slot = last, e.Slot
	(*b)[n] = nil
	*b = (*b)[:n]
}

// random returns a source that gives the same numbers for the same seed.
func random(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0x51697077)) }

// Hyperbolic (Blankstein and others, ATC 2017) draws 64 entries at random and gives up
// the entry with the fewest requests per time since it was added. Sizes do not count.
type Hyperbolic struct {
	bag   bag
	rnd   *rand.Rand
	clock int64
}

// hyperbolicSample is how many entries compete: 64, as in the paper.
const hyperbolicSample = 64

// NewHyperbolic returns an empty Hyperbolic.
func NewHyperbolic(seed uint64) *Hyperbolic { return &Hyperbolic{rnd: random(seed)} }

var _ Policy = (*Hyperbolic)(nil)

// SetLimit implements [Policy].
func (p *Hyperbolic) SetLimit(int64) {}

// Offer implements [Policy].
func (p *Hyperbolic) Offer(*Entry) bool {
	p.clock++
	return true
}

// Add implements [Policy].
func (p *Hyperbolic) Add(e *Entry) {
	e.freq, e.stamp = 1, p.clock
	p.bag.add(e)
}

// Hit implements [Policy].
func (p *Hyperbolic) Hit(e *Entry) {
	p.clock++
	e.freq++
}

// Remove implements [Policy].
func (p *Hyperbolic) Remove(e *Entry) { p.bag.remove(e) }

// Evict implements [Policy].
func (p *Hyperbolic) Evict(*Entry) *Entry {
	if len(p.bag) == 0 {
		return nil
	}
	var victim *Entry
	var least float64
	for range hyperbolicSample {
		e := p.bag[p.rnd.IntN(len(p.bag))]
		worth := float64(e.freq) / float64(p.clock-e.stamp+1)
		if victim == nil || worth < least {
			victim, least = e, worth
		}
	}
	p.bag.remove(victim)
	return victim
}

// LHDOptions are the settings of LHD. The zero value works.
type LHDOptions struct {
	// Seed is the seed of the random choices.
	Seed uint64
	// Reconfigure is the number of requests after which the policy learns again how much
	// its entries are worth. Default 1<<20, as published. Until the first time, it ranks
	// by a guess that is close to GDSF.
	Reconfigure int
}

// LHD is least hit density (Beckmann, Chen and Cidon, NSDI 2018). It draws 32 entries at
// random, and gives up the entry that is expected to bring the fewest hits for the bytes
// and the time that it will still take. The expectation is learnt from the ages at which
// entries of the same class were hit and given up. The class comes from the ages at an entry's
// last two hits.
type LHD struct {
	bag     bag
	rnd     *rand.Rand
	clock   int64
	classes [lhdClasses]lhdClass

	every, left, rounds int
	shift               uint
	limit, budget       int64
	recent              [lhdRecent]*Entry // newcomers that look bad, which are candidates for each victim
	recentAt            int
	victimWorth         float64 // moving average
	objects, mass       float64 // moving average of the number of entries
}

// lhdClass is what is known of a class of entries, by age.
type lhdClass struct {
	hits, gone, density []float32
}

// These are the settings of the paper and of its authors' simulator.
const (
	lhdClasses     = 16
	lhdMaxAge      = 20000
	lhdSample      = 32
	lhdFirstSample = 8 // the size of the sample until rounds exceeds lhdSettled
	lhdSettled     = 50
	lhdRecent      = 8
	lhdDecay       = 0.9
	lhdExplore     = 32   // one in this many newcomers is kept for exploration
	lhdBudget      = 0.01 // share of the limit for these newcomers
	lhdAgeError    = 0.01
)

// NewLHD returns an empty LHD.
func NewLHD(o *LHDOptions) *LHD {
	if o == nil {
		o = &LHDOptions{}
	}
	p := &LHD{rnd: random(o.Seed), every: o.Reconfigure, shift: 10}
	if p.every <= 0 {
		p.every = 1 << 20
	}
	p.left = p.every
	for c := range p.classes {
		cl := &p.classes[c]
		cl.hits, cl.gone, cl.density = make([]float32, lhdMaxAge), make([]float32, lhdMaxAge), make([]float32, lhdMaxAge)
		for a := range cl.density {
			cl.density[a] = float32(lhdClasses+c+1) / float32(a+1)
		}
	}
	return p
}

var _ Policy = (*LHD)(nil)

// SetLimit implements [Policy].
func (p *LHD) SetLimit(limit int64) {
	p.budget += int64(lhdBudget*float64(limit)) - int64(lhdBudget*float64(p.limit))
	p.limit = limit
}

// Offer implements [Policy].
func (p *LHD) Offer(*Entry) bool { return true }

// An LHD uses the fields of an entry as follows: stamp is the time of its last request,
// last is its age at its last hit, Rank is its age at the hit before that, and freq 1
// means exploration.

// Add implements [Policy].
func (p *LHD) Add(e *Entry) {
	e.last, e.Rank, e.freq = 0, lhdMaxAge, 0
	p.bag.add(e)
	explore := p.requested(e)
	if !explore && p.worth(e) < p.victimWorth {
		p.recent[p.recentAt] = e
		p.recentAt = (p.recentAt + 1) % lhdRecent
	}
	p.tick()
}

// Hit implements [Policy].
func (p *LHD) Hit(e *Entry) {
	age := p.age(e)
	p.class(e).hits[age]++
	if e.freq == 1 {
		p.budget += e.Size
	}
	e.Rank, e.last = float64(e.last), age
	p.requested(e)
	p.tick()
}

// requested stamps an entry and draws whether it is kept for exploration. It returns the
// result of the draw, even if there is no budget for it.
func (p *LHD) requested(e *Entry) bool {
	e.stamp, e.freq = p.clock, 0
	explore := p.rnd.Uint32N(lhdExplore) == 0
	if explore && p.budget > 0 && p.rounds < lhdSettled {
		e.freq = 1
		p.budget -= e.Size
	}
	return explore
}

func (p *LHD) tick() {
	p.clock++
	if p.left--; p.left == 0 {
		p.reconfigure()
		p.left = p.every
		p.rounds++
	}
}

// Remove implements [Policy].
func (p *LHD) Remove(e *Entry) {
	if e.freq == 1 {
		p.budget += e.Size
	}
	for i := range p.recent {
		if p.recent[i] == e {
			p.recent[i] = nil
		}
	}
	p.bag.remove(e)
}

// Evict implements [Policy].
func (p *LHD) Evict(*Entry) *Entry {
	if len(p.bag) == 0 {
		return nil
	}
	n := lhdFirstSample
	if p.rounds > lhdSettled {
		n = lhdSample
	}
	var victim *Entry
	var least float64
	try := func(e *Entry) {
		if w := p.worth(e); victim == nil || w < least {
			victim, least = e, w
		}
	}
	for range n {
		try(p.bag[p.rnd.IntN(len(p.bag))])
	}
	for _, e := range p.recent {
		if e != nil {
			try(e)
		}
	}
	p.victimWorth = lhdDecay*p.victimWorth + (1-lhdDecay)*least
	p.class(victim).gone[p.age(victim)]++
	p.Remove(victim)
	return victim
}

// age returns the time since an entry's last request, in units that adapt.
func (p *LHD) age(e *Entry) int64 {
	return min((p.clock-e.stamp)>>p.shift, lhdMaxAge-1)
}

// class returns the class of an entry. The class is higher if the entry was younger at
// its last two hits.
func (p *LHD) class(e *Entry) *lhdClass {
	age := e.last + int64(e.Rank)
	c := 0
	if age == 0 {
		c = lhdClasses - 1
	}
	for ; age > 0 && age < lhdMaxAge && c < lhdClasses-1; c++ {
		age <<= 1
	}
	return &p.classes[c]
}

// worst is the worth of an entry that is older than any age that is counted.
const worst = -1e300

func (p *LHD) worth(e *Entry) float64 {
	age := p.age(e)
	if age == lhdMaxAge-1 {
		return worst
	}
	d := float64(p.class(e).density[age]) / float64(e.Size)
	if e.freq == 1 {
		d++
	}
	return d
}

// reconfigure learns from what was counted. Older counts have less weight.
func (p *LHD) reconfigure() {
	for c := range p.classes {
		cl := &p.classes[c]
		for a := range cl.hits {
			cl.hits[a] *= lhdDecay
			cl.gone[a] *= lhdDecay
		}
	}
	p.objects = p.objects*lhdDecay + float64(len(p.bag))
	p.mass = p.mass*lhdDecay + 1
	// The unit of ages needs to be right only within a factor of two. It is set early and
	// once more.
	if p.rounds == 5 || p.rounds == 25 {
		p.rescale()
	}
	for c := range p.classes {
		p.classes[c].learn()
	}
}

// rescale chooses the unit of ages by the number of entries, and moves the counts to the
// new ages.
func (p *LHD) rescale() {
	shift := uint(1)
	for float64(int64(1)<<shift) < p.objects/p.mass/(lhdAgeError*lhdMaxAge) {
		shift++
	}
	p.objects *= 8
	p.mass *= 8
	for c := range p.classes {
		p.classes[c].hits = rescaled(p.classes[c].hits, int(shift)-int(p.shift))
		p.classes[c].gone = rescaled(p.classes[c].gone, int(shift)-int(p.shift))
	}
	p.shift = shift
}

// rescaled spreads each count over 2^-delta ages, or adds up 2^delta counts into one.
func rescaled(counts []float32, delta int) []float32 {
	out := make([]float32, len(counts))
	last := len(counts) - 1
	for a, n := range counts {
		switch {
		case a == last:
			out[last] += n
		case delta >= 0:
			out[a>>delta] += n
		default:
			parts := 1 << -delta
			for i := range parts {
				out[min(a*parts+i, last)] += n / float32(parts)
			}
		}
	}
	return out
}

// learn computes, for each age, the hits to expect per unit of time of an entry that has
// reached the age. It goes from the oldest age down. The value is the number of hits at
// this age or later, divided by the total time that all entries which reached this age
// will stay.
func (cl *lhdClass) learn() {
	last := len(cl.hits) - 1
	hits := cl.hits[last]
	events := cl.hits[last] + cl.gone[last]
	lifetime := events
	for a := last - 1; a >= 0; a-- {
		hits += cl.hits[a]
		events += cl.hits[a] + cl.gone[a]
		lifetime += events
		cl.density[a] = 0
		if events > 1e-5 {
			cl.density[a] = hits / lifetime
		}
	}
}
