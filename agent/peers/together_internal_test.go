package peers

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/node/gearfs"
	"example.org/slipway/node/gearfs/pace"
	"example.org/slipway/oci/peering"
)

// contents are files that a registry and other nodes of a test have, by name.
type contents map[gear.Name][]byte

// files makes n files of a size.
func (c contents) files(n, size int) (out []gear.File) {
	for i := range n {
		b := slices.Concat(fmt.Append(nil, len(c), " ", i, " "), noise(size))[:size]
		f := gear.File{Name: sha256.Sum256(b), Size: int64(size)}
		if size >= gear.LargeFile {
			for chunk := range slices.Chunk(b, gear.ChunkSize) {
				f.Chunks = append(f.Chunks, sha256.Sum256(chunk))
			}
		}
		c[f.Name], out = b, append(out, f)
	}
	return out
}

// of returns the bytes of a piece.
func (c contents) of(p piece) []byte {
	b := c[p.name]
	if p.chunk == whole {
		return b
	}
	return b[int(p.chunk)*gear.ChunkSize : min(len(b), int(p.chunk+1)*gear.ChunkSize)]
}

// answer is a node that has everything. It notes what it was asked for.
func (c contents) answer(asked *sync.Map) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		list, _ := parsePieces(b)
		for _, p := range list {
			asked.Store(p, r.Header.Get(fetchHeader))
			f := frameOf(c.of(p))
			if _, err := w.Write(append(f.appendHeader(nil), f.data...)); err != nil {
				return
			}
		}
	}
}

// registry gives files, and counts their bytes. after is called after each file or chunk.
type registry struct {
	gearfs.Source
	c     contents
	sent  atomic.Int64
	after func()
}

func (r *registry) Fetch(_ context.Context, files []gear.File, deliver func(int, io.Reader) error) error {
	for i, f := range files {
		r.sent.Add(f.Size)
		if err := deliver(i, bytes.NewReader(r.c[f.Name])); err != nil {
			return err
		}
		r.after()
	}
	return nil
}

func (r *registry) Range(_ context.Context, f gear.File, off, n int64, _ bool) (io.ReadCloser, error) {
	from := bytes.NewReader(r.c[f.Name][off : off+n])
	return io.NopCloser(readerFunc(func(b []byte) (int, error) {
		n, err := from.Read(b)
		r.sent.Add(int64(n))
		r.after()
		return n, err
	})), nil
}

// knowing makes a swarm know nodes, as an answer of a registry would.
func (s *swarm) knowing(peers ...*peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.grant, s.ends, s.known = "grant", time.Now().Add(time.Hour), nil
	for _, p := range peers {
		s.known = append(s.known, &member{p, false, 0, 0})
	}
	slices.SortFunc(s.known, func(a, b *member) int { return slices.Compare(a.key[:], b.key[:]) })
}

func wantsOf(files []gear.File) (out []want) {
	for i := range files {
		for _, p := range piecesOf(&files[i]) {
			out = append(out, want{p, &files[i]})
		}
	}
	return out
}

// newTogether returns an exchange with a swarm that knows nobody yet, its registry, and 60 small
// files in the registry.
func newTogether(t *testing.T) (*Exchange, *swarm, *registry, []want) {
	x := newExchange(t)
	s := newSwarm(x, gearfs.SourceRef{Registry: "r", Repo: "a"})
	t.Cleanup(s.stop)
	c := contents{}
	list := wantsOf(c.files(60, 1000))
	r := &registry{c: c, after: func() {}}
	s.setInner(r)
	return x, s, r, list
}

// TestForward has another node ask this one for pieces that a third node owns. This one gets those
// from the third, and from the registry only its own.
func TestForward(t *testing.T) {
	x, s, r, list := newTogether(t)
	c := r.c
	var asked sync.Map
	s.knowing(play(t, x, c.answer(&asked)))
	own, p := 0, s.plan(time.Now())
	for i, claim := range s.claimAll(list, owned, true) {
		b, err := claim.wait(t.Context())
		if err != nil || !bytes.Equal(b, c.of(list[i].piece)) {
			t.Fatalf("piece %d: %d bytes, error %v", i, len(b), err)
		}
		s.release(claim)
		get, passed := asked.Load(list[i].piece)
		if others := p.first(list[i].piece) != nil; others != passed || passed && get != "1" {
			t.Errorf("piece %d is another node's: %v, which was asked for it: %v %v", i, others, passed, get)
		}
		if !passed {
			own++
		}
	}
	if sent := r.sent.Load(); sent != int64(own)*1000 || own == 0 || own == len(list) {
		t.Errorf("the registry sent %d bytes for %d of %d pieces", sent, own, len(list))
	}
}

// TestNextOwner has the owner of pieces fail in many ways. The next owner is asked for them, and the
// registry sends only what this node owns then.
func TestNextOwner(t *testing.T) {
	for name, fails := range map[string]http.HandlerFunc{
		"has nothing": func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			for range len(b) / pieceEntry {
				_, _ = w.Write(none.appendHeader(nil))
			}
		},
		"breaks off": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"stalls":     func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"lies": func(w http.ResponseWriter, _ *http.Request) {
			f := &frame{plain, make([]byte, 1000)}
			_, _ = w.Write(append(f.appendHeader(nil), f.data...))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x, s, r, list := newTogether(t)
			c := r.c
			var asked sync.Map
			bad, good := play(t, x, fails), play(t, x, c.answer(&asked))
			s.knowing(bad, good)
			own, left := int64(0), planOf(x.id.key, []*member{{good, false, 0, 0}})
			for i := range list {
				if left.first(list[i].piece) == nil {
					own++
				}
			}
			var came atomic.Int64
			s.gather(t.Context(), s.plan(time.Now()), list, func(int) {}, func(i int, b []byte) error {
				if !bytes.Equal(b, c.of(list[i].piece)) {
					t.Errorf("piece %d has %d other bytes", i, len(b))
				}
				came.Add(1)
				return nil
			})
			if sent := r.sent.Load(); came.Load() != int64(len(list)) || sent != own*1000 {
				t.Errorf("%d of %d pieces came, and the registry sent %d bytes instead of %d", came.Load(), len(list), sent, own*1000)
			}
		})
	}
}

// TestStarved has one connection to a node starve. While the node sends on others, it is asked again
// and not left out; otherwise, or if that goes on, it is.
func TestStarved(t *testing.T) {
	for _, alive := range []bool{true, false} {
		x := newExchange(t)
		s := newSwarm(x, gearfs.SourceRef{Registry: "r", Repo: "a"})
		c := contents{}
		list := wantsOf(c.files(4, 1000))
		var asked sync.Map
		var requests atomic.Int64
		gives := c.answer(&asked)
		p := play(t, x, func(w http.ResponseWriter, r *http.Request) {
			if requests.Add(1) == 1 {
				<-r.Context().Done()
				return
			}
			gives(w, r)
		})
		s.knowing(p)
		ctx, cancel := context.WithCancel(t.Context())
		var others sync.WaitGroup
		if alive {
			others.Go(func() {
				for ctx.Err() == nil {
					p.progressed(time.Now())
					time.Sleep(10 * time.Millisecond)
				}
			})
		}
		left := s.fromOwner(t.Context(), s.members(time.Now())[0], list, []int{0, 1, 2, 3}, func(int) {}, func(int, []byte) error { return nil })
		cancel()
		others.Wait()
		if (len(left) == 0) != alive || p.usable(time.Now()) != alive {
			t.Errorf("the node sends on other connections: %v; %d pieces are left, it is used again: %v", alive, len(left), p.usable(time.Now()))
		}
		s.stop()
	}
	p, now := &peer{late: new(pace.Metronome)}, time.Now()
	p.progressed(now)
	for i := range maxStarved + 1 {
		if err := p.stalled(now, time.Second); errors.Is(err, errStall) != (i == maxStarved) {
			t.Errorf("connection %d starves: %v", i, err)
		}
	}
}

// TestJoin has other nodes become known while this one fetches from the registry. The rest comes from
// them, and what the registry has sent is not fetched again.
func TestJoin(t *testing.T) {
	for name, size := range map[string]int{"files": gear.LargeFile / 8, "a large file": 20 * gear.ChunkSize} {
		t.Run(name, func(t *testing.T) {
			x := newExchange(t)
			ref := gearfs.SourceRef{Registry: "r", Repo: "a"}
			s := newSwarm(x, ref)
			defer s.stop()
			close(s.first)
			c := contents{}
			files := c.files(20*gear.ChunkSize/size, size)
			var asked sync.Map
			p := play(t, x, c.answer(&asked))
			r := &registry{c: c}
			var calls atomic.Int64
			const before = 4
			r.after = func() {
				if r.sent.Load() >= before*gear.ChunkSize && calls.Add(1) == 1 {
					s.knowing(p)
				}
			}
			s.setInner(r)
			o := &source{Source: r, s: s}
			if size < gear.LargeFile {
				came := map[int]int{}
				err := o.Fetch(t.Context(), files, func(i int, from io.Reader) error {
					b, err := io.ReadAll(from)
					if came[i]++; !bytes.Equal(b, c[files[i].Name]) {
						t.Errorf("file %d has %d other bytes", i, len(b))
					}
					return err
				})
				if err != nil || len(came) != len(files) {
					t.Errorf("%d of %d files, error %v", len(came), len(files), err)
				}
				for i, n := range came {
					if n != 1 {
						t.Errorf("file %d is delivered %d times", i, n)
					}
				}
			} else {
				in, err := o.Range(t.Context(), files[0], 0, files[0].Size, false)
				if err != nil {
					t.Fatal(err)
				}
				b, err := io.ReadAll(in)
				if err != nil || !bytes.Equal(b, c[files[0].Name]) {
					t.Errorf("%d other bytes, error %v", len(b), err)
				}
				if err := in.Close(); err != nil {
					t.Error(err)
				}
			}
			given := int64(0)
			asked.Range(func(k, _ any) bool { given += int64(len(c.of(k.(piece)))); return true })
			// What the reader asked for in one go may be on its way.
			if sent := r.sent.Load(); given == 0 || sent+given < 20*gear.ChunkSize || sent+given > 22*gear.ChunkSize {
				t.Errorf("the registry sent %d bytes and the other node %d, of %d", sent, given, 20*gear.ChunkSize)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if n := len(s.claims); n != 0 {
				t.Errorf("%d claims are left", n)
			}
		})
	}
}

// TestNoCircles has nodes that know different others pass on requests. Each request must end at a node
// that fetches the piece itself.
func TestNoCircles(t *testing.T) {
	const nodes, pieces = 20, 500
	keys := make([]peering.Key, nodes)
	at := map[peering.Key]int{}
	for i := range keys {
		keys[i] = sha256.Sum256(fmt.Append(nil, "node", i))
		at[keys[i]] = i
	}
	plans := make([]*plan, nodes)
	for i := range plans {
		var known []*member
		for j := range keys {
			if j != i && mix(uint64(i*nodes+j))%3 > 0 {
				known = append(known, &member{peer: &peer{key: keys[j]}})
			}
		}
		plans[i] = planOf(keys[i], known)
	}
	longest := 0
	for i := range pieces {
		p := piece{sha256.Sum256(fmt.Append(nil, "file", i/10)), int32(i%10) - 1}
		for first := range keys {
			hops := 0
			for m := plans[first].first(p); m != nil; m = plans[at[m.key]].first(p) {
				if hops++; hops > nodes {
					t.Fatalf("a request for piece %d of node %d goes in a circle", i, first)
				}
			}
			longest = max(longest, hops)
		}
	}
	if longest < 2 || longest > 6 {
		t.Errorf("the longest way of a request has %d steps", longest)
	}
}
