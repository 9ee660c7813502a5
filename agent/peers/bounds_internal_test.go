package peers

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"testing"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/node/gearfs"
	"example.org/slipway/node/gearfs/pace"
	"example.org/slipway/oci/peering"
)

// serveOn has an exchange answer others, and returns its address.
func serveOn(t *testing.T, x *Exchange, share Sharer) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		done <- x.Serve(l, share)
	}()
	t.Cleanup(func() {
		if err := errors.Join(x.Close(), <-done); err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// nothing shares nothing.
func nothing(gear.Name, func(gearfs.SourceRef) bool) (*gearfs.Shared, bool) { return nil, false }

// TestCloseWaits closes an exchange while it answers. The files that it reads are closed next, so
// it must be done with them.
func TestCloseWaits(t *testing.T) {
	t.Parallel()
	x := newExchange(t)
	entered, leave := make(chan struct{}, 1), make(chan struct{})
	at := serveOn(t, x, func(gear.Name, func(gearfs.SourceRef) bool) (*gearfs.Shared, bool) {
		entered <- struct{}{}
		<-leave
		return nil, false
	})
	other, err := newIdentity()
	if err != nil {
		t.Fatal(err)
	}
	key, now := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)), time.Now()
	grant, err := peering.Sign(&peering.Grant{Repo: "a", Holder: other.key, Ends: now.Add(time.Hour).Unix()}, key)
	if err != nil {
		t.Fatal(err)
	}
	x.vouch(place{"r", "a"}, &peering.Answer{Time: now, Signer: key.Public().(ed25519.PublicKey)}, now)
	p := newPeer(other, x.id.key, at, new(pace.Metronome))
	defer p.client.CloseIdleConnections()
	f := &gear.File{Name: gear.Name{1}, Size: 1}
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		_ = p.request(t.Context(), grant, present, []want{{piece{f.Name, whole}, f}}, func() error { return nil }, func(int) {},
			func(int, []byte, *frame) error { return nil })
	}()
	<-entered
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	}()
	select {
	case <-closed:
		t.Error("the exchange is closed while it reads files")
	case <-time.After(300 * time.Millisecond):
	}
	close(leave)
	<-closed
	<-asked
}

// strangerTLS is how somebody connects who has no grant.
func strangerTLS(t *testing.T, protocols ...string) *tls.Config {
	t.Helper()
	id, err := newIdentity()
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{id.cert}, NextProtos: protocols}
}

// TestOneRequestPerConnection offers all protocols that there are. A bound on connections bounds
// requests only if each brings one at a time.
func TestOneRequestPerConnection(t *testing.T) {
	t.Parallel()
	at := serveOn(t, newExchange(t), nothing)
	for _, offer := range [][]string{{"h2"}, {"h2", "http/1.1"}, {"h3", "h2"}, nil} {
		d := &tls.Dialer{Config: strangerTLS(t, offer...)}
		c, err := d.DialContext(t.Context(), "tcp", at)
		if err != nil {
			continue // nothing in common
		}
		if got := c.(*tls.Conn).ConnectionState().NegotiatedProtocol; got != "" && got != "http/1.1" {
			t.Errorf("offered %q, the node chooses %s", offer, got)
		}
		_ = c.Close()
	}
}

// TestManyConnections opens connections that say nothing. The node keeps a bounded number of them,
// and others come in again when they end.
func TestManyConnections(t *testing.T) {
	t.Parallel()
	x := newExchange(t)
	at := serveOn(t, x, nothing)
	var open []net.Conn
	defer func() {
		for _, c := range open {
			_ = c.Close()
		}
	}()
	count := func() int {
		x.doors.mu.Lock()
		defer x.doors.mu.Unlock()
		return len(x.doors.all)
	}
	for range 2 * connsPerClient {
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
	}
	// The node closes what is too much.
	closed := map[net.Conn]bool{}
	for end := time.Now().Add(time.Minute); len(closed) < connsPerClient; {
		for _, c := range open {
			_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
			if _, err := c.Read(make([]byte, 1)); !isTimeout(err) {
				closed[c] = true
			}
		}
		if n := count(); n > connsPerClient || time.Now().After(end) {
			t.Fatalf("of %d connections of one client, %d are open, and %d closed", len(open), n, len(closed))
		}
	}
	for _, c := range open {
		_ = c.Close()
	}
	for end := time.Now().Add(time.Minute); count() > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d connections count although all have ended", count())
		}
	}
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: strangerTLS(t)}}
	defer client.CloseIdleConnections()
	resp, err := client.Post("https://"+at+piecesPath, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusForbidden || !resp.Close {
		t.Errorf("a stranger gets %d, and may go on: %v", resp.StatusCode, !resp.Close)
	}
}

func isTimeout(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

// TestOneHolder has one node ask more often than any does. Others still get their turn.
func TestOneHolder(t *testing.T) {
	d := newDoors()
	for i := range 3 * mostAsked {
		if got := d.enter(peering.Key{1}); got != (i < mostAsked) {
			t.Fatalf("request %d of a node is answered: %v", i, got)
		}
	}
	if !d.enter(peering.Key{2}) {
		t.Error("another node is kept out")
	}
	d.leave(peering.Key{2})
	for range mostAsked {
		d.leave(peering.Key{1})
	}
	if len(d.holders) > 0 || d.asked != 0 {
		t.Errorf("after all requests ended: %v, %d", d.holders, d.asked)
	}
	taken := 0
	for i := range 2 * maxAsked {
		if d.enter(peering.Key{byte(i), byte(i >> 8)}) {
			taken++
		}
	}
	if taken != maxAsked {
		t.Errorf("%d requests of many nodes wait", taken)
	}
}

// play plays another node, as an exchange sees it.
func play(t *testing.T, x *Exchange, answer http.HandlerFunc) *peer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	id, err := newIdentity()
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{TLSConfig: id.serverTLS(), Handler: answer}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.ServeTLS(l, "", "") }()
	p := newPeer(x.id, id.key, l.Addr().String(), &x.late)
	t.Cleanup(func() {
		p.client.CloseIdleConnections()
		_ = s.Close()
		<-done
	})
	return p
}

// TestEmptyNodes has nodes answer that they have nothing. One that said that it has everything would
// be asked first for everything, so it is left out; for others it is an ordinary answer.
func TestEmptyNodes(t *testing.T) {
	t.Parallel()
	x := newExchange(t)
	s := newSwarm(x, gearfs.SourceRef{Registry: "r", Repo: "a"})
	defer s.stop()
	f := &gear.File{Name: gear.Name{1}, Size: 1}
	for _, complete := range []bool{true, false} {
		p := play(t, x, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(none.appendHeader(nil)) })
		err := s.ask(t.Context(), hop{&member{p, complete, 0, 0}, present}, []want{{piece{f.Name, whole}, f}}, func(int) {},
			func(int, []byte, *frame) error { return nil })
		if err != nil || p.usable(time.Now()) == complete {
			t.Errorf("complete %v: error %v, is used again: %v", complete, err, p.usable(time.Now()))
		}
	}
}

// TestPromises has a node promise each piece for as long as it may, and then give it. Nobody waits
// for such a node much longer than the registry would take.
func TestPromises(t *testing.T) {
	t.Parallel()
	x := newExchange(t)
	const pieces = 50
	var list []want
	for i := range pieces {
		b := fmt.Append(nil, "file ", i)
		f := &gear.File{Name: sha256.Sum256(b), Size: int64(len(b))}
		list = append(list, want{piece{f.Name, whole}, f})
	}
	p := play(t, x, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		asked, _ := parsePieces(b)
		for i := range asked {
			for range 10 {
				_, _ = w.Write((&frame{enc: coming}).appendHeader(nil))
			}
			f := frameOf(fmt.Append(nil, "file ", i))
			if _, err := w.Write(append(f.appendHeader(nil), f.data...)); err != nil {
				return
			}
		}
	})
	got := 0
	bounds := limits{idle: time.Minute, all: time.Minute, coming: 20, promised: 15 * comingEvery}
	err := p.ask(t.Context(), "", owned, bounds, list, func(int) {}, func(_ int, b []byte, _ *frame) error {
		if b != nil {
			got++
		}
		return nil
	})
	if !errors.Is(err, errStall) || got != 1 {
		t.Errorf("%d pieces came, each after 10 promises of which 15 are allowed in all: error %v", got, err)
	}
	// What a registry takes for few bytes bounds what others may take for them.
	var pc tempo
	pc.init()
	if b := pc.limits(sizeOfAll(list)); b.all+b.promised > time.Minute {
		t.Errorf("another node may take %v for %d bytes", b.all+b.promised, sizeOfAll(list))
	}
}

// TestLargeFiles asks for all pieces of a large file. The list of its pieces is read once.
func TestLargeFiles(t *testing.T) {
	x := newExchange(t)
	f := gear.File{Name: gear.Name{1}, Size: 3000 * gear.ChunkSize, Chunks: make([]gear.Name, 3000)}
	from := gearfs.SourceRef{Registry: "r", Repo: "a"}
	var list []piece
	for i := range f.Chunks {
		p := piece{f.Name, int32(i)}
		list = append(list, p, piece{gear.Name{2}, int32(i)})
		x.hot.add(placeOf(from), p, none)
	}
	calls := 0
	u := &upload{x: x, share: func(name gear.Name, _ func(gearfs.SourceRef) bool) (*gearfs.Shared, bool) {
		if calls++; name != f.Name {
			return nil, false
		}
		return &gearfs.Shared{File: f, Source: from}, true
	}}
	offers := u.offers(list, owned)
	if n := len(slices.DeleteFunc(slices.Clone(offers), func(o offer) bool { return o.f == nil })); n != len(f.Chunks) || calls != 2 {
		t.Errorf("%d of %d pieces are offered, after %d look-ups of two files", n, len(f.Chunks), calls)
	}
}

// TestHeldBytes has uploads ask for more than there is room for. What is fetched for several of them
// counts once, and what they have sent counts no more.
func TestHeldBytes(t *testing.T) {
	x := newExchange(t)
	s := newSwarm(x, gearfs.SourceRef{Registry: "r", Repo: "a"})
	defer s.stop()
	const size, room = gear.LargeFile - 1, maxHeld / (gear.LargeFile - 1)
	var list []want
	for i := range 2 * room {
		f := &gear.File{Name: sha256.Sum256(fmt.Append(nil, i)), Size: size}
		w := want{piece{f.Name, whole}, f}
		list = append(list, w)
		s.claims[w.piece] = &claim{want: w, done: make(chan struct{})} // of somebody who fetches slowly
	}
	count := func(claims []*claim) (n int) {
		for _, c := range claims {
			if c != nil {
				n++
			}
		}
		return n
	}
	first := s.claimAll(list, owned, true)
	second := s.claimAll(list[:room], owned, true)
	if n, shared, held := count(first), count(second), x.held.Load(); n != room || shared != room || held != room*size {
		t.Errorf("uploads keep %d and %d pieces, and %d bytes; there is room for %d pieces", n, shared, held, room)
	}
	if n := count(s.claimAll(list, mine, false)); n != len(list) {
		t.Errorf("the node itself gets %d of %d pieces", n, len(list))
	}
	third := s.claimAll(list[room:], owned, true)
	if n := count(third); n != 0 {
		t.Errorf("there is room for %d pieces more", n)
	}
	for _, claims := range [][]*claim{first, second} {
		for _, c := range claims {
			if c != nil {
				s.release(c)
			}
		}
	}
	if held := x.held.Load(); held != 0 {
		t.Errorf("after all uploads ended, %d bytes are kept", held)
	}
	if n := count(s.claimAll(list[room:], owned, true)); n != room {
		t.Errorf("after all uploads ended, there is room for %d of %d pieces", n, room)
	}
}

// stuck is a registry that answers nothing for some time.
type stuck struct {
	gearfs.Source
	until chan struct{}
}

func (s stuck) Fetch(ctx context.Context, _ []gear.File, _ func(int, io.Reader) error) error {
	select {
	case <-s.until:
	case <-ctx.Done():
	}
	return io.ErrUnexpectedEOF
}

// TestFetchesCount has nodes ask for pieces and go away. What is fetched for them counts until that
// ends, or they would make this node fetch any number of pieces.
func TestFetchesCount(t *testing.T) {
	x := newExchange(t)
	s := newSwarm(x, gearfs.SourceRef{Registry: "r", Repo: "a"})
	defer s.stop()
	registry := stuck{until: make(chan struct{})}
	s.setInner(registry)
	var all []*claim
	for i := range 10 {
		f := &gear.File{Name: sha256.Sum256(fmt.Append(nil, i)), Size: 1000}
		claims := s.claimAll([]want{{piece{f.Name, whole}, f}}, owned, true)
		s.release(claims[0]) // the node is gone
		all = append(all, claims...)
	}
	if held := x.held.Load(); held != 10*1000 {
		t.Errorf("while 10 pieces are fetched, %d bytes count", held)
	}
	close(registry.until)
	for _, c := range all {
		<-c.done
	}
	for end := time.Now().Add(time.Minute); x.held.Load() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after all fetches ended, %d bytes count", x.held.Load())
		}
	}
}

// TestSlowReaders has a node read its answer byte by byte. It must not keep its turn.
func TestSlowReaders(t *testing.T) {
	t.Parallel()
	w := &slowWriter{header: http.Header{}}
	u := &upload{x: newExchange(t), w: w, rc: http.NewResponseController(w), ctx: t.Context()}
	f := &frame{plain, make([]byte, 2*bufferBytes)}
	u.took = writeTime / 2
	if err := u.write(f); err != nil || !w.deadline.After(time.Now().Add(writeTime/4)) {
		t.Fatalf("after half of the time, the rest is %v, error %v", time.Until(w.deadline), err)
	}
	u.took = writeTime + time.Duration(u.sent)*time.Second/slowest + time.Second
	if err := u.write(f); err != nil { // it has the deadline of the past
		t.Fatal(err)
	}
	if !w.deadline.Before(time.Now()) {
		t.Errorf("a node that took %v for %d bytes may go on for %v", u.took, u.sent, time.Until(w.deadline))
	}
}

// slowWriter notes the last deadline.
type slowWriter struct {
	header   http.Header
	deadline time.Time
}

func (s *slowWriter) Header() http.Header                 { return s.header }
func (s *slowWriter) WriteHeader(int)                     {}
func (s *slowWriter) Write(b []byte) (int, error)         { return len(b), nil }
func (s *slowWriter) SetWriteDeadline(at time.Time) error { s.deadline = at; return nil }
func (s *slowWriter) Flush()                              {}

// TestAnswers has a registry name nodes at what is no address, and very many.
func TestAnswers(t *testing.T) {
	x := newExchange(t)
	s := newSwarm(x, gearfs.SourceRef{Registry: "r", Repo: "a"})
	defer s.stop()
	key := func(n uint32) string {
		var k peering.Key
		binary.BigEndian.PutUint32(k[:], n)
		return k.String()
	}
	a := &peering.Answer{}
	for i, at := range []string{"10.0.0.1:1@example.org/x?", "example.org:1", "", "10.0.0.1", "0.0.0.0:1", "[::]:1", "224.0.0.1:1", "[fe80::1%eth0]:1", "10.0.0.1:1/"} {
		a.Peers = append(a.Peers, peering.Peer{Key: key(uint32(i)), Address: at})
	}
	a.Peers = append(a.Peers, peering.Peer{Key: x.id.key.String(), Address: "10.0.0.1:1"}, peering.Peer{Key: "?", Address: "10.0.0.1:1"})
	if got := s.membersOf(a); len(got) > 0 {
		t.Errorf("%q is taken for the address of a node", got[0].addr)
	}
	for i := range uint32(5000) {
		a.Peers = append(a.Peers, peering.Peer{Key: key(i), Address: "10.0.0.1:1"})
	}
	if got := s.membersOf(a); len(got) != maxKnown || len(x.peers) != maxKnown {
		t.Errorf("of 5000 nodes %d are used, and %d kept", len(got), len(x.peers))
	}
}
