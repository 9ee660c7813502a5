package block_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"example.org/slipway/volume/block"
	"example.org/slipway/volume/file"
)

func store(t testing.TB) block.Store {
	t.Helper()
	s, err := file.Open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// small returns the diff of a small volume.
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

// sink accepts the volume of a diff and stores nothing.
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
