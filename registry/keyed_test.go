package registry_test

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"example.org/slipway/registry/registrytest"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/memstore"
)

// keyedStore is a store that writes uploads at their final place.
type keyedStore struct {
	objstore.Store
	begun, placeless atomic.Int64
}

func (s *keyedStore) NewUpload(ctx context.Context, hint int64) (objstore.Upload, error) {
	s.placeless.Add(1)
	return s.Store.NewUpload(ctx, hint)
}

func (s *keyedStore) NewUploadFor(ctx context.Context, key string, hint int64) (objstore.Upload, error) {
	s.begun.Add(1)
	u, err := s.Store.NewUpload(ctx, hint)
	return &keyedUpload{u, key}, err
}

// keyedUpload can be committed under one key only.
type keyedUpload struct {
	objstore.Upload
	key string
}

func (u *keyedUpload) Commit(ctx context.Context, key string) error {
	if key != u.key {
		return fmt.Errorf("the upload for %s is committed as %s", u.key, key)
	}
	return u.Upload.Commit(ctx, key)
}

// TestKeyedUploads checks that an upload whose digest is known from the start is written at its
// final place, and can become nothing else.
func TestKeyedUploads(t *testing.T) {
	store := &keyedStore{Store: memstore.New(nil)}
	b := newBed(t, store, registry.Options{})
	want := func(what string, begun, placeless int64) {
		t.Helper()
		if store.begun.Load() != begun || store.placeless.Load() != placeless {
			t.Errorf("%s: %d uploads at their place and %d others, want %d and %d", what, store.begun.Load(), store.placeless.Load(), begun, placeless)
		}
	}
	ctx := t.Context()
	data := registrytest.Content(1, 50_000)
	b.PushBytes("a", data)
	want("a push", 1, 0)
	if _, err := b.PushBlob(ctx, "a", oci.SHA256(data), 50_000, bytes.NewReader(registrytest.Content(2, 50_000))); !oci.HasCode(err, oci.CodeDigestInvalid) {
		t.Errorf("other bytes than the digest's: got %v", err)
	}
	want("a push of something else", 2, 0)
	begin := func() string {
		st, err := b.StartUpload(ctx, "a")
		if err != nil {
			t.Fatal(err)
		}
		return st.ID
	}
	id := begin() // in chunks
	if _, err := b.AppendUpload(ctx, "a", id, 0, 30_000, bytes.NewReader(data[:30_000])); err != nil {
		t.Fatal(err)
	}
	if _, err := b.CommitUpload(ctx, "b", id, 30_000, -1, bytes.NewReader(data[30_000:]), oci.SHA256(data)); !oci.HasCode(err, oci.CodeBlobUploadUnknown) {
		t.Errorf("in another repository: got %v", err)
	}
	if _, err := b.CommitUpload(ctx, "a", id, 30_000, -1, bytes.NewReader(data[30_000:]), oci.SHA256(data)); err != nil {
		t.Error(err)
	}
	want("chunks", 2, 1)
	for _, end := range []string{"the same", "another"} {
		id, data := begin(), registrytest.Content(uint64(len(end)), 60_000)
		d := oci.SHA256(data)
		if _, err := b.CommitUpload(ctx, "a", id, 0, 60_000, &brokenBody{bytes.NewReader(data[:40_000])}, d); err == nil {
			t.Fatal("a body that broke off: no error")
		}
		if end == "another" { // of the same bytes
			d = sha512Of(data)
		}
		_, err := b.CommitUpload(ctx, "a", id, 40_000, -1, bytes.NewReader(data[40_000:]), d)
		if end == "the same" && err != nil || end == "another" && !oci.HasCode(err, oci.CodeDigestInvalid) {
			t.Errorf("broken off and ended as %s digest: %v", end, err)
		}
		if got, err := registrytest.ReadBlob(ctx, b, "a", d); (err == nil && bytes.Equal(got, data)) != (end == "the same") {
			t.Errorf("broken off and ended as %s digest: got %d bytes, %v", end, len(got), err)
		}
	}
	want("bodies that broke off", 4, 1)
	id = begin() // the digest's algorithm is known too late
	if _, err := b.AppendUpload(ctx, "a", id, 0, 30_000, bytes.NewReader(data[:30_000])); err != nil {
		t.Fatal(err)
	}
	if _, err := b.CommitUpload(ctx, "a", id, 30_000, -1, bytes.NewReader(data[30_000:]), sha512Of(data)); err != nil {
		t.Error(err)
	}
	want("sha512 behind chunks", 5, 2)
}
