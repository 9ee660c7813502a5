package deflate

import (
	"encoding/binary"
	"math/bits"
)

// Slack is how many bytes must follow the plain bytes that a [Predictor] works on, so
// that whole words can be read. They are zero.
const Slack = 8

// chains finds what an encoder's search finds, in less time.
//
// An encoder keeps the positions of the last 32 KiB in chains by a hash of the next three
// or four bytes. It looks at up to a certain number of positions of a chain, the nearest
// first. Here each position also has an ordinal in that chain. The difference of two
// ordinals shows whether the encoder would have looked at a candidate, so chains need not
// walk the encoder's chain. It finds matches of five bytes and more, and of eight bytes
// and more, in separate chains, which are much shorter.
//
// Most encoders add every position to their chains, whatever they find there. So chains
// links many positions ahead of the search, in one loop. The tables of the last positions
// are much larger than a processor's nearest cache. In that loop the processor waits for
// several of the tables' entries at once. A search does not need these entries any more.
//
// The result is what the encoder finds, except for strings that share a hash with many
// other strings. The result need not be the same as the encoder's, because wrong
// predictions are corrected. But the result must never change.
type chains struct {
	search
	buf    []byte // plain bytes and Slack
	end    int    // the search sees nothing from here on
	member int    // start of the member; may be negative
	ins    int    // positions before it are in the encoder's chains
	done   int    // positions before it are linked; at least ins

	// heads has the last position + 1 of each chain.
	heads struct {
		own   [1 << goBits]head // by the encoder's hash
		four  [1 << tableBits]int32
		five  [1 << tableBits]int32
		eight [1 << tableBits]int32
	}
	// back has, for each position, the distance to the position before it in each chain. A
	// walk along a chain needs one of these arrays, and the part of it that is within the
	// window almost fits into a processor's nearest cache.
	back struct{ own, four, five, eight [ring]uint16 }
	ord  [ring]uint16 // ordinals in the encoder's chains
}

// head is the last position of a chain + 1, and in the upper half the number of positions in
// the chain.
type head uint64

func (h head) pos() int32    { return int32(uint32(h)) }
func (h head) count() uint32 { return uint32(h >> 32) }

// next returns the head when a position was added.
func (h head) next(at int32) head { return head(h.count()+1)<<32 | head(uint32(at)) }

const (
	wmask     = window - 1
	tableBits = 15
	goBits    = 17 // bits of the hash of Go's encoder
	// ring is the number of positions whose links are kept: those of the window, and as
	// many ahead.
	ring  = 2 * window
	rmask = ring - 1
	// batch is how many positions are linked ahead.
	batch = 512
)

func newChains() *chains { return new(chains) }

// start begins at buf[at:]. The bytes before are history.
func (c *chains) start(s search, buf []byte, end, at, member int) {
	c.search, c.buf, c.end, c.member = s, buf, end, member
	c.ins = max(0, member, at-window)
	c.done = c.ins
	used := len(c.heads.own)
	if s.zlib {
		used = 1 << s.hashBits
	}
	clear(c.heads.own[:used])
	clear(c.heads.four[:])
	clear(c.heads.five[:])
	clear(c.heads.eight[:])
}

// begin begins a member. Nothing before it can be copied.
func (c *chains) begin(at int) {
	c.member, c.ins = at, at
	c.done = max(c.done, at)
}

func load64(b []byte, i int) uint64 { return binary.LittleEndian.Uint64(b[i:]) }
func load32(b []byte, i int) uint32 { return binary.LittleEndian.Uint32(b[i:]) }

func (c *chains) hash(v uint64) uint32 {
	if c.zlib {
		return c.hashZlib(v)
	}
	return hashGo(v)
}

func (c *chains) hashZlib(v uint64) uint32 {
	return hashZlib(v, c.hashShift, 1<<c.hashBits-1)
}

// hashZlib is the hash of zlib's encoder. The shifts are less than 32, and the compiler makes
// faster code if it knows.
func hashZlib(v uint64, shift uint, mask uint32) uint32 {
	b := uint32(v)
	return (b&0xff<<(2*shift&31) ^ b>>8&0xff<<(shift&31) ^ b>>16&0xff) & mask
}

func hashGo(v uint64) uint32 { return bits.ReverseBytes32(uint32(v)) * 0x1e35a7bd >> (32 - goBits) }

func hash4(v uint64) uint32 { return uint32(v) * 0x9e3779b1 >> (32 - tableBits) }

func hash5(v uint64) uint32 { return uint32((v << 24) * 0x9e3779b185ebca87 >> (64 - tableBits)) }

func hash8(v uint64) uint32 { return uint32(v * 0x9e3779b185ebca87 >> (64 - tableBits)) }

// apart returns how far before a position the last position of a chain is. Both are given
// + 1. A result larger than the window means that there is none.
func apart(at, last int32) uint16 { return uint16(min(uint32(at-last), 1<<16-1)) }

// limit returns the first position that the encoder does not add to its chains yet,
// because it does not see enough bytes there.
func (c *chains) limit() int { return c.end - c.minLen + 1 }

// reach links the positions up to i. It links further ones if that does not depend on which
// tokens the encoder takes.
func (c *chains) reach(i int) {
	to := i + 1
	if !c.greedy {
		to += batch
	}
	to = min(to, c.limit())
	// Nothing that is farther back than the window can be found.
	from := max(c.done, i-window)
	if c.zlib {
		c.insertZlib(from, to)
	} else {
		c.insertGo(from, to)
	}
	c.done = max(c.done, to)
}

// skip says that the encoder adds no more positions before at to its chains.
func (c *chains) skip(at int) {
	c.ins = max(c.ins, at)
	c.done = max(c.done, at)
}

func (c *chains) insertZlib(from, to int) {
	heads, back, shift, mask := &c.heads, &c.back, c.hashShift, uint32(1)<<c.hashBits-1
	for i := from; i < to; i++ {
		v, at, k := load64(c.buf, i), int32(i+1), i&rmask
		h, h4, h5, h8 := &heads.own[hashZlib(v, shift, mask)&(1<<goBits-1)], &heads.four[hash4(v)], &heads.five[hash5(v)], &heads.eight[hash8(v)]
		old := *h
		*h = old.next(at)
		back.own[k], c.ord[k] = apart(at, old.pos()), uint16(old.count())
		back.four[k], back.five[k], back.eight[k] = apart(at, *h4), apart(at, *h5), apart(at, *h8)
		*h4, *h5, *h8 = at, at, at
	}
}

func (c *chains) insertGo(from, to int) {
	heads, back := &c.heads, &c.back
	for i := from; i < to; i++ {
		v, at, k := load64(c.buf, i), int32(i+1), i&rmask
		h, h5, h8 := &heads.own[hashGo(v)], &heads.five[hash5(v)], &heads.eight[hash8(v)]
		old := *h
		*h = old.next(at)
		back.own[k], c.ord[k] = apart(at, old.pos()), uint16(old.count())
		back.five[k], back.eight[k] = apart(at, *h5), apart(at, *h8)
		*h5, *h8 = at, at
	}
}

// matchLen returns how many bytes at a and b are equal, at most n.
func matchLen(buf []byte, a, b, n int) int {
	for i := 0; i < n; i += 8 {
		if x := load64(buf, a+i) ^ load64(buf, b+i); x != 0 {
			return min(i+bits.TrailingZeros64(x)>>3, n)
		}
	}
	return n
}

// low returns the first position that a match at i may reach back to.
func (c *chains) low(i int) int {
	if c.zlib {
		// zlib's window begins anew with each member, and position 0 means "none" there.
		return max(i-c.maxDist, c.member+1, 0)
	}
	// When fewer than 262 bytes of its window are left, Go moves the window by 32 KiB and
	// forgets what is before it.
	dist := window
	if r := (i - c.member) & wmask; r > window-maxMatch-4 {
		dist = r
	}
	return max(i-dist, c.member, 0)
}

// find returns the match that the encoder finds at i if it is longer than prev. Otherwise
// the distance is 0.
func (c *chains) find(i, prev int) (length, dist int) {
	c.ins = max(c.ins, min(i, c.limit()))
	look := min(maxMatch, c.end-i)
	if look < c.minLen || look <= prev {
		return prev, 0
	}
	if i >= c.done {
		c.reach(i)
	}
	nearest, low := i-int(c.back.own[i&rmask]), c.low(i)
	if nearest < low {
		return prev, 0
	}
	w := walk{i: i, look: look, low: low, tries: uint16(c.chain), ord: c.ord[i&rmask]}
	if prev >= c.good {
		w.tries >>= 2
	}
	if c.zlib && low == i-c.maxDist && nearest != low {
		w.low++ // zlib accepts its greatest distance only for the nearest candidate
	}
	if look > 4 {
		if length, dist = c.long(&w, max(prev, 4)); dist != 0 {
			return length, dist
		}
	}
	if prev < 4 && look >= 4 {
		if dist = c.short4(&w, nearest); dist != 0 {
			return 4, dist
		}
	}
	if prev < 3 && c.zlib {
		if dist = c.short3(&w, nearest); dist != 0 {
			return 3, dist
		}
	}
	return prev, 0
}

// walk is a search at i, whose ordinal is ord. It compares at most look bytes, does not go
// before low, and considers only the first tries candidates.
type walk struct {
	i, look, low int
	ord, tries   uint16
}

// seen reports whether the encoder looks at the candidate j.
func (c *chains) seen(w *walk, j int) bool { return w.ord-c.ord[j&rmask] <= w.tries }

// long finds matches of five bytes and more that are longer than best.
func (c *chains) long(w *walk, best int) (length, dist int) {
	buf, nice := c.buf, min(c.nice, w.look)
	want := load32(buf, w.i+best-3)
	// Other strings with the same hash count as steps, too, so the last candidates may be
	// missed.
	steps := int(w.tries) + 8
	five, eight := &c.back.five, &c.back.eight
	j := w.i - int(eight[w.i&rmask])
	if best < 7 {
		for j = w.i - int(five[w.i&rmask]); j >= w.low && steps > 0; steps-- {
			if load32(buf, j+best-3) == want {
				if n := matchLen(buf, j, w.i, w.look); n > best {
					if !c.seen(w, j) {
						return length, dist
					}
					best, length, dist = n, n, w.i-j
					if n >= nice {
						return length, dist
					}
					want = load32(buf, w.i+best-3)
					if n >= 8 { // longer matches have these eight bytes
						j -= int(eight[j&rmask])
						break
					}
				}
			}
			j -= int(five[j&rmask])
		}
		if best < 8 {
			return length, dist
		}
	}
	for ; j >= w.low && steps > 0; steps-- {
		if load32(buf, j+best-3) == want {
			if n := matchLen(buf, j, w.i, w.look); n > best {
				if !c.seen(w, j) {
					break
				}
				best, length, dist = n, n, w.i-j
				if n >= nice {
					break
				}
				want = load32(buf, w.i+best-3)
			}
		}
		j -= int(eight[j&rmask])
	}
	return length, dist
}

// short4 finds the nearest match of four bytes.
func (c *chains) short4(w *walk, nearest int) (dist int) {
	v := load32(c.buf, w.i)
	if !c.zlib {
		for j := nearest; j >= w.low; j -= int(c.back.own[j&rmask]) {
			if load32(c.buf, j) == v {
				if w.i-j > c.far || !c.seen(w, j) {
					return 0
				}
				return w.i - j
			}
		}
		return 0
	}
	for j := w.i - int(c.back.four[w.i&rmask]); j >= w.low; j -= int(c.back.four[j&rmask]) {
		if load32(c.buf, j) == v {
			if !c.seen(w, j) {
				return 0
			}
			return w.i - j
		}
	}
	return 0
}

// short3 finds the nearest match of three bytes.
func (c *chains) short3(w *walk, nearest int) (dist int) {
	v, low := load32(c.buf, w.i), max(w.low, w.i-c.far)
	for j := nearest; j >= low; j -= int(c.back.own[j&rmask]) {
		if (load32(c.buf, j)^v)&0xffffff == 0 {
			if !c.seen(w, j) {
				return 0
			}
			return w.i - j
		}
	}
	return 0
}

// maxRank is how many candidates are considered to find the rank of a distance.
const maxRank = 1 << 10

// candidates calls do for positions that match at least length bytes at i, the nearest
// first, until do returns false.
func (c *chains) candidates(i, length int, do func(dist int) bool) {
	steps := maxRank
	if i < c.ins {
		steps-- // the position itself counts as one
	}
	c.ins = max(c.ins, min(i, c.limit()))
	if i >= c.done {
		c.reach(i)
	}
	j := int(c.heads.own[c.hash(load64(c.buf, i))].pos()) - 1
	if i < c.done {
		j = i - int(c.back.own[i&rmask])
	}
	for low := max(i-window, c.member, 0); j >= low && steps > 0; steps-- {
		if matchLen(c.buf, j, i, length) == length && !do(i-j) {
			return
		}
		j -= int(c.back.own[j&rmask])
	}
}

// rank returns how many nearer candidates the match t at i has, or -1 if t is not among
// the candidates.
func (c *chains) rank(i int, t Token) int {
	rank, found := 0, false
	c.candidates(i, t.Len(), func(dist int) bool {
		found = dist == t.Dist()
		if dist < t.Dist() {
			rank++
		}
		return dist < t.Dist()
	})
	if !found {
		return -1
	}
	return rank
}

// ranked is the inverse of rank. It returns 0 if there is no such match.
func (c *chains) ranked(i, length, rank int) (found int) {
	c.candidates(i, length, func(dist int) bool {
		if rank == 0 {
			found = dist
		}
		rank--
		return rank >= 0
	})
	return found
}
