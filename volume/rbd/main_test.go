//go:build ceph

package rbd_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"example.org/slipway/internal/backendtest"
	"example.org/slipway/volume/block"
	"example.org/slipway/volume/blocktest"
	"example.org/slipway/volume/rbd"
)

// servers holds the cluster that the tests of this package share.
var servers backendtest.Shared

func TestMain(m *testing.M) {
	if child() {
		return
	}
	blocktest.Main(func(where string) (block.Store, error) {
		var o rbd.Options
		if err := json.Unmarshal([]byte(where), &o); err != nil {
			return nil, err
		}
		return rbd.Open(context.Background(), o)
	})
	defer servers.Close()
	m.Run()
}

const leaseTime = 10 * time.Second

// options returns options with namespaces for this test alone.
func options(t testing.TB) (rbd.Options, *backendtest.Ceph) {
	t.Helper()
	c := servers.RBD(t)
	name := fmt.Sprintf("t%08x", rand.Uint32())
	return rbd.Options{Conf: c.Conf, Pool: backendtest.RBDPool, Namespace: name, Clones: name + "-clones",
		Timeout: 5 * time.Second, LeaseTime: leaseTime}, c
}

func open(t testing.TB, o rbd.Options) block.Store {
	t.Helper()
	s, err := rbd.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close the store: %v", err)
		}
	})
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func want(t testing.TB, err, as error) {
	t.Helper()
	if !errors.Is(err, as) {
		t.Fatalf("got error %v, want %v", err, as)
	}
}

func content(seed uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = r.Read(b)
	return b
}

// fill creates a volume with content at off and commits it.
func fill(t testing.TB, s block.Store, id, parent string, size int64, b []byte, off int64) {
	t.Helper()
	v, err := s.Create(t.Context(), id, parent, size)
	must(t, err)
	_, err = v.WriteAt(b, off)
	must(t, err)
	must(t, v.Close())
	must(t, s.Commit(t.Context(), id))
}

func wantBytes(t testing.TB, v block.Volume, off int64, b []byte) {
	t.Helper()
	got := make([]byte, len(b))
	if n, err := v.ReadAt(got, off); err != nil || n != len(b) {
		t.Fatalf("read %d bytes at %d: got %d, %v", len(b), off, n, err)
	}
	if !bytes.Equal(got, b) {
		t.Fatalf("read %d bytes at %d: they differ", len(b), off)
	}
}

// soon returns a context that ends soon.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	return ctx
}
