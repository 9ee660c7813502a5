package tier_test

import (
	"fmt"
	"math"
	"testing"

	"example.org/slipway/internal/policy"
	"example.org/slipway/registry/cache/tier"
)

// requests returns keys of made objects. Few of them are requested often, and most are small.
func requests(seed uint64, n int) []string {
	r := rnd(seed)
	keys := make([]string, n)
	for i := range keys {
		object := uint64(math.Pow(r.Float64(), 3) * float64(n) / 4)
		o := rnd(object)
		size := int64(math.Exp(o.NormFloat64()*1.5+7)) + 1
		keys[i] = madeKey(size, object)
	}
	return keys
}

// TestHitsAreThePolicys checks for every policy that the same requests hit as in a simulation.
func TestHitsAreThePolicys(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	keys := requests(1, 1600)
	for _, name := range policy.Names() {
		for _, admission := range []policy.Admission{policy.AdmitAll, policy.SecondTouch} {
			if admission != policy.AdmitAll && name != "gdsf" && name != "lru" {
				continue // the policies have no part in it
			}
			t.Run(fmt.Sprintf("%s, %s", name, admission), func(t *testing.T) {
				const split = 10_000
				o := tier.Options{RAMBytes: 200_000, SSDBytes: 500_000, LargeObject: split, RAMPolicy: name,
					Admission: admission, Seed: 7, Dir: t.TempDir()}
				s := open(t, newMade(), &o)
				st := s.Status()
				ram, err := policy.New(name, 7)
				if err != nil {
					t.Fatal(err)
				}
				two := policy.NewTwoLevel(st.RAM.Capacity, ram, st.SSD.Capacity, policy.NewLRU(),
					&policy.TwoLevelOptions{Split: split, Admission: admission})
				for i, key := range keys {
					k := tier.KeyOf(key)
					if got, want := s.Holds(key), two.Where(k); got != want {
						t.Fatalf("before request %d: %s is in %s, in a simulation in %s", i, key, got, want)
					}
					if size, _, _ := parseMade(key); two.Get(k) == policy.Nowhere {
						two.Add(k, size, 1)
					}
					mustGet(t, s, key)
					idle(t, s)
				}
				want := two.Stats()
				st = s.Status()
				if st.RAM.Hits != want.RAMHits || st.SSD.Hits != want.SSDHits || st.SSD.Misses != want.Misses ||
					st.RAM.HitBytes != want.RAMHitBytes || st.SSDWritten > want.SSDBytes {
					t.Errorf("got %+v, want %+v", st, want)
				}
				if want.RAMHits == 0 || want.SSDHits == 0 || want.SSDWrites == 0 || want.SSDEvictions == 0 {
					t.Errorf("the requests do not try all there is: %+v", want)
				}
				if st.Dropped != 0 || st.Damaged != 0 {
					t.Errorf("something was lost: %+v", st)
				}
				limits(t, s)
			})
		}
	}
}
