package admin

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/serve/dataroot"
)

// violation is a promise that the registry did not keep.
type violation struct {
	promise string
	err     error
}

func (v *violation) Error() string { return fmt.Sprintf("%s: %v", v.promise, v.err) }
func (v *violation) Unwrap() error { return v.err }

// fault records a broken promise. The sequence continues.
func (w *world) fault(promise string, err error) {
	w.faults = append(w.faults, &violation{promise, err})
}

// pull reads a whole image by its tag, or by its digest if tag is "".
func (w *world) pull(repo, tag string, d oci.Digest) error {
	ref := tag
	if ref == "" {
		ref = string(d)
	}
	m, err := w.a.reg.GetManifest(w.ctx, repo, ref)
	if err != nil {
		return fmt.Errorf("manifest %s:%s: %w", repo, ref, err)
	}
	im := w.images[d]
	if !bytes.Equal(m.Bytes, im.raw) {
		return fmt.Errorf("manifest %s:%s: other bytes than those of %s", repo, ref, d)
	}
	for _, c := range im.children {
		if err := w.pull(repo, "", c.digest); err != nil {
			return err
		}
	}
	for _, b := range im.blobs {
		got, err := w.read(repo, b, false)
		if err != nil {
			return fmt.Errorf("blob %s of %s:%s: %w", b, repo, ref, err)
		}
		if !bytes.Equal(got, w.bytes[b]) {
			return fmt.Errorf("blob %s of %s:%s: other bytes", b, repo, ref)
		}
	}
	return nil
}

// allReadable checks that each image that must be there can be pulled.
func (w *world) allReadable() error {
	var errs []error
	for _, t := range w.o.required() {
		errs = append(errs, w.pull(t.repo, t.tag, t.digest))
	}
	return errors.Join(errs...)
}

// firstReadable checks that the latest push can be read.
func (w *world) firstReadable() error { return w.pull("app", "v1", w.first.digest) }

func (w *world) mountedReadable() error { return w.pull("lib", "v1", w.first.digest) }
func (w *world) adoptedReadable() error { return w.pull("dist", "v1", w.adopted.digest) }

func (w *world) restoredReadable() error { return w.takenReadable(w.backup()) }
func (w *world) importedReadable() error { return w.takenReadable(w.source) }

func (w *world) takenReadable(dir string) error {
	tags, err := w.tagsOf(dir)
	errs := []error{err}
	for _, t := range tags {
		errs = append(errs, w.pull(t.repo, t.tag, t.digest))
	}
	return errors.Join(errs...)
}

// backupComplete checks that a backup holds good bytes of each image that must be in it.
func (w *world) backupComplete() error {
	has, err := w.copies(w.backup())
	if err != nil {
		return err
	}
	for _, t := range w.o.required() {
		for _, d := range w.images[t.digest].all() {
			if !has[d] {
				return fmt.Errorf("%s of %s:%s is not in the backup", d, t.repo, t.tag)
			}
		}
	}
	return nil
}

// indexFreed checks that a collection removed what only a deleted index kept.
func (w *world) indexFreed() error {
	if !w.o.freed.Load() || w.o.harmed.Load() || w.remote != nil {
		return nil
	}
	for _, c := range w.multi.children {
		if _, err := w.a.reg.GetManifest(w.ctx, "app", string(c.digest)); err == nil {
			return fmt.Errorf("the child %s of a deleted index is still there", c.digest)
		}
	}
	return nil
}

// served checks that every content is served with its own bytes or not at all, from every
// repository.
func (w *world) served() error {
	for _, repo := range []string{"app", "lib", "dist"} {
		for d, want := range w.bytes {
			if w.images[d] != nil {
				if m, err := w.a.reg.GetManifest(w.ctx, repo, string(d)); err == nil && !bytes.Equal(m.Bytes, want) {
					return fmt.Errorf("manifest %s of %s is served with other bytes", d, repo)
				}
			}
			if b, err := w.readEnd(repo, d); err == nil && !bytes.Equal(b, want[len(want)/3:]) {
				return fmt.Errorf("a range of blob %s of %s is served with other bytes", d, repo)
			}
			for _, whole := range []bool{false, true} {
				b, err := w.read(repo, d, whole)
				if err == nil && !bytes.Equal(b, want) {
					return fmt.Errorf("blob %s of %s is served with other bytes (%d of %d), WriteTo %v", d, repo, len(b), len(want), whole)
				}
				if oci.HasCode(err, oci.CodeBlobUnknown) { // then WriteTo must not find it either
					break
				}
			}
		}
	}
	for r, set := range w.o.tags {
		m, err := w.a.reg.ResolveManifest(w.ctx, r.repo, r.tag)
		if err == nil && !set[m.Digest] {
			return fmt.Errorf("%s:%s points at %s, and may point at %v", r.repo, r.tag, m.Digest, set)
		}
		// A damaged content may count as missing, so that clients push it again.
		if oci.HasCode(err, oci.CodeManifestUnknown) && !set[""] && !w.o.harmed.Load() {
			return fmt.Errorf("%s:%s is gone, and must point at %v", r.repo, r.tag, set)
		}
	}
	return nil
}

// copies returns the contents of which good bytes exist anywhere below a directory.
func (w *world) copies(dir string) (map[oci.Digest]bool, error) {
	has := map[oci.Digest]bool{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		if e.Name() == registry.CatalogFile {
			return w.rows(path, has)
		}
		if strings.Contains(path, "catalog.db") || !strings.Contains(path, "sha256") {
			return nil
		}
		b, err := os.ReadFile(path)
		if d := oci.SHA256(b); w.bytes[d] != nil {
			has[d] = true
		}
		return err
	})
	return has, err
}

// ownCopies returns the contents of which the registry holds good bytes: in its root, in its store
// while that is away, or in its backup.
func (w *world) ownCopies() map[oci.Digest]bool {
	all := map[oci.Digest]bool{}
	for _, dir := range []string{w.root(), w.objects(), w.backup(), w.away()} {
		has, err := w.copies(dir)
		if err != nil {
			w.fault("the model itself works", err)
		}
		maps.Copy(all, has)
	}
	if w.remote != nil {
		db, err := w.catalogue()
		if err == nil {
			err = errors.Join(w.rowsOf(db, all), db.Close())
		}
		if err != nil {
			w.fault("the model itself works", err)
		}
	}
	return all
}

// keeps checks that the last operation did not destroy the last good copy of what must be there.
// had is nil after an operation whose purpose is to destroy something.
func (w *world) keeps(had map[oci.Digest]bool) {
	if had == nil {
		return
	}
	has := w.ownCopies()
	for _, t := range w.o.required() {
		for _, d := range w.images[t.digest].all() {
			if had[d] && !has[d] {
				w.fault("the last good copy is never destroyed", fmt.Errorf("%s of %s:%s", d, t.repo, t.tag))
				return
			}
		}
	}
}

// rows returns the contents of which a catalogue has good bytes.
func (w *world) rows(path string, has map[oci.Digest]bool) error {
	db, err := sql.Open("sqlite", "file:"+path+"?mode=ro&_pragma=busy_timeout(10000)")
	if err != nil {
		return err
	}
	return errors.Join(w.rowsOf(db, has), db.Close())
}

func (w *world) rowsOf(db *sql.DB, has map[oci.Digest]bool) error {
	rows, err := db.Query(`SELECT content FROM blobs WHERE content IS NOT NULL`)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var b []byte
		if err := rows.Scan(&b); err != nil {
			return err
		}
		if d := oci.SHA256(b); w.bytes[d] != nil {
			has[d] = true
		}
	}
	return rows.Err()
}

// recover follows the documentation's steps for damage. It checks that every image of which each
// content had a good copy comes back. After another push, all images must be back.
func (w *world) recover() error {
	reachable := w.ownCopies()
	maps.Copy(reachable, w.sourceHas)
	want := w.o.required()
	w.o.full.Store(false)
	if err := storeBack(w); err != nil && !errors.Is(err, errNothing) && !w.o.lost.Load() {
		return &violation{"the registry opens", err}
	}
	if w.o.lost.Load() {
		if err := w.recoverCatalogue(); errors.Is(err, errNothing) {
			return nil // without a backup the names of the images are lost
		} else if err != nil {
			return &violation{"a backup brings a registry back that lost its catalogue", err}
		}
	}
	if err := w.restart(); err != nil {
		return &violation{"the registry opens", err}
	}
	var said []error
	_, err := w.a.Fsck(w.ctx, dataroot.FsckArgs{Repair: true}, nil)
	said = append(said, err)
	for _, do := range []func(*world) error{restoreOp, healOp, importOp} {
		if w.allOf(want) == nil {
			break
		}
		// Restoring sets tags too. What was pushed since the backup is tagged again.
		before := w.o.clone()
		said = append(said, do(w))
		w.o.become(before)
		_, err := w.a.Fsck(w.ctx, dataroot.FsckArgs{Repair: true}, nil) // finds what came back, wherever it is named
		said = append(said, err)
	}
	for _, t := range want {
		complete := true
		for _, d := range w.images[t.digest].all() {
			complete = complete && reachable[d]
		}
		if err := w.pull(t.repo, "", t.digest); err != nil && complete {
			return &violation{"what has a good copy in reach can be recovered", fmt.Errorf("%s:%s: %w (commands said: %v)", t.repo, t.tag, err, errors.Join(said...))}
		}
	}
	for _, t := range want {
		if err := w.push(t.repo, t.tag, w.images[t.digest]); err != nil {
			return &violation{"a push mends", err}
		}
	}
	if err := w.allOf(want); err != nil {
		return &violation{"what is pushed again can be read", err}
	}
	return nil
}

func (w *world) allOf(want []seamTag) error {
	for _, t := range want {
		if err := w.pull(t.repo, "", t.digest); err != nil {
			return err
		}
	}
	return nil
}
