package block_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"example.org/slipway/block"
	"example.org/slipway/block/file"
	"example.org/slipway/oci"
)

func digest(s string) oci.Digest { return oci.SHA256([]byte(s)) }

func TestVolumeName(t *testing.T) {
	a, b := digest("a"), digest("b")
	seen := map[string]bool{}
	for _, fs := range []string{block.Ext4, block.EROFS} {
		for _, layers := range [][]oci.Digest{{a}, {b}, {a, b}, {b, a}, {a, a}, {a, b, a}} {
			name := block.VolumeName(fs, layers)
			if err := block.CheckName(name); err != nil || block.IsClone(name) || seen[name] {
				t.Errorf("%s of %v: %q, %v", fs, layers, name, err)
			}
			if name != block.VolumeName(fs, layers) {
				t.Error("the name changes")
			}
			seen[name] = true
		}
	}
	// Volumes that exist have these names: another one makes them all again.
	if got, want := block.VolumeName(block.Ext4, []oci.Digest{a}), "ext4-26d33f885d482a048aa09210d341bc0a0a828bba"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func record() *block.Record {
	return &block.Record{
		Version: 1, Manifest: digest("m"), FS: block.Ext4, Place: block.Place{Driver: "rbd", Cluster: "c-1", Pool: "p", Namespace: "n"},
		Layers: []block.RecordLayer{{digest("a"), "ext4-a", 8192, 4096}, {digest("b"), "ext4-b", 8192, 0}},
	}
}

func TestRecordCheck(t *testing.T) {
	if err := record().Check(); err != nil {
		t.Errorf("a good one: %v", err)
	}
	if got := record().Volume(); got != "ext4-b" {
		t.Errorf("its volume is %q", got)
	}
	erofs := record()
	erofs.FS, erofs.Layers[0] = block.EROFS, block.RecordLayer{Digest: digest("a")}
	erofs.Place = block.Place{Driver: "file", Cluster: "c"}
	if err := erofs.Check(); err != nil {
		t.Errorf("a good one of EROFS: %v", err)
	}
	for name, change := range map[string]func(r *block.Record){
		"-version":        func(r *block.Record) { r.Version = 2 },
		"-feature":        func(r *block.Record) { r.Features = []string{"x"} },
		"-file system":    func(r *block.Record) { r.FS = "xfs" },
		"-driver":         func(r *block.Record) { r.Place.Driver = "nfs" },
		"manifest":        func(r *block.Record) { r.Manifest = "sha256:x" },
		"no pool":         func(r *block.Record) { r.Place.Pool = "" },
		"pool of files":   func(r *block.Record) { r.Place.Driver = "file" },
		"no cluster":      func(r *block.Record) { r.Place.Cluster = "" },
		"namespace":       func(r *block.Record) { r.Place.Namespace = "a b" },
		"option":          func(r *block.Record) { r.Place.Pool = "p\nkey = x" },
		"long":            func(r *block.Record) { r.Place.Pool = strings.Repeat("p", 201) },
		"no layers":       func(r *block.Record) { r.Layers = nil },
		"many layers":     func(r *block.Record) { r.Layers = make([]block.RecordLayer, 1001) },
		"digest":          func(r *block.Record) { r.Layers[0].Digest = "" },
		"no volume":       func(r *block.Record) { r.Layers[1].Volume = "" },
		"path":            func(r *block.Record) { r.Layers[1].Volume = "../x" },
		"clone":           func(r *block.Record) { r.Layers[1].Volume = "c-x" },
		"size":            func(r *block.Record) { r.Layers[1].Size = 8191 },
		"no size":         func(r *block.Record) { r.Layers[1].Size = 0 },
		"large":           func(r *block.Record) { r.Layers[1].Size = 1 << 60 },
		"shrinks":         func(r *block.Record) { r.Layers[1].Size = 4096 },
		"used":            func(r *block.Record) { r.Layers[1].Used = -1 },
		"much used":       func(r *block.Record) { r.Layers[1].Used = 1 << 40 },
		"volumes beneath": func(r *block.Record) { r.FS = block.EROFS },
	} {
		r := record()
		change(r)
		err := r.Check()
		var unsupported *block.UnsupportedError
		if err == nil || errors.As(err, &unsupported) != strings.HasPrefix(name, "-") {
			t.Errorf("%s: got error %v", name, err)
		}
	}
}

func store(t testing.TB) block.Store {
	t.Helper()
	s, err := file.Open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// small is the diff of a small volume.
func small(t testing.TB) []byte {
	t.Helper()
	s := store(t)
	v, err := s.Create(t.Context(), "v", "", 64<<10)
	if err == nil {
		_, err = v.WriteAt([]byte("some bytes"), 5000)
		err = errors.Join(err, v.Close(), s.Commit(t.Context(), "v"))
	}
	var b bytes.Buffer
	if err = errors.Join(err, block.Diff(t.Context(), s, "v", &b)); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestDiffErrors(t *testing.T) {
	s := store(t)
	if err := block.Diff(t.Context(), s, "v", io.Discard); !errors.Is(err, block.ErrNotFound) {
		t.Errorf("Diff of none: %v", err)
	}
	good := small(t)
	for i := range good {
		if i > 40 && i < len(good)-40 && i%50 > 0 {
			continue // in the middle of data
		}
		bad := bytes.Clone(good)
		bad[i] ^= 0x10
		if err := block.ApplyDiff(t.Context(), &sink{t: t}, "v", "", bytes.NewReader(bad)); err == nil {
			t.Errorf("byte %d is another: got no error", i)
		}
		if i%2000 == 0 {
			if err := block.ApplyDiff(t.Context(), s, "v", "", bytes.NewReader(bad)); err == nil {
				t.Errorf("byte %d is another: got no error", i)
			}
		}
	}
	if err := block.ApplyDiff(t.Context(), s, "v", "", bytes.NewReader(append(bytes.Clone(good), 0))); !errors.Is(err, block.ErrDiff) {
		t.Errorf("with something behind: %v", err)
	}
	failure := errors.New("the stream fails")
	for _, n := range []int{100, len(good)} {
		if err := block.ApplyDiff(t.Context(), s, "v", "", io.MultiReader(bytes.NewReader(good[:n]), iotest.ErrReader(failure))); !errors.Is(err, failure) || errors.Is(err, block.ErrDiff) {
			t.Errorf("it fails after %d bytes: %v", n, err)
		}
	}
	if infos, err := s.List(t.Context(), ""); err != nil || len(infos) > 0 {
		t.Errorf("left: %v, %v", infos, err)
	}
	if err := block.ApplyDiff(t.Context(), s, "v", "", bytes.NewReader(good)); err != nil {
		t.Errorf("the good one: %v", err)
	}
}

// sink takes the volume of a diff and keeps nothing.
type sink struct {
	block.Store
	size, end int64
	t         *testing.T
}

func (s *sink) Create(_ context.Context, _, _ string, size int64) (block.Volume, error) {
	s.size = size
	return s, nil
}
func (s *sink) Commit(context.Context, string) error { return nil }
func (s *sink) Remove(context.Context, string) error { return nil }
func (s *sink) Close() error                         { return nil }
func (s *sink) Flush() error                         { return nil }
func (s *sink) Size() int64                          { return s.size }
func (s *sink) ReadAt([]byte, int64) (int, error)    { return 0, io.EOF }
func (s *sink) Zero(off, n int64) error              { s.take(off, n); return nil }
func (s *sink) WriteAt(b []byte, off int64) (int, error) {
	s.take(off, int64(len(b)))
	return len(b), nil
}

func (s *sink) take(off, n int64) {
	if off < s.end || n <= 0 || n > s.size-off || (off|n)%block.BlockSize != 0 {
		s.t.Errorf("%d bytes at %d, behind %d of %d", n, off, s.end, s.size)
	}
	s.end = off + n
}

func FuzzApplyDiff(f *testing.F) {
	good := small(f)
	f.Add(good)
	f.Add(good[:len(good)-40])
	f.Add([]byte("SLVDIFF\x01\x00\x10\x00\x00\x00\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		_ = block.ApplyDiff(t.Context(), &sink{t: t}, "v", "", bytes.NewReader(b))
	})
}
