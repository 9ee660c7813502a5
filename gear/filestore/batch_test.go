package filestore_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/gear/filestore"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/fsstore"
	"example.org/slipway/registry/objstore/memstore"
	"example.org/slipway/registry/objstore/objtest"
)

// stores returns a store that implements Opener, one that does not, and a slow one.
func stores(t *testing.T) map[string]objstore.Store {
	t.Helper()
	disk, err := fsstore.New(t.TempDir(), nil)
	must(t, err)
	t.Cleanup(func() { disk.Close() })
	var calls atomic.Int64
	slow := objtest.Faulty(memstore.New(nil), objtest.Faults{Before: func(op, _ string) error {
		if op == "get" && calls.Add(1)%8 == 0 { // only now and then
			time.Sleep(5 * time.Millisecond)
		}
		return nil
	}})
	return map[string]objstore.Store{"disk": disk, "memory": memstore.New(nil), "slow": slow}
}

// TestStreamOrders reads batches in other orders than those of the packs. The batches
// exceed a window and the number of open packs, and few places fit in RAM.
func TestStreamOrders(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	for kind, store := range stores(t) {
		t.Run(kind, func(t *testing.T) {
			b := newBed(t, &filestore.Options{PackSize: 64 << 10, Locations: 300})
			b.objs = store
			b.newStore()
			contents := append(many(1, 400), nil)
			b.add("one", contents...)
			b.settle(true)
			large := [][]byte{noise(9, 300<<10), make([]byte, 5<<20)}
			for i := range uint64(4) {
				large = append(large, noise(20+i, 200<<10))
			}
			b.add("large", large...)
			contents = append(contents, large...)
			for i := range uint64(12) { // fresh packs
				more := many(100+i, 5)
				b.add(fmt.Sprint("more", i), more...)
				contents = append(contents, more...)
			}
			b.check(contents...)
			slices.Reverse(contents)
			b.check(contents...)
			rand.New(rand.NewPCG(1, 1)).Shuffle(len(contents), func(i, j int) { contents[i], contents[j] = contents[j], contents[i] })
			b.check(append(contents, contents[:50]...)...)
			twice := slices.Repeat(many(1, 3), 700)
			b.check(twice...)
		})
	}
}

// TestStreamBrokenPack checks that an unreadable content is reported as a failure of that
// content, and that the others still come.
func TestStreamBrokenPack(t *testing.T) {
	root := t.TempDir()
	disk, err := fsstore.New(root, nil)
	must(t, err)
	t.Cleanup(func() { disk.Close() })
	b := newBed(t, nil)
	b.objs = disk
	b.newStore()
	one, two := many(1, 30), many(2, 30)
	b.add("one", one...)
	before := b.keys()
	b.add("two", two...)
	i := slices.IndexFunc(b.keys(), func(k string) bool { return k != before[0] })
	second := filepath.Join(root, b.keys()[i])
	must(t, os.Chmod(second, 0o600))
	must(t, os.Truncate(second, 2000))
	var names []gear.Name
	for i := range one {
		names = append(names, name(one[i]), name(two[i]))
	}
	var out bytes.Buffer
	must(t, b.s.Stream(b.ctx, &out, names, nil))
	failed := 0
	r := gear.NewStreamReader(&out)
	for i, n := range names {
		it, err := r.Next()
		must(t, err)
		if it.Name != n || it.Missing || it.Failure != "" && i%2 == 0 {
			t.Fatalf("content %d: got %x, missing %v, failure %q", i, it.Name, it.Missing, it.Failure)
		}
		if it.Failure != "" {
			failed++
		}
	}
	if _, err := r.Next(); !errors.Is(err, io.EOF) || failed == 0 || failed == len(two) {
		t.Errorf("%d of %d contents failed in a pack that lost its end; end of the stream: %v", failed, len(two), err)
	}
}

// TestStreamToNobody checks that a batch ends when the client leaves, also while the next
// window is read.
func TestStreamToNobody(t *testing.T) {
	for kind, store := range stores(t) {
		b := newBed(t, nil)
		b.objs = store
		b.newStore()
		var contents [][]byte
		var names []gear.Name
		for i := range uint64(10) {
			contents = append(contents, noise(i, 200<<10))
			names = append(names, name(contents[i]))
		}
		b.add("one", contents...)
		for most := range 4 {
			if err := b.s.Stream(b.ctx, &leaving{most: most}, names, nil); !errors.Is(err, errInjected) {
				t.Errorf("%s: after %d writes: got %v", kind, most, err)
			}
		}
		b.check(contents...)
	}
}

// leaving is a client that accepts some writes and fails the following ones.
type leaving struct{ most int }

func (l *leaving) Write(p []byte) (int, error) {
	if l.most--; l.most < 0 {
		return 0, errInjected
	}
	return len(p), nil
}
