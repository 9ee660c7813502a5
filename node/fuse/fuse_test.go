package fuse

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"example.org/slipway/internal/mounttest"
)

func TestMain(m *testing.M) { mounttest.Main(m) }

func rawRequest(op Opcode, node uint64, body []byte) []byte {
	b := make([]byte, inHeaderLen, inHeaderLen+len(body))
	binary.LittleEndian.PutUint32(b, uint32(inHeaderLen+len(body)))
	binary.LittleEndian.PutUint32(b[4:], uint32(op))
	binary.LittleEndian.PutUint64(b[8:], 2)
	binary.LittleEndian.PutUint64(b[16:], node)
	return append(b, body...)
}

// write returns the body of a WRITE that announces n bytes and contains data.
func write(n uint32, data string) []byte {
	b := make([]byte, 40, 40+len(data))
	binary.LittleEndian.PutUint64(b[8:], 4096)
	binary.LittleEndian.PutUint32(b[16:], n)
	return append(b, data...)
}

// FuzzParse feeds the decoder of requests. It must neither panic nor accept a request that is
// shorter than it says.
func FuzzParse(f *testing.F) {
	for _, b := range [][]byte{
		nil,
		rawRequest(OpLookup, RootNode, []byte("ab\x00")),
		rawRequest(OpLookup, RootNode, []byte("ab")),
		rawRequest(OpLookup, RootNode, make([]byte, 300)),
		rawRequest(OpRead, 9, make([]byte, 40)),
		rawRequest(OpRead, 9, make([]byte, 39)),
		rawRequest(OpWrite, 9, write(3, "abc")),
		rawRequest(OpWrite, 9, write(1<<31, "abc")),
		rawRequest(OpFallocate, 9, make([]byte, 32)),
		rawRequest(OpSetattr, 9, make([]byte, 88)),
		rawRequest(OpInit, 0, bytes.Repeat([]byte{0xff}, 64)),
		rawRequest(OpInit, 0, bytes.Repeat([]byte{0xff}, 16)),
		rawRequest(OpRelease, 1, make([]byte, 24)),
		rawRequest(OpInterrupt, 0, make([]byte, 8)),
		rawRequest(OpBatchForget, 0, make([]byte, 3)),
		rawRequest(99, 0, nil),
	} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var r Request
		if err := Parse(b, &r); err != nil {
			return
		}
		if int(binary.LittleEndian.Uint32(b)) != len(b) {
			t.Fatalf("accepted a request of %d bytes that says %d", len(b), binary.LittleEndian.Uint32(b))
		}
		if len(r.Name)+len(r.Data) > len(b)-inHeaderLen {
			t.Fatalf("%d bytes have a name of %d and data of %d", len(b), len(r.Name), len(r.Data))
		}
	})
}

func TestParseWrite(t *testing.T) {
	var r Request
	if err := Parse(rawRequest(OpWrite, 9, write(3, "abcdef")), &r); err != nil || string(r.Data) != "abc" || r.Off != 4096 {
		t.Errorf("got %q at %d, %v, want abc at 4096", r.Data, r.Off, err)
	}
	if err := Parse(rawRequest(OpWrite, 9, write(7, "abcdef")), &r); !errors.Is(err, errShortRequest) {
		t.Errorf("a request with too few bytes: %v", err)
	}
}

func TestDirentsEndAtTheLimit(t *testing.T) {
	b, ok := AppendDirent(nil, 64, Attr{Node: 2, Mode: 0o100000}, 2, "name")
	if !ok || len(b) != 32 {
		t.Fatalf("first entry: %v, %d bytes, want 32", ok, len(b))
	}
	if b, ok = AppendDirent(b, 64, Attr{Node: 3}, 3, "12345678"); !ok || len(b) != 64 {
		t.Errorf("second entry: %v, %d bytes, want 64", ok, len(b))
	}
	if _, ok = AppendDirent(b, 64, Attr{Node: 4}, 4, "x"); ok {
		t.Error("an entry beyond the limit was taken")
	}
}

// TestTeardownOfAnUnservedMount checks that a mount that nobody serves is torn down without any
// request to it.
func TestTeardownOfAnUnservedMount(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := filepath.Join(t.TempDir(), "with a blank")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	dev, err := Mount(dir, MountOptions{Source: "test", NoExec: true})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	want, err := Connection(dev)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ConnectionAt(dir); err != nil || got != want {
		t.Errorf("connection at %s: got %d, %v, want %d", dir, got, err, want)
	}
	for range 2 { // the second finds nothing
		if err := Teardown(dir); err != nil {
			t.Error(err)
		}
	}
	if _, err := ConnectionAt(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after the teardown: %v, want no mount", err)
	}
}
