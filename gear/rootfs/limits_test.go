package rootfs_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"example.org/slipway/gear/rootfs"
)

func dir(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeDir} }

// TestLimits reads a layer at each limit, which must succeed, and one beyond it, which
// must fail.
func TestLimits(t *testing.T) {
	files := func(n int) []byte {
		var a arc
		for i := range n {
			a.file(t, fmt.Sprintf("f%d", i), "")
		}
		return a.end()
	}
	sized := func(sizes ...int) []byte {
		var a arc
		for i, n := range sizes {
			a.file(t, fmt.Sprintf("f%d", i), strings.Repeat("x", n))
		}
		return a.end()
	}
	attrs := func(n, size int) []byte {
		var records []string
		for i := range n {
			records = append(records, fmt.Sprintf("SCHILY.xattr.user.%03d", i), strings.Repeat("v", size))
		}
		return new(arc).pax('x', records...).raw('0', "f0", "", nil).end()
	}
	sparse := func(size int) []byte {
		return new(arc).pax('x', "GNU.sparse.size", fmt.Sprint(size), "GNU.sparse.numblocks", "0", "GNU.sparse.map", "",
			"GNU.sparse.major", "0", "GNU.sparse.minor", "1").raw('0', "f0", "", nil).end()
	}
	tight := &rootfs.Options{MaxRatio: 10, RatioFree: 1 << 20}
	window := func(log int) []byte { // returns an empty frame with that window, followed by the layer
		frame := []byte{0x28, 0xb5, 0x2f, 0xfd, 0, byte(log-10) << 3, 1, 0, 0}
		return append(frame, zstded(t, sized(1))...)
	}
	segment := func(size byte) []byte { // returns an empty frame with a single segment of size MiB
		return append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0, 0, size << 4, 0, 1, 0, 0}, zstded(t, sized(1))...)
	}
	for _, tt := range []struct {
		limit    string
		opts     *rootfs.Options
		in, over []byte
		entry    string
	}{
		{"max_entries", &rootfs.Options{MaxEntries: 3}, files(3), files(4), "f3"},
		{"max_layer_bytes", &rootfs.Options{MaxBytes: 5 * 512}, sized(512, 0), sized(512, 1), "f1"},
		{"max_layer_bytes", &rootfs.Options{MaxBytes: 1 << 20}, sparse(1 << 20), sparse(1<<20 + 1), "f0"},
		{"max_file_bytes", &rootfs.Options{MaxFileSize: 1000}, sized(1000, 1000), sized(1000, 1001), "f1"},
		{"max_ratio", tight, gzipped(t, sized(900_000)), gzipped(t, sized(1, 3<<20)), "f1"},
		{"max_ratio", tight, zstded(t, sized(900_000)), zstded(t, sized(1, 3<<20)), "f1"},
		{"max_ratio", tight, sized(30 << 20), gzipped(t, sparse(30<<20)), "f0"},
		{"max_ratio", tight, sparse(1 << 20), sparse(30 << 20), "f0"},
		{"max_metadata_bytes", &rootfs.Options{MaxMetadataBytes: 6}, files(3), files(4), "f3"},
		{"max_xattrs", &rootfs.Options{MaxXattrs: 5}, attrs(5, 1), attrs(6, 1), "f0"},
		{"max_xattr_bytes", &rootfs.Options{MaxXattrBytes: 1016}, attrs(2, 500), attrs(2, 501), "f0"},
		{"max_window", &rootfs.Options{MaxWindow: 1 << 20}, window(20), window(21), ""},
		{"max_window", nil, window(27), window(28), ""},
		{"max_window", &rootfs.Options{MaxWindow: 1 << 20}, window(20), segment(2), ""},
	} {
		t.Run(tt.limit, func(t *testing.T) {
			read(t, tt.in, tt.opts)
			err := readError(t, tt.over, tt.opts)
			var l *rootfs.LimitError
			if !errors.As(err, &l) || l.Limit != tt.limit || l.Entry != tt.entry {
				t.Fatalf("got error %v (%T), want %s at %q", err, err, tt.limit, tt.entry)
			}
			if text := err.Error(); !strings.Contains(text, fmt.Sprint(l.Max)) || !strings.Contains(text, "or raise gear."+tt.limit) || !strings.Contains(text, tt.entry) {
				t.Errorf("got error %q, want the limit, its value, the entry and the way out", text)
			}
		})
	}
}

// TestNeverBeyond checks that a bomb yields no more than the limit before it is detected.
func TestNeverBeyond(t *testing.T) {
	var a arc
	layer := gzipped(t, a.file(t, "f", strings.Repeat("\x00", 8<<20)).end())
	r := open(t, layer, &rootfs.Options{MaxBytes: 3<<20 + 7, MaxFileSize: 8 << 20})
	if _, err := r.Next(); err == nil {
		t.Fatal("a file larger than MaxBytes: got no error")
	}
	// The bomb hides behind the end of the archive, where no header states its length.
	layer = gzipped(t, append(new(arc).end(), make([]byte, 8<<20)...))
	err := readError(t, layer, &rootfs.Options{MaxBytes: 3<<20 + 7})
	if l := (*rootfs.LimitError)(nil); !errors.As(err, &l) || l.Limit != "max_layer_bytes" {
		t.Errorf("got error %v, want max_layer_bytes", err)
	}
}

// TestZstdBomb reads a frame of run-length blocks, each 128 KiB from 4 bytes. The reader
// must not allocate memory beyond its buffers.
func TestZstdBomb(t *testing.T) {
	bomb := []byte("\x28\xb5\x2f\xfd\x00\x38") // window of 128 KiB
	block := []byte{2, 0, 0x10, 0}             // RLE of 128 KiB zeros
	src := io.MultiReader(bytes.NewReader(bomb), repeat{block})
	r, err := rootfs.Open(context.Background(), src, &rootfs.Options{RatioFree: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	_, err = readAll(r)
	if l := (*rootfs.LimitError)(nil); !errors.As(err, &l) || l.Limit != "max_ratio" {
		t.Errorf("got error %v, want max_ratio", err)
	}
}

// repeat returns the same bytes forever.
type repeat struct{ b []byte }

func (r repeat) Read(b []byte) (n int, err error) {
	for n+len(r.b) <= len(b) {
		n += copy(b[n:], r.b)
	}
	return n, nil
}
