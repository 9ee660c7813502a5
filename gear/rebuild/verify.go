package rebuild

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"hash"
	"slices"

	"example.org/slipway/gear/rebuild/deflate"
)

// guesser is what the decoder of a segment needs of a [deflate.Predictor].
type guesser interface {
	Start(deflate.Model, deflate.Span)
	At() int
	Member()
	Skip(n int)
	Chunk(k int) int
	Follow(toks []deflate.Token, n, end int) []deflate.Token
	Next() deflate.Token
	Took(deflate.Token)
	Ranked(length, rank int) int
}

var (
	_ guesser = (*deflate.Predictor)(nil)
	_ guesser = (*replay)(nil)
)

// replay answers as a predictor has answered while a segment was coded. So the data of the
// segment can be decoded without a second search.
type replay struct {
	model  deflate.Model
	begin  deflate.Span
	toks   []deflate.Token // of all blocks
	misses []miss
	chunks map[chunkAt]int

	at   int
	next int // index in toks
}

// miss is a token that was guessed wrong. rank is as in [deflate.Predictor.Rank], if it was
// asked for.
type miss struct {
	index int // in toks
	guess deflate.Token
	rank  int
}

// chunkAt identifies the k-th chunk from a position on.
type chunkAt struct{ at, k int }

func newReplay() *replay { return &replay{chunks: map[chunkAt]int{}} }

// Start implements guesser. If it begins in another way than when the segment was coded,
// nothing is known about the guesses.
func (p *replay) Start(m deflate.Model, s deflate.Span) {
	p.at, p.next = s.At, 0
	if m != p.model || s.At != p.begin.At || s.Member != p.begin.Member || !slices.Equal(s.Horizons, p.begin.Horizons) {
		p.toks, p.misses, p.chunks = nil, nil, nil
	}
}

// At implements guesser.
func (p *replay) At() int { return p.at }

// Member implements guesser.
func (p *replay) Member() {}

// Skip implements guesser.
func (p *replay) Skip(n int) { p.at += n }

// Chunk implements guesser.
func (p *replay) Chunk(k int) int { return p.chunks[chunkAt{p.at, k}] }

// Follow implements guesser. It ends before a token that was guessed wrong.
func (p *replay) Follow(toks []deflate.Token, n, end int) []deflate.Token {
	n = min(n, len(p.toks)-p.next)
	if len(p.misses) > 0 {
		n = min(n, p.misses[0].index-p.next)
	}
	for ; n > 0 && p.at+p.toks[p.next].Len() <= end; n-- {
		toks = append(toks, p.toks[p.next])
		p.Took(p.toks[p.next])
	}
	return toks
}

// Next implements guesser.
func (p *replay) Next() deflate.Token {
	if m := p.missed(); m != nil {
		return m.guess
	}
	if p.next == len(p.toks) {
		return 0
	}
	return p.toks[p.next]
}

// missed returns the wrong guess for the next token, or nil.
func (p *replay) missed() *miss {
	if len(p.misses) == 0 || p.misses[0].index != p.next {
		return nil
	}
	return &p.misses[0]
}

// Took implements guesser.
func (p *replay) Took(t deflate.Token) {
	if p.missed() != nil {
		p.misses = p.misses[1:]
	}
	p.at += t.Len()
	p.next++
}

// Ranked implements guesser.
func (p *replay) Ranked(length, rank int) int {
	m := p.missed()
	if m == nil || p.next == len(p.toks) || m.rank != rank || p.toks[p.next].Len() != length {
		return 0
	}
	return p.toks[p.next].Dist()
}

// verifier writes a layer again while its recipe is made.
type verifier struct {
	work *work
	join joiner
	sum  hash.Hash
}

func newVerifier() *verifier { return &verifier{work: &work{}, sum: sha256.New()} }

// segment writes the next segment, of which span has the plain bytes and guesses the
// predictions.
func (v *verifier) segment(s *segment, span span, guesses *replay, last bool) error {
	skip := s.bit % 8
	b, err := decodeSegment(v.work, guesses, span, s.data, uint(skip), skip+s.bits)
	if err != nil {
		return fmt.Errorf("%w: it was not rebuilt as it is: %w", ErrUnsupported, err)
	}
	v.sum.Write(v.join.join(s, b, last))
	return nil
}

// end compares what was written with a digest.
func (v *verifier) end(r *Recipe) error {
	v.sum.Write(r.tail)
	if !bytes.Equal(v.sum.Sum(nil), r.Digest[:]) { // the fault is in this package and not in the layer
		return fmt.Errorf("%w: it was not rebuilt as it is", ErrUnsupported)
	}
	return nil
}

// joiner joins segments that meet within a byte.
type joiner struct {
	shared byte // the bits of the last segment in the byte that it shares with the next
}

// join returns the bytes that are complete with the bits b of the segment s.
func (j *joiner) join(s *segment, b []byte, last bool) []byte {
	if s.bit%8 != 0 && len(b) > 0 {
		b[0] |= j.shared
	}
	if (s.bit+s.bits)%8 != 0 && !last {
		j.shared = b[len(b)-1]
		b = b[:len(b)-1]
	}
	return b
}
