// Package deflate analyses gzip streams into the choices of the encoder that wrote them,
// writes streams from such choices, and predicts the choices.
//
// A deflate stream (RFC 1951) has little information for a reader who knows the plain
// bytes. It says only how the encoder cut the bytes into blocks, which of them it copied
// from earlier ones, and which codes it used. A [Reader] lists these choices, and a
// [Writer] turns them into the same bits again. A [Predictor] guesses the choices that
// the encoder described by its [Model] would have made.
//
// Models are part of a stored format: what they predict must never change. Tests compare
// the predictions with digests that were taken when the models were written.
package deflate

import (
	"errors"
	"math/bits"
)

var (
	// ErrFormat is returned, wrapped, for a stream that is damaged.
	ErrFormat = errors.New("malformed gzip stream")
	// ErrUnsupported is returned, wrapped, for a stream that may be valid but has
	// features that this package does not preserve: blocks beyond its limits, or an
	// unusual encoding of a length.
	ErrUnsupported = errors.New("gzip stream beyond what can be rebuilt")
)

const (
	// MaxTokens is the maximum number of tokens in a block. Encoders write at most
	// 65,536.
	MaxTokens = 1 << 20
	// MaxPlain is the maximum number of plain bytes in a block. zlib's largest block of
	// nothing but zeros has 8.5 MB.
	MaxPlain = 16 << 20
	// MaxHeader is the maximum size of the header of a gzip member, and of what follows
	// the last member.
	MaxHeader = 1 << 20

	// window is how far back a match may reach.
	window = 1 << 15
	// maxMatch is the longest match.
	maxMatch = 258
)

// Token is a step of a block: either a match, or a literal. A literal is 0, because its
// value is in the plain bytes.
type Token uint32

// Match returns the token of a match of 3 to 258 bytes, 1 to 32,768 bytes back.
func Match(length, dist int) Token { return Token(length)<<16 | Token(dist) }

// Len returns how many plain bytes the token stands for.
func (t Token) Len() int {
	if t == 0 {
		return 1
	}
	return int(t >> 16)
}

// Dist returns the distance of a match.
func (t Token) Dist() int { return int(t & 0xffff) }

// Kind is the kind of a block. The values are the numbers in the stream.
type Kind uint8

// These are the kinds of blocks.
const (
	Stored Kind = iota
	Fixed
	Dynamic
)

// Lengths has the lengths of a code, by symbol. N of its symbols are in the header.
type Lengths struct {
	N int
	L [320]uint8
}

// Header is the header of a dynamic block. It has the bits that follow the block's type,
// and their meaning.
type Header struct {
	Bits []byte
	N    int // bits
	Lit  Lengths
	Dist Lengths
}

// Block is a block of a deflate stream.
type Block struct {
	Kind  Kind
	Final bool
	// Plain is the number of plain bytes in the block.
	Plain int
	// Tokens has the tokens of a Fixed or Dynamic block.
	Tokens []Token
	// Header is the header of a Dynamic block.
	Header *Header
	// Pad has the bits that precede the length of a Stored block.
	Pad byte
}

// symbols has the symbols of lengths and distances, after RFC 1951 section 3.2.5.
type symbols struct {
	lenBase  [29]uint16
	lenExtra [29]uint8
	lenOf    [maxMatch + 1]uint8 // symbol less 257
	disBase  [30]uint16
	disExtra [30]uint8
	disOf    [512]uint8 // indexed by distance - 1 below 256, then by the high bits of larger distances
}

var sym = makeSymbols()

func makeSymbols() *symbols {
	s := new(symbols)
	next := 3
	for i := range 28 {
		if i >= 8 {
			s.lenExtra[i] = uint8(i/4 - 1)
		}
		s.lenBase[i] = uint16(next)
		for range 1 << s.lenExtra[i] {
			if next < maxMatch {
				s.lenOf[next] = uint8(i)
			}
			next++
		}
	}
	s.lenBase[28], s.lenOf[maxMatch] = maxMatch, 28
	next = 1
	for i := range 30 {
		if i >= 4 {
			s.disExtra[i] = uint8(i/2 - 1)
		}
		s.disBase[i] = uint16(next)
		for range 1 << s.disExtra[i] {
			s.disOf[disSlot(next)] = uint8(i)
			next++
		}
	}
	return s
}

// disSlot returns the index of a distance in disOf.
func disSlot(dist int) int {
	if dist <= 256 {
		return dist - 1
	}
	return 256 + (dist-1)>>7
}

// clOrder is the order of the lengths of the code of code lengths in a header.
var clOrder = [19]uint8{16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15}

var fixedLit, fixedDist = fixedCodes()

func fixedCodes() (lit, dist *Lengths) {
	lit, dist = &Lengths{N: 288}, &Lengths{N: 30}
	for i := range lit.N {
		switch {
		case i < 144, i >= 280:
			lit.L[i] = 8
		case i < 256:
			lit.L[i] = 9
		default:
			lit.L[i] = 7
		}
	}
	for i := range dist.N {
		dist.L[i] = 5
	}
	return lit, dist
}

// firstCodes returns the first code of each length. It fails if there are more codes than fit.
func firstCodes(lengths []uint8) (first [16]uint16, err error) {
	var count [16]int
	for _, n := range lengths {
		count[n]++
	}
	count[0] = 0
	code := 0
	for n := 1; n < 16; n++ {
		code = (code + count[n-1]) << 1
		if code+count[n] > 1<<n {
			return first, ErrFormat
		}
		first[n] = uint16(code)
	}
	return first, nil
}

// reverse reverses a code of n bits, because a stream has the bits of codes in reverse
// order.
func reverse(code uint16, n uint8) uint16 { return bits.Reverse16(code) >> (16 - n) }
