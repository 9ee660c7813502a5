package blocktest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"

	"example.org/slipway/volume/block"
)

// bytes compares a chain of growing clones with slices in memory.
func (t *suite) bytes() {
	for round := range t.opts.Rounds {
		rnd := rand.New(rand.NewPCG(uint64(round), 1))
		var all [][]byte
		parent := ""
		model := make([]byte, size)
		for depth := range 4 {
			id := fmt.Sprintf("v%d-%d", round, depth)
			model = append(bytes.Clone(model), make([]byte, rnd.IntN(3)*4096)...)
			v := t.create(id, parent, int64(len(model)))
			t.wantBytes(v, model, 0)
			t.scribble(rnd, v, model, 60)
			if depth%2 == 1 { // a second writer continues
				t.close(v)
				var err error
				v, err = t.s.OpenWriter(t.Context(), id)
				t.must(err, "OpenWriter")
				t.wantBytes(v, model, 0)
				t.scribble(rnd, v, model, 20)
			}
			t.wantBytes(v, model, 0)
			t.commit(id, v)
			all, parent = append(all, model), id
		}
		for depth, want := range all {
			t.wantVolume(fmt.Sprintf("v%d-%d", round, depth), want)
		}
	}
}

// scribble writes, zeroes and reads at random places.
func (t *suite) scribble(rnd *rand.Rand, v block.Volume, model []byte, n int) {
	for range n {
		off := rnd.IntN(len(model))
		length := min([]int{1, 511, 4096, 5000, 64 << 10, 1<<20 + 7000}[rnd.IntN(6)], len(model)-off)
		if rnd.IntN(2) == 0 {
			off, length = off&^4095, (length+4095)&^4095
			length = min(length, len(model)-off)
		}
		switch rnd.IntN(4) {
		case 0:
			t.must(v.Zero(int64(off), int64(length)), "Zero")
			clear(model[off : off+length])
		case 1:
			t.wantBytes(v, model[off:off+length], int64(off))
		default:
			b := Content(rnd.Uint64(), length)
			t.write(v, b, int64(off))
			copy(model[off:], b)
			clear(b) // the store must have its own copy
		}
	}
}

// ends checks accesses beyond the end.
func (t *suite) ends() {
	v := t.create("v", "", 8192)
	for _, tt := range []struct{ off, n int64 }{{8192, 1}, {8191, 2}, {0, 8193}, {-1, 2}, {1 << 62, 1}} {
		if _, err := v.WriteAt(make([]byte, tt.n), tt.off); err == nil {
			t.Errorf("WriteAt of %d bytes at %d: got no error", tt.n, tt.off)
		}
		if err := v.Zero(tt.off, tt.n); err == nil {
			t.Errorf("Zero of %d bytes at %d: got no error", tt.n, tt.off)
		}
	}
	if err := v.Zero(1, 1<<63-1); err == nil {
		t.Error("Zero of a length that overflows: got no error")
	}
	t.must(v.Zero(8192, 0), "Zero of nothing at the end")
	t.write(v, Content(1, 8192), 0)
	t.commit("v", v)
	v = t.open("v")
	defer t.close(v)
	for _, tt := range []struct {
		off  int64
		n    int
		want int
		err  error
	}{
		{0, 8192, 8192, nil}, {8000, 192, 192, nil}, {8000, 193, 192, io.EOF}, {8192, 1, 0, io.EOF}, {1 << 62, 1, 0, io.EOF}, {100, 0, 0, nil},
	} {
		b := make([]byte, tt.n)
		n, err := v.ReadAt(b, tt.off)
		if n == tt.n && errors.Is(err, io.EOF) {
			err = nil // either result is right for a whole volume
		}
		if n != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("ReadAt of %d bytes at %d: got %d, %v, want %d, %v", tt.n, tt.off, n, err, tt.want, tt.err)
		}
	}
	if _, err := v.ReadAt(make([]byte, 1), -1); err == nil {
		t.Error("ReadAt at -1: got no error")
	}
}

// concurrent checks reads and writes of many goroutines in blocks that they share.
func (t *suite) concurrent() {
	t.made("a", "", 1<<20, 0, Content(1, 1<<20))
	v := t.create("b", "a", 1<<20)
	const racers = 8
	// Stretches of 1,000 bytes take turns, so that several goroutines write to most blocks.
	want := Content(1, 1<<20)
	var wg sync.WaitGroup
	for r := range racers {
		wg.Go(func() {
			for off := r * 1000; off+1000 <= 600_000; off += racers * 1000 {
				if _, err := v.WriteAt(Content(uint64(r), 1000), int64(off)); err != nil {
					t.Errorf("WriteAt: %v", err)
				}
				b := make([]byte, 1000)
				if _, err := v.ReadAt(b, int64(off)); err != nil || !bytes.Equal(b, Content(uint64(r), 1000)) {
					t.Errorf("ReadAt %d: other bytes, or %v", off, err)
				}
			}
		})
	}
	wg.Go(func() { // concurrently
		if err := v.Zero(800_000, 100_000); err != nil {
			t.Errorf("Zero: %v", err)
		}
		if err := v.Flush(); err != nil {
			t.Errorf("Flush: %v", err)
		}
	})
	wg.Wait()
	for off := 0; off+1000 <= 600_000; off += 1000 {
		copy(want[off:], Content(uint64(off/1000%racers), 1000))
	}
	clear(want[800_000:900_000])
	t.wantBytes(v, want, 0)
	t.commit("b", v)
	t.wantVolume("b", want)
	t.wantVolume("a", Content(1, 1<<20))
}

// full checks that writing without room is an error and harms nothing else.
func (t *suite) full(room int64) {
	ctx := t.Context()
	t.made("a", "", 1<<20, 0, Content(1, 1<<20))
	v := t.create("b", "a", 2*room)
	t.write(v, Content(2, 100_000), 0)
	want := Content(1, 1<<20)
	copy(want, Content(2, 100_000))
	b := Content(3, 1<<20)
	var err error
	for off := int64(1 << 20); err == nil && off+1<<20 <= v.Size(); off += 1 << 20 {
		if _, err = v.WriteAt(b, off); err == nil {
			err = v.Flush()
		}
	}
	t.wants(err, block.ErrFull, "writing to the end")
	t.wantBytes(v, want, 0)
	t.close(v)
	t.wantVolume("a", Content(1, 1<<20))
	t.eventually(t.opts.Death, "Remove what is too large", func() error { return t.s.Remove(ctx, "b") })
	t.eventually(t.opts.Death, "write after that", func() error {
		v, err := t.s.Create(ctx, "c", "a", 1<<20)
		if err != nil {
			return err
		}
		_, err = v.WriteAt(Content(4, 100_000), 0)
		if err = errors.Join(err, v.Flush(), v.Close()); err != nil {
			return errors.Join(err, t.s.Remove(ctx, "c"))
		}
		return t.s.Commit(ctx, "c")
	})
	copy(want, Content(4, 100_000))
	t.wantVolume("c", want)
}
