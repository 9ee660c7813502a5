package cluster

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestTickets(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	clock := func() time.Time { return now }
	a, b := newTest(t, "a", &Options{Clock: clock}), newTest(t, "b", &Options{Clock: clock})
	const path, ranges = handlerPath + "k", "bytes=1-2"
	sign := func(at time.Time, count uint64) string {
		return a.key.sign("GET", path, ranges, b.self, ticket{at: at.Unix(), sender: a.self, count: count})
	}
	good := sign(now, 1)
	if _, err := b.verify("GET", path, ranges, good); err != nil {
		t.Fatalf("a good ticket: %v", err)
	}
	other, err := New(nobody{}, Config{ID: "x", URL: "http://h", Secret: []byte("another secret of 16 bytes"), Digest: testConfig("x").Digest}, nil)
	if err != nil {
		t.Fatal(err)
	}
	fresh := sign(now, 2)
	for _, c := range []struct{ name, method, path, ranges, ticket string }{
		{"again", "GET", path, ranges, good},
		{"none", "GET", path, ranges, ""},
		{"other method", "HEAD", path, ranges, fresh},
		{"other path", "GET", path + "2", ranges, fresh},
		{"other range", "GET", path, "bytes=1-3", fresh},
		{"without range", "GET", path, "", fresh},
		{"other time", "GET", path, ranges, strings.Replace(fresh, "1700000000", "1700000001", 1)},
		{"other count", "GET", path, ranges, strings.Replace(fresh, " 2 ", " 3 ", 1)},
		{"other sender", "GET", path, ranges, strings.Replace(fresh, a.self, b.self, 1)},
		{"to somebody else", "GET", path, ranges, a.key.sign("GET", path, ranges, a.self, ticket{at: now.Unix(), sender: a.self, count: 9})},
		{"other secret", "GET", path, ranges, other.key.sign("GET", path, ranges, b.self, ticket{at: now.Unix(), sender: a.self, count: 9})},
		{"too old", "GET", path, ranges, sign(now.Add(-5*time.Minute-time.Second), 9)},
		{"too new", "GET", path, ranges, sign(now.Add(5*time.Minute+time.Second), 9)},
		{"another spelling", "GET", path, ranges, strings.Replace(fresh, " 2 ", " 02 ", 1)},
		{"upper case", "GET", path, ranges, strings.ToUpper(fresh)},
	} {
		if _, err := b.verify(c.method, c.path, c.ranges, c.ticket); !errors.Is(err, errTicket) {
			t.Errorf("%s: got %v, want it refused", c.name, err)
		}
	}
	for _, skew := range []time.Duration{-5 * time.Minute, 5 * time.Minute} {
		if _, err := b.verify("GET", path, ranges, sign(now.Add(skew), uint64(100+skew/time.Minute))); err != nil {
			t.Errorf("a clock that differs by %v: %v", skew, err)
		}
	}
	if _, err := b.verify("GET", path, ranges, fresh); err != nil {
		t.Errorf("the ticket the forgeries were made from: %v", err)
	}
}

// TestWindow compares the window with a map of what has arrived.
func TestWindow(t *testing.T) {
	var ws windows
	ws.init(time.Minute)
	now := time.Unix(0, 0)
	came := map[uint64]bool{}
	highest := uint64(0)
	for i, count := range []uint64{5, 4, 5, 6, 1, 1, 4100, 6, 5, 4, 3, 70, 70, 4101, 8196, 4101, 4100, 8197, 1 << 40, 1<<40 - 4095, 1<<40 - 4096, 1<<40 - 4095, 1<<40 + 1, 1 << 40} {
		want := !came[count] && (count > highest || highest-count < windowBits)
		if got := ws.first("s", count, now); got != want {
			t.Errorf("step %d, count %d after %d: got %v, want %v", i, count, highest, got, want)
		}
		came[count] = true
		highest = max(highest, count)
	}
	if !ws.first("other", 5, now) {
		t.Error("another sender's count is taken for known")
	}
	ws.first("third", 1, now.Add(time.Hour))
	if len(ws.senders) != 1 {
		t.Errorf("%d senders are remembered after an hour, want 1", len(ws.senders))
	}
}

func FuzzTicket(f *testing.F) {
	k := newMACKey([]byte("0123456789abcdef"))
	f.Add(k.sign("GET", "/p", "", "target", ticket{at: 1, sender: "s", count: 2}))
	f.Add("v1 1 s 2 ")
	f.Add("v1 -1 s 18446744073709551616 00")
	f.Fuzz(func(t *testing.T, s string) {
		tk, err := parseTicket(s)
		if err != nil {
			return
		}
		if again, err := parseTicket(s); err != nil || again.text() != tk.text() {
			t.Errorf("%q is read as %+v and then as %+v, %v", s, tk, again, err)
		}
		if !strings.HasPrefix(s, tk.text()+" ") {
			t.Errorf("%q is read as %q", s, tk.text())
		}
	})
}

func FuzzRange(f *testing.F) {
	for _, s := range []string{"", "bytes=0-", "bytes=1-2", "bytes=-5", "bytes=9223372036854775807-", "bytes=0-9223372036854775807", "bytes=2-1,3-4"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		off, n, ranged, err := parseRange(s)
		if err == nil && (off < 0 || n == 0 || n < -1 || ranged != (s != "")) {
			t.Errorf("%q: off %d, n %d, ranged %v", s, off, n, ranged)
		}
	})
}

func FuzzMember(f *testing.F) {
	f.Add("member/a", "inc http://h:1")
	f.Add("member/", " ")
	f.Fuzz(func(t *testing.T, name, owner string) {
		p, err := parseMember(name, owner)
		if err == nil && (!validID(p.id) || !validID(p.incarnation) || !strings.HasPrefix(p.url, "http")) {
			t.Errorf("%q of %q: %+v", name, owner, p)
		}
	})
}
