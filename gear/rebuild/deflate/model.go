package deflate

import (
	"fmt"
	"slices"
)

// Model identifies an encoder with its parameters. Its numbers are part of the format of
// recipes.
type Model struct {
	Family Family
	// Level is the encoder's level of compression.
	Level uint8
	// Variant depends on the family. For a zlib model it is memLevel, 1 to 9, and from
	// the fifth bit on its strategy. For a Klauspost model it is 0 or Pgzip.
	Variant uint8
}

// Family is a family of encoders.
type Family uint8

// These are the families of encoders.
const (
	// Zlib is zlib at levels 1 to 9, and its descendants.
	Zlib Family = 1
	// Go is compress/flate at levels 1 to 9.
	Go Family = 2
	// Other is not a particular encoder. It searches for the longest match, and the
	// choices of all other encoders are corrections of its choices.
	Other Family = 3
	// Klauspost is klauspost/compress/flate at level 5.
	Klauspost Family = 4
)

// Pgzip is the variant of Klauspost that compresses blocks independently, each with the
// end of the block before as its dictionary. It is klauspost/pgzip, which podman and
// skopeo use.
const Pgzip = 1

// These are zlib's strategies, with zlib's numbers.
const (
	Default = iota
	Filtered
	HuffmanOnly
	RLE
)

// String returns the name of the model for people.
func (m Model) String() string {
	switch m.Family {
	case Zlib:
		s := fmt.Sprintf("zlib level %d", m.Level)
		if mem := m.Variant & 15; mem != 8 {
			s += fmt.Sprintf(", memLevel %d", mem)
		}
		if strategy := m.Variant >> 4; strategy != Default {
			s += ", " + [...]string{"", "filtered", "huffman only", "run lengths"}[strategy]
		}
		return s
	case Go:
		return fmt.Sprintf("go level %d", m.Level)
	case Klauspost:
		if m.Variant == Pgzip {
			return "pgzip"
		}
		return fmt.Sprintf("klauspost level %d", m.Level)
	}
	return "other encoder"
}

// Valid reports whether the model is known.
func (m Model) Valid() bool {
	switch m.Family {
	case Zlib:
		mem := m.Variant & 15
		return m.Level >= 1 && m.Level <= 9 && mem >= 1 && mem <= 9 && m.Variant>>4 <= RLE
	case Go:
		return m.Level >= 1 && m.Level <= 9 && m.Variant == 0
	case Other:
		return m.Level <= 1 && m.Variant == 0
	case Klauspost:
		return m.Level == 5 && m.Variant <= Pgzip
	}
	return false
}

// History returns how many plain bytes before its start a [Predictor] needs.
func (m Model) History() int {
	if m.chunked() {
		return warmChunks * chunkSize
	}
	return window
}

// MaxHistory is the maximum that any model needs.
const MaxHistory = warmChunks * chunkSize

// Coding says how an encoder makes the code of a block.
type Coding struct {
	Style Style
	// First says that the code is made only for the first chunk of the block.
	First bool
}

// Codings returns how the encoder makes codes, and an alternative to try.
func (m Model) Codings() [2]Coding {
	switch m.Family {
	case Go:
		return [2]Coding{{Style: GoStyle}, {Style: ZlibStyle}}
	case Klauspost:
		return [2]Coding{{Style: GoStyle, First: true}, {Style: GoStyle}}
	}
	return [2]Coding{{Style: ZlibStyle}, {Style: GoStyle}}
}

// chunked reports whether the encoder works by chunks.
func (m Model) chunked() bool { return m.Family == Go && m.Level == 1 || m.Family == Klauspost }

// Models returns the models that are worth trying on a stream of an unknown encoder, the
// most common first.
func Models() []Model {
	models := []Model{{Go, 6, 0}, {Zlib, 6, 8}, {Klauspost, 5, Pgzip}, {Go, 1, 0}, {Zlib, 9, 8}}
	for level := uint8(1); level <= 9; level++ {
		for _, m := range []Model{{Zlib, level, 8}, {Zlib, level, 9}, {Go, level, 0}} {
			if !slices.Contains(models, m) {
				models = append(models, m)
			}
		}
	}
	return append(models, Model{Klauspost, 5, 0}, Model{Zlib, 6, 8 | Filtered<<4}, Model{Zlib, 6, 8 | HuffmanOnly<<4},
		Model{Zlib, 6, 8 | RLE<<4}, Model{Other, 0, 0}, Model{Other, 1, 0})
}

// search describes how an encoder looks for matches.
type search struct {
	zlib    bool // three bytes are hashed, as in zlib; otherwise four, as in Go
	minLen  int  // of a match
	greedy  bool // a match is taken without trying the next position
	filter  int  // matches up to this length are not taken
	far     int  // the greatest distance of a match of minLen
	maxDist int  // of any match
	// From the length good on, only a quarter of the candidates is tried. From lazy on,
	// the next position is not tried. nice is long enough to end a search, and chain is
	// the number of candidates. For a greedy search, lazy is the longest match whose
	// positions can all be found later.
	good, lazy, nice, chain int
	// hashBits is how many bits the hash of zlib has, and hashShift how far it moves with
	// each byte.
	hashBits, hashShift uint
}

// never is greater than the length of any match.
const never = maxMatch + 1

// zlibLevels is configuration_table of zlib's deflate.c: good, lazy, nice, chain.
var zlibLevels = [10][4]int{
	1: {4, 4, 8, 4}, 2: {4, 5, 16, 8}, 3: {4, 6, 32, 32},
	4: {4, 4, 16, 16}, 5: {8, 16, 32, 32}, 6: {8, 16, 128, 128},
	7: {8, 32, 128, 256}, 8: {32, 128, 258, 1024}, 9: {32, 258, 258, 4096},
}

// goLevels is the table of levels of Go's compress/flate. What greedy levels insert is
// called fastSkipHashing there. good is never reached, because each search starts from
// nothing.
var goLevels = [10][4]int{
	2: {never, 5, 16, 8}, 3: {never, 6, 32, 32},
	4: {never, 4, 16, 16}, 5: {never, 16, 32, 32}, 6: {never, 16, 128, 128},
	7: {never, 32, 128, 256}, 8: {never, 128, 258, 1024}, 9: {never, 258, 258, 4096},
}

// otherLevels has searches that approximate several other encoders. The second one is for
// encoders that search long.
var otherLevels = [2][4]int{{never, 16, 64, 8}, {never, 64, 258, 64}}

func (m Model) search() search {
	s := search{zlib: true, minLen: 3, far: 4096, hashBits: 15, hashShift: 5}
	var t [4]int
	switch m.Family {
	case Zlib:
		t = zlibLevels[m.Level]
		s.greedy = m.Level < 4
		s.maxDist = window - maxMatch - 4 // MAX_DIST of deflate.h
		s.hashBits = uint(m.Variant&15) + 7
		s.hashShift = (s.hashBits + 2) / 3
		if s.greedy {
			s.far = window
		} else if m.Variant>>4 == Filtered {
			s.filter = 5
		}
	case Go, Klauspost:
		t = goLevels[m.Level]
		s.greedy, s.zlib, s.minLen, s.maxDist = m.Level < 4, false, 4, window
	case Other:
		t = otherLevels[m.Level]
		s.maxDist = window
	}
	s.good, s.lazy, s.nice, s.chain = t[0], t[1], t[2], t[3]
	return s
}
