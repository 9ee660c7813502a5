package poolfs_test

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"runtime"
	"testing"

	"example.org/slipway/gearfs/poolfs"
)

func nameOf(i uint64) [32]byte {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], i)
	return sha256.Sum256(b[:])
}

func TestNodes(t *testing.T) {
	var n poolfs.Nodes
	const count = 20_000
	for round := range 2 {
		for i := range uint64(count) {
			if err := n.Add(nameOf(i), int64(i)); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
		}
	}
	if n.Len() != count {
		t.Errorf("got %d contents, want %d", n.Len(), count)
	}
	for i := range uint64(count) {
		name := nameOf(i)
		if got, size, ok := n.Resolve(poolfs.NodeID(name)); !ok || got != name || size != int64(i) {
			t.Fatalf("resolve %x: got %x, %d, %v", name, got, size, ok)
		}
	}
	for i := range uint64(count) {
		n.Remove(nameOf(i))
	}
	if n.Len() != count {
		t.Errorf("after one removal: got %d contents, want %d", n.Len(), count)
	}
	for i := range uint64(count / 2) {
		n.Remove(nameOf(i))
	}
	for i := range uint64(count) {
		_, ok := n.Size(nameOf(i))
		_, _, resolved := n.Resolve(poolfs.NodeID(nameOf(i)))
		if want := i >= count/2; ok != want || resolved != want {
			t.Fatalf("content %d: known %v, resolved %v, want %v", i, ok, resolved, want)
		}
	}
	n.Remove(nameOf(count + 1))
	for _, node := range []uint64{0, 1, 0x100, 1<<63 - 1} {
		if _, _, ok := n.Resolve(node); ok {
			t.Errorf("resolved node %x", node)
		}
	}
}

func TestNodesCollision(t *testing.T) {
	for _, other := range []func(*[32]byte){
		func(b *[32]byte) { b[31] ^= 1 },
		func(b *[32]byte) { b[8] ^= 0x80 },
		func(b *[32]byte) { b[7] ^= 1 }, // the 64th bit
	} {
		var n poolfs.Nodes
		a := nameOf(1)
		b := a
		other(&b)
		for _, err := range []error{n.Add(a, 5), n.Add(a, 5)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := n.Add(b, 5); !errors.Is(err, poolfs.ErrCollision) {
			t.Errorf("colliding content: got %v, want %v", err, poolfs.ErrCollision)
		}
		if err := n.Add(a, 6); !errors.Is(err, poolfs.ErrSize) {
			t.Errorf("another size: got %v, want %v", err, poolfs.ErrSize)
		}
		if err := n.Add(nameOf(2), -1); err == nil {
			t.Error("a negative size was taken")
		}
		n.Remove(b)
		if name, _, ok := n.Resolve(poolfs.NodeID(b)); !ok || name != a {
			t.Errorf("after the collision: got %x, %v, want %x", name, ok, a)
		}
		n.Remove(a)
		n.Remove(a)
		if err := n.Add(b, 5); err != nil {
			t.Errorf("after the other is gone: %v", err)
		}
	}
}

// BenchmarkNodes measures memory and time of a table of 50 images of 13,000 files.
func BenchmarkNodes(b *testing.B) {
	const count = 650_000
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		n := new(poolfs.Nodes)
		for i := range uint64(count) {
			if err := n.Add(nameOf(i), int64(i)); err != nil {
				b.Fatal(err)
			}
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/count, "B/content")
		runtime.KeepAlive(n)
	}
}
