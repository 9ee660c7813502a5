package rootfs_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"slices"
	"testing"

	"example.org/slipway/gear/rootfs"
)

func FuzzReader(f *testing.F) {
	var a arc
	a.file(f, "d/.wh.x", "").file(f, ".wh..wh..opq", "").file(f, "../x", "escapes")
	f.Add(a.end())
	a = arc{}
	a.pax('g', "comment", "x").pax('x', "SCHILY.xattr.user.x", "y", "LIBARCHIVE.xattr.user.%41", "eHl6", "mtime", "-1.5", "uid", "7")
	a.raw('0', "f", "content", nil)
	a.add(f, tar.Header{Name: "l", Typeflag: tar.TypeLink, Linkname: "./f"}, "")
	a.add(f, tar.Header{Name: "s", Typeflag: tar.TypeSymlink, Linkname: "../f", Format: tar.FormatGNU}, "")
	a.add(f, tar.Header{Name: "c", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}, "")
	layer := slices.Clone(a.end())
	f.Add(layer)
	f.Add(layer[:len(layer)-1300])
	f.Add(gzipped(f, layer))
	f.Add(append(gzipped(f, layer[:700]), gzipped(f, layer[700:])...))
	f.Add(append(gzipped(f, layer), "tail"...))
	f.Add(zstded(f, layer))
	f.Add(append([]byte("\x53\x2a\x4d\x18\x01\x00\x00\x00x"), zstded(f, layer)...))
	for _, records := range [][]string{
		{"GNU.sparse.size", "9000", "GNU.sparse.numblocks", "1", "GNU.sparse.map", "100,4"},
		{"GNU.sparse.size", "9000", "GNU.sparse.numblocks", "1", "GNU.sparse.offset", "100", "GNU.sparse.numbytes", "4"},
		{"GNU.sparse.major", "1", "GNU.sparse.minor", "0", "GNU.sparse.name", "f", "GNU.sparse.realsize", "1048576"},
	} {
		f.Add(bytes.Clone(new(arc).pax('x', records...).raw('0', "f", "data", nil).end()))
	}
	opts := &rootfs.Options{
		MaxEntries: 50, MaxBytes: 4 << 20, MaxFileSize: 2 << 20, MaxRatio: 100, RatioFree: 1 << 20,
		MaxMetadataBytes: 4096, MaxXattrs: 4, MaxXattrBytes: 1024, MaxWindow: 1 << 20,
	}
	f.Fuzz(func(t *testing.T, in []byte) { checkReader(t, in, opts) })
}

// checkReader reads any bytes and checks what holds for every input.
func checkReader(t *testing.T, in []byte, o *rootfs.Options) {
	r, err := rootfs.Open(context.Background(), bytes.NewReader(in), o)
	if err != nil {
		checkError(t, err)
		return
	}
	defer r.Close()
	var entries, bytesRead, meta int64
	for {
		e, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			checkError(t, err)
			return
		}
		checkEntry(t, e, o)
		entries++
		meta += int64(len(e.Path) + len(e.Link))
		n, err := r.WriteTo(io.Discard)
		if err == nil && n != e.Size || n > e.Size {
			t.Fatalf("%q: got %d bytes of content, want %d", e.Path, n, e.Size)
		}
		if bytesRead += n; bytesRead > o.MaxBytes || entries > o.MaxEntries || meta > o.MaxMetadataBytes {
			t.Fatalf("beyond the limits: %d bytes, %d entries, %d bytes of metadata", bytesRead, entries, meta)
		}
		if err != nil {
			checkError(t, err)
			return
		}
	}
	sums, ok := r.Sums()
	if !ok || sums.Digest != sha256.Sum256(in) || sums.Compressed != int64(len(in)) || sums.Uncompressed > o.MaxBytes {
		t.Fatalf("got sums %+v, %v for %d bytes", sums, ok, len(in))
	}
	if sums.Compression == rootfs.Plain && (sums.DiffID != sums.Digest || sums.Uncompressed != sums.Compressed) {
		t.Fatalf("sums of a plain archive differ: %+v", sums)
	}
}

func checkError(t *testing.T, err error) {
	t.Helper()
	var f *rootfs.FormatError
	var l *rootfs.LimitError
	if !errors.As(err, &f) && !errors.As(err, &l) {
		t.Fatalf("got error %v (%T), want one about the layer", err, err)
	}
	if len(err.Error()) > 8192 {
		t.Fatalf("error of %d bytes", len(err.Error()))
	}
}

func checkEntry(t *testing.T, e *rootfs.Entry, o *rootfs.Options) {
	t.Helper()
	if why := unsafe(e.Path); why != "" {
		t.Fatalf("path %q: %s", e.Path, why)
	}
	if again, err := rootfs.CleanPath(e.Path); again != e.Path || err != nil {
		t.Fatalf("path %q is not clean: %q, %v", e.Path, again, err)
	}
	if e.Type == rootfs.HardLink && (unsafe(e.Link) != "" || e.Link == e.Path || e.Link == ".") {
		t.Fatalf("%q: hard link to %q", e.Path, e.Link)
	}
	if (e.Type == rootfs.HardLink || e.Type == rootfs.Symlink) != (e.Link != "") {
		t.Fatalf("%q: type %d with the target %q", e.Path, e.Type, e.Link)
	}
	if e.Type < rootfs.Dir || e.Type > rootfs.Opaque || e.Mode > 0o7777 || e.Nsec >= 1e9 || e.Size < 0 || e.Size > o.MaxFileSize || e.Type != rootfs.File && e.Size != 0 {
		t.Fatalf("got %+v", e)
	}
	var size int64
	for i, x := range e.Xattrs {
		size += int64(len(x.Name) + len(x.Value))
		if x.Name == "" || i > 0 && e.Xattrs[i-1].Name >= x.Name {
			t.Fatalf("%q: attributes %q", e.Path, e.Xattrs)
		}
	}
	if size > o.MaxXattrBytes || int64(len(e.Xattrs)) > o.MaxXattrs {
		t.Fatalf("%q: %d attributes of %d bytes", e.Path, len(e.Xattrs), size)
	}
}
