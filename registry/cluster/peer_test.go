package cluster_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/registry/cluster"
	"example.org/slipway/registry/objstore"
)

// TestPeerReads checks that a blob is read from its home, whole and in ranges, and that only the
// home reads it from the store.
func TestPeerReads(t *testing.T) {
	b := newBed(t)
	r1, r2 := b.join("r1", nil, nil), b.join("r2", nil, nil)
	b.meet(2)
	for _, size := range []int{1, 1000, 1 << 20, 1<<20 + 1, 5 << 20} {
		key, data := b.blob("r2", size)
		s := int64(size)
		for _, c := range []struct{ off, n int64 }{{0, -1}, {0, s}, {0, s + 5}, {0, 1}, {s - 1, -1}, {s / 2, s / 4}, {s / 2, s}, {s, -1}, {s + 1, 3}, {0, 0}} {
			b.want(r1.store, key, data, c.off, c.n)
			b.want(r2.store, key, data, c.off, c.n)
		}
		// The only reads are empty ranges, for which it is not worth asking a peer twice.
		if got := r1.inner.count(key); got > 5 {
			t.Errorf("r1 read a blob of %d bytes, whose home is r2, %d times from the store", size, got)
		}
	}
	if got := metric(t, r1, "slipway_cluster_reads_total", "peer"); got == 0 {
		t.Error("no read from a peer is counted")
	}
	key, data := b.blob("r1", 1000)
	b.want(r1.store, key, data, 0, -1)
	if r1.inner.count(key) != 1 || r2.inner.count(key) != 0 {
		t.Errorf("r1 read its own blob %d times, r2 %d times", r1.inner.count(key), r2.inner.count(key))
	}
}

// TestObjectsWithoutHome checks that objects other than blobs go to the store and are not served.
func TestObjectsWithoutHome(t *testing.T) {
	b := newBed(t)
	r1 := b.join("r1", nil, nil)
	b.join("r2", nil, nil)
	b.meet(2)
	for i := range 20 {
		key := fmt.Sprintf("slipway/pack/%d", i)
		if err := b.mem.Put(t.Context(), key, []byte("x"), false); err != nil {
			t.Fatal(err)
		}
		b.want(r1.store, key, []byte("x"), 0, -1)
		if r1.inner.count(key) != 1 {
			t.Errorf("%s was read %d times from the store", key, r1.inner.count(key))
		}
	}
	if _, _, err := read(t.Context(), r1.store, keyOf([]byte("nowhere")), 0, -1); !errors.Is(err, objstore.ErrNotExist) {
		t.Errorf("a blob that is nowhere: %v", err)
	}
}

// sourceFunc is a source that misbehaves.
type sourceFunc func(ctx context.Context, key string, off, n int64) (objstore.Object, error)

func (f sourceFunc) Get(ctx context.Context, key string, off, n int64) (objstore.Object, error) {
	return f(ctx, key, off, n)
}

// bent is an object whose bytes or whose end come from elsewhere.
type bent struct {
	objstore.Object
	r io.Reader
}

func (o *bent) Read(p []byte) (int, error)         { return o.r.Read(p) }
func (o *bent) WriteTo(w io.Writer) (int64, error) { return io.Copy(w, o.r) }

func bend(s cluster.Source, how func(io.Reader) io.Reader) cluster.Source {
	return sourceFunc(func(ctx context.Context, key string, off, n int64) (objstore.Object, error) {
		obj, err := s.Get(ctx, key, off, n)
		if err != nil {
			return nil, err
		}
		return &bent{obj, how(obj)}, nil
	})
}

// flip changes the byte at one offset.
type flip struct {
	r  io.Reader
	at int
}

func (f *flip) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if f.at >= 0 && f.at < n {
		p[f.at] ^= 1
	}
	f.at -= n
	return n, err
}

// hang delivers n bytes and then nothing until it is released.
type hang struct {
	r       io.Reader
	n       int
	release <-chan struct{}
}

func (h *hang) Read(p []byte) (int, error) {
	if h.n == 0 {
		<-h.release
		return 0, io.ErrUnexpectedEOF
	}
	n, err := h.r.Read(p[:min(h.n, len(p))])
	h.n -= n
	return n, err
}

// TestBadPeers checks that the read succeeds with the right bytes, whatever a peer does.
func TestBadPeers(t *testing.T) {
	var released chan struct{} // closed at the end of each case
	quick := cluster.Options{HedgeAfter: 50 * time.Millisecond, AnswerTimeout: 2 * time.Second, StallTimeout: 200 * time.Millisecond}
	for _, c := range []struct {
		name, reason string
		size         int
		source       func(*cluster.Store) cluster.Source
	}{
		{"error", "gone", 1000, func(*cluster.Store) cluster.Source {
			return sourceFunc(func(context.Context, string, int64, int64) (objstore.Object, error) { return nil, errors.New("broken") })
		}},
		{"busy", "busy", 1000, func(*cluster.Store) cluster.Source {
			return sourceFunc(func(context.Context, string, int64, int64) (objstore.Object, error) {
				return nil, &objstore.BusyError{Err: errors.New("too much")}
			})
		}},
		{"absent", "absent", 1000, func(*cluster.Store) cluster.Source {
			return sourceFunc(func(context.Context, string, int64, int64) (objstore.Object, error) {
				return nil, objstore.ErrNotExist
			})
		}},
		{"hangs", "slow", 1000, func(*cluster.Store) cluster.Source {
			return sourceFunc(func(ctx context.Context, _ string, _, _ int64) (objstore.Object, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			})
		}},
		{"cut before anything was sent", "gone", 1000, func(s *cluster.Store) cluster.Source {
			return bend(s, func(r io.Reader) io.Reader { return io.LimitReader(r, 500) })
		}},
		{"cut, large", "cut", 3 << 20, func(s *cluster.Store) cluster.Source {
			return bend(s, func(r io.Reader) io.Reader { return io.LimitReader(r, 2<<20) })
		}},
		{"cut before the last byte", "cut", 3 << 20, func(s *cluster.Store) cluster.Source {
			return bend(s, func(r io.Reader) io.Reader { return io.LimitReader(r, 3<<20-1) })
		}},
		{"wrong, small", "wrong", 1000, func(s *cluster.Store) cluster.Source {
			return bend(s, func(r io.Reader) io.Reader { return &flip{r, 700} })
		}},
		{"stalls, large", "stalled", 3 << 20, func(s *cluster.Store) cluster.Source {
			return bend(s, func(r io.Reader) io.Reader { return &hang{r, 1 << 20, released} })
		}},
		{"stalls, small", "slow", 10_000, func(s *cluster.Store) cluster.Source {
			return bend(s, func(r io.Reader) io.Reader { return &hang{r, 5000, released} })
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBed(t)
			r1 := b.join("r1", &quick, nil)
			b.join("r2", &quick, c.source)
			release := make(chan struct{})
			released = release
			t.Cleanup(func() { close(release) }) // before the servers end
			b.meet(2)
			key, data := b.blob("r2", c.size)
			b.want(r1.store, key, data, 0, -1)
			poll(t, "the fallback is counted", func() bool { return fallbacks(t, r1, c.reason) == 1 })
		})
	}
}

// TestLargeLie checks that a large wrong object ends in an error before its last byte, and that the
// lying peer is not asked again.
func TestLargeLie(t *testing.T) {
	b := newBed(t)
	r1 := b.join("r1", nil, nil)
	b.join("r2", nil, func(s *cluster.Store) cluster.Source {
		return bend(s, func(r io.Reader) io.Reader { return &flip{r, 5} })
	})
	b.meet(2)
	key, data := b.blob("r2", 3<<20)
	got, _, err := read(t.Context(), r1.store, key, 0, -1)
	if err == nil || len(got) >= len(data) {
		t.Fatalf("a wrong object: got %d of %d bytes, %v", len(got), len(data), err)
	}
	for range 3 {
		b.want(r1.store, key, data, 0, -1)
	}
	if got := fallbacks(t, r1, "wrong"); got != 1 {
		t.Errorf("the liar was asked %v times", got)
	}
}

// TestGonePeers checks that an absent peer costs no error, and soon no time.
func TestGonePeers(t *testing.T) {
	b := newBed(t)
	r1 := b.join("r1", nil, nil)
	r2 := b.join("r2", nil, nil)
	b.meet(2)
	key, data := b.blob("r2", 2<<20)
	b.want(r1.store, key, data, 0, -1)
	r2.srv.CloseClientConnections()
	r2.srv.Close()
	for range 10 {
		b.want(r1.store, key, data, 0, -1)
	}
	if got := fallbacks(t, r1, "gone"); got == 0 || got > 3 {
		t.Errorf("a peer that is gone was asked %v times in ten reads", got)
	}
	r2.stop()
	poll(t, "the peer is no member", func() bool { return len(r1.Members()) == 1 })
}

// TestImpostor checks that a server with a replica's address but without the secret is not
// believed, whatever it answers.
func TestImpostor(t *testing.T) {
	for _, c := range []struct {
		name, reason string
		answer       func(http.ResponseWriter, *http.Request)
	}{
		{"bytes", "forged", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "anything") }},
		{"empty", "forged", func(http.ResponseWriter, *http.Request) {}},
		{"redirect", "forged", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://127.0.0.1:1/")
			w.WriteHeader(302)
		}},
		{"proof of its own", "forged", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Slipway-Peer-Proof", strings.Repeat("00", 32))
			fmt.Fprint(w, "anything")
		}},
		{"refusal", "refused", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) }},
		{"no HTTP", "gone", func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				fmt.Fprint(conn, "SSH-2.0-x\r\n")
				conn.Close()
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBed(t)
			r1, r2 := b.join("r1", nil, nil), b.join("r2", nil, nil)
			b.meet(2)
			key, data := b.blob("r2", 500)
			r2.srv.Config.Handler = http.HandlerFunc(c.answer) // no request has come yet
			b.want(r1.store, key, data, 0, -1)
			if got := fallbacks(t, r1, c.reason); got != 1 {
				t.Errorf("%s: counted %v times", c.reason, got)
			}
		})
	}
}

// TestStrangers checks that requests which no peer signed get nothing.
func TestStrangers(t *testing.T) {
	b := newBed(t)
	var seen http.Header
	r1 := b.join("r1", nil, nil)
	r2 := b.join("r2", nil, nil)
	inner := r2.srv.Config.Handler
	r2.srv.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if seen == nil {
			seen = r.Header.Clone()
		}
		inner.ServeHTTP(w, r)
	})
	b.meet(2)
	key, data := b.blob("r2", 500)
	get := func(path string, h http.Header) (int, []byte) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r2.srv.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header = h.Clone()
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, body
	}
	const path = "/_slipway/peer/blobs/"
	for _, h := range []http.Header{{}, {"Slipway-Peer": {"v1 1 a 1 " + strings.Repeat("0", 64)}}, {"Authorization": {"Bearer " + secret}}} {
		seen = http.Header{}
		if status, body := get(path+key, h); status != 401 || bytes.Contains(body, data[:16]) {
			t.Errorf("header %v: status %d, %d bytes", h, status, len(body))
		}
	}
	seen = nil
	b.want(r1.store, key, data, 0, -1)
	if seen.Get("Slipway-Peer") == "" || strings.Contains(fmt.Sprint(seen), secret) {
		t.Fatalf("the peer's header: %v", seen)
	}
	if status, _ := get(path+key, seen); status != 401 {
		t.Errorf("a request that was overheard and repeated: status %d", status)
	}
	if got := metric(t, r2, "slipway_cluster_served_total", "refused"); got != 4 {
		t.Errorf("%v requests counted as refused, want 4", got)
	}
}

// TestBusyPeer checks that a peer at its limit refuses more reads, and that those are read from the
// store.
func TestBusyPeer(t *testing.T) {
	release := make(chan struct{})
	b := newBed(t)
	r1 := b.join("r1", &cluster.Options{HedgeAfter: time.Minute, AnswerTimeout: 2 * time.Minute}, nil)
	var waiting atomic.Int32
	b.join("r2", &cluster.Options{MaxServed: 1}, func(s *cluster.Store) cluster.Source {
		return sourceFunc(func(ctx context.Context, key string, off, n int64) (objstore.Object, error) {
			waiting.Add(1)
			<-release
			return s.Get(ctx, key, off, n)
		})
	})
	b.meet(2)
	key, data := b.blob("r2", 700)
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.want(r1.store, key, data, 0, -1)
	}()
	poll(t, "the first read is being served", func() bool { return waiting.Load() == 1 })
	b.want(r1.store, key, data, 0, -1)
	if got := fallbacks(t, r1, "busy"); got != 1 {
		t.Errorf("busy: counted %v times", got)
	}
	close(release)
	<-done
}

// TestCallerGivesUp checks that a read whose caller has gone ends at once and does not count
// against the peer.
func TestCallerGivesUp(t *testing.T) {
	b := newBed(t)
	r1 := b.join("r1", nil, nil)
	b.join("r2", nil, func(s *cluster.Store) cluster.Source {
		return sourceFunc(func(ctx context.Context, _ string, _, _ int64) (objstore.Object, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
	})
	b.meet(2)
	key, _ := b.blob("r2", 700)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	if _, _, err := read(ctx, r1.store, key, 0, -1); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	poll(t, "it is counted", func() bool { return fallbacks(t, r1, "abandoned") == 1 })
	// The same holds for a read that is closed halfway.
	b2 := newBed(t)
	r3 := b2.join("r3", nil, nil)
	b2.join("r4", nil, nil)
	b2.meet(2)
	key, data := b2.blob("r4", 4<<20)
	obj, err := r3.store.Get(t.Context(), key, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(obj, make([]byte, 1000)); err != nil {
		t.Error(err)
	}
	if err := obj.Close(); err != nil {
		t.Error(err)
	}
	if _, err := obj.Read(make([]byte, 1)); err == nil {
		t.Error("a closed object can be read")
	}
	b2.want(r3.store, key, data, 0, -1)
	if got := metric(t, r3, "slipway_cluster_reads_total", "peer"); got != 1 {
		t.Errorf("%v reads came from the peer afterwards, want 1", got)
	}
}
