package cache_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"example.org/slipway/registry/cache"
)

const limit = 16 * 8 << 10 // 8 KiB for each of the 16 shards

// value returns a value of at least 8 bytes. Each 8 bytes hold its number.
func value(number, size int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(number))
	for i := len(b); i < size; i++ {
		b = append(b, byte(number+i))
	}
	return b
}

// number returns the number in a value.
func number(t interface {
	Helper()
	Fatalf(string, ...any)
}, v []byte) int {
	t.Helper()
	n := int(binary.LittleEndian.Uint64(v))
	if string(v) != string(value(n, len(v))) {
		t.Fatalf("the value of %d is broken: %x", n, v)
	}
	return n
}

// TestModel compares the table with a map. A value that is found is the latest one put and was not
// dropped since. Bytes and entries stay within their bounds. Values that were found once do not
// change, whatever happens to the table.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := cache.NewRAM(limit)
		keys := rapid.Custom(func(t *rapid.T) cache.Key {
			return cache.Key{Kind: uint8(rapid.IntRange(0, 1).Draw(t, "kind")), Repo: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "repo"),
				Ref: fmt.Sprint(rapid.IntRange(0, 40).Draw(t, "ref"))}
		})
		model := map[cache.Key]int{} // what may be found
		epochs := map[cache.Key]uint64{}
		held := map[int][]byte{}
		get := func(t *rapid.T, k cache.Key) (int, bool) {
			v, ok := c.Get(k)
			if !ok {
				return 0, false
			}
			n := number(t, v)
			held[n] = v
			return n, true
		}
		next := 0
		t.Repeat(map[string]func(*rapid.T){
			"epoch": func(t *rapid.T) {
				k := keys.Draw(t, "key")
				epochs[k] = c.Epoch(k)
			},
			"put": func(t *rapid.T) {
				k := keys.Draw(t, "key")
				size := rapid.SampledFrom([]int{8, 9, 200, 500, 1600, 2048, 1 << 20}).Draw(t, "size")
				epoch, stale := epochs[k]
				if !stale {
					epoch = c.Epoch(k)
				}
				delete(epochs, k)
				next++
				before, had := get(t, k)
				v := value(next, size)
				cut := rapid.IntRange(0, 8).Draw(t, "cut")
				c.Put(k, epoch, v[:cut], v[cut:])
				got, ok := get(t, k)
				switch {
				case ok && got == next:
					model[k] = next
					if size > limit/16/4 {
						t.Fatalf("took a value of %d bytes", size)
					}
				case ok != had || got != before:
					t.Fatalf("a put that was refused changed %v to %v", before, got)
				case !stale && size <= 1600:
					t.Fatalf("a value of %d bytes was refused", size)
				}
			},
			"drop": func(t *rapid.T) {
				k := keys.Draw(t, "key")
				epoch := c.Epoch(k)
				c.Drop(k)
				delete(model, k)
				c.Put(k, epoch, value(-1, 8))
				if v, ok := get(t, k); ok {
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
					c.Replace(k, epoch, value(-1, 8))
				}
				next++
				c.Replace(k, epoch, value(next, 100))
				delete(model, k)
				if v, ok := get(t, k); ok != (changed == "no") || (ok && v != next) {
					t.Fatalf("replaced by %d, meanwhile %s: got %v, %v", next, changed, v, ok)
				} else if ok {
					model[k] = next
				}
				c.Put(k, epoch, value(-2, 8))
				if v, ok := get(t, k); ok && v == -2 {
					t.Fatal("found a value that was read before it was replaced")
				}
				delete(epochs, k) // the model does not know which slots are shared
			},
			"": func(t *rapid.T) {
				found := int64(0)
				for k := range model {
					v, ok := get(t, k)
					if ok && v != model[k] {
						t.Fatalf("%v: got %v, want %v", k, v, model[k])
					}
					if ok {
						found++
					} else {
						delete(model, k) // evicted, and must not come back
					}
				}
				if st := c.Stats(); st.Entries != found || st.Bytes > limit || st.Bytes < 100*found {
					t.Fatalf("found %d entries, it says %+v", found, st)
				}
				for n, v := range held {
					if got := number(t, v); got != n {
						t.Fatalf("a value of %d became one of %d", n, got)
					}
				}
			},
		})
	})
}

// TestEpochs has readers that look a value up in slow storage and put it, and writers that change
// the slow storage and then drop or replace the value. An outdated value must never be served.
func TestEpochs(t *testing.T) {
	c := cache.NewRAM(1 << 20)
	const keys, rounds = 4, 3000
	var truth [keys]atomic.Int64 // the slow storage: versions only grow
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
					c.Replace(key(i), epoch, value(int(v), 100))
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
					v = value(int(truth[i].Load()), 100)
					c.Put(key(i), epoch, v)
				}
				if got := int64(binary.LittleEndian.Uint64(v)); got < floor {
					t.Errorf("got version %d after %d was dropped", got, floor+1)
					return
				}
			}
		})
	}
	writers.Wait()
	for i := range keys {
		if v, ok := c.Get(key(i)); ok && number(t, v) != rounds {
			t.Errorf("at the end: version %x", v)
		}
	}
	close(stop)
	readers.Wait()
	if st := c.Stats(); st.Hits == 0 || st.Misses == 0 {
		t.Errorf("the test saw no hit or no miss: %+v", st)
	}
}

// TestScanResistance checks that requested values survive a long scan of values that are requested
// only once. Under LRU they would not.
func TestScanResistance(t *testing.T) {
	c := cache.NewRAM(1 << 20)
	hot := func(i int) cache.Key { return cache.Key{Kind: 1, Ref: fmt.Sprint(i)} }
	const n = 200 // about 20 % of the table
	fill := func(k cache.Key) { c.Put(k, c.Epoch(k), value(0, 800)) }
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

// TestNothing checks that a table without room stores nothing and fails no call.
func TestNothing(t *testing.T) {
	for _, size := range []int64{-1, 0, 100} {
		c := cache.NewRAM(size)
		k := cache.Key{Ref: "x"}
		c.Put(k, c.Epoch(k), []byte{1})
		if _, ok := c.Get(k); ok {
			t.Errorf("a table of %d bytes holds something", size)
		}
		c.Drop(k)
	}
}

// TestKeysDoNotMix checks that neighbouring keys are distinct.
func TestKeysDoNotMix(t *testing.T) {
	c := cache.NewRAM(1 << 20)
	for i, k := range []cache.Key{{0, "ab", "c"}, {0, "a", "bc"}, {0, "", "abc"}, {0, "abc", ""}, {1, "ab", "c"}, {0, "c", "ab"}, {0, "a", "a"}, {1, "a", "a"}, {0, "b", "b"}, {0, "", ""}} {
		if v, ok := c.Get(k); ok {
			t.Errorf("%+v: found %v before it was put", k, v)
		}
		c.Put(k, c.Epoch(k), value(i, 8))
		if v, ok := c.Get(k); !ok || number(t, v) != i {
			t.Errorf("%+v: got %v, %v", k, v, ok)
		}
	}
}

// TestOddities checks that values which cannot be kept are refused, and that an empty value is
// valid.
func TestOddities(t *testing.T) {
	c := cache.NewRAM(64 << 20)
	long := cache.Key{Repo: string(make([]byte, 1<<16)), Ref: "x"}
	c.Put(long, c.Epoch(long), []byte("x"))
	if _, ok := c.Get(long); ok {
		t.Error("took a key whose length it cannot note")
	}
	k := cache.Key{Ref: "nothing"}
	c.Put(k, c.Epoch(k))
	if v, ok := c.Get(k); !ok || len(v) != 0 {
		t.Errorf("got %x, %v", v, ok)
	}
	if v, _ := c.Get(k); cap(v) != 0 {
		t.Error("who appends to a value would write into the table")
	}
}

// TestEmptiedBlocks checks that memory does not grow when one value is replaced again and again
// beside one that stays.
func TestEmptiedBlocks(t *testing.T) {
	c := cache.NewRAM(64 << 20)
	// The keys are in one shard, between the blocks that are emptied.
	stays := make([]cache.Key, 64)
	for i := range stays {
		stays[i] = cache.Key{Kind: 1, Ref: fmt.Sprint(i)}
		c.Put(stays[i], c.Epoch(stays[i]), value(i, 100))
	}
	k := cache.Key{Ref: "changes"}
	for i := range 20_000 {
		c.Replace(k, c.Epoch(k), value(i, 1000))
	}
	if st := c.Stats(); st.Bytes > 17*33<<10 || st.Evictions > 0 {
		t.Errorf("after 20 MB of replacing: %+v", st)
	}
	for i, k := range stays {
		if v, ok := c.Get(k); !ok || number(t, v) != i {
			t.Errorf("%d is lost", i)
		}
	}
}

// TestReaders checks that values stay whole for their readers while writers make the table evict,
// replace and drop them.
func TestReaders(t *testing.T) {
	c := cache.NewRAM(limit)
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 2))
			var held [16][]byte
			for i := range 20_000 {
				n := rng.IntN(300)
				k := cache.Key{Ref: fmt.Sprint(n)}
				switch v, ok := c.Get(k); {
				case ok:
					held[i%len(held)] = v
				case rng.IntN(20) == 0:
					c.Drop(k)
				default:
					c.Put(k, c.Epoch(k), value(n, 8+rng.IntN(1500)))
				}
				if rng.IntN(50) == 0 {
					c.Replace(k, c.Epoch(k), value(n, 200))
				}
				if v := held[rng.IntN(len(held))]; v != nil {
					number(t, v)
				}
			}
		})
	}
	all.Wait()
	if st := c.Stats(); st.Hits == 0 || st.Evictions == 0 || st.Bytes > limit {
		t.Errorf("the test saw no hit or no eviction, or the table is too large: %+v", st)
	}
}

// TestBytes checks that the table takes as much memory as it reports, in few objects.
func TestBytes(t *testing.T) {
	heap := func() (bytes, objects int64) {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc), int64(m.HeapObjects)
	}
	for _, size := range []int{8, 100, 1024, 10_000, 60_000} {
		const most = 8 << 20
		bytes, objects := heap()
		c := cache.NewRAM(most)
		v := value(0, size)
		for i := range 2 * most / (size + 50) {
			k := cache.Key{Repo: "some/repository", Ref: fmt.Sprint(i)}
			c.Put(k, c.Epoch(k), v)
		}
		st := c.Stats()
		bytesNow, objectsNow := heap()
		bytes, objects = bytesNow-bytes, objectsNow-objects
		if st.Bytes < most*9/10 || st.Bytes > most {
			t.Errorf("values of %d bytes: it is not full: %+v", size, st)
		}
		if bytes > st.Bytes*12/10 || bytes < st.Bytes*7/10 {
			t.Errorf("values of %d bytes: it takes %d bytes and says %d", size, bytes, st.Bytes)
		}
		if objects > 20_000 {
			t.Errorf("values of %d bytes: %d objects for %d entries", size, objects, st.Entries)
		}
		runtime.KeepAlive(c)
	}
}

func BenchmarkHit(b *testing.B) {
	c := cache.NewRAM(1 << 20)
	k := cache.Key{Kind: 1, Repo: "library/debian", Ref: "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}
	c.Put(k, c.Epoch(k), []byte{1})
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, ok := c.Get(k); !ok {
				b.Error("missed")
			}
		}
	})
}
