package rbd

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
)

// TestPending writes at random and compares it with what was sent. No more may be sent than was
// written.
func TestPending(t *testing.T) {
	const size = 24 << 20 // more chunks than are held
	r := rand.New(rand.NewPCG(1, 2))
	sent, want := make([]byte, size), make([]byte, size)
	var mu sync.Mutex
	var bytesSent int
	p := newPending(func(b []byte, off int64) error {
		mu.Lock()
		defer mu.Unlock()
		copy(sent[off:], b)
		bytesSent += len(b)
		return nil
	})
	noise := make([]byte, 9<<20)
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	for range 400 {
		n := 1 + r.IntN(5000)
		if r.IntN(40) == 0 {
			n = r.IntN(len(noise))
		}
		off := r.IntN(size - n)
		b := noise[r.IntN(len(noise)-n+1):][:n]
		if err := p.write(b, int64(off)); err != nil {
			t.Fatal(err)
		}
		copy(want[off:], b)
		if r.IntN(50) == 0 {
			off, n := r.IntN(size), 1+r.IntN(1<<20)
			n = min(n, size-off)
			if err := p.settle(int64(off), int64(n)); err != nil {
				t.Fatal(err)
			}
			mu.Lock()
			if !bytes.Equal(sent[off:off+n], want[off:off+n]) {
				t.Fatalf("after settle(%d, %d): they differ", off, n)
			}
			mu.Unlock()
		}
	}
	if err := p.settle(0, size); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(sent, want) || len(p.chunks) > 0 || len(p.order) > 0 {
		t.Errorf("they differ; %d chunks are left", len(p.chunks))
	}
}

// TestPendingParts checks that adjacent writes are sent as one.
func TestPendingParts(t *testing.T) {
	var c chunk
	for _, s := range []span{{10, 20}, {30, 40}, {50, 60}, {20, 22}, {25, 30}, {0, 1}, {41, 49}, {22, 25}, {39, 50}, {12, 13}} {
		c.add(s)
	}
	if want := []span{{0, 1}, {10, 60}}; len(c.parts) != 2 || c.parts[0] != want[0] || c.parts[1] != want[1] {
		t.Errorf("got %v, want %v", c.parts, want)
	}
}

// TestPendingError checks that nothing more is accepted after the first error, and that all callers
// get it.
func TestPendingError(t *testing.T) {
	bad := errors.New("bad")
	p := newPending(func([]byte, int64) error { return bad })
	if err := p.write([]byte("x"), 5); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := p.settle(0, 10); !errors.Is(err, bad) {
			t.Errorf("settle: %v", err)
		}
		if err := p.write([]byte("x"), 5); !errors.Is(err, bad) {
			t.Errorf("write: %v", err)
		}
	}
}
