package registry_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"example.org/slipway/registry/registrytest"

	"example.org/slipway/registry"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/fsstore"
)

// badSector is a store on a disk that cannot read one object.
type badSector struct {
	*fsstore.Store
	keys []string // of the file that the sector belongs to
	late bool     // it can be opened
}

func (s *badSector) Get(ctx context.Context, key string, off, n int64) (objstore.Object, error) {
	if slices.Contains(s.keys, key) && s.late {
		o, err := s.Store.Get(ctx, key, off, n)
		return unreadable{o}, err
	}
	if slices.Contains(s.keys, key) {
		return nil, fmt.Errorf("read object %s: %w", key, syscall.EIO)
	}
	return s.Store.Get(ctx, key, off, n)
}

// unreadable is an object of which nothing can be read.
type unreadable struct{ objstore.Object }

func (o unreadable) Read([]byte) (int, error) { return 0, syscall.EIO }

func (o unreadable) WriteTo(io.Writer) (int64, error) { return 0, syscall.EIO }

// TestFsckBadSector: what the disk cannot read is named, moved aside by a
// repair, and comes back with a push.
func TestFsckBadSector(t *testing.T) {
	root := t.TempDir()
	disk, err := fsstore.New(root, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { disk.Close() })
	store := &badSector{Store: disk}
	b := newBed(t, store, registry.Options{})
	_, _, _, large := b.PushImage("a", 1, "v1")
	data, err := registrytest.ReadBlob(t.Context(), b, "a", large.Digest)
	if err != nil {
		t.Fatal(err)
	}
	store.keys = []string{registry.BlobKey(large.Digest), "slipway/quarantine/sha256/" + large.Digest.Encoded()}
	for _, repair := range []bool{false, true} {
		rep := b.fsck(registry.FsckOptions{Repair: repair})
		if len(rep.Problems) == 0 {
			t.Fatalf("repair %t: nothing found", repair)
		}
		if p := rep.Problems[0]; p.Kind != registry.ProblemUnreadable || p.Digest != large.Digest || p.Repaired != repair {
			t.Errorf("repair %t: %+v", repair, p)
		}
	}
	aside := filepath.Join(root, "slipway", "quarantine", "sha256", large.Digest.Encoded())
	if got, err := os.ReadFile(aside); err != nil || !slices.Equal(got, data) {
		t.Errorf("in quarantine: %d bytes, %v", len(got), err)
	}
	store.keys = nil
	b.PushBytes("a", data)
	if got, err := registrytest.ReadBlob(t.Context(), b, "a", large.Digest); err != nil || !slices.Equal(got, data) {
		t.Errorf("after the push: %d bytes, %v", len(got), err)
	}
	if got := kinds(b.fsck(registry.FsckOptions{})); len(got) > 0 {
		t.Errorf("after the push: %v", got)
	}
}
