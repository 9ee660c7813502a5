package peers

import (
	"context"
	"crypto/sha256"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/node/gearfs"
)

// TestOpensAreTold follows a node. What its containers open comes in order, from the first file on,
// and only to who may read from the image's repository.
func TestOpensAreTold(t *testing.T) {
	x := newExchange(t)
	ref := gearfs.SourceRef{Registry: "r", Repo: "team/app", Manifest: "sha256:m"}
	x.Expect(ref)
	s := x.swarms[ref]
	var pieces []piece
	for i := range 200 {
		pieces = append(pieces, piece{sha256.Sum256([]byte{byte(i)}), int32(i%3) - 1})
	}
	s.front.open(pieces[:3])
	s.front.open(pieces[1:3]) // again
	may := true
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := x.tellOpens(w, r, func(of gearfs.SourceRef) bool { return may && of == ref }); err != nil {
			t.Log(err) // the client leaves
		}
	}))
	defer web.Close()
	get := func(ctx context.Context, manifest string) *http.Response {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, web.URL+opensPath, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(manifestHeader, manifest)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	refused := func(manifest string) {
		t.Helper()
		resp := get(t.Context(), manifest)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusNotFound || err != nil || string(b) != "404 page not found\n" {
			t.Errorf("image %q, may read it: %v: status %d, %q, error %v", manifest, may, resp.StatusCode, b, err)
		}
	}
	refused("sha256:n")
	refused("")
	may = false
	refused("sha256:m")
	refused("sha256:n")
	may = true
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	resp := get(ctx, "sha256:m")
	defer resp.Body.Close()
	next := func(n int) []piece {
		t.Helper()
		b := make([]byte, n*pieceEntry)
		if _, err := io.ReadFull(resp.Body, b); err != nil {
			t.Fatal(err)
		}
		list, err := parsePieces(b)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	if got := next(3); !slices.Equal(got, pieces[:3]) {
		t.Errorf("at first: %v", got)
	}
	s.front.open(pieces)
	if got := next(len(pieces) - 3); !slices.Equal(got, pieces[3:]) {
		t.Errorf("then: %v", got)
	}
	cancel()
	for i := range maxFollowers {
		x.followers.Add(1)
		if i == maxFollowers-1 {
			refused("sha256:m")
		}
	}
	x.followers.Add(-maxFollowers)
}

// TestForesight has a leader open more than a node uses. What is fetched for nothing is bounded.
func TestForesight(t *testing.T) {
	var f front
	f.init()
	const size = 1 << 20
	var list []piece
	for i := range 3 * maxSpare / size {
		list = append(list, piece{sha256.Sum256([]byte{byte(i), byte(i >> 8)}), whole})
	}
	f.hear(list)
	f.hear(list[:10])
	fresh := f.take()
	if !slices.Equal(fresh, list) || f.take() != nil {
		t.Fatalf("%d of %d pieces are fresh", len(fresh), len(list))
	}
	n := 0
	for _, p := range list {
		if f.foresee(p, size) {
			n++
		}
	}
	if n != maxSpare/size {
		t.Errorf("%d pieces of %d bytes are fetched ahead, and %d bytes may be", n, size, maxSpare)
	}
	for _, p := range list[:5] {
		if first, again := f.used(p), f.used(p); !first || !again {
			t.Error("a piece of the leader's is not known")
		}
	}
	if f.used(piece{gear.Name{1}, whole}) {
		t.Error("a piece is the leader's that it did not open")
	}
	n = 0
	for _, p := range list[maxSpare/size:] {
		if f.foresee(p, size) {
			n++
		}
	}
	if n != 5 {
		t.Errorf("after 5 pieces were used, %d more are fetched ahead", n)
	}
}

// TestLeader asks a node who leads: the one that began first, of those that may be used, if the
// registry says since when.
func TestLeader(t *testing.T) {
	x := newExchange(t)
	s := newSwarm(x, gearfs.SourceRef{Registry: "r", Repo: "a"})
	defer s.stop()
	now := time.Now()
	node := func(key byte, since int64) *member {
		p := newPeer(x.id, [32]byte{key}, "127.0.0.1:1", &x.late)
		return &member{peer: p, since: since}
	}
	a, b, c := node(1, 300), node(2, 100), node(3, 0)
	s.grant, s.ends, s.known = "grant", now.Add(time.Hour), []*member{a, b, c}
	if m, self := s.leader(now); m != nil || self {
		t.Errorf("without times: %v %v", m, self)
	}
	s.since = 200
	if m, self := s.leader(now); m != b || self {
		t.Errorf("leader %v %v, want the second", m, self)
	}
	b.ban(now, time.Minute)
	if m, self := s.leader(now); m != nil || !self {
		t.Errorf("leader %v %v, want this node", m, self)
	}
	s.since = 400
	if m, self := s.leader(now); m != a || self {
		t.Errorf("leader %v %v, want the first", m, self)
	}
}

// TestWaits has other nodes ask for a piece that this node is fetching. It does not wait for a fetch
// of a higher level than the request, or two nodes could wait for each other.
func TestWaits(t *testing.T) {
	x := newExchange(t)
	for _, tt := range []struct {
		under, asked order
		waits        bool
	}{
		{mine, older, true}, {older, older, true}, {mine, owned, true}, {mine, root, true}, {mine, led, true},
		{owned, owned, true}, {owned, older, false}, {owned, led, true},
		{led, led, true}, {led, owned, false}, {led, root, false}, {led, older, false},
	} {
		s := newSwarm(x, gearfs.SourceRef{Registry: "r", Repo: "a"})
		w := want{piece{gear.Name{7}, whole}, &gear.File{Name: gear.Name{7}, Size: 10}}
		s.claims[w.piece] = &claim{want: w, how: tt.under, done: make(chan struct{})}
		c := s.claimAll([]want{w}, tt.asked, true)[0]
		if (c != nil) != tt.waits {
			t.Errorf("asked with order %q for what is fetched by order %q: waits %v, want %v", tt.asked, tt.under, c != nil, tt.waits)
		}
		if c != nil {
			s.release(c)
		}
		if own := s.claimAll([]want{w}, mine, false)[0]; own == nil {
			t.Errorf("this node itself does not wait for what it fetches by order %q", tt.under)
		}
		s.stop()
	}
}
