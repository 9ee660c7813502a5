package policy_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"example.org/slipway/internal/policy"
)

func layer(name string, size int64) policy.Layer { return policy.Layer{Key: key(name), Size: size} }

func clock() func(minutes float64) time.Time {
	start := time.Unix(1_500_000_000, 0)
	return func(minutes float64) time.Time { return start.Add(time.Duration(minutes * float64(time.Minute))) }
}

const (
	repo1, repo2   = 1, 2
	alice, bob, ev = 11, 12, 13
)

func TestAlgorithm1(t *testing.T) {
	at := clock()
	a := policy.NewAlgorithm1(&policy.Algorithm1Options{LM: time.Hour, ML: 10 * time.Minute})
	x, y := layer("x", 100), layer("y", 30)
	a.PutLayer(at(0), repo1, alice, x)
	a.PutLayer(at(1), repo1, alice, y)

	if got := a.GetManifest(at(2), repo1, alice); got != nil {
		t.Errorf("who pushed is given %v", got)
	}
	if got := a.GetManifest(at(2), repo2, bob); got != nil {
		t.Errorf("another repository is given %v", got)
	}
	if diff := cmp.Diff([]policy.Layer{x, y}, a.GetManifest(at(3), repo1, bob)); diff != "" {
		t.Errorf("prefetched for bob (-want +got):\n%s", diff)
	}
	if got := a.GetManifest(at(4), repo1, bob); got != nil {
		t.Errorf("bob is given %v again", got)
	}
	// The layers are already prefetched, so only their time starts again.
	if got := a.GetManifest(at(9), repo1, ev); got != nil {
		t.Errorf("fetched twice: %v", got)
	}
	//lint:ignore SA4000 each look-up counts
	if !a.GetLayer(at(18.9), x.Key) || !a.GetLayer(at(18.9), x.Key) {
		t.Error("x is gone before 10 minutes after the last manifest")
	}
	if a.GetLayer(at(19), x.Key) {
		t.Error("x is kept for more than 10 minutes after the last manifest")
	}
	// After an hour x is too old for any client; y is a minute later.
	if diff := cmp.Diff([]policy.Layer{y}, a.GetManifest(at(60), repo1, 14)); diff != "" {
		t.Errorf("after the first has aged (-want +got):\n%s", diff)
	}
	a.Advance(at(1000))
	want := policy.PrefetchStats{Prefetches: 3, Bytes: 160, Refreshes: 2, Hits: 2, Used: 1, WastedBytes: 60, Peak: 130}
	if diff := cmp.Diff(want, a.Prefetched().Stats()); diff != "" {
		t.Errorf("stats (-want +got):\n%s", diff)
	}
}

func TestAlgorithm1Bound(t *testing.T) {
	at := clock()
	a := policy.NewAlgorithm1(&policy.Algorithm1Options{LM: time.Hour, ML: time.Hour, MaxEntries: 2, MaxClients: 2})
	for i, name := range []string{"x", "y", "z"} {
		a.PutLayer(at(float64(i)), repo1, alice, layer(name, 1))
	}
	if diff := cmp.Diff([]policy.Layer{layer("y", 1), layer("z", 1)}, a.GetManifest(at(3), repo1, bob)); diff != "" {
		t.Errorf("the oldest entry goes (-want +got):\n%s", diff)
	}
	// A layer that is pushed again remains one entry, with a new time.
	a.PutLayer(at(4), repo1, bob, layer("y", 1))
	if got := a.GetManifest(at(62.5), repo1, alice); got != nil || !a.Prefetched().Has(key("y")) {
		t.Errorf("fetched %v; y is kept: %v", got, a.Prefetched().Has(key("y")))
	}
}

func TestManifests(t *testing.T) {
	at := clock()
	m := policy.NewManifests(&policy.ManifestsOptions{})
	x, y, z := layer("x", 100), layer("y", 30), layer("z", 50)
	man := key("manifest")
	heldZ := func(k policy.Key) bool { return k == z.Key }

	plan := m.GetManifest(at(0), repo1, alice, man, []policy.Layer{x, y, z}, heldZ)
	if diff := cmp.Diff(policy.Plan{Fetch: []policy.Layer{y, x}}, plan); diff != "" {
		t.Errorf("first request: what is missing, small first (-want +got):\n%s", diff)
	}
	if plan := m.GetManifest(at(0.1), repo1, alice, man, []policy.Layer{x, y, z}, nil); plan.Fetch != nil {
		t.Errorf("a manifest that the client was given: fetch %v", plan.Fetch)
	}
	if hit, _ := m.GetLayer(at(0.5), alice, y.Key); !hit {
		t.Error("a prefetched layer is no hit")
	}
	// alice requested a layer within a minute, so x is not cancelled.
	if plan := m.Advance(at(2)); plan.Drop != nil {
		t.Errorf("dropped %v", plan.Drop)
	}
	// bob gets another manifest. x and y exist, and z is new. He requests nothing, so z
	// alone is dropped after a minute.
	if diff := cmp.Diff([]policy.Layer{z}, m.GetManifest(at(3), repo1, bob, key("other"), []policy.Layer{x, y, z}, nil).Fetch); diff != "" {
		t.Errorf("fetched for bob (-want +got):\n%s", diff)
	}
	if plan := m.Advance(at(3.99)); plan.Drop != nil {
		t.Errorf("dropped %v before a minute", plan.Drop)
	}
	if diff := cmp.Diff([]policy.Layer{z}, m.Advance(at(4)).Drop); diff != "" {
		t.Errorf("dropped for bob (-want +got):\n%s", diff)
	}
	// alice has y, so nothing is fetched for a manifest with only y, even when y is gone.
	m.Advance(at(60))
	if plan := m.GetManifest(at(61), repo1, alice, key("third"), []policy.Layer{y}, nil); plan.Fetch != nil {
		t.Errorf("fetched what the client has: %v", plan.Fetch)
	}
	// A day later all of this is forgotten.
	if plan := m.GetManifest(at(60+1441+60), repo1, alice, man, []policy.Layer{y}, nil); len(plan.Fetch) != 1 {
		t.Error("after a day the client is still known")
	}
	m.Advance(at(10_000))
	want := policy.PrefetchStats{Prefetches: 4, Bytes: 30 + 100 + 50 + 30, Refreshes: 2, Hits: 1, Used: 1, WastedBytes: 100 + 50 + 30, Peak: 180}
	if diff := cmp.Diff(want, m.Prefetched().Stats()); diff != "" {
		t.Errorf("stats (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(policy.ManifestsStats{Known: 1, Cancelled: 2}, m.Stats()); diff != "" {
		t.Errorf("own stats (-want +got):\n%s", diff)
	}
}

func TestManifestsBudget(t *testing.T) {
	at := clock()
	m := policy.NewManifests(&policy.ManifestsOptions{Rate: 1, Burst: 100})
	layers := []policy.Layer{layer("x", 80), layer("y", 60), layer("z", 10)}
	if diff := cmp.Diff([]policy.Layer{layers[2], layers[1]}, m.GetManifest(at(0), repo1, alice, key("m"), layers, nil).Fetch); diff != "" {
		t.Errorf("within 100 bytes (-want +got):\n%s", diff)
	}
	if got := m.Stats().OverBudget; got != 1 {
		t.Errorf("%d layers over budget, want 1", got)
	}
	if got := m.GetManifest(at(0.9), repo1, bob, key("m"), layers, nil).Fetch; len(got) != 1 || got[0] != layers[0] {
		t.Errorf("after 54 seconds 84 bytes are in the budget, and y and z are there: fetched %v, want x", got)
	}
}

func TestManifestsRest(t *testing.T) {
	at := clock()
	m := policy.NewManifests(&policy.ManifestsOptions{Judge: 4, Precision: 0.5})
	get := func(minute float64, repo, n uint64) int {
		return len(m.GetManifest(at(minute), repo, n, policy.NumberKey(n), []policy.Layer{{Key: policy.NumberKey(1000 + n), Size: 1}}, nil).Fetch)
	}
	for n := range uint64(4) {
		if get(float64(n)*2, repo1, n) != 1 {
			t.Fatalf("manifest %d: nothing is fetched before 4 layers are judged", n)
		}
	}
	if get(10, repo1, 10) != 0 || get(11, repo1, 11) != 0 {
		t.Error("a repository of which nothing is used is prefetched for")
	}
	if get(11, repo2, 12) != 1 {
		t.Error("another repository rests too")
	}
	if get(71, repo1, 13) != 1 {
		t.Error("after an hour there is no new chance")
	}
	if got := m.Stats().Resting; got != 2 {
		t.Errorf("%d requests in resting repositories, want 2", got)
	}
}

func TestManifestsPins(t *testing.T) {
	at := clock()
	m := policy.NewManifests(&policy.ManifestsOptions{Pin: time.Hour, PinClients: 2})
	x, y := layer("x", 1), layer("y", 2)
	plan := m.PutManifest(at(0), key("m"), []policy.Layer{x, y})
	if diff := cmp.Diff(policy.Plan{Pin: []policy.Layer{x, y}, PinUntil: at(60)}, plan); diff != "" {
		t.Errorf("after a push (-want +got):\n%s", diff)
	}
	m.PutManifest(at(1), key("n"), []policy.Layer{x})
	// The manifest is pushed again. The pins of the first push must end now, or they
	// never would.
	again := policy.Plan{Pin: []policy.Layer{y}, Unpin: []policy.Layer{x, y}, PinUntil: at(61.5)}
	if diff := cmp.Diff(again, m.PutManifest(at(1.5), key("m"), []policy.Layer{y})); diff != "" {
		t.Errorf("after a second push (-want +got):\n%s", diff)
	}
	m.PutManifest(at(1.5), key("m"), []policy.Layer{x, y})
	all := func(policy.Key) bool { return true }
	if plan := m.GetManifest(at(2), repo1, alice, key("m"), []policy.Layer{x, y}, all); plan.Unpin != nil {
		t.Errorf("one client is enough to unpin %v", plan.Unpin)
	}
	if plan := m.GetManifest(at(3), repo1, alice, key("m"), []policy.Layer{x, y}, all); plan.Unpin != nil {
		t.Errorf("the same client twice is enough to unpin %v", plan.Unpin)
	}
	if diff := cmp.Diff([]policy.Layer{x, y}, m.GetManifest(at(4), repo1, bob, key("m"), []policy.Layer{x, y}, all).Unpin); diff != "" {
		t.Errorf("unpinned by the second client (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]policy.Layer{x}, m.Advance(at(61)).Unpin); diff != "" {
		t.Errorf("unpinned by time (-want +got):\n%s", diff)
	}
}

// TestPrefetchAccount checks that the counts add up for any requests: everything that was
// fetched is either held or dropped.
func TestPrefetchAccount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := clock()
		m := policy.NewManifests(&policy.ManifestsOptions{
			Keep: 5 * time.Minute, Forget: 20 * time.Minute, Rate: 1, Burst: 50, Judge: 3,
			Remember: rapid.IntRange(1, 8).Draw(t, "remember"), Pin: 3 * time.Minute, PinClients: 2,
		})
		layers := func(n uint64) (out []policy.Layer) {
			for i := range n % 4 {
				out = append(out, policy.Layer{Key: policy.NumberKey(n + i), Size: int64(n+i)%7 + 1})
			}
			return out
		}
		kept := map[policy.Key]int64{}
		pins := map[policy.Key]int{}
		var fetched, dropped int64
		follow := func(p policy.Plan) {
			for _, l := range p.Drop {
				if kept[l.Key] == 0 {
					t.Fatalf("%x is dropped and was not kept", l.Key)
				}
				delete(kept, l.Key)
				dropped += l.Size
			}
			for _, l := range p.Fetch {
				if kept[l.Key] != 0 {
					t.Fatalf("%x is fetched and was kept", l.Key)
				}
				kept[l.Key] = l.Size
				fetched += l.Size
			}
			for _, l := range p.Pin {
				pins[l.Key]++
			}
			for _, l := range p.Unpin {
				if pins[l.Key]--; pins[l.Key] < 0 {
					t.Fatalf("%x is unpinned more often than pinned", l.Key)
				}
			}
		}
		minute := 0.0
		for range rapid.IntRange(1, 200).Draw(t, "requests") {
			minute += rapid.Float64Range(0, 2).Draw(t, "wait")
			n := rapid.Uint64Range(0, 9).Draw(t, "what")
			client := rapid.Uint64Range(0, 3).Draw(t, "client")
			switch rapid.IntRange(0, 3).Draw(t, "kind") {
			case 0:
				follow(m.PutManifest(at(minute), policy.NumberKey(100+n), layers(n)))
			case 1:
				hit, plan := m.GetLayer(at(minute), client, policy.NumberKey(n))
				follow(plan)
				if want := kept[policy.NumberKey(n)] != 0; hit != want {
					t.Fatalf("request for layer %d: hit %v, kept %v", n, hit, want)
				}
			default:
				follow(m.GetManifest(at(minute), n%3, client, policy.NumberKey(100+n), layers(n), nil))
			}
			if st := m.Prefetched().Stats(); st.Resident != fetched-dropped || st.Bytes != fetched {
				t.Fatalf("%d bytes kept of %d fetched, want %d of %d", st.Resident, st.Bytes, fetched-dropped, fetched)
			}
		}
		follow(m.Advance(at(minute + 1000)))
		if st := m.Prefetched().Stats(); st.Resident != 0 || len(kept) != 0 {
			t.Fatalf("%d bytes kept at the end, %d contents", st.Resident, len(kept))
		}
	})
}
