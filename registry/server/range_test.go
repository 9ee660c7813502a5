package server

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"testing"
	"time"
)

// oneRange matches RFC 9110's byte range with one part.
var oneRange = regexp.MustCompile(`^(?i:bytes)=\s*(\d*)-(\d*)\s*$`)

// position returns what a position in a range means, which may be larger than any content.
func position(digits string) int64 {
	n, err := strconv.ParseInt(digits, 10, 64)
	if errors.Is(err, strconv.ErrRange) {
		return math.MaxInt64
	}
	return n
}

func FuzzParseRange(f *testing.F) {
	for _, v := range []string{"bytes=0-0", "bytes=-5", "bytes=5-", "bytes=9-3", "bytes=0-1,3-4", "bytes=", "bytes=--1", "lines=1-2", "bytes= 1-2 ", "bytes=1- 2", "Bytes=2-3",
		"bytes=2-9223372036854775807", "bytes=2-18446744073709551615", "bytes=-99999999999999999999", "bytes=0000000000000000000001-"} {
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

// TestLimiterForgets checks that memory is bounded by the recent addresses, and that an address
// cannot gain tokens by being forgotten.
func TestLimiterForgets(t *testing.T) {
	l := newLimiter(0.001, 2, 1)
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	clock := func() time.Time { return now }
	for i := range 10_000 {
		if !l.allow(fmt.Sprintf("10.0.%d.%d:1", i/256, i%256), clock) {
			t.Fatal("the first request of an address is refused")
		}
	}
	const addr = "10.1.0.1:1"
	//lint:ignore SA4000 each call counts
	if !l.allow(addr, clock) || !l.allow(addr, clock) || l.allow(addr, clock) {
		t.Error("want two requests and no more")
	}
	if l.allow("10.1.0.1:2", clock) {
		t.Error("another port of the same address is not another client")
	}
	now = now.Add(2 * time.Minute)
	if l.allow(addr, clock) {
		t.Error("waiting two minutes gave a token that takes a quarter of an hour")
	}
	now = now.Add(time.Hour)
	if !l.allow(addr, clock) {
		t.Error("an hour gave no token")
	}
	if len(l.clients) > 1 {
		t.Errorf("%d addresses are remembered after an hour", len(l.clients))
	}
	// An IPv6 host has a /64.
	if !l.allow("[2001:db8::1]:1", clock) || !l.allow("[2001:db8::2]:1", clock) || l.allow("[2001:db8::3]:1", clock) {
		t.Error("addresses of one /64 are not one client")
	}
	if !l.allow("[fe80::1%eth0]:1", clock) || !l.allow("[fe80::2%eth0]:1", clock) || l.allow("[fe80::3%eth0]:1", clock) {
		t.Error("link-local addresses are not one client")
	}
	if !l.allow("[2001:db8:0:1::1]:1", clock) {
		t.Error("another /64 is not another client")
	}
	if !l.enter(addr) || l.enter(addr) {
		t.Error("want one at once")
	}
	l.leave(addr)
	l.leave(addr) // one too many
	if !l.enter(addr) || l.enter(addr) {
		t.Error("want one at once, also after leaving twice")
	}
}
