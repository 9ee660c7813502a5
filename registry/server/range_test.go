package server

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"testing"
)

// oneRange matches RFC 9110's byte range with one part.
var oneRange = regexp.MustCompile(`^(?i:bytes)=[ \t]*(\d*)-(\d*)[ \t]*$`)

// position returns what a position in a range means, which may be larger than any content.
func position(digits string) int64 {
	n, err := strconv.ParseInt(digits, 10, 64)
	if errors.Is(err, strconv.ErrRange) {
		return math.MaxInt64
	}
	return n
}

func FuzzParseRange(f *testing.F) {
	for _, v := range []string{"bytes=0-0", "bytes=-5", "bytes=5-", "bytes=9-3", "bytes=0-1,3-4", "bytes=", "bytes=--1", "lines=1-2",
		"bytes= 1-2 ", "bytes=1- 2", "Bytes=2-3",
		"bytes=2-9223372036854775807", "bytes=2-18446744073709551615", "bytes=-99999999999999999999",
		"bytes=0000000000000000000001-", "bytes=\v-0", "bytes=\u0085-0"} {
		f.Add(v, int64(10))
	}
	f.Add("bytes=0-", int64(0))
	f.Add("bytes=-0", int64(1))
	f.Add("bytes=9223372036854775807-", int64(1)<<62)
	f.Fuzz(func(t *testing.T, v string, size int64) {
		if size < 0 {
			return
		}
		off, n, outcome := parseRange(v, size)
		switch outcome {
		case rangeAll:
			if off != 0 || n != size {
				t.Errorf("parseRange(%q, %d): the whole is %d, %d", v, size, off, n)
			}
		case rangePart:
			if off < 0 || n < 1 || off > size-n {
				t.Errorf("parseRange(%q, %d) = %d, %d: not within the content", v, size, off, n)
			}
		}
		m := oneRange.FindStringSubmatch(v)
		if m == nil {
			if outcome != rangeAll {
				t.Errorf("parseRange(%q, %d): got outcome %d for what is not one range", v, size, outcome)
			}
			return
		}
		first, last := position(m[1]), position(m[2])
		switch {
		case m[1] == "" && m[2] == "":
			return // malformed
		case size == 0:
			if outcome != rangeAll {
				t.Errorf("parseRange(%q, 0): got outcome %d, want that the range is ignored", v, outcome)
			}
		case m[1] == "" && last > 0:
			if outcome != rangePart || n != min(last, size) || off+n != size {
				t.Errorf("parseRange(%q, %d) = %d, %d, %d: not the last %d", v, size, off, n, outcome, last)
			}
		case m[1] != "" && first < size && (m[2] == "" || last >= first):
			end := size - 1
			if m[2] != "" {
				end = min(end, last)
			}
			if outcome != rangePart || off != first || off+n-1 != end {
				t.Errorf("parseRange(%q, %d) = %d, %d, %d: want %d to %d", v, size, off, n, outcome, first, end)
			}
		default:
			if outcome != rangeBad {
				t.Errorf("parseRange(%q, %d) = %d, %d, %d: want a bad range", v, size, off, n, outcome)
			}
		}
	})
}

var contentRange = regexp.MustCompile(`^(\d{1,18})-(\d{1,18})$`)

func FuzzParseContentRange(f *testing.F) {
	for _, v := range []string{"0-0", "0-9", "5-4", "bytes 0-9/10", "bytes 0-9/*", "-", "a-b", "0-99999999999999999999", "+0-1", "0--1", "0-1-2", " 1-2 "} {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, v string) {
		off, n, err := parseContentRange(v)
		if err == nil && (off < 0 || n < 1 || off+n < n) {
			t.Errorf("parseContentRange(%q) = %d, %d", v, off, n)
		}
		m := contentRange.FindStringSubmatch(v)
		if m == nil {
			return
		}
		first, _ := strconv.ParseInt(m[1], 10, 64)
		last, _ := strconv.ParseInt(m[2], 10, 64)
		if ok := last >= first; ok != (err == nil) || (ok && (off != first || n != last-first+1)) {
			t.Errorf("parseContentRange(%q) = %d, %d, %v", v, off, n, err)
		}
		for _, form := range []string{"bytes %s/*", "bytes %s/123", " %s "} {
			off2, n2, err2 := parseContentRange(fmt.Sprintf(form, v))
			if off2 != off || n2 != n || (err == nil) != (err2 == nil) {
				t.Errorf("parseContentRange(%q) = %d, %d, %v, without the frame %d, %d, %v", fmt.Sprintf(form, v), off2, n2, err2, off, n, err)
			}
		}
	})
}
