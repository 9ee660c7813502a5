package tier_test

import (
	"bytes"
	"crypto/sha256"
	"hash"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/internal/policy"
	"example.org/slipway/registry/cache/tier"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/memstore"
	"example.org/slipway/registry/objstore/objtest"
)

// TestUploadsAreKept checks that with WriteThrough no uploaded object is fetched.
func TestUploadsAreKept(t *testing.T) {
	ctx := t.Context()
	for _, size := range []int{1, 5000, 400_000, 3 << 20} {
		m := memstore.New(nil)
		var gets atomic.Int64
		inner := objtest.Faulty(m, objtest.Faults{Before: func(op, _ string) error {
			if op == objtest.OpGet {
				gets.Add(1)
			}
			return nil
		}})
		s := open(t, inner, &tier.Options{RAMBytes: 64 << 20, SSDBytes: 1 << 30, LargeObject: 1 << 20, Dir: t.TempDir(), WriteThrough: true})
		data := objtest.Content(1, size)
		u, err := s.NewUpload(ctx, -1)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range [][]byte{data[:size/2], data[size/2:]} {
			if _, err := u.Write(part); err != nil {
				t.Fatal(err)
			}
			state, err := u.Suspend(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if u, err = s.Resume(ctx, state, u.Size()); err != nil {
				t.Fatal(err)
			}
		}
		if s.Holds("up/x") != policy.Nowhere {
			t.Error("what is not committed is kept")
		}
		if err := u.Commit(ctx, "up/x"); err != nil {
			t.Fatal(err)
		}
		if err := s.Put(ctx, "up/put", data, false); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"up/x", "up/put"} {
			o, err := s.Get(ctx, key, 0, -1)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(o)
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("%s: got %d bytes, %v", key, len(got), err)
			}
			if err := o.Close(); err != nil {
				t.Error(err)
			}
		}
		if n := gets.Load(); n != 0 {
			t.Errorf("objects of %d bytes that were uploaded were fetched %d times", size, n)
		}
		idle(t, s)
		limits(t, s)
	}
}

// TestUploadsSpareTheSSD checks that an upload which the policy rejects for the SSD is not written
// there first.
func TestUploadsSpareTheSSD(t *testing.T) {
	const size = 100_000
	for _, tt := range []struct {
		name string
		o    tier.Options
		want bool
	}{
		{"no budget", tier.Options{}, true},
		{"within the budget", tier.Options{SSDWritePerDay: 86_400, SSDWriteBurst: 2 * size}, true},
		{"above the budget", tier.Options{SSDWritePerDay: 86_400, SSDWriteBurst: size - 1}, false},
		{"second touch", tier.Options{Admission: policy.SecondTouch}, false},
		{"adaptive", tier.Options{Admission: policy.Adaptive, SSDWritePerDay: 86_400, SSDWriteBurst: 2 * size}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := tt.o
			o.SSDBytes, o.Dir, o.WriteThrough = 100<<20, t.TempDir(), true
			o.Clock = func() time.Time { return time.Unix(1e9, 0) }
			s := open(t, memstore.New(nil), &o)
			u, err := s.NewUpload(t.Context(), -1)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := u.Write(make([]byte, size)); err != nil {
				t.Fatal(err)
			}
			written, err := os.ReadDir(filepath.Join(o.Dir, "tmp"))
			if err != nil {
				t.Fatal(err)
			}
			if (len(written) > 0) != tt.want {
				t.Errorf("the upload has %d files on the SSD; want one: %t", len(written), tt.want)
			}
			if err := u.Commit(t.Context(), "x"); err != nil {
				t.Fatal(err)
			}
			if idle(t, s); s.Holds("x") != policy.Nowhere != tt.want {
				t.Errorf("the object is in %s; want it kept: %t", s.Holds("x"), tt.want)
			}
			limits(t, s)
		})
	}
}

// TestUploadsContinuedElsewhere checks an upload that another process wrote to in between. The
// object has those bytes and not the ones copied here before.
func TestUploadsContinuedElsewhere(t *testing.T) {
	ctx := t.Context()
	for name, o := range map[string]tier.Options{"ram": {RAMBytes: 1 << 20, LargeObject: -1}, "ssd": {SSDBytes: 100 << 20}} {
		t.Run(name, func(t *testing.T) {
			m := memstore.New(nil)
			o.Dir, o.WriteThrough, o.CheckUploads = t.TempDir(), true, true
			sum := sha256.Sum256([]byte("heretherehere"))
			o.Verify = func(string) (hash.Hash, []byte) { return sha256.New(), sum[:] }
			s := open(t, m, &o)
			write := func(u objstore.Upload, err error, text string) objstore.Upload {
				t.Helper()
				if err == nil {
					_, err = u.Write([]byte(text))
				}
				if err != nil {
					t.Fatal(err)
				}
				return u
			}
			suspend := func(u objstore.Upload) string {
				t.Helper()
				state, err := u.Suspend(ctx)
				if err != nil {
					t.Fatal(err)
				}
				return state
			}
			for _, elsewhere := range []bool{true, false} {
				u, err := s.NewUpload(ctx, -1)
				second := "there"
				if elsewhere {
					second = "wrong"
				}
				state := suspend(write(u, err, "here"+second))
				if elsewhere {
					u, err = m.Resume(ctx, state, 4)
					if other := suspend(write(u, err, "there")); other != state {
						t.Fatalf("the state was %q and is %q", state, other)
					}
				}
				u, err = s.Resume(ctx, state, 9)
				if err := write(u, err, "here").Commit(ctx, "x"); err != nil {
					t.Fatal(err)
				}
				idle(t, s)
				if kept := s.Holds("x") != policy.Nowhere; kept == elsewhere {
					t.Errorf("continued elsewhere: %t; kept: %t", elsewhere, kept)
				}
				obj, err := s.Get(ctx, "x", 0, -1)
				if err != nil {
					t.Fatal(err)
				}
				if got, err := io.ReadAll(obj); err != nil || string(got) != "heretherehere" {
					t.Errorf("continued elsewhere: %t; got %q, %v", elsewhere, got, err)
				}
				if err := obj.Close(); err != nil {
					t.Error(err)
				}
				s.DropAll()
			}
			limits(t, s)
		})
	}
}

// TestManyUploads checks that finished uploads evict no running one.
func TestManyUploads(t *testing.T) {
	ctx := t.Context()
	s := open(t, memstore.New(nil), &tier.Options{RAMBytes: 1 << 20, LargeObject: -1, WriteThrough: true})
	begin := func() string {
		t.Helper()
		u, err := s.NewUpload(ctx, -1)
		if err == nil {
			_, err = u.Write([]byte("x"))
		}
		if err != nil {
			t.Fatal(err)
		}
		state, err := u.Suspend(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return state
	}
	var long string
	for i := range 2 * tier.MaxTees {
		if i == tier.MaxTees {
			long = begin()
		}
		if err := s.Abandon(ctx, begin()); err != nil {
			t.Fatal(err)
		}
	}
	u, err := s.Resume(ctx, long, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := u.Commit(ctx, "x"); err != nil {
		t.Fatal(err)
	}
	if s.Holds("x") == policy.Nowhere {
		t.Error("an upload that went on was not kept")
	}
}
