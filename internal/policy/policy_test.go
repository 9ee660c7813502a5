package policy_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/internal/policy"
)

// key returns the key of a content with a name.
func key(name string) policy.Key { return policy.KeyOf([]byte(name)) }

// play requests contents from a cache and adds those that it misses. They are given as
// names with sizes ("a b5 a"; 1 by default). It returns a letter for each request: h for
// a hit, m for a miss.
func play(t *testing.T, c *policy.Cache, requests string) string {
	t.Helper()
	var out strings.Builder
	for r := range strings.FieldsSeq(requests) {
		size := int64(1)
		if n := strings.TrimLeft(r, "abcdefghijklmnopqrstuvwxyz"); n != "" {
			v, err := strconv.ParseInt(n, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			size, r = v, r[:len(r)-len(n)]
		}
		if c.Get(key(r)) {
			out.WriteByte('h')
			continue
		}
		out.WriteByte('m')
		c.Add(key(r), size, 1)
	}
	return out.String()
}

// held returns those of the names a to z that a cache holds.
func held(has func(policy.Key) bool) string {
	var out strings.Builder
	for r := 'a'; r <= 'z'; r++ {
		if has(key(string(r))) {
			out.WriteRune(r)
		}
	}
	return out.String()
}

func newPolicy(t testing.TB, name string) policy.Policy {
	t.Helper()
	p, err := policy.New(name, 1)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestByHand compares with outcomes that were worked out by hand.
func TestByHand(t *testing.T) {
	for _, c := range []struct {
		name, policy   string
		limit          int64
		requests, want string
		held           string
	}{
		{"what was asked for stays", "lru", 3, "a b c a d a b", "mmmhmhm", "abd"},
		{"as many go as are needed", "lru", 10, "a4 b4 c2 a4 d6", "mmmhm", "ad"},
		{"what is larger than the cache passes by", "lru", 3, "a b c4 a b", "mmmhh", "ab"},
		{"the first goes though it was asked for", "fifo", 3, "a b c a d a b", "mmmhmmm", "abd"},
		// The hand spares a, takes b, then c, then d. It stands at e when f is added.
		{"the hand goes on from where it stood", "sieve", 3, "a b c a d e a f", "mmmhmmhm", "aef"},
		// a is worth 1/2, b 1/5 and c 1/4, so b goes and L is 1/5. b comes back at 2/5,
		// so c goes and L is 1/4. d is worth 1/4+1/10 < 2/5, so it is not kept and L is
		// 7/20. Then a is worth 7/20+2/2 and e 7/20+1/5, so b goes.
		{"worth is L plus frequency by size", "gdsf", 10, "a2 b5 c4 b5 d10 a2 e5", "mmmmmhm", "ae"},
		// a counts 2 until it goes, and 1 when it is back, so it then goes before b.
		{"frequency restarts at 1", "gdsf", 2, "a a b b b c b c a c", "mhmhhmhmmm", "bc"},
		// b (1) goes for c, and L is 1. c and a both have 2, and a is older.
		{"equal worth goes by age", "lfuda", 2, "a a b c d", "mhmmm", "cd"},
		// A hit moves a from the lowest segment up by one, which pushes c down.
		{"segments push down", "slru", 8, "a b c d e f g h a i j", "mmmmmmmmhmm", "adefghij"},
		// a and b come back while they are remembered, and go to the main queue.
		{"what comes back is kept", "2q", 4, "a b c d e a c f b", "mmmmmmhmm", "abef"},
		// a is requested twice. b comes back as a ghost and moves the target to 1, so
		// that for e the list of frequent contents evicts its oldest, a.
		{"a ghost moves the target", "arc", 3, "a b c a d b e", "mmmhmmm", "bde"},
		{"a worth per byte", "lhd", 11, "a b10 c", "mmm", "ac"},
		{"requests for time", "hyperbolic", 2, "a a a b c", "mhhmm", "ac"},
	} {
		t.Run(c.policy+"/"+c.name, func(t *testing.T) {
			cache := policy.NewCache(c.limit, newPolicy(t, c.policy), nil)
			if got := play(t, cache, c.requests); got != c.want {
				t.Errorf("%s: got %s, want %s", c.requests, got, c.want)
			}
			if got := held(cache.Has); got != c.held {
				t.Errorf("%s: held %s, want %s", c.requests, got, c.held)
			}
		})
	}
}

func TestS3FIFO(t *testing.T) {
	// There is room for 2 newcomers and 18 others. The first two are in the small queue.
	// The others went to the main queue, which had room.
	c := policy.NewCache(20, policy.NewS3FIFO(), nil)
	name := func(i int) string { return string(rune('a' + i)) }
	for i := range 20 {
		play(t, c, name(i))
	}
	play(t, c, "u") // a goes and is remembered
	play(t, c, "a") // a goes to the main queue, and b goes
	play(t, c, "v") // the main queue has 19, so its oldest, c, goes
	if got, want := held(c.Has), "adefghijklmnopqrstuv"; got != want {
		t.Errorf("held %s, want %s", got, want)
	}
	play(t, c, "u u") // after two more requests u moves to the main queue instead of going
	play(t, c, "w")   // v goes
	if got, want := held(c.Has), "adefghijklmnopqrstuw"; got != want {
		t.Errorf("held %s, want %s", got, want)
	}
}

func TestTinyLFU(t *testing.T) {
	c := policy.NewCache(20, policy.NewTinyLFU(&policy.TinyLFUOptions{Window: 0.5, Counters: 1 << 12}), nil)
	play(t, c, "a2 b2 c2 d2 e2 f2 g2 h2 i2 j2")
	// The oldest contents of the window, a to e, fill the main part. f is as frequent as
	// a, so f goes.
	play(t, c, "k2")
	if got, want := held(c.Has), "abcdeghijk"; got != want {
		t.Fatalf("held %s, want %s", got, want)
	}
	// f has been requested twice when its turn comes, so a goes for it.
	play(t, c, "f2 l2 m2 n2 o2 p2")
	if got, want := held(c.Has), "bcdeflmnop"; got != want {
		t.Errorf("held %s, want %s", got, want)
	}
}

// TestARCStep checks that ARC's target moves by the size of a content, or by the given
// unit.
func TestARCStep(t *testing.T) {
	// This is the sequence by hand above with ten times the sizes. A unit of 1 leaves the
	// target at 1, so the list of contents requested once evicts: d goes instead of a.
	requests := "a10 b10 c10 a10 d10 b10 e10"
	for name, want := range map[string]string{"arc": "bde", "arc-unit": "abe"} {
		c := policy.NewCache(30, newPolicy(t, name), nil)
		play(t, c, requests)
		if got := held(c.Has); got != want {
			t.Errorf("%s: held %s, want %s", name, got, want)
		}
	}
}

// TestLHDLearns checks that LHD learns from hits and evictions. After its first lesson it
// keeps the contents that are requested in a loop and evicts those that come once.
func TestLHDLearns(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	hits := func(every int) (n int) {
		c := policy.NewCache(100, policy.NewLHD(&policy.LHDOptions{Seed: 1, Reconfigure: every}), nil)
		for i := range 60_000 {
			k := policy.NumberKey(uint64(i%2*1000 + i/2%80))
			if i%2 == 1 {
				k = policy.NumberKey(uint64(1_000_000 + i)) // requested once
			}
			if c.Get(k) {
				n++
			} else {
				c.Add(k, 1, 1)
			}
		}
		return n
	}
	if learnt, guess := hits(2000), hits(1<<20); learnt < 20_000 {
		t.Errorf("%d hits of 30000 with lessons, %d without; want at least 20000 with", learnt, guess)
	}
}

func TestPins(t *testing.T) {
	for _, name := range policy.Names() {
		t.Run(name, func(t *testing.T) {
			now := time.Unix(1000, 0)
			c := policy.NewCache(100, newPolicy(t, name), &policy.Options{Now: func() time.Time { return now }})
			c.Add(key("a"), 1, 1)
			if !c.Has(key("a")) {
				t.Skipf("%s does not take a content of a hundredth of its room", name)
			}
			if !c.Pin(key("a"), now.Add(time.Minute)) || c.Pin(key("b"), now) {
				t.Fatal("Pin does not tell whether the key is held")
			}
			fill := func(from int) {
				for i := range 500 {
					k := policy.NumberKey(uint64(from + i))
					if !c.Get(k) {
						c.Add(k, 1, 1)
					}
				}
			}
			fill(1000)
			if !c.Pinned(key("a")) || c.PinnedBytes() != 1 {
				t.Errorf("a is gone or not pinned before its time; %d bytes are pinned", c.PinnedBytes())
			}
			now = now.Add(time.Minute)
			if c.Pinned(key("a")) || c.PinnedBytes() != 0 {
				t.Error("a is pinned after its time")
			}
			fill(10_000)
			if c.Bytes() > 100 {
				t.Errorf("%d bytes held, limit 100", c.Bytes())
			}
		})
	}
}

// TestPinnedFull checks that a cache full of pinned contents neither adds nor evicts
// anything.
func TestPinnedFull(t *testing.T) {
	var evicted []policy.Entry
	c := policy.NewCache(10, policy.NewLRU(), &policy.Options{OnEvict: func(e policy.Entry) { evicted = append(evicted, e) }})
	c.Add(key("a"), 6, 1)
	c.Add(key("b"), 4, 1)
	c.Pin(key("a"), time.Time{})
	if c.Add(key("c"), 5, 1) {
		t.Error("5 bytes fit beside 6 that are pinned, of 10")
	}
	if !c.Add(key("d"), 4, 1) || c.Has(key("b")) {
		t.Error("4 bytes do not take the place of what is not pinned")
	}
	if !c.Unpin(key("a")) || c.Unpin(key("a")) {
		t.Error("Unpin does not tell whether there was a pin")
	}
	if !c.Add(key("e"), 10, 1) || c.Len() != 1 {
		t.Errorf("10 bytes do not take the place of all; %d entries", c.Len())
	}
	var got []string
	for _, e := range evicted {
		got = append(got, fmt.Sprint(strings.TrimRight(string(e.Key[:]), "\x00"), e.Size))
	}
	if diff := cmp.Diff([]string{"b4", "d4", "a6"}, got); diff != "" {
		t.Errorf("evictions (-want +got):\n%s", diff)
	}
}

func TestNames(t *testing.T) {
	if !slices.IsSorted(policy.Names()) {
		t.Errorf("names are not in order: %v", policy.Names())
	}
	if _, err := policy.New("mru", 0); err == nil || !strings.Contains(err.Error(), "s3-fifo") {
		t.Errorf("an unknown policy: error %v, want one with the names there are", err)
	}
}

func BenchmarkPolicies(b *testing.B) {
	// The requests are Zipf-like over 100,000 contents of about 1 kB to 1 MB. The cache
	// holds about a tenth of them.
	keys := make([]policy.Key, 1<<18)
	sizes := make([]int64, len(keys))
	x := uint64(1)
	for i := range keys {
		x = x*6364136223846793005 + 1442695040888963407
		u := float64(x>>11) / (1 << 53)
		n := uint64(100_000 * u * u * u)
		keys[i] = policy.NumberKey(n)
		sizes[i] = int64(1000 + n*7919%1_000_000)
	}
	for _, name := range policy.Names() {
		b.Run(name, func(b *testing.B) {
			c := policy.NewCache(5_000_000_000, newPolicy(b, name), nil)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if !c.Get(keys[i]) {
					c.Add(keys[i], sizes[i], 1)
				}
				i = (i + 1) % len(keys)
			}
		})
	}
}
