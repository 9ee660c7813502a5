package memstore_test

import (
	"errors"
	"testing"
	"time"

	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/memstore"
	"example.org/slipway/registry/objstore/objtest"
)

func TestConformance(t *testing.T) {
	objtest.Run(t, func(*testing.T) objstore.Store { return memstore.New(nil) }, nil)
}

func BenchmarkStore(b *testing.B) {
	objtest.Bench(b, func(*testing.B) objstore.Store { return memstore.New(nil) })
}

func TestMaxBytes(t *testing.T) {
	ctx := t.Context()
	s := memstore.New(&memstore.Options{MaxBytes: 100})
	defer s.Close()
	full := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, objstore.ErrNoSpace) {
			t.Errorf("%s: got error %v, want ErrNoSpace", what, err)
		}
	}
	ok := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	ok("Put of 60", s.Put(ctx, "a", objtest.Content(1, 60), false))
	full("Put of 41", s.Put(ctx, "b", objtest.Content(1, 41), false))
	full("replacing 60 by 101", s.Put(ctx, "a", objtest.Content(1, 101), false))
	ok("replacing 60 by 70", s.Put(ctx, "a", objtest.Content(1, 70), false))
	_, err := s.NewUpload(ctx, 31)
	full("NewUpload of 31", err)
	u, err := s.NewUpload(ctx, 30)
	ok("NewUpload of 30", err)
	data := objtest.Content(2, 60)
	n, err := u.Write(data)
	full("Write of 60", err)
	if n != 30 || u.Size() != 30 {
		t.Errorf("Write of 60 with room for 30: got %d, size %d; want 30", n, u.Size())
	}
	ok("Delete", s.Delete(ctx, "a"))
	_, err = u.Write(data[30:])
	ok("Write after Delete", err)
	ok("Commit", u.Commit(ctx, "c"))
	ok("Put of 40", s.Put(ctx, "d", objtest.Content(1, 40), false))
	full("Put of 1", s.Put(ctx, "e", objtest.Content(1, 1), false))

	// Dropping an upload in any way frees its bytes.
	ok("Delete", s.Delete(ctx, "d"))
	for _, drop := range []func(objstore.Upload) error{
		func(u objstore.Upload) error { return u.Cancel(ctx) },
		func(u objstore.Upload) error {
			if u.Commit(ctx, "..") == nil {
				return errors.New("impossible key was committed")
			}
			return nil
		},
		func(u objstore.Upload) error {
			state, err := u.Suspend(ctx)
			return errors.Join(err, s.Abandon(ctx, state))
		},
		func(u objstore.Upload) error {
			_, err := u.Suspend(ctx)
			if err == nil {
				_, _, err = s.SweepUploads(ctx, time.Now().Add(time.Hour), func(string) bool { return false })
			}
			return err
		},
		func(u objstore.Upload) error {
			state, err := u.Suspend(ctx)
			if err == nil {
				u, err = s.Resume(ctx, state, 10)
			}
			return errors.Join(err, u.Cancel(ctx))
		},
	} {
		u, err := s.NewUpload(ctx, -1)
		ok("NewUpload", err)
		_, err = u.Write(objtest.Content(1, 40))
		ok("Write of 40", err)
		ok("drop", drop(u))
	}
	ok("Put of 40", s.Put(ctx, "d", objtest.Content(1, 40), false))
}
