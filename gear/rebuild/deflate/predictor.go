package deflate

// Predictor guesses the tokens of a stream, one after the other. It needs 3 MB and may
// be used by one goroutine.
type Predictor struct {
	model    Model
	strategy uint8
	pgzip    bool
	fresh    int // where the last block of pgzip began
	c        *chains
	run      *chunked // set for a chunked encoder; otherwise nil
	engines  *engines
	buf      []byte
	n        int   // plain bytes in buf
	horizons []int // the horizons that are still to come
	at       int

	// known says that the search at the position at was already done. nextKnown says that
	// the search at the next position was done, which happens if a better match there was
	// the reason for a literal.
	known, nextKnown     bool
	length, dist         int
	nextLength, nextDist int
}

// engines has the tables of chunked encoders. One of them is used at a time.
type engines struct {
	chunked
	goFast
	klauspost5
}

// NewPredictor returns a Predictor.
func NewPredictor() *Predictor { return &Predictor{c: newChains(), engines: new(engines)} }

// Span says where a Predictor begins.
type Span struct {
	// Buf has the plain bytes, followed by Slack zeros.
	Buf []byte
	// At is where the first token begins. The bytes before are history, as much as
	// Model.History needs or as there is.
	At int
	// Member is where the member begins in Buf. It may be negative.
	Member int
	// Horizons has, in order, the places from At on at which the encoder had to finish
	// all bytes that it had seen, before it saw further bytes. These are the ends of
	// members and empty stored blocks.
	Horizons []int
}

// Start begins anew.
func (p *Predictor) Start(m Model, s Span) {
	*p = Predictor{model: m, c: p.c, engines: p.engines, buf: s.Buf, n: len(s.Buf) - Slack, horizons: s.Horizons, at: s.At}
	p.c.start(m.search(), s.Buf, p.n, s.At, s.Member)
	switch {
	case m.Family == Zlib:
		p.strategy = m.Variant >> 4
	case m.chunked():
		p.startRun(s)
	}
	p.see()
}

func (p *Predictor) startRun(s Span) {
	p.run = &p.engines.chunked
	p.run.engine, p.run.buf = &p.engines.goFast, s.Buf
	if p.model.Family == Klauspost {
		p.run.engine, p.pgzip = &p.engines.klauspost5, p.model.Variant == Pgzip
	}
	p.run.reset()
	base := max(0, s.Member)
	from := s.At - warmChunks*chunkSize
	for from < base {
		from += chunkSize
	}
	if from > s.At || p.pgzip && len(s.Horizons) > 0 && s.Horizons[0] == s.At {
		from = s.At
	}
	p.run.begin(base, from)
	for p.run.to < s.At {
		p.run.next(p.run.to + chunkSize)
	}
}

// At returns where the next token begins.
func (p *Predictor) At() int { return p.at }

// see sets how far the encoder sees.
func (p *Predictor) see() {
	for len(p.horizons) > 0 && p.horizons[0] <= p.at {
		p.horizons = p.horizons[1:]
		switch {
		case p.pgzip:
			p.freshBlock()
		case p.run == nil && !p.c.zlib:
			// Go never adds the last three bytes to its chains.
			p.c.reach(p.at - 1)
			p.c.skip(p.at)
		}
	}
	p.c.end = p.n
	if len(p.horizons) > 0 {
		p.c.end = p.horizons[0]
	}
}

// freshBlock begins a block of pgzip. It uses a new encoder, which has seen the end of
// the block before.
func (p *Predictor) freshBlock() {
	if p.fresh > 0 && p.at-p.fresh < blockDict {
		return // the stream is not from pgzip, and costs much
	}
	p.fresh = p.at
	base := max(0, p.c.member, p.at-blockDict)
	p.run.reset()
	p.run.begin(base, base)
	p.run.next(p.at)
	p.run.begin(base, p.at)
}

// Member begins a member.
func (p *Predictor) Member() {
	p.c.begin(p.at)
	p.known = false
	if p.run != nil {
		p.run.reset()
		p.run.begin(p.at, p.at)
	}
}

// Chunk returns the end of the k-th chunk that the encoder takes from At on. k is at
// least 1. Chunk returns 0 if the encoder does not work by chunks.
func (p *Predictor) Chunk(k int) int {
	if p.run == nil {
		return 0
	}
	p.follow()
	end := p.run.to
	horizons := p.horizons
	for k--; k > 0 && end < p.n; k-- {
		for len(horizons) > 0 && horizons[0] <= end {
			horizons = horizons[1:]
		}
		from := end
		end = min(from+chunkSize, p.n)
		if len(horizons) > 0 {
			end = min(end, horizons[0])
		}
	}
	return end
}

// follow makes sure that the chunk at At is the chunk being encoded.
func (p *Predictor) follow() {
	for p.run.to <= p.at && p.run.to < p.c.end {
		p.run.next(min(p.run.to+chunkSize, p.c.end))
		if p.run.to > p.at && p.run.from < p.at {
			p.run.resume(p.at)
		}
	}
}

// Skip skips the n bytes of a stored block.
func (p *Predictor) Skip(n int) {
	if p.run != nil && n > 0 {
		p.follow()
		if p.at+n < p.run.to {
			p.run.resume(p.at + n)
		}
	}
	p.move(p.at+n, false)
}

func (p *Predictor) move(at int, known bool) {
	p.at, p.known = at, known
	if at >= p.c.end {
		if p.run != nil {
			p.follow()
		}
		p.see()
		p.known = false
	}
}

// Next predicts the token at At.
func (p *Predictor) Next() Token {
	p.nextKnown = false
	switch {
	case p.run != nil:
		if p.at >= p.run.to {
			p.follow()
		}
		return p.run.guess()
	case p.strategy == HuffmanOnly:
		return 0
	case p.strategy == RLE:
		return p.runLength()
	}
	c := p.c
	if !p.known {
		p.length, p.dist = p.find(p.at, c.minLen-1)
	}
	if p.length < c.minLen {
		return 0
	}
	if !c.greedy && p.length < c.lazy && p.at+1 < c.end {
		if n, d := p.find(p.at+1, p.length); n > p.length {
			p.nextKnown, p.nextLength, p.nextDist = true, n, d
			return 0
		}
	}
	return Match(p.length, p.dist)
}

func (p *Predictor) find(i, prev int) (length, dist int) {
	length, dist = p.c.find(i, prev)
	if length <= p.c.filter {
		return prev, 0
	}
	return length, dist
}

// runLength is zlib's deflate_rle: it only repeats the byte before.
func (p *Predictor) runLength() Token {
	i, look := p.at, min(maxMatch, p.c.end-p.at)
	if look < 3 || i <= max(p.c.member, 0) {
		return 0
	}
	if n := matchLen(p.buf, i-1, i, look); n >= 3 {
		return Match(n, 1)
	}
	return 0
}

// Took records t as the actual token. t must not reach beyond the plain bytes.
func (p *Predictor) Took(t Token) {
	if p.run != nil {
		p.run.took(t, p.at+t.Len())
		p.move(p.at+t.Len(), false)
		return
	}
	if t == 0 {
		p.length, p.dist = p.nextLength, p.nextDist
		p.move(p.at+1, p.nextKnown)
		return
	}
	n := t.Len()
	if p.c.greedy && n > p.c.lazy {
		p.c.reach(p.at)
		p.c.skip(p.at + n)
	}
	p.move(p.at+n, false)
}

// Follow takes the next tokens as predicted, at most n of them and none that ends after
// the position end. It appends them to toks.
func (p *Predictor) Follow(toks []Token, n, end int) []Token {
	for n > 0 && p.at < end {
		if ready := p.ready(); len(ready) > 0 {
			k, at := 0, p.at
			for _, t := range ready[:min(n, len(ready))] {
				if at+t.Len() > end {
					break
				}
				at += t.Len()
				k++
			}
			if k == 0 {
				break
			}
			toks, n = append(toks, ready[:k]...), n-k
			p.run.used += k
			p.move(at, false)
			continue
		}
		t := p.Next()
		if p.at+t.Len() > end {
			break
		}
		toks, n = append(toks, t), n-1
		p.Took(t)
	}
	return toks
}

// Agree takes the actual tokens, as long as they are as predicted, and records them. It
// returns how many it recorded, and the guess for the token after them.
func (p *Predictor) Agree(toks []Token) (n int, guess Token) {
	for n < len(toks) {
		k, at := 0, p.at
		for i, t := range p.ready() {
			if n+i == len(toks) || t != toks[n+i] {
				break
			}
			at += t.Len()
			k++
		}
		if k > 0 {
			n += k
			p.run.used += k
			p.move(at, false)
			continue
		}
		if guess = p.Next(); guess != toks[n] {
			return n, guess
		}
		p.Took(guess)
		n++
	}
	return n, 0
}

// ready returns the next tokens of a chunked encoder, as far as they are known. They end
// before the encoder sees more.
func (p *Predictor) ready() []Token {
	if p.run == nil {
		return nil
	}
	if p.at >= p.run.to {
		p.follow()
	}
	p.run.guess()
	return p.run.toks[p.run.used:]
}

// Rank returns the number of possible matches at At that are nearer than t. The rank
// identifies the distance of t. Rank returns -1 if t has no rank.
func (p *Predictor) Rank(t Token) int { return p.c.rank(p.at, t) }

// Ranked returns the distance of a match at At with the given length and rank, or 0 if
// there is none. The match must not reach beyond the plain bytes.
func (p *Predictor) Ranked(length, rank int) int { return p.c.ranked(p.at, length, rank) }
