package prefetch_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/internal/policy"
	"example.org/slipway/oci"
	"example.org/slipway/registry/prefetch"
)

// small excludes configs and what the registry has in its own memory.
const small = 10

func manifestMode() prefetch.Options { return prefetch.Options{Small: small, Parallel: 1} }

func TestManifestWarmsSmallFirst(t *testing.T) {
	b := newBed(t, manifestMode(), true)
	d, m := image(layer("large", 3000), layer("small", 20), layer("middle", 100), layer("inline", small), layer("large", 3000))
	b.GetManifest(by("alice"), "team/app", d, m)
	b.wantFetched("small", "middle", "large")
	// A client that has seen it will ask for nothing.
	b.GetManifest(by("alice"), "team/app", d, m)
	// For another client, nothing that is held needs to be fetched.
	b.GetManifest(by("bob"), "team/app", d, m)
	poll(t, "the fetches have ended", func() bool { return b.Stats().Fetched == 3 })
	b.clock.add(time.Second)
	for _, name := range []string{"small", "middle", "middle"} {
		b.GetBlob(by("alice"), "team/app", blob(name), 100)
	}
	b.GetBlob(by("alice"), "team/app", blob("inline"), small) // never reaches the cache
	b.wantFetched("small", "middle", "large")
	got := b.Stats()
	want := prefetch.Stats{Planned: 3, Started: 3, Fetched: 3, Used: 2, UsedBytes: 120, Bytes: 3120, Requests: 3, Hits: 3, Decisions: policy.ManifestsStats{Known: 1}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if got.Precision() != 2.0/3 || got.Recall() != 1 {
		t.Errorf("precision %v, recall %v", got.Precision(), got.Recall())
	}
	b.clock.add(time.Hour) // the entry for what was fetched ahead expires
	b.Advance()
	if got := b.Stats().WastedBytes; got != 3000 {
		t.Errorf("%d bytes wasted, want the 3000 of the layer nobody asked for", got)
	}
}

// TestEager checks that large layers wait for a sign that the client pulls: any blob of the
// repository.
func TestEager(t *testing.T) {
	for name, first := range map[string]struct {
		blob string
		size int64
		want []string
	}{
		"the configuration": {"config", small, []string{"small", "large", "larger"}},
		"a layer":           {"small", 20, []string{"small", "large", "larger"}},
		"a large layer":     {"large", 3000, []string{"small", "larger"}},
	} {
		t.Run(name, func(t *testing.T) {
			o := manifestMode()
			o.Manifests.Eager = 1000
			b := newBed(t, o, true)
			d, m := image(layer("larger", 4000), layer("small", 20), layer("large", 3000))
			b.GetManifest(by("alice"), "team/app", d, m)
			b.wantFetched("small")
			b.GetBlob(by("bob"), "team/app", blob(first.blob), first.size) // another client's
			b.GetBlob(by("alice"), "team/app", blob(first.blob), first.size)
			b.wantFetched(first.want...)
			if got, want := b.Stats().Planned, int64(len(first.want)); got != want {
				t.Errorf("%d were planned, want %d", got, want)
			}
		})
	}
}

// TestWhatBeginsNothing checks that only a client's pull starts a fetch.
func TestWhatBeginsNothing(t *testing.T) {
	b := newBed(t, manifestMode(), true)
	d, m := image(layer("a", 100))
	b.GetManifest(context.Background(), "r", d, m) // this process itself
	b.PutManifest(by("alice"), "r", d, m)
	b.GetManifest(by("alice"), "r", blob("text"), []byte("no manifest"))
	b.GetManifest(by("alice"), "r", blob("huge"), make([]byte, 2<<20))
	b.GetBlob(context.Background(), "r", blob("a"), 100)
	if got := b.Stats(); got != (prefetch.Stats{}) {
		t.Errorf("got %+v, want nothing", got)
	}
}

// TestCancel checks that a client that does not come loses its place. Its waiting fetches are not
// started, and its running ones are cancelled unless somebody else asked for them.
func TestCancel(t *testing.T) {
	b := newBed(t, manifestMode(), true)
	first := make(chan struct{})
	b.shelf.block[key(blob("a"))] = first
	d, m := image(layer("a", 100), layer("b", 200))
	b.GetManifest(by("alice"), "r", d, m)
	b.wantFetched("a")
	if !b.Ahead(blob("a")) || b.Ahead(blob("b")) {
		t.Error("a is being fetched, b is not")
	}
	b.clock.add(61 * time.Second)
	b.Advance()
	poll(t, "the fetch is cancelled", func() bool { return b.Stats().Cancelled == 2 })
	if b.Ahead(blob("a")) {
		t.Error("a is still said to come")
	}
	d2, m2 := image(layer("c", 100), layer("d", 200))
	b.shelf.block[key(blob("c"))] = first
	b.GetManifest(by("bob"), "r", d2, m2)
	b.wantFetched("a", "c")
	b.clock.add(30 * time.Second)
	b.GetBlob(by("bob"), "r", blob("c"), 100) // shares the fetch
	b.clock.add(40 * time.Second)
	b.Advance()
	close(first)
	b.wantFetched("a", "c", "d")
	poll(t, "all has ended", func() bool { return b.Stats().Fetched == 2 })
	got := b.Stats()
	want := prefetch.Stats{Planned: 4, Started: 3, Fetched: 2, Cancelled: 2, Used: 1, UsedBytes: 100, Bytes: 300, Requests: 1, Hits: 1,
		Saved: 30 * time.Second, Decisions: policy.ManifestsStats{Cancelled: 1}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestOvertaken checks that a request for a layer that waits to be fetched fetches the layer
// itself.
func TestOvertaken(t *testing.T) {
	b := newBed(t, manifestMode(), false)
	d, m := image(layer("a", 100), layer("b", 200))
	b.shelf.held[key(blob("b"))] = true
	b.GetManifest(by("alice"), "r", d, m)
	b.GetBlob(by("alice"), "r", blob("a"), 100)
	b.start()
	d, m = image(layer("c", 100))
	b.GetManifest(by("alice"), "r", d, m)
	b.wantFetched("c")
	if got := b.Stats(); got.Overtaken != 1 || got.Hits != 0 || got.Planned != 2 {
		t.Errorf("got %+v, want one that was overtaken and no hit", got)
	}
}

// TestFailure checks that a failed fetch is tried again for the next client.
func TestFailure(t *testing.T) {
	b := newBed(t, manifestMode(), true)
	b.shelf.failing[key(blob("a"))] = true
	d, m := image(layer("a", 100))
	b.GetManifest(by("alice"), "r", d, m)
	poll(t, "the fetch fails", func() bool { return b.Stats().Failed == 1 })
	b.GetManifest(by("bob"), "r", d, m)
	b.wantFetched("a", "a")
}

func TestPins(t *testing.T) {
	b := newBed(t, prefetch.Options{Small: small, Manifests: policy.ManifestsOptions{Pin: time.Hour, PinClients: 2}}, false)
	shared, one, two := layer("shared", 100), layer("one", 100), layer("two", 100)
	d1, m1 := image(shared, one)
	d2, m2 := image(shared, two)
	b.PutManifest(by("ci"), "r", d1, m1)
	until := b.clock.now().Add(time.Hour)
	b.PutManifest(by("ci"), "r", d2, m2)
	b.PutManifest(by("ci"), "r", d2, m2) // again
	want := map[string]time.Time{key(blob("shared")): until, key(blob("one")): until, key(blob("two")): until}
	check := func(what string) {
		t.Helper()
		if d := cmp.Diff(want, b.shelf.pinned); d != "" {
			t.Errorf("%s: pinned (-want +got):\n%s", what, d)
		}
	}
	check("pushed")
	for _, client := range []string{"alice", "bob"} { // two pulls are enough
		b.GetManifest(by(client), "r", d1, m1)
	}
	delete(want, key(blob("one")))
	check("pulled by two")
	b.clock.add(time.Hour)
	b.Advance()
	clear(want)
	check("an hour later")
}

// TestIndex checks that the manifest of a client's platform is read ahead for an index, once the
// platform is known.
func TestIndex(t *testing.T) {
	manifests := map[oci.Digest][]byte{}
	o := manifestMode()
	o.Manifest = func(_ context.Context, repo string, d oci.Digest) ([]byte, error) {
		if m, ok := manifests[d]; ok && repo == "r" {
			return m, nil
		}
		return nil, errors.New("no such manifest")
	}
	b := newBed(t, o, true)
	push := func(tag string) (oci.Digest, []byte, oci.Digest, []byte) {
		amd, m := image(layer(tag+"-amd64", 100))
		arm, m2 := image(layer(tag+"-arm64", 100))
		other, m3 := image(layer(tag+"-attestation", 100))
		manifests[amd], manifests[arm], manifests[other] = m, m2, m3
		ix, ixm := index(map[string]oci.Digest{"amd64": amd, "arm64": arm, "unknown": other})
		return ix, ixm, arm, m2
	}
	ix, ixm, arm, armm := push("v1")
	b.GetManifest(by("alice"), "r", ix, ixm) // her platform is unknown
	b.GetManifest(by("alice"), "r", arm, armm)
	b.wantFetched("v1-arm64")
	b.GetBlob(by("alice"), "r", blob("v1-arm64"), 100)
	ix, ixm, arm, armm = push("v2")
	b.GetManifest(by("alice"), "r", ix, ixm)
	b.wantFetched("v1-arm64", "v2-arm64")
	b.GetManifest(by("alice"), "r", arm, armm) // now she comes for it
	poll(t, "the fetch has ended", func() bool { return b.Stats().Fetched == 2 })
	if got := b.Stats(); got.Planned != 2 || got.Decisions.Known != 1 {
		t.Errorf("got %+v, want two layers and one manifest that was known", got)
	}
}

func TestAlgorithm1(t *testing.T) {
	b := newBed(t, prefetch.Options{Mode: prefetch.Algorithm1, Small: small, Parallel: 1, Rate: 1 << 30, Burst: 50,
		Algorithm1: policy.Algorithm1Options{LM: time.Hour, ML: 10 * time.Minute}}, true)
	b.PutBlob(by("ci"), "r", blob("a"), 100)
	b.PutBlob(by("ci"), "r", blob("b"), 200)
	b.PutBlob(by("ci"), "r", blob("inline"), small)
	b.PutBlob(context.Background(), "r", blob("own"), 100)
	d, m := image(layer("x", 100)) // the layers it names do not matter
	b.GetManifest(by("ci"), "r", d, m)
	b.GetManifest(by("alice"), "other", d, m)
	b.GetManifest(by("alice"), "r", d, m)
	b.wantFetched("a", "b")
	b.GetManifest(by("alice"), "r", d, m)
	poll(t, "both are there", func() bool { return b.Stats().Fetched == 2 })
	b.GetBlob(by("alice"), "r", blob("a"), 100)
	b.clock.add(10 * time.Minute)
	b.Advance()
	got := b.Stats()
	want := prefetch.Stats{Planned: 2, Started: 2, Fetched: 2, Used: 1, UsedBytes: 100, Bytes: 300, WastedBytes: 200, Requests: 1, Hits: 1}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	b.clock.add(time.Hour) // what was pushed is old
	b.GetManifest(by("bob"), "r", d, m)
	b.wantFetched("a", "b")
}

// TestClients checks that clients are distinguished by name and address.
func TestClients(t *testing.T) {
	b := newBed(t, manifestMode(), false)
	d, m := image(layer("a", 100))
	who := func(name, addr string) context.Context {
		return oci.WithActor(context.Background(), &oci.Actor{Name: name, Addr: addr})
	}
	for _, c := range []struct {
		name, addr string
		known      int64
	}{
		{"robot", "192.0.2.1:1000", 0},
		{"robot", "192.0.2.1:2000", 1}, // another connection
		{"robot", "192.0.2.2:1000", 1},
		{"", "192.0.2.1:1000", 1},
		{"", "2001:db8::1", 1},
		{"", "2001:db8::2", 2}, // the same customer
		{"", "@", 2},           // a unix socket
	} {
		b.GetManifest(who(c.name, c.addr), "r", d, m)
		if got := b.Stats().Decisions.Known; got != c.known {
			t.Errorf("%s at %s: %d requests for what was known, want %d", c.name, c.addr, got, c.known)
		}
	}
}

// TestQueueIsBounded checks that no more fetches are accepted than can wait.
func TestQueueIsBounded(t *testing.T) {
	b := newBed(t, prefetch.Options{Manifests: policy.ManifestsOptions{Precision: -1}}, false)
	for i := range 5000 {
		name := string(rune('a'+i%26)) + time.Duration(i).String()
		d, m := image(layer(name, 100))
		b.GetManifest(by("alice"), "r", d, m)
	}
	if got := b.Stats(); got.Refused == 0 || got.Planned-got.Refused != 4096 {
		t.Errorf("got %+v, want 4096 that wait and the others refused", got)
	}
}

func FuzzLayers(f *testing.F) {
	_, m := image(layer("a", 100), layer("b", 3))
	_, ix := index(map[string]oci.Digest{"amd64": blob("x"), "unknown": blob("y")})
	for _, b := range [][]byte{m, ix, []byte(`{"layers":[{"digest":"x","size":-1}]}`), []byte(`{"config":null,"manifests":[{"platform":{}}]}`), []byte("[")} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		layers, children := prefetch.Layers(b, 0)
		if n := layers + children; n > len(b)/32 { // each has a digest
			t.Errorf("%d contents in a manifest of %d bytes", n, len(b))
		}
	})
}
