package check_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"example.org/slipway/registry/check"

	"example.org/slipway/registry/registrytest"

	"example.org/slipway/registry"
	"example.org/slipway/registry/objstore/fsstore"
	"example.org/slipway/registry/storage"
)

// TestFsckBadSector checks that what the disk cannot read is named, is moved aside by a repair, and
// comes back with a push.
func TestFsckBadSector(t *testing.T) {
	root := t.TempDir()
	disk, err := fsstore.New(root, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { disk.Close() })
	store := &registrytest.BadSector{Store: disk}
	b := newBed(t, store, registry.Options{})
	_, _, _, large := b.PushImage("a", 1, "v1")
	data, err := registrytest.ReadBlob(t.Context(), b, "a", large.Digest)
	if err != nil {
		t.Fatal(err)
	}
	store.Keys = []string{storage.BlobKey(large.Digest), "slipway/quarantine/sha256/" + large.Digest.Encoded()}
	for _, repair := range []bool{false, true} {
		rep := b.Check(check.Options{Repair: repair})
		if len(rep.Problems) == 0 {
			t.Fatalf("repair %t: nothing found", repair)
		}
		if p := rep.Problems[0]; p.Kind != check.ProblemUnreadable || p.Digest != large.Digest || p.Repaired != repair {
			t.Errorf("repair %t: %+v", repair, p)
		}
	}
	aside := filepath.Join(root, "slipway", "quarantine", "sha256", large.Digest.Encoded())
	if got, err := os.ReadFile(aside); err != nil || !slices.Equal(got, data) {
		t.Errorf("in quarantine: %d bytes, %v", len(got), err)
	}
	store.Keys = nil
	b.PushBytes("a", data)
	if got, err := registrytest.ReadBlob(t.Context(), b, "a", large.Digest); err != nil || !slices.Equal(got, data) {
		t.Errorf("after the push: %d bytes, %v", len(got), err)
	}
	if got := registrytest.Kinds(b.Check(check.Options{})); len(got) > 0 {
		t.Errorf("after the push: %v", got)
	}
}
