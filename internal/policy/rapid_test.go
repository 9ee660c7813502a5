package policy_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"example.org/slipway/internal/policy"
)

// op is an operation on a cache.
type op struct {
	what int
	key  uint64
	size int64
	wait time.Duration
}

const (
	opRequest = iota
	opRemove
	opPin
	opUnpin
	opWait
	opKinds
)

func drawOps(t *rapid.T) []op {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) op {
		o := op{key: rapid.Uint64Range(0, 25).Draw(t, "key")}
		// Most operations are requests.
		o.what = max(0, rapid.IntRange(-12, opKinds-1).Draw(t, "what"))
		// The size depends only on the content.
		o.size = int64(o.key*o.key*7919%97 + 1)
		o.wait = time.Duration(rapid.IntRange(1, 30).Draw(t, "wait")) * time.Second
		return o
	}), 1, 120).Draw(t, "ops")
}

// follow applies ops to a cache. After each it checks that what the cache reports adds
// up. It returns all events.
func follow(t *rapid.T, name string, limit int64, ops []op) []string {
	now := time.Unix(0, 0)
	pins := map[policy.Key]time.Time{}
	bytes := map[policy.Key]int64{}
	var log []string
	p, err := policy.New(name, 7)
	if err != nil {
		t.Fatal(err)
	}
	c := policy.NewCache(limit, p, &policy.Options{Now: func() time.Time { return now }, OnEvict: func(e policy.Entry) {
		if until, ok := pins[e.Key]; ok && now.Before(until) {
			t.Fatalf("%x is evicted though it is pinned", e.Key)
		}
		if bytes[e.Key] != e.Size {
			t.Fatalf("%x of %d bytes is evicted; it is held with %d", e.Key, e.Size, bytes[e.Key])
		}
		delete(bytes, e.Key)
		delete(pins, e.Key)
		log = append(log, string(e.Key[:1])+" out")
	}})
	for _, o := range ops {
		k := policy.NumberKey(o.key)
		switch o.what {
		case opRequest:
			got := c.Get(k)
			// Look only now: a pin that ends may evict an entry.
			if _, want := bytes[k]; got != want {
				t.Fatalf("request for %d: hit %v, held %v", o.key, got, want)
			}
			if !got && c.Add(k, o.size, 1) {
				bytes[k] = o.size
			}
		case opRemove:
			_, want := bytes[k]
			if got := c.Remove(k); got != want {
				t.Fatalf("removal of %d: %v, want %v", o.key, got, want)
			}
			delete(bytes, k)
			delete(pins, k)
		case opPin:
			if c.Has(k) {
				pins[k] = now.Add(o.wait)
			}
			c.Pin(k, now.Add(o.wait))
		case opUnpin:
			delete(pins, k)
			c.Unpin(k)
		case opWait:
			now = now.Add(o.wait)
		}
		check(t, c, bytes, limit)
		for k, until := range pins {
			if now.Before(until) && !c.Pinned(k) {
				t.Fatalf("%x is not pinned before its time", k)
			}
		}
	}
	st := c.Stats()
	if st.Adds-st.Evictions-st.Removed != int64(c.Len()) {
		t.Fatalf("%d came in, %d and %d went, %d are held", st.Adds, st.Evictions, st.Removed, c.Len())
	}
	return log
}

func check(t *rapid.T, c *policy.Cache, bytes map[policy.Key]int64, limit int64) {
	var sum int64
	for k, n := range bytes {
		sum += n
		if !c.Has(k) {
			t.Fatalf("%x is gone, and nobody was told", k)
		}
	}
	if c.Bytes() != sum || c.Len() != len(bytes) {
		t.Fatalf("%d bytes in %d entries, want %d in %d", c.Bytes(), c.Len(), sum, len(bytes))
	}
	if c.Bytes() > limit {
		t.Fatalf("%d bytes held, limit %d", c.Bytes(), limit)
	}
}

// TestInvariants checks each policy. A cache never holds more than its limit, never
// evicts a pinned entry, reports every eviction, and does the same for the same calls.
func TestInvariants(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	for _, name := range policy.Names() {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				limit := rapid.Int64Range(1, 2000).Draw(t, "limit")
				ops := drawOps(t)
				first := follow(t, name, limit, ops)
				if diff := cmp.Diff(first, follow(t, name, limit, ops)); diff != "" {
					t.Fatalf("two runs differ:\n%s", diff)
				}
			})
		})
	}
}

// naive is a cache that searches all its entries for a victim.
type naive struct {
	entries []naiveEntry
	clock   int
	aged    float64
}

type naiveEntry struct {
	key             uint64
	size            int64
	came, used, req int
	worth           float64
}

func (n *naive) request(name string, limit int64, key uint64, size int64) bool {
	n.clock++
	worth := func(freq int) float64 { return n.aged + float64(freq)/float64(size) }
	if i := slices.IndexFunc(n.entries, func(e naiveEntry) bool { return e.key == key }); i >= 0 {
		e := &n.entries[i]
		e.req++
		e.used, e.worth = n.clock, worth(e.req)
		return true
	}
	if size > limit {
		return false
	}
	in := naiveEntry{key: key, size: size, came: n.clock, used: n.clock, req: 1, worth: worth(1)}
	n.entries = append(n.entries, in)
	for n.bytes() > limit {
		victim := slices.MinFunc(n.entries, func(a, b naiveEntry) int {
			switch {
			case name == "fifo":
				return a.came - b.came
			case name == "lru" || a.worth == b.worth:
				return a.used - b.used
			case a.worth < b.worth:
				return -1
			}
			return 1
		})
		n.aged = victim.worth
		n.entries = slices.DeleteFunc(n.entries, func(e naiveEntry) bool { return e.key == victim.key })
		if victim.key == key {
			break
		}
	}
	return false
}

func (n *naive) bytes() (sum int64) {
	for _, e := range n.entries {
		sum += e.size
	}
	return sum
}

// TestAgainstNaive compares LRU, FIFO and GDSF with a program that is too simple to be
// wrong.
func TestAgainstNaive(t *testing.T) {
	for _, name := range []string{"lru", "fifo", "gdsf"} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				limit := rapid.Int64Range(1, 2000).Draw(t, "limit")
				p, err := policy.New(name, 1)
				if err != nil {
					t.Fatal(err)
				}
				c := policy.NewCache(limit, p, nil)
				var n naive
				for i, o := range drawOps(t) {
					k := policy.NumberKey(o.key)
					got := c.Get(k)
					if !got {
						c.Add(k, o.size, 1)
					}
					if want := n.request(name, limit, o.key, o.size); got != want {
						t.Fatalf("request %d for %d: hit %v, want %v", i, o.key, got, want)
					}
				}
				if c.Len() != len(n.entries) {
					t.Fatalf("%d entries, want %d", c.Len(), len(n.entries))
				}
			})
		})
	}
}

// TestTwoLevelInvariants checks that the reported moves always lead to where the contents
// are, which is one level at most.
func TestTwoLevelInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ram := rapid.Int64Range(0, 300).Draw(t, "ram")
		ssd := rapid.Int64Range(0, 1000).Draw(t, "ssd")
		name := rapid.SampledFrom(policy.Names()).Draw(t, "policy")
		now := time.Unix(0, 0)
		o := policy.TwoLevelOptions{
			Now:       func() time.Time { return now },
			Split:     rapid.Int64Range(0, 97).Draw(t, "split"),
			Admission: policy.Admission(rapid.IntRange(0, 2).Draw(t, "admission")),
			Remember:  rapid.IntRange(0, 10).Draw(t, "remember"),
			WriteRate: rapid.Int64Range(0, 20).Draw(t, "rate"), WriteBurst: 500,
		}
		at := map[policy.Key]policy.Level{}
		var written int64
		o.OnMove = func(m policy.Move) {
			if at[m.Key] != m.From || m.From == m.To {
				t.Fatalf("%x moves from %v to %v, but is in %v", m.Key, m.From, m.To, at[m.Key])
			}
			at[m.Key] = m.To
			if m.To == policy.SSD {
				written += m.Size
			}
		}
		top, err := policy.New(name, 1)
		if err != nil {
			t.Fatal(err)
		}
		c := policy.NewTwoLevel(ram, top, ssd, policy.NewLRU(), &o)
		start := now
		for _, p := range drawOps(t) {
			k := policy.NumberKey(p.key)
			switch p.what {
			case opRemove:
				c.Remove(k)
			case opWait:
				now = now.Add(p.wait)
			default:
				want := at[k]
				if got := c.Get(k); got != want {
					t.Fatalf("%d is found in %v, want %v", p.key, got, want)
				} else if got == policy.Nowhere {
					c.Add(k, p.size, 1)
				}
			}
			for k, level := range at {
				if got := c.Where(k); got != level {
					t.Fatalf("%x is in %v, want %v", k, got, level)
				}
			}
			if c.RAM().Bytes() > ram || c.SSD().Bytes() > ssd {
				t.Fatalf("%d and %d bytes held, limits %d and %d", c.RAM().Bytes(), c.SSD().Bytes(), ram, ssd)
			}
		}
		if st := c.Stats(); st.SSDBytes != written {
			t.Fatalf("%d bytes counted as written, %d were", st.SSDBytes, written)
		}
		if budget := 500 + o.WriteRate*int64(now.Sub(start)/time.Second); o.WriteRate > 0 && written > budget {
			t.Fatalf("%d bytes written, budget %d", written, budget)
		}
	})
}
