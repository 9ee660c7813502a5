package filestore_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pgregory.net/rapid"

	"example.org/slipway/gear/filestore"
	"example.org/slipway/registry/objstore/memstore"
)

// Each check runs a hundred steps on real files; -rapid.checks asks for more.
func init() {
	if err := flag.Set("rapid.checks", "40"); err != nil {
		panic(err)
	}
}

// pool returns the contents that the layers of the model consist of.
func pool() [][]byte {
	out := [][]byte{{}, noise(1, 40<<10), text(2, 130<<10)}
	return append(out, many(1, 60)...)
}

// TestModel compares the store with a map from layers to contents.
func TestModel(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	all := pool()
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp("", "filestore-model")
		must(rt, err)
		defer os.RemoveAll(dir)
		b := &bed{t: rt, ctx: t.Context(), path: filepath.Join(dir, "catalog.db"), objs: memstore.New(nil)}
		b.init(&filestore.Options{PackSize: 128 << 10, Workers: 2})
		defer func() { must(rt, b.cat.Close()) }()
		layers := map[string][][]byte{}
		needed := func() (out [][]byte) {
			seen := map[string]bool{}
			for l, contents := range layers {
				for _, c := range append(contents, index(l, contents)) {
					if !seen[string(c)] {
						seen[string(c)] = true
						out = append(out, c)
					}
				}
			}
			return out
		}
		rt.Repeat(map[string]func(*rapid.T){
			"convert": func(rt *rapid.T) {
				l := fmt.Sprint(rapid.IntRange(0, 5).Draw(rt, "layer"))
				if _, ok := layers[l]; ok {
					return
				}
				var contents [][]byte
				for _, i := range rapid.SliceOfDistinct(rapid.IntRange(0, len(all)-1), rapid.ID[int]).Draw(rt, "contents") {
					contents = append(contents, all[i])
				}
				b.add(l, contents...)
				layers[l] = contents
			},
			"remove": func(rt *rapid.T) {
				l := fmt.Sprint(rapid.IntRange(0, 5).Draw(rt, "layer"))
				if _, ok := layers[l]; ok {
					b.remove(l)
					delete(layers, l)
				}
			},
			"abort": func(rt *rapid.T) {
				w, err := b.s.NewWriter(b.ctx)
				must(rt, err)
				must(rt, write(b.ctx, w, all[rapid.IntRange(0, len(all)-1).Draw(rt, "from"):]))
				w.Abort(b.ctx)
			},
			"settle":    func(rt *rapid.T) { b.settle(rapid.Bool().Draw(rt, "all")) },
			"housekeep": func(*rapid.T) { must(rt, b.s.Housekeep(b.ctx)) },
			"wait":      func(*rapid.T) { b.pass(11 * time.Minute) },
			"restart": func(*rapid.T) {
				must(rt, b.cat.Close())
				b.open()
			},
			"": func(*rapid.T) { b.check(needed()...) },
		})
		b.verify()
		for l := range layers {
			b.remove(l)
		}
		must(rt, b.s.Housekeep(b.ctx))
		b.settle(true)
		b.pass(time.Hour)
		must(rt, b.s.Housekeep(b.ctx))
		if keys := b.keys(); len(keys) > 0 {
			rt.Fatalf("objects without a layer: %v", keys)
		}
		for _, c := range all {
			if _, err := b.s.Open(b.ctx, name(c)); !errors.Is(err, filestore.ErrNotFound) {
				rt.Fatalf("a content without a layer: %v", err)
			}
		}
		if len(b.corrupt) > 0 || bytes.Equal(all[1], all[2]) {
			rt.Fatalf("taken for damaged: %v", b.corrupt)
		}
	})
}
