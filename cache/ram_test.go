package cache_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"example.org/slipway/cache"
)

const limit = 16 * 8 << 10 // 8 KiB for each of the 16 shards

// TestModel compares the table with a map: a value that is found is the one put
// last and not dropped since, and bytes and entries stay in bounds.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := cache.NewRAM(limit)
		keys := rapid.Custom(func(t *rapid.T) cache.Key {
			return cache.Key{Kind: uint8(rapid.IntRange(0, 1).Draw(t, "kind")), Repo: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "repo"),
				Ref: fmt.Sprint(rapid.IntRange(0, 40).Draw(t, "ref"))}
		})
		model := map[cache.Key]int{} // what may be found
		epochs := map[cache.Key]uint64{}
		next := 0
		t.Repeat(map[string]func(*rapid.T){
			"epoch": func(t *rapid.T) {
				k := keys.Draw(t, "key")
				epochs[k] = c.Epoch(k)
			},
			"put": func(t *rapid.T) {
				k := keys.Draw(t, "key")
				size := rapid.SampledFrom([]int64{0, 1, 500, 1700, 2048, 1 << 20}).Draw(t, "size")
				epoch, stale := epochs[k]
				if !stale {
					epoch = c.Epoch(k)
				}
				delete(epochs, k)
				next++
				before, had := c.Get(k)
				c.Put(k, next, size, epoch)
				got, ok := c.Get(k)
				switch {
				case ok && got == next:
					model[k] = next
					if size > limit/16/4 {
						t.Fatalf("took a value of %d bytes", size)
					}
				case ok != had || got != before:
					t.Fatalf("a put that was refused changed %v to %v", before, got)
				case !stale && size <= 1700:
					t.Fatalf("a value of %d bytes was refused", size)
				}
			},
			"drop": func(t *rapid.T) {
				k := keys.Draw(t, "key")
				epoch := c.Epoch(k)
				c.Drop(k)
				delete(model, k)
				c.Put(k, -1, 0, epoch)
				if v, ok := c.Get(k); ok {
					t.Fatalf("found %v, which was read before the drop", v)
				}
			},
			"replace": func(t *rapid.T) {
				k := keys.Draw(t, "key")
				epoch := c.Epoch(k)
				changed := rapid.SampledFrom([]string{"no", "dropped", "replaced"}).Draw(t, "meanwhile")
				switch changed {
				case "dropped":
					c.Drop(k)
				case "replaced":
					c.Replace(k, -1, 0, epoch)
				}
				next++
				c.Replace(k, next, 100, epoch)
				delete(model, k)
				if v, ok := c.Get(k); ok != (changed == "no") || (ok && v != next) {
					t.Fatalf("replaced by %d, meanwhile %s: got %v, %v", next, changed, v, ok)
				} else if ok {
					model[k] = next
				}
				c.Put(k, -2, 0, epoch)
				if v, ok := c.Get(k); ok && v == -2 {
					t.Fatal("found a value that was read before it was replaced")
				}
				delete(epochs, k) // the model does not know which slots are shared
			},
			"": func(t *rapid.T) {
				found := int64(0)
				for k := range model {
					v, ok := c.Get(k)
					if ok && v != model[k] {
						t.Fatalf("%v: got %v, want %v", k, v, model[k])
					}
					if ok {
						found++
					} else {
						delete(model, k) // evicted, and must not come back
					}
				}
				if st := c.Stats(); st.Entries != found || st.Bytes > limit || st.Bytes < 0 || (found == 0) != (st.Bytes == 0) {
					t.Fatalf("found %d entries, it says %+v", found, st)
				}
			},
		})
	})
}

// TestEpochs: readers look a value up in a slow place and put it, writers change
// the slow place and then drop or replace. What was changed is never served again.
func TestEpochs(t *testing.T) {
	c := cache.NewRAM(1 << 20)
	const keys, rounds = 4, 3000
	var truth [keys]atomic.Int64 // the slow place: versions only grow
	var dropped [keys]atomic.Int64
	key := func(i int) cache.Key { return cache.Key{Repo: "r", Ref: fmt.Sprint(i)} }
	var writers, readers sync.WaitGroup
	stop := make(chan struct{})
	for i := range keys {
		writers.Go(func() {
			for v := int64(1); v <= rounds; v++ {
				epoch := c.Epoch(key(i))
				truth[i].Store(v)
				if i%2 == 0 {
					c.Drop(key(i))
				} else {
					c.Replace(key(i), v, 100, epoch)
				}
				dropped[i].Store(v) // from here on nothing older may be served
			}
		})
	}
	for r := range 4 {
		readers.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(r), 1))
			for {
				select {
				case <-stop:
					return
				default:
				}
				i := rng.IntN(keys)
				floor := dropped[i].Load()
				v, ok := c.Get(key(i))
				if !ok {
					epoch := c.Epoch(key(i))
					v = truth[i].Load()
					c.Put(key(i), v, 100, epoch)
				}
				if got := v.(int64); got < floor {
					t.Errorf("got version %d after %d was dropped", got, floor+1)
					return
				}
			}
		})
	}
	writers.Wait()
	for i := range keys {
		if v, ok := c.Get(key(i)); ok && v.(int64) != rounds {
			t.Errorf("at the end: version %v", v)
		}
	}
	close(stop)
	readers.Wait()
	if st := c.Stats(); st.Hits == 0 || st.Misses == 0 {
		t.Errorf("the test saw no hit or no miss: %+v", st)
	}
}

// TestScanResistance: values that are asked for survive a long scan of values
// that are not (SIEVE), which under LRU they would not.
func TestScanResistance(t *testing.T) {
	c := cache.NewRAM(1 << 20)
	hot := func(i int) cache.Key { return cache.Key{Kind: 1, Ref: fmt.Sprint(i)} }
	const n = 200 // about 20 % of the table
	fill := func(k cache.Key) { c.Put(k, k.Ref, 800, c.Epoch(k)) }
	for i := range n {
		fill(hot(i))
	}
	scanned := 0
	for range 20 {
		for i := range n {
			c.Get(hot(i))
		}
		for range 500 { // half the table
			fill(cache.Key{Kind: 2, Ref: fmt.Sprint(scanned)})
			scanned++
		}
	}
	kept := 0
	for i := range n {
		if _, ok := c.Get(hot(i)); ok {
			kept++
		}
	}
	if kept < n*9/10 {
		t.Errorf("of %d hot values %d survived a scan of %d", n, kept, scanned)
	}
	if st := c.Stats(); st.Evictions == 0 || st.Bytes > 1<<20 {
		t.Errorf("got %+v", st)
	}
}

// TestNothing: a table without room takes nothing and fails nobody.
func TestNothing(t *testing.T) {
	for _, size := range []int64{-1, 0, 100} {
		c := cache.NewRAM(size)
		k := cache.Key{Ref: "x"}
		c.Put(k, 1, 0, c.Epoch(k))
		if _, ok := c.Get(k); ok {
			t.Errorf("a table of %d bytes holds something", size)
		}
		c.Drop(k)
	}
}

// TestKeysDoNotMix: neighbouring keys are different ones.
func TestKeysDoNotMix(t *testing.T) {
	c := cache.NewRAM(1 << 20)
	for i, k := range []cache.Key{{0, "ab", "c"}, {0, "a", "bc"}, {0, "", "abc"}, {0, "abc", ""}, {1, "ab", "c"}, {0, "c", "ab"}, {0, "a", "a"}, {1, "a", "a"}, {0, "b", "b"}, {0, "", ""}} {
		if v, ok := c.Get(k); ok {
			t.Errorf("%+v: found %v before it was put", k, v)
		}
		c.Put(k, i, 1, c.Epoch(k))
		if v, ok := c.Get(k); !ok || v != i {
			t.Errorf("%+v: got %v, %v", k, v, ok)
		}
	}
}

func BenchmarkHit(b *testing.B) {
	c := cache.NewRAM(1 << 20)
	k := cache.Key{Kind: 1, Repo: "library/debian", Ref: "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}
	c.Put(k, 1, 1, c.Epoch(k))
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, ok := c.Get(k); !ok {
				b.Error("missed")
			}
		}
	})
}
