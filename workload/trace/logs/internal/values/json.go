package values

import (
	"encoding/binary"
	"math/bits"
)

// SkipSpace returns the index of the first non-space byte from i on.
func SkipSpace(b []byte, i int) int {
	if i < len(b) && b[i] > ' ' {
		return i
	}
	return skipSpaces(b, i)
}

func skipSpaces(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// Special returns the index of the first byte from i on that is a quote, a backslash, a control
// character or not ASCII, or the length of b.
func Special(b []byte, i int) int {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	for ; i+8 <= len(b); i += 8 { // eight bytes at once: the first that is special has its high bit in m
		w := binary.LittleEndian.Uint64(b[i:])
		quote, escape := w^(ones*'"'), w^(ones*'\\')
		m := ((quote - ones) &^ quote) | ((escape - ones) &^ escape) | ((w - ones*0x20) &^ w) | w
		if m &= highs; m != 0 {
			return i + bits.TrailingZeros64(m)/8
		}
	}
	for ; i < len(b); i++ {
		if c := b[i]; c == '"' || c == '\\' || c < 0x20 || c >= 0x80 {
			return i
		}
	}
	return i
}
