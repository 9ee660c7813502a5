package recipes

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/engine"
	"example.org/slipway/registry/catalog/gearfacts"
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

// TestRepairFails lets the repair of a damaged pack fail at each of its steps for reasons
// that pass: at each operation of the object store, and at each table of the catalogue that
// it uses. A request during the failure gets the right bytes or an error that it may retry.
// When the reason has gone, the next one succeeds at once, and the pack is as it was.
func TestRepairFails(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	b := protectedBed(t)
	layer := compressed(6, archive(1, 6))
	d := b.push(layer)
	b.drop()
	b.run()
	b.pass(time.Hour)
	b.must(b.files.Housekeep(t.Context()))
	pack := b.packOf(layer)
	good, err := os.ReadFile(pack)
	b.must(err)
	// trial damages the pack, makes requests while a failure lasts, and others after it.
	trial := func(what string, fail, end func()) {
		t.Helper()
		b.restart() // nothing is remembered
		b.harm(pack, func(p []byte) []byte { return p[:len(p)/2] })
		fail()
		b.failsOrServes(what, layer)
		b.failsOrServes(what+", asked again", layer)
		end()
		if _, err := b.reg.ResolveBlob(t.Context(), repo, d); err != nil {
			t.Errorf("after %s: HEAD says %v", what, err)
		}
		b.check("after "+what, layer)
		b.wantObject("after "+what, pack, good)
		b.alarm("after "+what, 0)
	}
	reasons := []error{
		&fs.PathError{Op: "open", Path: "object", Err: syscall.EMFILE},
		&fs.PathError{Op: "write", Path: "object", Err: syscall.ENOSPC},
		&objstore.BusyError{Err: errors.New("slow down")},
	}
	steps := int64(0)
	for met := true; met; steps++ {
		f := &fault{err: reasons[steps%int64(len(reasons))], first: steps}
		trial(fmt.Sprintf("%v from operation %d on", f.err, steps), func() { b.disk.fault.Store(f) }, func() { b.disk.fault.Store(nil) })
		met = f.met()
	}
	if steps < 15 {
		t.Errorf("a pull with a repair has only %d operations", steps)
	}
	for _, table := range []string{"gear_parity_packs", "gear_parity_groups", "gear_parity_files", "gear_pack_checks"} {
		rename := func(from, to string) func() {
			return func() {
				b.must(b.cat.DB.Write(t.Context(), func(t *engine.Tx) error {
					_, err := t.Exec("ALTER TABLE " + from + " RENAME TO " + to)
					return err
				}))
			}
		}
		trial("without the table "+table, rename(table, table+"_away"), rename(table+"_away", table))
	}
}

// packOf returns the path of the pack that has the largest content of a layer.
func (b *bed) packOf(layer []byte) string {
	b.t.Helper()
	var at gearfacts.File
	for name := range filesOf(b.t, inflated(b.t, layer)) {
		f, err := gearfacts.NewFiles(b.cat.DB).File(b.t.Context(), name)
		b.must(err)
		if f.Stored >= at.Stored {
			at = f
		}
	}
	return filepath.Join(b.dir, storage.PackPrefix, fmt.Sprintf("%x", at.Pack))
}

// inflated returns the archive in a layer.
func inflated(t testing.TB, layer []byte) []byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(layer))
	if err != nil {
		t.Fatal(err)
	}
	archive, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return archive
}

// failsOrServes pulls a layer, whole and a range of it, and asks for it by HEAD. Each
// request must get the right bytes, or an error that it may retry.
func (b *bed) failsOrServes(what string, layer []byte) {
	b.t.Helper()
	d := oci.SHA256(layer)
	got, err := b.read(d)
	if err == nil && !bytes.Equal(got, layer) {
		b.t.Errorf("%s: a pull got %d wrong bytes", what, len(got))
	}
	c, rangeErr := b.reg.GetBlobRange(b.t.Context(), repo, d, 1, 10)
	if rangeErr == nil {
		part, err := io.ReadAll(c)
		c.Close()
		if rangeErr = err; err == nil && !bytes.Equal(part, layer[1:11]) {
			b.t.Errorf("%s: a range got wrong bytes", what)
		}
	}
	_, headErr := b.reg.ResolveBlob(b.t.Context(), repo, d)
	for request, err := range map[string]error{"GET": err, "a range": rangeErr, "HEAD": headErr} {
		var wire *oci.Error
		if errors.Is(err, objstore.ErrCorrupt) || errors.As(err, &wire) && wire.HTTPStatus() < 500 {
			b.t.Errorf("%s: %s says %v; want the bytes, or a failure that is no loss", what, request, err)
		}
	}
}

// TestPutBack loses a pack together with its parity, which is a loss. When they are put
// back, the layer must be there at once.
func TestPutBack(t *testing.T) {
	t.Parallel()
	b := protectedBed(t)
	layer := compressed(6, archive(1, 6))
	d := b.push(layer)
	b.drop()
	b.pass(time.Hour)
	b.must(b.files.Housekeep(t.Context()))
	b.restart()
	saved := map[string][]byte{}
	for _, path := range append(b.objects(storage.PackPrefix), b.objects(parityPrefix)...) {
		saved[path] = b.harm(path, func([]byte) []byte { return nil })
	}
	for range 2 {
		if _, err := b.read(d); !oci.HasCode(err, oci.CodeBlobUnknown) {
			t.Errorf("without packs and parity: %v; want that the layer is lost", err)
		}
	}
	for path, content := range saved {
		b.must(os.WriteFile(path, content, 0o600))
	}
	if _, err := b.store.Stat(t.Context(), storage.BlobKey(d)); err != nil {
		t.Errorf("with everything put back: %v", err)
	}
	b.check("with everything put back", layer)
}
