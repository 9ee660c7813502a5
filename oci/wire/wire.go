// Package wire reads and writes those parts of HTTP that every client and server of a
// registry needs, and every driver of an object store: byte ranges, Retry-After,
// challenges, answers that stall, and trusted certificates.
package wire

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// RetryAfter parses a Retry-After header, which holds seconds or a date. It returns 0 if
// there is none or the date is past, and never a negative duration.
func RetryAfter(s string, now time.Time) time.Duration {
	if n, err := strconv.ParseUint(s, 10, 31); err == nil {
		return time.Duration(n) * time.Second
	}
	if t, err := http.ParseTime(s); err == nil {
		return max(0, t.Sub(now))
	}
	return 0
}

// Seconds returns the value of a Retry-After header in whole seconds. The value is at
// least 1 and fits into an int32.
func Seconds(d time.Duration) string {
	return strconv.FormatInt(min(max(1, int64((d-1)/time.Second)+1), 1<<31-1), 10)
}

// Range returns the value of a Range header for n bytes from the offset off on, or for
// all bytes from there on if n is not positive. It returns "" for the whole content.
func Range(off, n int64) string {
	last := off + n - 1
	switch {
	case n > 0 && last >= off:
		return "bytes=" + strconv.FormatInt(off, 10) + "-" + strconv.FormatInt(last, 10)
	case off > 0: // up to the end, or off+n is beyond any end
		return "bytes=" + strconv.FormatInt(off, 10) + "-"
	}
	return ""
}

// ParseRange parses a Range header with one range of bytes. For "bytes=A-" last is -1.
// For "bytes=-N", which means the last N bytes, first is -1 and last is N. The unit may
// be in upper or lower case. A number may be larger than any file, because clients that
// want the rest of a file write the largest number they have.
func ParseRange(s string) (first, last int64, ok bool) {
	unit, spec, ok := strings.Cut(s, "=")
	from, to, dash := strings.Cut(strings.Trim(spec, " \t"), "-")
	if !ok || !strings.EqualFold(unit, "bytes") || !dash || from == "" && to == "" {
		return 0, 0, false
	}
	first, last = -1, -1
	if from != "" {
		first, ok = position(from)
	}
	if to != "" && ok {
		last, ok = position(to)
	}
	return first, last, ok
}

// position parses digits and nothing else. For a number that is too large it returns the
// second largest int64, so that the number of bytes up to it can be computed.
func position(s string) (int64, bool) {
	if s == "" || strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		n = math.MaxInt64
	}
	return min(n, math.MaxInt64-1), true
}

// ContentRange returns the value of the Content-Range header for n bytes from the offset
// off on, out of size bytes.
func ContentRange(off, n, size int64) string {
	return "bytes " + strconv.FormatInt(off, 10) + "-" + strconv.FormatInt(off+n-1, 10) + "/" + strconv.FormatInt(size, 10)
}

// ParseContentRange parses a Content-Range such as "bytes 0-9/10". total is -1 if the
// header has "*" in its place. If ok is true, 0 <= first <= last, and last < total if
// total is known.
func ParseContentRange(s string) (first, last, total int64, ok bool) {
	s, bytes := strings.CutPrefix(s, "bytes ")
	span, size, slash := strings.Cut(s, "/")
	from, to, dash := strings.Cut(span, "-")
	first, ok1 := Count(from)
	last, ok2 := Count(to)
	total = -1
	known := size != "*"
	if known {
		total, ok = Count(size)
	}
	if !bytes || !slash || !dash || !ok1 || !ok2 || last < first || known && (!ok || last >= total) {
		return 0, 0, 0, false
	}
	return first, last, total, true
}

// Count parses at most 18 digits and nothing else: no sign, no space.
func Count(s string) (int64, bool) {
	if s == "" || len(s) > 18 {
		return 0, false
	}
	var n int64
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		n = n*10 + int64(s[i]-'0')
	}
	return n, true
}

// Quote returns s as a quoted string of a header, without control characters.
func Quote(s string) string {
	b := []byte{'"'}
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			b = append(b, '\\')
		}
		if s[i] >= ' ' && s[i] != 0x7f {
			b = append(b, s[i])
		}
	}
	return string(append(b, '"'))
}
