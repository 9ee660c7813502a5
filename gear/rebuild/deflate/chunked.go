package deflate

import "slices"

const (
	// chunkSize is how many plain bytes an encoder of this kind takes at a time:
	// maxStoreBlockSize of compress/flate and of klauspost/compress.
	chunkSize = 1<<16 - 1
	// warmChunks is how many chunks are encoded before the first one, so that the tables
	// have the content that they had in the encoder.
	warmChunks = 3
	// blockDict is how much of a block pgzip gives to the encoder of the next block:
	// tailSize in pgzip.
	blockDict = 16 << 10
)

// engine is an encoder whose tables depend on what it did before.
type engine interface {
	// reset forgets all strings.
	reset()
	// more appends the next tokens of a chunk: either literals and the matches that
	// follow them, or the rest of the chunk.
	more(c *chunked)
}

// chunked predicts encoders that take a chunk of plain bytes at a time. They cannot
// return single tokens, because their tables depend on what they did before. So chunked
// runs them over a whole chunk, and again from each place at which the real encoder made
// another choice.
type chunked struct {
	engine
	buf  []byte
	base int // the first position that may be copied
	from int // where the chunk begins
	to   int // where the chunk ends
	emit int // the bytes before it have been made into tokens
	scan int // where the next search begins
	toks []Token
	used int // of toks
}

// begin begins at at, as if the last chunk ended there. Nothing before base can be
// copied.
func (c *chunked) begin(base, at int) {
	c.base, c.from, c.to, c.emit, c.scan, c.toks, c.used = base, at, at, at, at, c.toks[:0], 0
}

// next encodes the chunk from the end of the last chunk to the position to.
func (c *chunked) next(to int) {
	from := c.to
	c.begin(c.base, from)
	c.to = max(to, from)
	for c.emit < c.to {
		c.more(c)
	}
	if n := to - from; len(c.toks) > n-n>>4 { // compression was not worthwhile
		c.toks = c.toks[:0]
		c.literals(n)
	}
}

// literals appends n literals.
func (c *chunked) literals(n int) {
	at := len(c.toks)
	c.toks = slices.Grow(c.toks, n)[:at+n]
	clear(c.toks[at:])
}

// rest turns the rest of the chunk into literals.
func (c *chunked) rest() {
	c.literals(c.to - c.emit)
	c.emit = c.to
}

// guess predicts the next token.
func (c *chunked) guess() Token {
	if c.used == len(c.toks) {
		c.toks, c.used = c.toks[:0], 0
		if c.emit < c.to {
			c.more(c)
		}
	}
	if c.used == len(c.toks) {
		return 0
	}
	return c.toks[c.used]
}

// took records the actual token, which ended before at.
func (c *chunked) took(t Token, at int) {
	if c.used < len(c.toks) && c.toks[c.used] == t {
		c.used++
		return
	}
	c.resume(at)
}

// resume continues at a position that the encoder did not expect.
func (c *chunked) resume(at int) {
	c.toks, c.used, c.emit, c.scan = c.toks[:0], 0, at, at
}

// goFast is Go's compress/flate at level 1.
type goFast struct {
	table [1 << goFastBits]goFastEntry
}

// goFastEntry is a position and its first four bytes.
type goFastEntry struct {
	val uint32
	pos int32
}

const (
	goFastBits = 14
	// goFastMargin is how many bytes before the end of its chunk a search ends.
	goFastMargin = 15
	// goFastLeast is the length of the shortest chunk that is searched.
	goFastLeast = 17
	// nowhere is the position of no string. It is far before any real position.
	nowhere = -1 << 30
)

func goFastHash(v uint32) uint32 { return v * 0x1e35a7bd >> (32 - goFastBits) }

func (g *goFast) reset() {
	for i := range g.table {
		g.table[i].pos = nowhere
	}
}

// swap returns what was stored for the bytes v, and stores v and at instead.
func (g *goFast) swap(v uint32, at int) goFastEntry {
	e := &g.table[goFastHash(v)]
	old := *e
	*e = goFastEntry{v, int32(at)}
	return old
}

func (e goFastEntry) fits(v uint32, at int) bool {
	dist := at - int(e.pos)
	return e.val == v && dist > 0 && dist <= window
}

func (g *goFast) more(c *chunked) {
	limit := c.to - goFastMargin
	if c.scan > limit || c.to-c.from < goFastLeast {
		c.rest()
		return
	}
	s, next := 0, c.scan
	v := load32(c.buf, next)
	var found goFastEntry
	for skip := 32; ; skip += skip >> 5 {
		s = next
		if next += skip >> 5; next > limit {
			c.rest()
			return
		}
		if found = g.swap(v, s); found.fits(v, s) {
			break
		}
		v = load32(c.buf, next)
	}
	c.literals(s - c.emit)
	for {
		n := 4 + matchLen(c.buf, int(found.pos)+4, s+4, min(maxMatch-4, c.to-s-4))
		c.toks = append(c.toks, Match(n, s-int(found.pos)))
		s += n
		c.emit, c.scan = s, s
		if s >= limit {
			c.rest()
			return
		}
		g.swap(load32(c.buf, s-1), s-1)
		v := load32(c.buf, s)
		if found = g.swap(v, s); !found.fits(v, s) {
			c.scan = s + 1
			return
		}
	}
}

// klauspost5 is level 5 of klauspost/compress/flate, its default level.
type klauspost5 struct {
	short [1 << tableBits]int32
	long  [1 << tableBits]lastTwo
}

// lastTwo has the last two positions of a string.
type lastTwo struct{ last, before int32 }

const (
	klauspostMargin = 11
	klauspostLeast  = 13
)

func klauspostHash4(v uint64) uint32 { return uint32(v) * 2654435761 >> (32 - tableBits) }

func klauspostHash7(v uint64) uint32 {
	return uint32((v << 8) * 58295818150454627 >> (64 - tableBits))
}

func (k *klauspost5) reset() {
	for i := range k.short {
		k.short[i] = nowhere
		k.long[i] = lastTwo{nowhere, nowhere}
	}
}

// put stores the position of a string that begins with the bytes v.
func (k *klauspost5) put(v uint64, at int) {
	k.short[klauspostHash4(v)] = int32(at)
	k.putLong(v, at)
}

func (k *klauspost5) putLong(v uint64, at int) {
	e := &k.long[klauspostHash7(v)]
	*e = lastTwo{int32(at), e.last}
}

// near reports whether t is before s, at a distance that a match may have.
func near(s, t int) bool { return s-t < window && t < s }

// found says that the bytes at s match the bytes at t. A length of 0 means that the
// length is not known yet.
type found struct{ s, t, n int }

func (k *klauspost5) more(c *chunked) {
	limit := c.to - klauspostMargin
	if c.scan >= limit || c.to-c.from < klauspostLeast {
		c.rest()
		return
	}
	for s, next := 0, c.scan; ; {
		s = next
		if next = s + 1 + (s-c.emit)>>6; next > limit {
			c.rest()
			return
		}
		v := load64(c.buf, s)
		e4, e7 := &k.short[klauspostHash4(v)], &k.long[klauspostHash7(v)]
		short, long := int(*e4), *e7
		*e4, *e7 = int32(s), lastTwo{int32(s), long.last}
		last, before := int(long.last), int(long.before)
		switch {
		case c.same(v, s, last):
			k.take(c, k.better(c, k.longer(c, v, s, next, last, before), limit), next, limit)
		case near(s, last) && c.same(v, s, before):
			k.put(load64(c.buf, next), next)
			k.take(c, k.better(c, found{s, before, 0}, limit), next, limit)
		case c.same(v, s, short):
			k.take(c, k.better(c, k.lazy(c, s, next, short), limit), next, limit)
		default:
			continue
		}
		return
	}
}

// same reports whether the four bytes v, which are at s, are also at t, and t is near.
func (c *chunked) same(v uint64, s, t int) bool { return near(s, t) && load32(c.buf, t) == uint32(v) }

// length returns the length of a match of at least four bytes, up to the longest.
func (c *chunked) length(s, t int) int {
	return 4 + matchLen(c.buf, s+4, t+4, min(maxMatch-4, c.to-s-4))
}

// longer returns the longer one of two matches at s.
func (k *klauspost5) longer(c *chunked, v uint64, s, next, last, before int) found {
	k.put(load64(c.buf, next), next)
	f := found{s, last, 0}
	if c.same(v, s, before) {
		if f.n = c.length(s, last); c.length(s, before) > f.n {
			f.t, f.n = before, c.length(s, before)
		}
	}
	return f
}

// lazy returns the match of s and t, or one at next if that is longer.
func (k *klauspost5) lazy(c *chunked, s, next, t int) found {
	f := found{s, t, c.length(s, t)}
	v := load64(c.buf, next)
	long := k.long[klauspostHash7(v)]
	k.put(v, next)
	if near(next, int(long.last)) {
		for _, t := range [2]int32{long.last, long.before} {
			if c.same(v, next, int(t)) {
				if n := c.length(next, int(t)); n > f.n {
					return found{next, int(t), n}
				}
			}
		}
	}
	return f
}

// better extends a match as far as possible, and looks for another match at its end.
func (k *klauspost5) better(c *chunked, f found, limit int) found {
	all := func(s, t int) int { return matchLen(c.buf, s, t, c.to-s) }
	switch f.n {
	case 0:
		f.n = 4 + all(f.s+4, f.t+4)
	case maxMatch:
		f.n += all(f.s+f.n, f.t+f.n)
	}
	if end := f.s + f.n; f.n < 30 && end < limit {
		t := int(k.long[klauspostHash7(load64(c.buf, end))].last) - f.n + 2
		if s := f.s + 2; t >= c.base && near(s, t) {
			if n := all(s, t); n > f.n {
				f = found{s, t, n}
			}
		}
	}
	for f.t > c.base && f.s > c.emit && c.buf[f.t-1] == c.buf[f.s-1] {
		f = found{f.s - 1, f.t - 1, f.n + 1}
	}
	return f
}

// take appends a match and the literals before it, and stores some of its strings. next
// is where the search would have continued.
func (k *klauspost5) take(c *chunked, f found, next, limit int) {
	c.literals(f.s - c.emit)
	for left := f.n; left > 0; { // the last piece has at least three bytes
		n := left
		if n > maxMatch+3 {
			n = maxMatch
		} else if n > maxMatch {
			n = maxMatch - 3
		}
		c.toks = append(c.toks, Match(n, f.s-f.t))
		left -= n
	}
	s := f.s + f.n
	c.emit = s
	if next >= s {
		s = next + 1
	}
	c.scan = s
	if s >= limit {
		c.rest()
		return
	}
	i := s - f.n + 1
	if i < s-1 {
		v := load64(c.buf, i)
		k.put(v, i)
		k.putLong(v>>8, i+1)
		k.short[klauspostHash4(v>>16)] = int32(i + 2)
		for i += 4; i < s-1; i += 3 {
			v := load64(c.buf, i)
			k.putLong(v, i)
			k.short[klauspostHash4(v>>8)] = int32(i + 1)
		}
	}
	k.put(load64(c.buf, s-1), s-1)
}
