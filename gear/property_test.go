package gear_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
)

// genPath draws from few names, so that paths collide.
func genPath(t *rapid.T, label string) string {
	segs := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "a-", "\xff"}), 1, 4).Draw(t, label)
	return strings.Join(segs, "/")
}

// genEntry draws an entry that a tar could hold. Its size identifies its content.
func genEntry(t *rapid.T) rootfs.Entry {
	e := rootfs.Entry{Path: genPath(t, "path")}
	e.Type = rapid.SampledFrom([]rootfs.Type{
		rootfs.Dir, rootfs.Dir, rootfs.File, rootfs.File, rootfs.File, rootfs.Symlink, rootfs.HardLink, rootfs.HardLink,
		rootfs.CharDevice, rootfs.Fifo, rootfs.Whiteout, rootfs.Whiteout, rootfs.Opaque,
	}).Draw(t, "type")
	if e.Type == rootfs.Whiteout || e.Type == rootfs.Opaque {
		return e
	}
	e.Mode = rapid.Uint32Range(0, 0o7777).Draw(t, "mode")
	e.UID = rapid.SampledFrom([]uint32{0, 1, 1 << 31}).Draw(t, "uid")
	e.Sec = rapid.SampledFrom([]int64{0, -1, 1 << 40}).Draw(t, "sec")
	if rapid.Bool().Draw(t, "has xattr") {
		e.Xattrs = []rootfs.Xattr{{Name: rapid.SampledFrom([]string{"user.a", "user.b"}).Draw(t, "xattr"), Value: "\x00\xff"}}
	}
	switch e.Type {
	case rootfs.File:
		e.Size = int64(rapid.IntRange(0, 3).Draw(t, "size"))
	case rootfs.Symlink:
		e.Link = rapid.SampledFrom([]string{"a", "b", "/a/b", "..", "../b", "a/a"}).Draw(t, "target")
	case rootfs.HardLink:
		e.Link = genPath(t, "link")
	case rootfs.CharDevice:
		e.Major, e.Minor = 1, rapid.Uint32().Draw(t, "minor")
	}
	return e
}

func contentOf(size int64) gear.File {
	f := gear.File{Size: size, Name: sha256.Sum256(bytes.Repeat([]byte{'x'}, int(size)))}
	return f
}

// TestLayersAsModel compares the builder and Flatten with the naive model. It also
// encodes and decodes every index on the way.
func TestLayersAsModel(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	rapid.Check(t, func(t *rapid.T) {
		state := tree{}
		var layers []*gear.Index
		for range rapid.IntRange(1, 4).Draw(t, "layers") {
			b := gear.NewBuilder(nil)
			u := &upper{files: tree{}, opaque: map[string]bool{}, removed: map[string]bool{}}
			for _, e := range rapid.SliceOfN(rapid.Custom(genEntry), 0, 12).Draw(t, "entries") {
				want, got := u.add(e), b.Add(e, contentOf(e.Size))
				if (want != nil) != (got != nil) || got != nil && !errors.Is(got, gear.ErrConflict) {
					t.Fatalf("add %+v: got error %v, model %v", e, got, want)
				}
			}
			want := u.finish()
			x, err := b.Index()
			if (want != nil) != (err != nil) {
				t.Fatalf("index: got error %v, model %v", err, want)
			}
			if err != nil {
				return
			}
			layers = append(layers, recode(t, x))
			if want != nil {
				return
			}
			flat, err := gear.Flatten(layers...)
			if want := u.apply(state); (want != nil) != (err != nil) {
				t.Fatalf("flatten: got error %v, model %v", err, want)
			}
			if err != nil {
				return
			}
			if diff := cmp.Diff(state.entries(), plain(flat), cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("flattened (-model +got):\n%s", diff)
			}
			if !flat.Flat() {
				t.Fatal("the flattened index is not flat")
			}
			again, err := gear.Flatten(recode(t, flat))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(flat, again); diff != "" {
				t.Fatalf("flattened again:\n%s", diff)
			}
		}
	})
}

// recode encodes and decodes an index and compares the two.
func recode(t interface {
	Helper()
	Fatalf(string, ...any)
}, x *gear.Index) *gear.Index {
	t.Helper()
	var buf, again bytes.Buffer
	if err := x.Encode(&buf); err != nil {
		t.Fatalf("encode %v: %v", listing(x), err)
	}
	got, err := gear.Decode(bytes.NewReader(buf.Bytes()), nil)
	if err != nil {
		t.Fatalf("decode: %v", err)
	}
	if err := got.Encode(&again); err != nil || !bytes.Equal(buf.Bytes(), again.Bytes()) {
		t.Fatalf("encoding the decoded index gives other bytes (%v)", err)
	}
	if reflect.DeepEqual(x, got) {
		return got
	}
	if diff := cmp.Diff(x, got, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("decoded (-want +got):\n%s", diff)
	}
	return got
}

func listing(x *gear.Index) string {
	var b strings.Builder
	for _, e := range x.Entries {
		fmt.Fprintf(&b, "%d %q %q %d\n", e.Type, e.Path, e.Link, e.File)
	}
	return b.String()
}
