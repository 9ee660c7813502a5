package rebuild

import (
	"bytes"
	"strconv"
)

// record is the size of a block of a tar archive. Headers, contents and padding fill
// whole records.
const record = 512

// header is a header of a tar archive.
type header [record]byte

// fields are the fields of a header, after POSIX ustar. Each is a column of a skeleton.
// The bytes that follow the prefix belong to the prefix.
var fields = [...]struct {
	from, to int
	text     bool // ends with NULs
}{
	{0, 100, true},    // name
	{100, 108, false}, // mode
	{108, 116, false}, // user
	{116, 124, false}, // group
	{124, 136, false}, // size
	{136, 148, false}, // time
	{156, 157, false}, // type
	{157, 257, true},  // target of a link
	{257, 265, false}, // magic and version
	{265, 297, true},  // name of the user
	{297, 329, true},  // name of the group
	{329, 337, false}, // device, major number
	{337, 345, false}, // device, minor number
	{345, 512, true},  // prefix
}

const (
	sumFrom, sumTo = 148, 156
	sizeAt, sizeTo = 124, 136
	typeAt         = 156
)

// sums returns the sum of a header's bytes in two forms: as unsigned bytes, which is
// usual, and as signed bytes, which some archivers use.
func (h *header) sums() (unsigned, signed int64) {
	for i, c := range h {
		if i >= sumFrom && i < sumTo {
			c = ' '
		}
		unsigned += int64(c)
		signed += int64(int8(c))
	}
	return unsigned, signed
}

// usualSum returns the checksum as most archivers write it: six digits, NUL, space.
func (h *header) usualSum() (b [sumTo - sumFrom]byte) {
	v, _ := h.sums()
	for i := 5; i >= 0; i-- {
		b[i] = '0' + byte(v&7)
		v >>= 3
	}
	b[7] = ' '
	return b
}

// valid reports whether the checksum is right.
func (h *header) valid() bool {
	v, ok := number8(h[sumFrom:sumTo])
	unsigned, signed := h.sums()
	return ok && (v == unsigned || v == signed)
}

// plain reports whether the header has nothing besides its fields up to their NULs.
func (h *header) plain() bool {
	for _, f := range fields {
		if f.text && bytes.IndexByte(bytes.TrimRight(h[f.from:f.to], "\x00"), 0) >= 0 {
			return false
		}
	}
	return true
}

// number8 reads a number. It consists of octal digits, or is binary with the first bit
// set.
func number8(b []byte) (int64, bool) {
	if b[0]&0x80 != 0 {
		v := int64(b[0] & 0x7f)
		for _, c := range b[1:] {
			if v >= 1<<54 {
				return 0, false
			}
			v = v<<8 | int64(c)
		}
		return v, true
	}
	b = bytes.Trim(b, " \x00")
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	if len(b) == 0 {
		return 0, true
	}
	v, err := strconv.ParseUint(string(b), 8, 62)
	return int64(v), err == nil
}

// body says what follows the header of an entry.
type body uint8

const (
	noBody   body = iota
	fileBody      // the content of a file
	metaBody      // metadata of the next entry, or the body of an entry of an unknown type
)

// scan follows the headers of an archive and keeps what one header says about the size of
// the next entry.
type scan struct {
	override int64 // -1: none
}

// next returns what follows a header.
func (s *scan) next(h *header) (body, int64, bool) {
	size, ok := number8(h[sizeAt:sizeTo])
	if !ok || size > maxLayer {
		return 0, 0, false
	}
	switch h[typeAt] {
	case '0', 0, '7':
		if s.override >= 0 {
			size = s.override
		}
		s.override = -1
		return fileBody, size, size <= maxLayer
	case '1', '2', '3', '4', '5', '6':
		s.override = -1
		return noBody, 0, true // whatever the size says
	case 'x', 'g', 'L', 'K':
	default:
		s.override = -1
	}
	return metaBody, size, true
}

// meta processes the body of a header.
func (s *scan) meta(h *header, b []byte) {
	if h[typeAt] != 'x' {
		return
	}
	for len(b) > 0 { // "length name=value\n"
		i := bytes.IndexByte(b, ' ')
		if i < 0 {
			return
		}
		n, err := strconv.Atoi(string(b[:i]))
		if err != nil || n > len(b) || n <= i+1 {
			return
		}
		if v, ok := bytes.CutPrefix(b[i+1:n], []byte("size=")); ok {
			if size, err := strconv.ParseInt(string(bytes.TrimSuffix(v, []byte("\n"))), 10, 64); err == nil && size >= 0 {
				s.override = size
			}
		}
		b = b[n:]
	}
}

// padding returns how many bytes follow a content up to the next record.
func padding(size int64) int { return int(-size & (record - 1)) }
