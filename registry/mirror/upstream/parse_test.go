package upstream

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/internal/reach"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func header(lines ...string) http.Header {
	h := http.Header{}
	for _, l := range lines {
		k, v, _ := strings.Cut(l, ": ")
		h.Add(k, v)
	}
	return h
}

func TestParseLimit(t *testing.T) {
	in := func(d time.Duration) time.Time { return now.Add(d) }
	for name, tt := range map[string]struct {
		h    http.Header
		want Limit
	}{
		"none":         {header(), Limit{Total: -1, Remaining: -1}},
		"Docker Hub":   {header("RateLimit-Limit: 100;w=21600", "RateLimit-Remaining: 76;w=21600"), Limit{Known: true, Total: 100, Remaining: 76, Window: 6 * time.Hour}},
		"draft 3":      {header("RateLimit-Limit: 10, 10;w=1, 50;w=60", "RateLimit-Remaining: 5", "RateLimit-Reset: 30"), Limit{Known: true, Total: 10, Remaining: 5, Reset: in(30 * time.Second)}},
		"draft 7":      {header("RateLimit: limit=100, remaining=50, reset=5"), Limit{Known: true, Total: 100, Remaining: 50, Reset: in(5 * time.Second)}},
		"draft 8":      {header(`RateLimit: "default";r=50;t=30`), Limit{Known: true, Total: -1, Remaining: 50, Reset: in(30 * time.Second)}},
		"GitHub":       {header("X-RateLimit-Limit: 60", "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1767323045"), Limit{Known: true, Total: 60, Remaining: 0, Reset: time.Unix(1767323045, 0)}},
		"both":         {header("X-RateLimit-Limit: 60", "RateLimit-Limit: 61"), Limit{Known: true, Total: 61, Remaining: -1}},
		"malformed":    {header("RateLimit-Limit: many", "RateLimit-Remaining: -1", "RateLimit-Reset: x"), Limit{Total: -1, Remaining: -1}},
		"huge window":  {header("RateLimit-Limit: 1;w=9223372036854775807"), Limit{Known: true, Total: 1, Remaining: -1, Window: 9223372036 * time.Second}},
		"only a reset": {header("RateLimit-Reset: 7"), Limit{Total: -1, Remaining: -1, Reset: in(7 * time.Second)}},
	} {
		tt.want.Seen = now
		got, ok := parseLimit(tt.h, now)
		if diff := cmp.Diff(tt.want, got); diff != "" || ok != tt.want.Known {
			t.Errorf("%s: %t (-want +got):\n%s", name, ok, diff)
		}
	}
}

func TestPause(t *testing.T) {
	for name, tt := range map[string]struct {
		h    http.Header
		want time.Duration
	}{
		"none":      {header(), 0},
		"seconds":   {header("Retry-After: 7"), 7 * time.Second},
		"date":      {header("Retry-After: " + now.Add(time.Minute).Format(http.TimeFormat)), time.Minute},
		"past":      {header("Retry-After: " + now.Add(-time.Minute).Format(http.TimeFormat)), 0},
		"epoch":     {header("X-Retry-After: 1767323055"), 10 * time.Second},
		"old epoch": {header("X-Retry-After: 1067323055"), 0},
		"reset":     {header("RateLimit-Remaining: 0", "RateLimit-Reset: 9"), 9 * time.Second},
		"some left": {header("RateLimit-Remaining: 1", "RateLimit-Reset: 9"), 0},
	} {
		if got := pause(tt.h, now); got != tt.want {
			t.Errorf("%s: got %v, want %v", name, got, tt.want)
		}
	}
}

func FuzzLimits(f *testing.F) {
	f.Add("100;w=21600", "76;w=21600", "30", "7", "limit=1, remaining=2, reset=3")
	f.Add("1767323055", "-1", "", "Fri, 02 Jan 2026 03:04:05 GMT", `"default";r=50;t=30`)
	f.Fuzz(func(t *testing.T, limit, remaining, reset, after, all string) {
		h := http.Header{}
		for k, v := range map[string]string{"Ratelimit-Limit": limit, "X-Ratelimit-Remaining": remaining, "Ratelimit-Reset": reset,
			"Retry-After": after, "X-Retry-After": after, "Ratelimit": all} {
			h.Set(k, v)
		}
		l, ok := parseLimit(h, now)
		if ok != l.Known || l.Total < -1 || l.Remaining < -1 || l.Window < 0 || ok && l.Total < 0 && l.Remaining < 0 {
			t.Errorf("got %+v, %t", l, ok)
		}
		if d := pause(h, now); d < 0 {
			t.Errorf("got a pause of %v", d)
		}
	})
}

func FuzzLocation(f *testing.F) {
	f.Add("https://cdn.example.com/blob?signature=x#y")
	f.Add("//example.com")
	f.Add("../x")
	f.Add("http://[::1%25lo]/")
	f.Fuzz(func(t *testing.T, s string) {
		from, _ := url.Parse("https://registry.example.com/v2/x/blobs/y")
		u, err := location(&http.Response{StatusCode: http.StatusFound, Header: http.Header{"Location": {s}}, Request: &http.Request{URL: from}})
		if (err == nil) != (u != nil) {
			t.Fatalf("%q: got %v and %v", s, u, err)
		}
		if u != nil && (u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.Fragment != "") {
			t.Errorf("%q: got %v", s, u)
		}
		if u != nil {
			_ = (&reach.Guard{}).CheckURL(u) // does not panic
		}
	})
}

func FuzzEndpoint(f *testing.F) {
	f.Add("https://registry.example.com/base/v2/docker.io/")
	f.Add("http://[::1]:5000")
	f.Add("https://registry.example.com//v2")
	f.Fuzz(func(t *testing.T, s string) {
		base, prefix, name, err := parseEndpoint(s)
		if err != nil {
			return
		}
		if base.Host == "" || name == "" || strings.HasSuffix(base.Path, "/") || prefix != "" && !strings.HasSuffix(prefix, "/") {
			t.Errorf("%q: got %v, %q, %q", s, base, prefix, name)
		}
	})
}
