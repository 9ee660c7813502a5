package gearfs_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/node/gearfs"
	"example.org/slipway/node/poolfs"
)

// TestLies has one image lie about a file of an honest one. It lies in every way, about a small and
// a large file, before and after the honest one was added, with and without the file in the cache,
// and while a container of it has the file open.
// The honest image can always be added and read, and the lie is not believed twice.
func TestLies(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	tr := makeTree(t, content(1, 1000), content(2, 5<<20), content(3, 77))
	for i, size := range []string{"small", "large"} {
		honest := tr.files[i]
		lies := map[string]gear.File{}
		for name, by := range map[string]int64{"shorter": -1, "longer": 1, "much longer": 3 << 20} {
			lie := honest
			if lie.Size += by; lie.Size >= gear.LargeFile {
				lie.Chunks = make([]gear.Name, gear.ChunkCount(lie.Size))
				copy(lie.Chunks, honest.Chunks)
			}
			lies[name] = lie
		}
		if honest.Chunks != nil {
			lie := honest
			lie.Chunks = slices.Clone(lie.Chunks)
			lie.Chunks[1][0]++
			lies["chunk"] = lie
		}
		for name, lie := range lies {
			for state := range 6 {
				cached, first, open := state&1 != 0, state >= 2, state >= 4
				t.Run(fmt.Sprintf("%s %s, cached %t, first %t, open %t", size, name, cached, first, open), func(t *testing.T) {
					testLie(t, tr, honest, lie, cached, first, open)
				})
			}
		}
	}
}

func testLie(t *testing.T, tr *tree, honest, lie gear.File, cached, first, open bool) {
	n := newNode(t, gearfs.Options{Bound: 20 * time.Second}, map[string]gearfs.Source{"a": newSource(tr)})
	b := gear.NewBuilder(nil)
	must(t, b.Add(entry("x", lie.Size), lie))
	x, err := b.Index()
	must(t, err)
	add := func() error {
		return n.AddImage(gearfs.ImageSpec{Chain: "sha256:lie", Sources: []gearfs.SourceRef{{Registry: "a", Repo: "evil"}}}, x)
	}
	if cached {
		n.add("sha256:before", tr, "a")
		n.check(tr, honest)
		eventually(t, "the file is in the cache", func() bool { return n.cache.Has(honest.Name) })
		must(t, n.RemoveImage("sha256:before"))
	}
	opened := io.Closer(io.NopCloser(nil))
	if first {
		must(t, add())
		if c := readShortly(t, n, lie); open && c != nil { // whatever the result
			opened = c
		} else if c != nil {
			must(t, c.Close())
		}
	}
	n.add("sha256:honest", tr, "a")
	n.check(tr, honest)
	if err := add(); !errors.Is(err, gearfs.ErrConflict) {
		t.Errorf("the lie is told again: %v", err)
	}
	for _, f := range tr.files {
		n.check(tr, f)
	}
	must(t, opened.Close())
	n.stop()
	n.start()
	if !n.HasImage("sha256:honest") || n.HasImage("sha256:lie") {
		t.Error("after a restart it is the other way round")
	}
	n.check(tr, honest)
}

// readShortly reads the end of a file that may never arrive, and returns it open if it opens.
func readShortly(t *testing.T, n *node, f gear.File) poolfs.Content {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	c, err := n.Open(ctx, poolfs.Key{Name: f.Name})
	if err != nil {
		return nil
	}
	_, _ = c.ReadAt(ctx, make([]byte, 100), f.Size-100)
	return c
}
