package recipes

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"syscall"
	"testing"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/engine"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/storage"
)

// TestFailureIsNotLoss lets the rebuild of a dropped layer fail for reasons that say nothing
// about the layer. A client that pulls it, whole or a range of it, must get an error that
// it may retry, and not learn that the layer is unknown. When the reason has gone, the
// layer is there at once. Damage is reported as before: TestDamage checks that.
func TestFailureIsNotLoss(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	layer := compressed(6, archive(1, 6))
	d := b.push(layer)
	b.drop()
	reasons := map[string]error{
		"no descriptors": &fs.PathError{Op: "open", Path: "pack", Err: syscall.EMFILE},
		"no memory":      &fs.PathError{Op: "read", Path: "pack", Err: syscall.ENOMEM},
		"no catalogue":   engine.ErrUnavailable,
		"busy":           &objstore.BusyError{Err: errors.New("slow down")},
		"any other":      errors.New("who knows"),
		"a deadline":     context.DeadlineExceeded,
	}
	for what, err := range reasons {
		b.restart() // nothing is kept
		b.disk.bad.Store(&unreadable{storage.PackPrefix, err})
		b.failsOnly(what, d)
		b.disk.bad.Store(nil)
		b.check("after "+what, layer)
	}
	b.restart()
	dir := b.store.opts.TempDir
	b.store.opts.TempDir = filepath.Join(dir, "gone")
	b.failsOnly("no temporary files", d)
	b.store.opts.TempDir = dir
	b.check("with temporary files", layer)
}

// failsOnly checks that a layer cannot be read, and that nobody takes it for lost.
func (b *bed) failsOnly(what string, d oci.Digest) {
	b.t.Helper()
	_, err := b.read(d)
	_, rangeErr := b.reg.GetBlobRange(b.t.Context(), repo, d, 1, 10)
	_, headErr := b.reg.ResolveBlob(b.t.Context(), repo, d)
	for i, err := range []error{err, rangeErr, headErr} {
		if err == nil && i < 2 || errors.Is(err, objstore.ErrCorrupt) || oci.HasCode(err, oci.CodeBlobUnknown) {
			b.t.Errorf("%s: request %d says %v; want a failure that is no loss", what, i, err)
		}
	}
}

// TestUnreadablePack pulls a dropped layer while the medium does not give back one of its
// packs. The pack must be made again from parity, as a damaged one is.
func TestUnreadablePack(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	b := protectedBed(t)
	layer := compressed(6, archive(1, 12))
	b.push(layer)
	b.drop()
	again := 0
	for _, pack := range b.objects(storage.PackPrefix) {
		for _, err := range []error{syscall.EIO, syscall.EUCLEAN} {
			b.restart()
			b.disk.bad.Store(&unreadable{storage.PackPrefix + filepath.Base(pack), &fs.PathError{Op: "read", Path: pack, Err: err}})
			b.check(err.Error(), layer)
			if b.disk.bad.Swap(nil) == nil {
				again++
			}
		}
	}
	if again == 0 {
		t.Error("no pack was made again")
	}
}
