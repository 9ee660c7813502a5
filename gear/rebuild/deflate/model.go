package deflate

import (
	"fmt"
	"slices"
)

// Model names an encoder with its parameters. Its numbers are part of the format of recipes.
type Model struct {
	Family Family
	// Level of compression, as the encoder calls it.
	Level uint8
	// Variant of a zlib model: memLevel, 1 to 9, and from the fifth bit on its strategy. Of a
	// Klauspost model: 0 or Pgzip.
	Variant uint8
}

// Family of encoders.
type Family uint8

// Families of encoders.
const (
	// Zlib of levels 1 to 9, and what descends from it.
	Zlib Family = 1
	// Go is compress/flate of levels 1 to 9.
	Go Family = 2
	// Other is no encoder in particular: a search for the longest match, to which every other
	// encoder's choices are corrections.
	Other Family = 3
	// Klauspost is klauspost/compress/flate of level 5.
	Klauspost Family = 4
)

// Pgzip is the variant of Klauspost whose blocks are compressed by themselves, each with the end of
// the one before as its dictionary: klauspost/pgzip, which podman and skopeo use.
const Pgzip = 1

// zlib's strategies, by their numbers there.
const (
	Default = iota
	Filtered
	HuffmanOnly
	RLE
)

// String names the model as it is shown to people.
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

// History is how many plain bytes before its start a [Predictor] wants to see.
func (m Model) History() int {
	if m.chunked() {
		return warmChunks * chunkSize
	}
	return window
}

// MaxHistory is the most that any model wants.
const MaxHistory = warmChunks * chunkSize

// Coding is how an encoder makes the code of a block.
type Coding struct {
	Style Style
	// First: the code is made for the first chunk of the block only.
	First bool
}

// Codings returns how the encoder makes codes, and what else is tried.
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

// Models returns what is worth trying on a stream of an unknown encoder, what is most common first.
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

// search is how an encoder looks for matches.
type search struct {
	zlib    bool // three bytes are hashed, else four as Go does
	minLen  int  // of a match
	greedy  bool // a match is taken without a look at the next position
	filter  int  // matches up to this length are not taken
	far     int  // the greatest distance of a match of minLen
	maxDist int  // of any match
	// From good on a quarter of the candidates is looked at, from lazy on the next position is not,
	// nice is good enough, and chain is how many candidates there are. Of a greedy search, lazy is
	// the longest match whose positions can all be found later.
	good, lazy, nice, chain int
	// The hash of zlib: how many bits it has, and how far it moves with each byte.
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

// goLevels is the table of levels of Go's compress/flate. It calls what greedy levels insert
// fastSkipHashing. Its good is never reached, because each search starts from nothing.
var goLevels = [10][4]int{
	2: {never, 5, 16, 8}, 3: {never, 6, 32, 32},
	4: {never, 4, 16, 16}, 5: {never, 16, 32, 32}, 6: {never, 16, 128, 128},
	7: {never, 32, 128, 256}, 8: {never, 128, 258, 1024}, 9: {never, 258, 258, 4096},
}

// otherLevels: what several other encoders approximate. The second is for those that look long.
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
