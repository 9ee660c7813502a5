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

	"example.org/slipway/gear/filestore"
	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/engine"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/check"
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
		"no permission":  &fs.PathError{Op: "open", Path: "pack", Err: syscall.EACCES},
		"a bad medium":   &fs.PathError{Op: "read", Path: "pack", Err: syscall.EIO},
		"a connection":   io.ErrUnexpectedEOF,
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
	reasons := failures()
	steps := int64(0)
	for met := true; met; steps++ {
		met = false
		for k := range int64(3) {
			f := &fault{err: reasons[(steps+3*k)%int64(len(reasons))], first: steps, once: k == 2}
			trial(fmt.Sprint(f), func() { b.disk.fault.Store(f) }, func() { b.disk.fault.Store(nil) })
			met = met || f.met()
		}
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

// failures are reasons for which an operation of the object store fails, and which say nothing
// about what is stored.
func failures() []error {
	return []error{
		&fs.PathError{Op: "open", Path: "object", Err: syscall.EACCES},
		&fs.PathError{Op: "read", Path: "object", Err: syscall.EIO},
		&fs.PathError{Op: "open", Path: "object", Err: syscall.EMFILE},
		&fs.PathError{Op: "write", Path: "object", Err: syscall.ENOSPC},
		&objstore.BusyError{Err: errors.New("slow down")},
		context.DeadlineExceeded,
		io.ErrUnexpectedEOF,
		io.EOF,
	}
}

// String implements fmt.Stringer.
func (f *fault) String() string {
	if f.once {
		return fmt.Sprintf("%v in operation %d", f.err, f.first)
	}
	return fmt.Sprintf("%v from operation %d on", f.err, f.first)
}

// TestPullFails lets every operation of a pull of a dropped layer fail, alone or with all
// that follow, for each reason. Whatever fails, a client gets the right bytes or an error
// that it may retry. Nothing is remembered of it: the layer is there as soon as the reason
// has gone, and no pack counts as damaged.
func TestPullFails(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	for name, makeBed := range map[string]func(testing.TB) *bed{"without parity": newBed, "with parity": protectedBed} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := makeBed(t)
			layer := compressed(6, archive(1, 6))
			b.push(layer)
			b.drop()
			for _, reason := range failures() {
				for _, once := range []bool{false, true} {
					steps := b.eachStep(reason, once, layer)
					if steps < 5 {
						t.Errorf("%v: a pull has only %d operations", reason, steps)
					}
				}
			}
		})
	}
}

// eachStep pulls a layer again and again. Each time, the next operation of the pull fails.
// It returns how many operations the pull has.
func (b *bed) eachStep(reason error, once bool, layer []byte) (steps int64) {
	b.t.Helper()
	for met := true; met; steps++ {
		b.restart() // nothing is kept
		f := &fault{err: reason, once: once, first: steps}
		b.disk.fault.Store(f)
		b.failsOrServes(f.String(), layer)
		b.disk.fault.Store(nil)
		b.check("after "+f.String(), layer)
		b.alarm("after "+f.String(), 0)
		met = f.met()
	}
	return steps
}

// TestScrubFails lets a scrub fail for reasons that pass. It must say so, and not count a
// pack as damaged. A pack that may not be read is an alarm, but no loss.
func TestScrubFails(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	layer := compressed(6, archive(1, 6))
	d := b.push(layer)
	b.drop()
	b.keeper.p.ScrubEvery = time.Nanosecond
	for _, reason := range failures() {
		for _, lasts := range []syscall.Errno{syscall.EACCES, syscall.EIO} {
			if errors.Is(reason, lasts) {
				reason = nil
			}
		}
		if reason == nil {
			continue
		}
		b.disk.bad.Store(&unreadable{storage.PackPrefix, reason})
		b.pass(time.Hour)
		if _, err := b.keeper.Scrub(t.Context()); err == nil {
			t.Errorf("%v: the scrub has no error", reason)
		}
		b.disk.bad.Store(nil)
		b.alarm(fmt.Sprint("after ", reason), 0)
	}
	b.disk.bad.Store(&unreadable{storage.PackPrefix, &fs.PathError{Op: "open", Path: "pack", Err: syscall.EACCES}})
	b.pass(time.Hour)
	if rep, err := b.keeper.Scrub(t.Context()); err != nil || rep.Damaged == 0 {
		t.Errorf("a scrub of packs that may not be read: %+v, %v; want an alarm", rep, err)
	}
	b.restart()
	b.disk.bad.Store(&unreadable{storage.PackPrefix, &fs.PathError{Op: "open", Path: "pack", Err: syscall.EACCES}})
	b.failsOrServes("packs that may not be read", layer)
	b.disk.bad.Store(nil)
	if _, err := b.reg.ResolveBlob(t.Context(), repo, d); err != nil {
		t.Errorf("HEAD when they may be read again: %v", err)
	}
	b.check("when they may be read again", layer)
	b.alarm("when they may be read again", 0)
}

// TestCheckFails has everything checked and repaired while no pack can be read. The checks must
// report that and end, and must not give anything up.
func TestCheckFails(t *testing.T) {
	t.Parallel()
	for _, reason := range []syscall.Errno{syscall.EACCES, syscall.EIO} {
		b := newBed(t)
		layer := compressed(6, archive(1, 6))
		d := b.push(layer)
		b.drop()
		b.restart()
		b.disk.bad.Store(&unreadable{storage.PackPrefix, &fs.PathError{Op: "open", Path: "pack", Err: reason}})
		rep, err := check.Run(t.Context(), b.reg, check.Options{Repair: true, GiveUpMany: true})
		if err != nil || len(rep.Problems) != 1 || rep.Problems[0].Digest != d || rep.Problems[0].Repaired {
			t.Errorf("%v: the check found %+v, %v; want that the layer cannot be read", reason, rep.Problems, err)
		}
		problems := 0
		_, err = b.files.Verify(t.Context(), filestore.VerifyOptions{Contents: true, Repair: true, Found: func(p filestore.Problem) {
			problems++
			if p.Name != "" || p.Restored {
				t.Errorf("%v: %+v", reason, p)
			}
		}})
		if err != nil || problems == 0 {
			t.Errorf("%v: the check of the packs found %d problems, %v", reason, problems, err)
		}
		b.failsOrServes(fmt.Sprint("during ", reason), layer)
		b.disk.bad.Store(nil)
		if _, err := b.files.Verify(t.Context(), filestore.VerifyOptions{Contents: true}); err != nil {
			t.Error(err)
		}
		b.check(fmt.Sprint("after ", reason), layer)
		b.alarm(fmt.Sprint("after ", reason), 0)
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
