package upstream

import (
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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
			_ = (&guard{}).literal(u) // does not panic
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

func TestClasses(t *testing.T) {
	for in, want := range map[string]class{
		"8.8.8.8": public, "2001:4860:4860::8888": public, "64:ff9b::808:808": public, "2002:808:808::1": public, "::ffff:8.8.8.8": public,
		"127.0.0.1": loopback, "127.255.0.1": loopback, "::1": loopback, "::ffff:127.0.0.1": loopback, "64:ff9b::7f00:1": loopback, "2002:7f00:1::": loopback,
		"10.0.0.1": private, "172.16.0.1": private, "172.31.255.255": private, "172.32.0.1": public, "192.168.1.1": private, "fd12::1": private,
		"100.64.0.1": private, "100.100.100.200": private, "100.128.0.1": public, "198.18.0.1": private, "fec0::1": private, "64:ff9b:1::1": private,
		"169.254.169.254": special, "fe80::1": special, "fe80::1%lo": special, "::ffff:169.254.169.254": special, "64:ff9b::a9fe:a9fe": special,
		"0.0.0.0": special, "0.1.2.3": special, "::": special, "::7f00:1": special, "224.0.0.1": special, "ff02::1": special,
		"255.255.255.255": special, "240.0.0.1": special, "168.63.129.16": special, "fd00:ec2::254": special, "192.0.0.192": special, "2001::1": special,
	} {
		if got := classOf(netip.MustParseAddr(in)); got != want {
			t.Errorf("%s: got %v, want %v", in, got, want)
		}
	}
	if got := classOf(netip.Addr{}); got != special {
		t.Errorf("no address: got %v", got)
	}
}

func TestGuard(t *testing.T) {
	var like atomic.Uint32
	like.Store(uint32(private | special))
	for name, tt := range map[string]struct {
		g     guard
		yes   []string
		never []string
	}{
		"strict":     {guard{}, []string{"8.8.8.8:443"}, []string{"127.0.0.1:80", "[::1]:80", "[fe80::1%lo]:80", "10.0.0.1:1", "x", ""}},
		"configured": {guard{allow: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fe80::/10")}}, []string{"10.1.2.3:9", "[::ffff:10.1.2.3]:9", "[fe80::1%lo]:80"}, []string{"10.2.0.0:1"}},
		"like":       {guard{like: &like}, []string{"192.168.0.1:80", "8.8.8.8:80"}, []string{"127.0.0.1:80", "169.254.169.254:80"}},
	} {
		for _, a := range tt.yes {
			if err := tt.g.control(t.Context(), "tcp", a, nil); err != nil {
				t.Errorf("%s: %s: %v", name, a, err)
			}
		}
		for _, a := range tt.never {
			if err := tt.g.control(t.Context(), "tcp", a, nil); err == nil {
				t.Errorf("%s: %s is allowed", name, a)
			}
		}
	}
}
