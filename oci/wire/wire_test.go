package wire

import (
	"net/http"
	"testing"
	"time"
)

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for in, want := range map[string]time.Duration{
		"":    0,
		"7":   7 * time.Second,
		"-7":  0,
		"x":   0,
		"1.5": 0,
		now.Add(time.Minute).Format(http.TimeFormat):  time.Minute,
		now.Add(-time.Minute).Format(http.TimeFormat): 0,
	} {
		if got := RetryAfter(in, now); got != want {
			t.Errorf("RetryAfter(%q): got %v, want %v", in, got, want)
		}
	}
}

// TestSeconds checks that a client which waits as long as the header says never comes too early.
func TestSeconds(t *testing.T) {
	for _, d := range []time.Duration{-time.Hour, 0, 1, time.Second - 1, time.Second, time.Second + 1, time.Hour, 1<<31*time.Second - 1} {
		got := RetryAfter(Seconds(d), time.Time{})
		if got < max(d, time.Second) && d < (1<<31-1)*time.Second || got >= max(d, 0)+2*time.Second {
			t.Errorf("Seconds(%v) = %s", d, Seconds(d))
		}
	}
}

// FuzzRange checks that what Range and ContentRange write is what ParseRange and ParseContentRange read.
func FuzzRange(f *testing.F) {
	f.Add(int64(0), int64(-1), int64(9))
	f.Add(int64(5), int64(4), int64(9))
	f.Add(int64(1)<<62, int64(1)<<62, int64(1)<<62)
	f.Fuzz(func(t *testing.T, off, n, size int64) {
		if off < 0 || off >= 1e17 || n >= 1e17 {
			return
		}
		s := Range(off, n)
		first, last, ok := ParseRange(s)
		switch {
		case off == 0 && n <= 0:
			if s != "" {
				t.Errorf("Range(%d, %d) = %q", off, n, s)
			}
		case !ok || first != off || n <= 0 && last != -1 || n > 0 && last != off+n-1:
			t.Errorf("ParseRange(%q) = %d, %d, %t, of %d bytes from %d", s, first, last, ok, n, off)
		}
		if n <= 0 || size < off+n || size >= 1e18 {
			return
		}
		s = ContentRange(off, n, size)
		if first, last, total, ok := ParseContentRange(s); !ok || first != off || last != off+n-1 || total != size {
			t.Errorf("ParseContentRange(%q) = %d, %d, %d, %t", s, first, last, total, ok)
		}
	})
}

func FuzzHeaders(f *testing.F) {
	for _, s := range []string{
		"bytes 0-9/10", "bytes 5-9/*", "bytes 5-4/9", "bytes 0-9/9", "bytes */5", "bytes=0-4", "bytes=-5", "bytes=-", "bytes=2-1,3-4",
		"bytes 0-9223372036854775807/9223372036854775807", "bytes=9223372036854775807-", "Fri, 02 Jan 2026 03:04:05 GMT",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if first, last, total, ok := ParseContentRange(s); ok && (first < 0 || last < first || total != -1 && last >= total) {
			t.Errorf("ParseContentRange(%q): got %d-%d/%d", s, first, last, total)
		}
		if first, last, ok := ParseRange(s); ok && (first < -1 || last < -1 || first < 0 && last < 0) {
			t.Errorf("ParseRange(%q): got %d, %d", s, first, last)
		}
		if d := RetryAfter(s, time.Unix(0, 0)); d < 0 {
			t.Errorf("RetryAfter(%q): got %v", s, d)
		}
	})
}
