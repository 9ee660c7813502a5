package policy

// S3FIFO (Yang and others, SOSP 2023) has three queues in the order of arrival: a small
// queue for newcomers, a main queue, and a queue of ghosts. An entry gets into the main
// queue if it is requested at least twice in the small queue, or if it comes back soon
// after it left the small queue. An entry at the end of the main queue goes round again
// if it was requested since it was there last, at most three times.
type S3FIFO struct {
	small, main         list
	ghost               ghosts
	smallRoom, mainRoom int64
	again, evicted      bool
}

const (
	s3Small = iota
	s3Main
)

// These are the settings of the paper: the small queue has a tenth of the room, and an
// entry needs two more requests to get into the main queue.
const (
	s3SmallShare = 0.1
	s3Promote    = 2
	s3MaxFreq    = 3
)

// NewS3FIFO returns an empty S3FIFO.
func NewS3FIFO() *S3FIFO { return &S3FIFO{} }

var _ Policy = (*S3FIFO)(nil)

// SetLimit implements [Policy].
func (p *S3FIFO) SetLimit(limit int64) {
	p.smallRoom = int64(s3SmallShare * float64(limit))
	p.mainRoom = limit - p.smallRoom
	p.ghost.limit = p.mainRoom
}

// Offer implements [Policy]. It refuses a newcomer that would fill the small queue by
// itself, because the newcomer would push out everything in it.
func (p *S3FIFO) Offer(e *Entry) bool {
	p.again = p.ghost.take(e.Key)
	return p.again || e.Size < p.smallRoom
}

// Add implements [Policy]. Until the first eviction, the main queue takes entries for
// which the small queue has no room.
func (p *S3FIFO) Add(e *Entry) {
	e.freq = 0
	if p.again || !p.evicted && p.small.bytes >= p.smallRoom {
		e.queue = s3Main
		p.main.pushFront(e)
		return
	}
	e.queue = s3Small
	p.small.pushFront(e)
}

// Hit implements [Policy].
func (p *S3FIFO) Hit(e *Entry) { e.freq++ }

// Remove implements [Policy].
func (p *S3FIFO) Remove(e *Entry) {
	if e.queue == s3Main {
		p.main.remove(e)
	} else {
		p.small.remove(e)
	}
}

// Evict implements [Policy].
func (p *S3FIFO) Evict(*Entry) *Entry {
	p.evicted = true
	for p.small.tail != nil || p.main.tail != nil {
		var e *Entry
		if p.main.bytes > p.mainRoom || p.small.tail == nil {
			e = p.evictMain()
		} else {
			e = p.evictSmall()
		}
		if e != nil {
			return e
		}
	}
	return nil
}

// evictSmall returns nil if everything in the queue moved to the main queue.
func (p *S3FIFO) evictSmall() *Entry {
	for {
		e := p.small.popBack()
		if e == nil {
			return nil
		}
		if e.freq < s3Promote {
			p.ghost.add(e.Key, e.Size)
			return e
		}
		e.queue, e.freq = s3Main, 0
		p.main.pushFront(e)
	}
}

func (p *S3FIFO) evictMain() *Entry {
	for {
		e := p.main.popBack()
		if e == nil || e.freq == 0 {
			return e
		}
		e.freq = min(e.freq, s3MaxFreq) - 1
		p.main.pushFront(e)
	}
}

// ARCOptions are the settings of ARC. The zero value works.
type ARCOptions struct {
	// Step is how many bytes the target moves with a request for a ghost. If the ratio of
	// the two lists of ghosts is above 1, the step is multiplied by it. Default 0: the
	// size of the requested content, which is the published rule (one page) adapted to
	// contents of different sizes. A step of 1 is the published number taken literally.
	// The target then hardly moves, and contents that were requested only once are always
	// given up first.
	Step int64
}

// ARC is the adaptive replacement cache (Megiddo and Modha, FAST 2003). It has an LRU of
// contents that were requested once, another of contents that were requested more often,
// and ghosts of both. The ghosts show which LRU should be larger.
type ARC struct {
	step        int64
	limit       int64
	target      int64 // bytes for contents that were requested once
	once, often list
	ghost1      ghosts
	ghost2      ghosts
	from        uint8 // the list in which the offered entry was remembered
}

const (
	arcNone = iota
	arcOnce
	arcOften
)

// NewARC returns an empty ARC.
func NewARC(o *ARCOptions) *ARC {
	p := &ARC{}
	if o != nil {
		p.step = o.Step
	}
	return p
}

var _ Policy = (*ARC)(nil)

// SetLimit implements [Policy].
func (p *ARC) SetLimit(limit int64) {
	p.limit = limit
	p.target = min(p.target, limit)
	p.ghost1.limit, p.ghost2.limit = limit, 2*limit
}

// Offer implements [Policy].
func (p *ARC) Offer(e *Entry) bool {
	step := p.step
	if step <= 0 {
		step = e.Size
	}
	n1, n2 := p.ghost1.list.bytes, p.ghost2.list.bytes
	p.from = arcNone
	switch {
	case p.ghost1.take(e.Key):
		p.from = arcOnce
		p.target = min(p.target+scaled(step, n2, n1), p.limit)
	case p.ghost2.take(e.Key):
		p.from = arcOften
		p.target = max(p.target-scaled(step, n1, n2), 0)
	}
	return true
}

// scaled returns step times a/b, but at least step. b is above 0.
func scaled(step, a, b int64) int64 {
	if a <= b {
		return step
	}
	return int64(float64(step) * float64(a) / float64(b))
}

// Add implements [Policy].
func (p *ARC) Add(e *Entry) {
	if p.from != arcNone {
		e.queue = arcOften
		p.often.pushFront(e)
		return
	}
	e.queue = arcOnce
	p.once.pushFront(e)
}

// Hit implements [Policy].
func (p *ARC) Hit(e *Entry) {
	if e.queue == arcOften {
		p.often.toFront(e)
		return
	}
	p.once.remove(e)
	e.queue = arcOften
	p.often.pushFront(e)
}

// Remove implements [Policy].
func (p *ARC) Remove(e *Entry) {
	if e.queue == arcOften {
		p.often.remove(e)
	} else {
		p.once.remove(e)
	}
}

// Evict implements [Policy].
func (p *ARC) Evict(forEntry *Entry) *Entry {
	if p.from == arcNone && forEntry != nil {
		if p.once.bytes+p.ghost1.list.bytes+forEntry.Size > p.limit {
			if len(p.ghost1.index) == 0 && p.once.tail != nil {
				return p.once.popBack() // leaves no ghost
			}
			p.ghost1.pop()
		} else if p.once.bytes+p.ghost1.list.bytes+p.often.bytes+p.ghost2.list.bytes >= 2*p.limit {
			p.ghost2.pop()
		}
	}
	return p.replace()
}

// replace gives up an entry from the list that is above its target, and remembers the
// key.
func (p *ARC) replace() *Entry {
	over := p.once.bytes > p.target || p.once.bytes == p.target && p.from == arcOften
	if p.once.tail != nil && (over || p.often.tail == nil) {
		e := p.once.popBack()
		p.ghost1.add(e.Key, e.Size)
		return e
	}
	e := p.often.popBack()
	if e != nil {
		p.ghost2.add(e.Key, e.Size)
	}
	return e
}

// TinyLFUOptions are the settings of TinyLFU. The zero value works.
type TinyLFUOptions struct {
	// Window is the share of the limit that newcomers get. Default 0.01, as published.
	Window float64
	// Counters is how many contents the sketch can distinguish, rounded up to a power of
	// two. Default 1<<20: 4 MiB of memory. It should be several times the number of
	// entries.
	Counters int
	// Sample is the number of requests, per entry that is held, after which the past
	// fades: all counts are halved. Default 10, as published.
	Sample int
}

// TinyLFU is W-TinyLFU (Einziger, Friedman and Manes, 2017). Newcomers pass through a
// small LRU. They get into the main LRU (in two segments, 20 and 80 %) only if a sketch
// says that they were requested more often than the entry that would have to go.
type TinyLFU struct {
	window      list
	windowRoom  int64
	windowShare float64
	main        *SLRU
	mainRoom    int64
	sketch      *sketch
	entries     int
	sample      int
}

// NewTinyLFU returns an empty TinyLFU.
func NewTinyLFU(o *TinyLFUOptions) *TinyLFU {
	if o == nil {
		o = &TinyLFUOptions{}
	}
	p := &TinyLFU{windowShare: o.Window, main: newSLRU(0.2, 0.8), sample: o.Sample}
	if p.sample <= 0 {
		p.sample = 10
	}
	if !(p.windowShare > 0 && p.windowShare < 1) {
		p.windowShare = 0.01
	}
	n := o.Counters
	if n <= 0 {
		n = 1 << 20
	}
	p.sketch = newSketch(n)
	return p
}

var _ Policy = (*TinyLFU)(nil)

const inWindow = 255 // the queue of an entry in the window

// SetLimit implements [Policy].
func (p *TinyLFU) SetLimit(limit int64) {
	p.windowRoom = int64(p.windowShare * float64(limit))
	p.mainRoom = limit - p.windowRoom
	p.main.SetLimit(p.mainRoom)
}

// Offer implements [Policy]. It counts every entry, but refuses one that does not fit
// into the window or the main part's lower segment.
func (p *TinyLFU) Offer(e *Entry) bool {
	p.count(e.Key)
	return e.Size <= p.windowRoom && p.main.Offer(e)
}

// Add implements [Policy].
func (p *TinyLFU) Add(e *Entry) {
	p.entries++
	e.queue = inWindow
	p.window.pushFront(e)
}

// Hit implements [Policy].
func (p *TinyLFU) Hit(e *Entry) {
	p.count(e.Key)
	if e.queue == inWindow {
		p.window.toFront(e)
		return
	}
	p.main.Hit(e)
}

// Remove implements [Policy].
func (p *TinyLFU) Remove(e *Entry) {
	p.entries--
	if e.queue == inWindow {
		p.window.remove(e)
		return
	}
	p.main.Remove(e)
}

// Evict implements [Policy].
func (p *TinyLFU) Evict(*Entry) *Entry {
	e := p.victim()
	if e != nil {
		p.entries--
	}
	return e
}

// victim gives up an entry: the oldest of the window, or the entry of the main part that
// it replaces.
func (p *TinyLFU) victim() *Entry {
	for {
		candidate := p.window.tail
		if candidate == nil {
			return p.main.Evict(nil)
		}
		if p.mainBytes()+candidate.Size <= p.mainRoom {
			p.window.remove(candidate)
			p.main.Add(candidate)
			continue
		}
		victim := p.main.victim(false)
		p.window.remove(candidate)
		if victim == nil || p.sketch.count(candidate.Key) <= p.sketch.count(victim.Key) {
			return candidate
		}
		p.main.Remove(victim)
		p.main.Add(candidate)
		return victim
	}
}

// count counts a request. The past fades faster if there are fewer entries, but not
// before about a thousand requests.
func (p *TinyLFU) count(k Key) {
	p.sketch.add(k)
	if p.sketch.added >= p.sample*max(p.entries, 1024) {
		p.sketch.fade()
	}
}

func (p *TinyLFU) mainBytes() int64 { return p.main.segments[0].bytes + p.main.segments[1].bytes }

// sketch counts keys in 4 rows of counters of up to 15. The count of a key is the lowest
// of its four counters. It is never too low, and seldom too high. A counter takes one
// byte.
type sketch struct {
	rows  [4][]uint8
	mask  uint64
	added int
}

func newSketch(counters int) *sketch {
	n := 1
	for n < counters && n < 1<<28 {
		n *= 2
	}
	s := &sketch{mask: uint64(n - 1)}
	for i := range s.rows {
		s.rows[i] = make([]uint8, n)
	}
	return s
}

const sketchMax = 15

// at returns the place of a hash in a row.
func (s *sketch) at(h uint64, row int) uint64 {
	return (h + uint64(row)*(h>>32|1)) & s.mask
}

func (s *sketch) add(k Key) {
	h := k.hash()
	least := s.least(h)
	if least < sketchMax {
		// Only the lowest counters are raised, because the others include requests for
		// other keys.
		for i := range s.rows {
			if c := &s.rows[i][s.at(h, i)]; *c == least {
				*c++
			}
		}
	}
	s.added++
}

// fade halves all counts.
func (s *sketch) fade() {
	s.added = 0
	for i := range s.rows {
		for j := range s.rows[i] {
			s.rows[i][j] /= 2
		}
	}
}

func (s *sketch) count(k Key) uint8 { return s.least(k.hash()) }

func (s *sketch) least(h uint64) uint8 {
	least := uint8(sketchMax)
	for i := range s.rows {
		least = min(least, s.rows[i][s.at(h, i)])
	}
	return least
}
