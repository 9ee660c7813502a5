package objtest_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/memstore"
	"example.org/slipway/registry/objstore/objtest"
)

// TestFaultyWithoutFaults checks that hooks that do nothing change nothing.
func TestFaultyWithoutFaults(t *testing.T) {
	objtest.Run(t, func(*testing.T) objstore.Store {
		nothing := func(string, string) error { return nil }
		return objtest.Faulty(memstore.New(nil), objtest.Faults{Before: nothing, After: nothing})
	}, &objtest.Options{Suspended: 100})
}

// calls uses every operation once and returns those that failed with want.
func calls(t *testing.T, s objstore.Store, want error) (failed []string) {
	ctx := t.Context()
	note := func(op string, err error) {
		t.Helper()
		if errors.Is(err, want) {
			failed = append(failed, op)
		} else if err != nil {
			t.Errorf("%s: got error %v, want nil or %v", op, err, want)
		}
	}
	note(objtest.OpPut, s.Put(ctx, "k", []byte("data"), false))
	_, err := s.Stat(ctx, "k")
	note(objtest.OpStat, err)
	o, err := s.Get(ctx, "k", 0, -1)
	note(objtest.OpGet, err)
	if err == nil {
		_, err = o.WriteTo(new(bytes.Buffer))
		note(objtest.OpRead, err)
		note("close", o.Close())
	}
	for _, err := range s.List(ctx, "", "") {
		note(objtest.OpList, err)
	}
	u, err := s.NewUpload(ctx, -1)
	note(objtest.OpNewUpload, err)
	if err == nil {
		_, err = u.Write([]byte("x"))
		note(objtest.OpWrite, err)
		note(objtest.OpCommit, u.Commit(ctx, "c"))
	}
	note(objtest.OpDelete, s.Delete(ctx, "k"))
	return failed
}

func TestFaultyBefore(t *testing.T) {
	broken := errors.New("broken")
	for _, op := range []string{objtest.OpPut, objtest.OpList, objtest.OpNewUpload, objtest.OpWrite, objtest.OpCommit, objtest.OpDelete, objtest.OpRead, objtest.OpGet, objtest.OpStat} {
		t.Run(op, func(t *testing.T) {
			inner := memstore.New(nil)
			if err := inner.Put(t.Context(), "k", []byte("old"), false); err != nil {
				t.Fatal(err)
			}
			s := objtest.Faulty(inner, objtest.Faults{Before: func(o, key string) error {
				if o == op {
					return fmt.Errorf("%s %q: %w", o, key, broken)
				}
				return nil
			}})
			got := calls(t, s, broken)
			if diff := cmp.Diff([]string{op}, got); diff != "" {
				t.Errorf("operations that failed: -want +got\n%s", diff)
			}
			if _, err := inner.Stat(t.Context(), "c"); (op == objtest.OpCommit || op == objtest.OpNewUpload) != errors.Is(err, objstore.ErrNotExist) {
				t.Errorf("Stat of the committed object: %v", err)
			}
			if _, err := inner.Stat(t.Context(), "k"); (op == objtest.OpDelete) != (err == nil) {
				t.Errorf("Stat of the deleted object: %v", err)
			}
		})
	}
}

// TestFaultyAfter checks that the store performs the operation while the caller gets an error.
func TestFaultyAfter(t *testing.T) {
	broken := errors.New("broken")
	inner := memstore.New(nil)
	s := objtest.Faulty(inner, objtest.Faults{After: func(op, key string) error {
		if slices.Contains([]string{objtest.OpPut, objtest.OpCommit, objtest.OpDelete, objtest.OpGet}, op) {
			return broken
		}
		return nil
	}})
	got := calls(t, s, broken)
	want := []string{objtest.OpPut, objtest.OpGet, objtest.OpCommit, objtest.OpDelete}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("operations that failed: -want +got\n%s", diff)
	}
	if _, err := inner.Stat(t.Context(), "c"); err != nil {
		t.Errorf("Stat of the committed object: %v", err)
	}
	if _, err := inner.Stat(t.Context(), "k"); !errors.Is(err, objstore.ErrNotExist) {
		t.Errorf("Stat of the deleted object: got %v, want ErrNotExist", err)
	}
}
