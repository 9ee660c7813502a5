package rebuild_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rebuild"
)

// store is where contents are.
type store map[gear.Name][]byte

func (s store) ReadContent(f gear.File, p []byte, off int64) error {
	b, ok := s[f.Name]
	if !ok || off+int64(len(p)) > int64(len(b)) {
		return fmt.Errorf("no content %x of %d bytes", f.Name[:4], off+int64(len(p)))
	}
	copy(p, b[off:])
	return nil
}

// contentsOf reads an archive as Go's archive/tar does, and returns what is in it.
func contentsOf(archive []byte) (files []gear.File, s store) {
	s = store{}
	r := tar.NewReader(bytes.NewReader(archive))
	for {
		h, err := r.Next()
		if err != nil {
			return files, s
		}
		b, err := io.ReadAll(r)
		if err != nil {
			return files, s
		}
		name := gear.Name(sha256.Sum256(b))
		if _, ok := s[name]; !ok && h.Typeflag == tar.TypeReg && len(b) > 0 {
			s[name] = b
			files = append(files, gear.File{Name: name, Size: int64(len(b))})
		}
	}
}

// member writes an entry.
func member(tb testing.TB, w *tar.Writer, h tar.Header, content []byte) {
	tb.Helper()
	h.Size = int64(len(content))
	if err := w.WriteHeader(&h); err != nil {
		tb.Fatal(err)
	}
	if _, err := w.Write(content); err != nil {
		tb.Fatal(err)
	}
}

// layer makes an archive with all kinds of entries.
func layer(tb testing.TB, seed uint64, entries int) []byte {
	tb.Helper()
	d := dice(seed)
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for i := range entries {
		name := fmt.Sprintf("usr/share/%c/%d", 'a'+rune(d.roll(5)), i)
		h := tar.Header{Name: name, Mode: 0o644, ModTime: time.Unix(int64(1_700_000_000+d.roll(100_000)), 0), Uname: "root", Format: tar.FormatUSTAR}
		var content []byte
		switch d.roll(8) {
		case 0:
			h.Typeflag, h.Name = tar.TypeDir, name+"/"
		case 1:
			h.Typeflag, h.Linkname = tar.TypeSymlink, "../"+strings.Repeat("x", d.roll(90))
		case 2:
			h.Typeflag, h.Linkname = tar.TypeLink, name+"-target"
		case 3:
			h.Name, h.Format = strings.Repeat("long/", 60)+name, tar.FormatPAX
			h.PAXRecords = map[string]string{"SCHILY.xattr.user.a": "b"}
			content = sample(d.next(), d.roll(3000))
		case 4:
			h.Name, h.Format = strings.Repeat("gnu/", 60)+name, tar.FormatGNU
			content = sample(d.next(), d.roll(3000))
		case 5:
			h.Uid, h.Format = 1<<30, tar.FormatGNU
			content = sample(d.next(), 512*d.roll(4))
		default:
			content = sample(uint64(d.roll(30)), 1+d.roll(20)*1000)
		}
		member(tb, w, h, content)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}

// split makes the skeleton of an archive, stores it and reads it again.
func split(archive []byte, files []gear.File) (*rebuild.Skeleton, int, error) {
	s := rebuild.NewSplitter(files)
	if _, err := io.Copy(s, iotest.HalfReader(bytes.NewReader(archive))); err != nil {
		return nil, 0, err
	}
	k, err := s.Skeleton()
	if err != nil {
		return nil, 0, err
	}
	b, err := k.Append(nil)
	if err != nil {
		return nil, 0, err
	}
	k, err = rebuild.ParseSkeleton(b)
	return k, len(b), err
}

// joined fails unless the skeleton and the contents are the archive again.
func joined(tb testing.TB, archive []byte, k *rebuild.Skeleton, files []gear.File, s store) {
	tb.Helper()
	a, err := k.Open(files, s)
	if err != nil {
		tb.Fatal(err)
	}
	if a.Size() != int64(len(archive)) {
		tb.Fatalf("joined archive of %d bytes, want %d", a.Size(), len(archive))
	}
	got, err := io.ReadAll(io.NewSectionReader(a, 0, a.Size()))
	if err != nil {
		tb.Fatal(err)
	}
	if !bytes.Equal(got, archive) {
		tb.Fatal("joined archive has other bytes")
	}
	d := dice(len(archive))
	for range 20 {
		off := d.roll(len(archive) + 1)
		p := make([]byte, d.roll(5000))
		n, err := a.ReadAt(p, int64(off))
		want := min(len(p), len(archive)-off)
		if n != want || (err == io.EOF) != (n < len(p)) || err != nil && err != io.EOF {
			tb.Fatalf("ReadAt(%d, %d): %d, %v, want %d", len(p), off, n, err, want)
		}
		if !bytes.Equal(p[:n], archive[off:off+n]) {
			tb.Fatalf("ReadAt(%d, %d): other bytes", len(p), off)
		}
	}
}

func TestSkeleton(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	for seed := range uint64(20) {
		archive := layer(t, seed, int(seed*seed))
		if seed%3 == 0 {
			archive = append(archive, make([]byte, 7*512)...)
		}
		if seed%4 == 0 {
			archive = append(archive, "something behind the end"...)
		}
		files, s := contentsOf(archive)
		k, n, err := split(archive, files)
		if err != nil {
			t.Fatal(err)
		}
		joined(t, archive, k, files, s)
		if seed == 19 {
			t.Logf("%d bytes with %d files: skeleton of %d bytes", len(archive), len(files), n)
		}
	}
}

// What the index does not have is in the skeleton, if it is small.
func TestInline(t *testing.T) {
	t.Parallel()
	archive := layer(t, 3, 100)
	files, s := contentsOf(archive)
	for _, keep := range []int{0, len(files) / 2} {
		k, _, err := split(archive, files[:keep])
		if err != nil {
			t.Fatal(err)
		}
		joined(t, archive, k, files[:keep], s)
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	member(t, w, tar.Header{Name: "large", Mode: 0o644}, make([]byte, 100_000))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := split(out.Bytes(), nil); !errors.Is(err, rebuild.ErrUnsupported) {
		t.Errorf("a large content that nobody has: %v, want ErrUnsupported", err)
	}
}

// Odd archives have a skeleton or an error, and what has one is the same again.
func TestOddArchives(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	archive := layer(t, 5, 30)
	d := dice(5)
	for range 400 {
		odd := bytes.Clone(archive)
		for range 1 + d.roll(4) {
			at := d.roll(len(odd))
			odd[at] ^= byte(1 << d.roll(8))
			if d.roll(2) == 0 { // a header whose checksum is right
				fixSum(odd[at&^511:])
			}
		}
		odd = odd[:len(odd)-d.roll(2)*d.roll(len(odd))]
		oddArchive(t, odd, contents(odd))
	}
}

// fixSum writes the checksum of a header.
func fixSum(h []byte) {
	if len(h) < 512 {
		return
	}
	copy(h[148:156], "        ")
	sum := 0
	for _, c := range h[:512] {
		sum += int(c)
	}
	copy(h[148:156], fmt.Sprintf("%06o\x00 ", sum))
}

// contents are the files of an archive, as it tells them itself.
func contents(archive []byte) []gear.File {
	files, _ := contentsOf(archive)
	return files
}

func oddArchive(tb testing.TB, archive []byte, files []gear.File) {
	tb.Helper()
	k, _, err := split(archive, files)
	if err != nil {
		if !errors.Is(err, rebuild.ErrUnsupported) {
			tb.Fatalf("got %v, want ErrUnsupported", err)
		}
		return
	}
	_, s := contentsOf(archive)
	joined(tb, archive, k, files, s)
}

func FuzzSplit(f *testing.F) {
	f.Add(layer(f, 6, 5))
	f.Add(make([]byte, 1024))
	f.Fuzz(func(t *testing.T, archive []byte) { oddArchive(t, archive, contents(archive)) })
}

func FuzzSkeleton(f *testing.F) {
	archive := layer(f, 7, 40)
	files, s := contentsOf(archive)
	sp := rebuild.NewSplitter(files)
	if _, err := sp.Write(archive); err != nil {
		f.Fatal(err)
	}
	k, err := sp.Skeleton()
	if err != nil {
		f.Fatal(err)
	}
	b, err := k.Append(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		k, err := rebuild.ParseSkeleton(b)
		if err != nil {
			return
		}
		a, err := k.Open(files, s)
		if err != nil {
			return
		}
		p := make([]byte, 1<<16)
		for off := int64(0); off < min(a.Size(), 1<<20); off += int64(len(p)) {
			if _, err := a.ReadAt(p, off); err != nil && err != io.EOF {
				t.Fatal(err)
			}
		}
	})
}

// A layer is rebuilt from its recipe and the contents of its files alone.
func TestLayerFromContents(t *testing.T) {
	t.Parallel()
	archive := layer(t, 8, 400)
	files, s := contentsOf(archive)
	for name, blob := range map[string][]byte{"go": goZip(t, archive, 6, nil), "pgzip": pgzip(t, archive, 1<<20)} {
		sp := rebuild.NewSplitter(files)
		r, err := rebuild.Make(context.Background(), bytes.NewReader(blob), &rebuild.MakeOptions{Plain: sp, SegmentBytes: 256 << 10})
		if err != nil {
			t.Fatal(err)
		}
		k, err := sp.Skeleton()
		if err != nil {
			t.Fatal(err)
		}
		if r.Skeleton, err = k.Append(nil); err != nil {
			t.Fatal(err)
		}
		stored, err := rebuild.Parse(r.Append(nil))
		if err != nil {
			t.Fatal(err)
		}
		if k, err = rebuild.ParseSkeleton(stored.Skeleton); err != nil {
			t.Fatal(err)
		}
		a, err := k.Open(files, s)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := stored.Rebuild(context.Background(), &out, a, &rebuild.Options{Workers: 3}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !bytes.Equal(out.Bytes(), blob) {
			t.Fatalf("%s: rebuilt another blob", name)
		}
		t.Logf("%s: %d bytes from a recipe of %d, of which the skeleton has %d", name, len(blob), size(stored), len(stored.Skeleton))
	}
}
