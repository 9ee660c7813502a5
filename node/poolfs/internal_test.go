package poolfs

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/node/fuse"
)

// FuzzLookup feeds the decoder of names. Each accepted input is one name of one content.
func FuzzLookup(f *testing.F) {
	f.Add(uint64(fuse.RootNode), []byte("ab"))
	f.Add(subNode(0, 1), bytes.Repeat([]byte("ab"), 31))
	f.Add(subNode(0, 1), make([]byte, 300))
	f.Add(uint64(fuse.RootNode), []byte("0123456789ab"))
	f.Add(viewNode(maxView), []byte("ff"))
	f.Add(subNode(maxView, 0xff), bytes.Repeat([]byte("ab"), 31))
	f.Fuzz(func(t *testing.T, parent uint64, name []byte) {
		node, digest, ok := lookupNode(&fuse.Request{Op: fuse.OpLookup, Node: parent, Name: name})
		if ok && !isDir(node) && (node != NodeID(digest) || PathOf(digest.Name)[3:] != string(name) || NameBits(digest.View, node) != NodeID(Key{Name: digest.Name})&^fileBit) {
			t.Fatalf("name %q below %x became %x, node %x", name, parent, digest, node)
		}
	})
}

func TestLookupNode(t *testing.T) {
	for _, tt := range []struct {
		node uint64
		name string
		ok   bool
	}{
		{fuse.RootNode, "00", true}, {fuse.RootNode, "ff", true}, {fuse.RootNode, "FF", false}, {fuse.RootNode, "f", false}, {fuse.RootNode, "fff", false},
		{fuse.RootNode, "", false}, {fuse.RootNode, "0g", false}, {fuse.RootNode, "..", false},
		{subNode(0, 0), string(bytes.Repeat([]byte("0a"), 31)), true}, {subNode(0, 0), string(bytes.Repeat([]byte("0A"), 31)), false},
		{subNode(0, 0), string(bytes.Repeat([]byte("0a"), 30)), false}, {subNode(0, 0), string(bytes.Repeat([]byte("0a"), 32)), false},
		{0x200, string(bytes.Repeat([]byte("0a"), 31)), false}, {fileBit, "00", false},
		{fuse.RootNode, "0123456789ab", true}, {fuse.RootNode, "000000000000", false}, {fuse.RootNode, "0123456789AB", false},
		{viewNode(7), "00", true}, {viewNode(7), "0123456789ab", false}, {viewNode(7), string(bytes.Repeat([]byte("0a"), 31)), false},
		{subNode(7, 1), string(bytes.Repeat([]byte("0a"), 31)), true}, {subNode(7, 1), "00", false}, {viewBit, "00", false}, {viewBit | subBit, string(bytes.Repeat([]byte("0a"), 31)), false},
	} {
		if _, _, ok := lookupNode(&fuse.Request{Op: fuse.OpLookup, Node: tt.node, Name: []byte(tt.name)}); ok != tt.ok {
			t.Errorf("%x %q: can exist: %v, want %v", tt.node, tt.name, ok, tt.ok)
		}
	}
}

func TestStateLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	want := snapshot{minor: 40, flags: 5, inited: true, lastID: 9, backing: map[uint64]int32{1: 7}, opens: map[uint64]uint64{100: 1, 101: 2}}
	live := func() snapshot { return want }
	l, s, err := openState(path, 42, live)
	if err != nil || s.inited {
		t.Fatalf("new: %+v, %v", s, err)
	}
	for _, r := range []struct {
		kind recordKind
		a, b uint64
	}{{recInit, 40, 5}, {recBacking, 1, 7}, {recBacking, 2, 9}, {recOpen, 1, 100}, {recOpen, 3, 102}, {recClosed, 2, 0},
		{recOpen, 2, 101}, {recRelease, 0, 102}} {
		if err := l.append(r.kind, r.a, r.b); err != nil {
			t.Fatal(err)
		}
	}
	opts := cmp.AllowUnexported(snapshot{})
	reopen := func(what string) {
		t.Helper()
		if err := l.close(); err != nil {
			t.Fatal(err)
		}
		if l, s, err = openState(path, 42, live); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, s, opts); d != "" {
			t.Errorf("%s (-want +got):\n%s", what, d)
		}
	}
	reopen("written")
	if err := l.compact(); err != nil {
		t.Fatal(err)
	}
	reopen("compacted")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// A torn record and one with a wrong sum are dropped. The log continues after the last good
	// record.
	for _, tail := range [][]byte{{'O'}, make([]byte, recordLen), bytes.Repeat([]byte{'R'}, recordLen-1), bytes.Repeat([]byte{'R'}, 3*recordLen)} {
		if err := os.WriteFile(path, append(bytes.Clone(whole), tail...), 0o600); err != nil {
			t.Fatal(err)
		}
		reopen("torn")
		if err := l.append(recLastID, 3, 0); err != nil {
			t.Fatal(err)
		}
		reopen("torn and gone on")
	}
	// The state of another connection does not count.
	if err := l.close(); err != nil {
		t.Fatal(err)
	}
	if l, s, err = openState(path, 43, live); err != nil || s.inited || len(s.opens) != 0 {
		t.Errorf("another connection: %+v, %v", s, err)
	}
	if fi, err := os.Stat(path); err != nil || fi.Size() != recordLen {
		t.Errorf("another connection: %v, %v, want one record", fi.Size(), err)
	}
}

// FuzzState feeds the reader of the log. Whatever the file contains, what is accepted must be
// accepted again.
func FuzzState(f *testing.F) {
	var r [2 * recordLen]byte
	putRecord(r[:recordLen], recConn, 1, 0)
	putRecord(r[recordLen:], recOpen, 5, 6)
	f.Add(r[:])
	f.Add(r[:recordLen+3])
	f.Fuzz(func(t *testing.T, b []byte) {
		read := func(b []byte) (snapshot, int) {
			s := snapshot{backing: map[uint64]int32{}, opens: map[uint64]uint64{}}
			n := parseState(b, 1, &s)
			return s, n
		}
		s, n := read(b)
		if n*recordLen > len(b) {
			t.Fatalf("%d records in %d bytes", n, len(b))
		}
		again, m := read(b[:n*recordLen])
		if n != m || !cmp.Equal(s, again, cmp.AllowUnexported(snapshot{})) {
			t.Fatalf("read again: %d and %d records", n, m)
		}
	})
}

// PathOf returns the path of a content below the root of the pool, "ab/cdef…".
func PathOf(name [32]byte) string { return fmt.Sprintf("%x/%x", name[:1], name[1:]) }
