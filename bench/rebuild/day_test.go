package rebuild

import (
	"bytes"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"example.org/slipway/integration/internal/wire"
	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

// TestDayOf reads a trace that was written by hand.
func TestDayOf(t *testing.T) {
	begin := time.Date(2017, 6, 21, 0, 0, 0, 0, time.UTC)
	dir := t.TempDir()
	w, err := store.NewWriter(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []struct {
		at           time.Duration
		method, blob string
		status       int
		size         int64
	}{
		{-20 * time.Hour, "GET", "old", 200, 10},
		{-time.Hour, "HEAD", "asked", 200, 20},
		{time.Minute, "GET", "new", 200, 30},
		{2 * time.Minute, "GET", "old", 200, 10},
		{2 * time.Minute, "HEAD", "looked", 200, 7},
		{3 * time.Minute, "GET", "asked", 200, 20},
		{4 * time.Minute, "GET", "lost", 404, 40},
		{5 * time.Minute, "GET", "new", 200, 31},
		{6 * time.Hour, "GET", "late", 200, 50},
	} {
		uri := "/v2/team/app/blobs/" + r.blob
		if err := w.Add("dal", &trace.Record{Time: begin.Add(r.at), Method: r.method, URI: uri, Status: r.status, Written: r.size}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := dayOf(t.Context(), dir, begin, 6*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(got, func(a, b *standIn) int { return strings.Compare(a.name, b.name) })
	want := []*standIn{
		{"asked", 20, false, []time.Duration{3 * time.Minute}},
		{"new", 31, true, []time.Duration{time.Minute, 5 * time.Minute}},
		{"old", 10, false, []time.Duration{2 * time.Minute}},
	}
	if !slices.EqualFunc(got, want, func(a, b *standIn) bool {
		return a.name == b.name && a.size == b.size && a.cold == b.cold && slices.Equal(a.at, b.at)
	}) {
		t.Errorf("got:")
		for _, p := range got {
			t.Errorf("%+v", *p)
		}
	}
	var at []time.Duration
	for _, a := range pulls(want) {
		at = append(at, a.at)
	}
	if !slices.Equal(at, []time.Duration{time.Minute, 2 * time.Minute, 3 * time.Minute, 5 * time.Minute}) {
		t.Errorf("pulls at %v", at)
	}
}

// TestChoose checks that each layer gets a blob of its rank by size, and the same one in
// whatever order the blobs come.
func TestChoose(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 50 {
		layers := 1 + r.IntN(20)
		day := make([]*standIn, layers+r.IntN(200))
		for i := range day {
			day[i] = &standIn{name: strconv.Itoa(r.Int()), size: r.Int64N(50)}
		}
		first, err := choose(day, layers)
		if err != nil {
			t.Fatal(err)
		}
		r.Shuffle(len(day), func(i, j int) { day[i], day[j] = day[j], day[i] })
		again, err := choose(day, layers)
		if err != nil || !slices.Equal(first, again) {
			t.Fatalf("another order of blobs gives others, %v", err)
		}
		for k, p := range first {
			below, upTo := 0, 0
			for _, o := range day {
				if o.size < p.size {
					below++
				}
				if o.size <= p.size {
					upTo++
				}
			}
			// Blobs of the same size may be in either of two parts.
			if begin, end := k*len(day)/layers, (k+1)*len(day)/layers; upTo <= begin || below >= end {
				t.Errorf("layer %d of %d gets a blob with %d to %d smaller ones of %d", k, layers, below, upTo-1, len(day))
			}
		}
	}
	if _, err := choose(nil, 1); err == nil {
		t.Error("a day without blobs suffices")
	}
}

// TestLink pulls over a link, and compares the time with what the rate and the round trips
// make it.
func TestLink(t *testing.T) {
	data := bytes.Repeat([]byte("layer"), 200_000)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/gone/") {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(data)
	}))
	defer srv.Close()
	addr := strings.TrimPrefix(srv.URL, "http://")
	for _, l := range []link{{}, {bytesPerSec: 4e6, rtt: 20 * time.Millisecond}, {rtt: 50 * time.Millisecond}} {
		p, err := l.pull(t.Context(), addr, "here", wire.Digest(data), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		all := 2 * l.rtt
		if l.bytesPerSec > 0 {
			all += time.Duration(len(data)) * time.Second / time.Duration(l.bytesPerSec)
		}
		if p.first < 2*l.rtt || p.all < all || p.all < p.first {
			t.Errorf("%+v: %+v; want %v or more, the first byte after %v or more", l, p, all, 2*l.rtt)
		}
		if p.all > all+5*time.Second { // the machine is busy, and not the link slower
			t.Errorf("%+v: took %v, want %v", l, p.all, all)
		}
	}
	for repo, digest := range map[string]string{"gone": wire.Digest(data), "here": wire.Digest([]byte("another"))} {
		if _, err := (link{}).pull(t.Context(), addr, repo, digest, time.Now()); err == nil {
			t.Errorf("%s: a wrong answer passes", repo)
		}
	}
}

// TestWithin checks shares and quantiles, with figures worked out by hand.
func TestWithin(t *testing.T) {
	d := &Day{Pulls: []Pull{{Sec: [2]float64{1, 1}}, {Sec: [2]float64{2, 2.4}}, {Sec: [2]float64{1, 1.21}}, {Sec: [2]float64{3, 1}}}}
	if got := d.within(); got != 75 {
		t.Errorf("within: %v %%, want 75", got)
	}
	v := []float64{5, 1, 4, 2, 3}
	for q, want := range map[float64]float64{0: 1, 0.2: 1, 0.21: 2, 0.5: 3, 0.99: 5, 1: 5} {
		if got := quantile(v, q); got != want {
			t.Errorf("quantile %v: %v, want %v", q, got, want)
		}
	}
}
