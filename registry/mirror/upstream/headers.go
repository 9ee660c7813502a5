package upstream

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"example.org/slipway/oci/wire"
)

// Limit is what an upstream said about its rate limit. Docker Hub counts manifests that
// are fetched by GET, not by HEAD.
type Limit struct {
	// Known reports whether the upstream said anything.
	Known bool `json:"known"`
	// Total and Remaining count requests. They are -1 if the upstream did not say.
	Total     int64 `json:"total"`
	Remaining int64 `json:"remaining"`
	// Window is the time that Total is for, or 0 if the upstream did not say.
	Window time.Duration `json:"window_nanoseconds,omitempty"`
	// Reset is when more requests are allowed, or zero if the upstream did not say.
	Reset time.Time `json:"reset,omitzero"`
	// Seen is when the upstream said so.
	Seen time.Time `json:"seen,omitzero"`
}

// String describes what the upstream said, such as "76 of 100 pulls left". It is "" if it
// said nothing.
func (l Limit) String() string {
	switch {
	case !l.Known:
		return ""
	case l.Remaining >= 0 && l.Total >= 0:
		return fmt.Sprintf("%d of %d pulls left", l.Remaining, l.Total)
	case l.Remaining >= 0:
		return fmt.Sprintf("%d pulls left", l.Remaining)
	case l.Total >= 0:
		return fmt.Sprintf("at most %d pulls", l.Total)
	}
	return ""
}

// epoch separates numbers of seconds from times: a larger number is a time in seconds
// since 1970. It lies in 2001.
const epoch = 1_000_000_000

// parseLimit reads the headers about rate limits: Docker Hub's "RateLimit-Limit:
// 100;w=21600" and "RateLimit-Remaining: 76;w=21600", the headers of the IETF's drafts,
// with RateLimit-Reset or all in one header, and headers that begin with X.
func parseLimit(h http.Header, now time.Time) (Limit, bool) {
	l := Limit{Total: -1, Remaining: -1, Seen: now}
	for _, prefix := range [...]string{"X-Ratelimit-", "Ratelimit-"} {
		if n, w, ok := parseQuota(h.Get(prefix + "Limit")); ok {
			l.Total, l.Window, l.Known = n, w, true
		}
		if n, w, ok := parseQuota(h.Get(prefix + "Remaining")); ok {
			l.Remaining, l.Known = n, true
			if w > 0 {
				l.Window = w
			}
		}
		if n, _, ok := parseQuota(h.Get(prefix + "Reset")); ok {
			l.Reset = moment(n, now)
		}
	}
	for field := range strings.FieldsFuncSeq(h.Get("Ratelimit"), func(r rune) bool { return r == ',' || r == ';' }) {
		k, v, _ := strings.Cut(strings.TrimSpace(field), "=")
		n, _, ok := parseQuota(v)
		if !ok {
			continue
		}
		switch k {
		case "limit", "q":
			l.Total, l.Known = n, true
		case "remaining", "r":
			l.Remaining, l.Known = n, true
		case "reset", "t":
			l.Reset = moment(n, now)
		case "w":
			l.Window = seconds(n)
		}
	}
	return l, l.Known
}

// parseQuota reads "100;w=21600", or the first of several such values.
func parseQuota(s string) (n int64, window time.Duration, ok bool) {
	s, _, _ = strings.Cut(s, ",")
	number, params, _ := strings.Cut(s, ";")
	u, err := strconv.ParseUint(strings.TrimSpace(number), 10, 63)
	if err != nil {
		return 0, 0, false
	}
	for p := range strings.SplitSeq(params, ";") {
		if k, v, _ := strings.Cut(strings.TrimSpace(p), "="); k == "w" {
			if w, err := strconv.ParseUint(v, 10, 63); err == nil {
				window = seconds(int64(w))
			}
		}
	}
	return int64(u), window, true
}

// seconds returns n seconds, or the longest Duration if that is less.
func seconds(n int64) time.Duration {
	return time.Duration(min(n, int64(1<<63-1)/int64(time.Second))) * time.Second
}

// moment returns the time that a number in a header stands for: seconds from now, or
// since 1970.
func moment(n int64, now time.Time) time.Time {
	if n >= epoch {
		return time.Unix(n, 0)
	}
	return now.Add(seconds(n))
}

// pause returns how long an answer asks to wait, or 0 if it does not say. It is never
// negative.
func pause(h http.Header, now time.Time) time.Duration {
	for _, name := range [...]string{"Retry-After", "X-Retry-After"} {
		d := wire.RetryAfter(h.Get(name), now)
		if d >= epoch*time.Second { // Docker Hub's X-Retry-After is a time
			d = time.Unix(int64(d/time.Second), 0).Sub(now)
		}
		if d > 0 {
			return d
		}
	}
	if l, ok := parseLimit(h, now); ok && l.Remaining == 0 && l.Reset.After(now) {
		return l.Reset.Sub(now)
	}
	return 0
}
