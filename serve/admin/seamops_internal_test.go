package admin

import (
	"bytes"
	"crypto/md5"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pressly/goose/v3"
	"golang.org/x/sys/unix"

	"example.org/slipway/oci"
	"example.org/slipway/oci/imagecopy"
	"example.org/slipway/registry"
	"example.org/slipway/registry/adopt"
	"example.org/slipway/registry/backup"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/engine"
	"example.org/slipway/registry/retention"
	"example.org/slipway/registry/storage"
	"example.org/slipway/serve/dataroot"
)

// seamOp is an operation of the model. Its error is what a client or an operator got. The operation
// need not succeed, but what it reports must be true.
type seamOp struct {
	name string
	run  func(w *world) error
	// verdict checks what a success claims, in addition to what always holds.
	verdict func(w *world) error
	// harms is set for an influence from outside that destroys bytes.
	harms bool
}

// seamOps returns all operations. Those that others build on come first.
func seamOps() []seamOp {
	return []seamOp{
		{"push", pushOp(0, false), nil, false},
		{"push-chunked", pushOp(1, true), nil, false},
		{"push-known", func(w *world) error { return w.push("app", "v1", w.first) }, (*world).firstReadable, false},
		{"push-all", func(w *world) error { return w.pushAgain("app", "v1", w.first) }, (*world).firstReadable, false},
		{"push-index", pushOp(3, false), nil, false},
		{"retag", retag, nil, false},
		{"delete-tag", deleteTag, nil, false},
		{"delete-index", deleteIndex, nil, false},
		{"mount", mount, (*world).mountedReadable, false},
		{"adopt", adoptDistribution, (*world).adoptedReadable, false},
		{"corrupt", damageOp(func(b []byte) []byte { b[len(b)/2] ^= 1; return b }), nil, true},
		{"cut", damageOp(func(b []byte) []byte { return b[:len(b)/2] }), nil, true},
		{"remove", damageOp(func([]byte) []byte { return nil }), nil, true},
		{"return", returnObjects, nil, false},
		{"flip-row", flipRow, nil, true},
		{"away", storeAway, nil, false},
		{"back", storeBack, nil, false},
		{"full", fullOp(true), nil, false},
		{"room", fullOp(false), nil, false},
		{"upgrade", upgradeOp, nil, false},
		{"move", moveOp, nil, false},
		{"kill", (*world).kill, nil, false},
		{"restart", (*world).restart, nil, false},
		{"day", clockOp(25 * time.Hour), nil, false},
		{"clock", clockOp(400 * 24 * time.Hour), nil, false},
		{"fsck", fsckOp(false), (*world).allReadable, false},
		{"repair", fsckOp(true), (*world).allReadable, false},
		{"heal", healOp, (*world).allReadable, false},
		{"gc", collectOp, (*world).indexFreed, false},
		{"retention", retainOp, nil, false},
		{"backup", backupOp, (*world).backupComplete, false},
		{"restore", restoreOp, (*world).restoredReadable, false},
		{"import", importOp, (*world).importedReadable, false},
		{"convert", func(w *world) error { return second2(w.a.Convert(w.ctx, ConvertArgs{}, nil)) }, nil, false},
		{"settle", func(w *world) error { return second2(w.a.Settle(w.ctx, SettleArgs{All: true})) }, nil, false},
	}
}

func pushOp(n int, chunked bool) func(*world) error {
	return func(w *world) error {
		tag := fmt.Sprintf("p%d", n)
		if !chunked {
			return errors.Join(w.push("app", tag, w.fresh[n]), w.acknowledged("app", tag))
		}
		err := w.pushBy("app", tag, w.fresh[n], false, func(d oci.Digest, b []byte) error {
			up, err := w.a.reg.StartUpload(w.ctx, "app")
			if err != nil {
				return err
			}
			half := len(b) / 2
			if up, err = w.a.reg.AppendUpload(w.ctx, "app", up.ID, 0, int64(half), bytes.NewReader(b[:half])); err != nil {
				return err
			}
			return second2(w.a.reg.CommitUpload(w.ctx, "app", up.ID, up.Size, int64(len(b)-half), bytes.NewReader(b[half:]), d))
		})
		return errors.Join(err, w.acknowledged("app", tag))
	}
}

// pushAgain pushes every byte, like a client that does not ask first.
func (w *world) pushAgain(repo, tag string, im *seamImage) error {
	return w.pushBy(repo, tag, im, true, func(d oci.Digest, b []byte) error {
		return second2(w.a.reg.PushBlob(w.ctx, repo, d, int64(len(b)), bytes.NewReader(b)))
	})
}

// acknowledged checks a push: an image that was answered with 201 can be read at once.
func (w *world) acknowledged(repo, tag string) error {
	for d := range w.o.tags[seamRef{repo, tag}] {
		if d != "" && len(w.o.tags[seamRef{repo, tag}]) == 1 && !w.o.away.Load() {
			if err := w.pull(repo, tag, d); err != nil && !w.o.harmed.Load() {
				w.fault("what was acknowledged can be read at once", err)
			}
		}
	}
	return nil
}

// retag moves the tag v2 to the image of v1 or back.
func retag(w *world) error {
	im := w.first
	if w.o.tags[seamRef{"app", "v2"}][im.digest] {
		im = w.second
	}
	w.o.may("app", "v2", im.digest)
	w.o.pushes("app", "v2", im.digest)
	_, err := w.a.reg.PutManifest(w.ctx, "app", oci.PutManifest{Bytes: im.raw, Tags: []string{"v2"}})
	if err == nil {
		w.o.is("app", "v2", im.digest)
	}
	return err
}

func deleteTag(w *world) error {
	w.o.may("app", "v1", "")
	err := w.a.reg.DeleteTag(w.ctx, "app", "v1")
	if err == nil || oci.HasCode(err, oci.CodeManifestUnknown) {
		w.o.is("app", "v1", "")
	}
	return err
}

func deleteIndex(w *world) error {
	w.o.may("app", "multi", "")
	err := w.a.reg.DeleteManifest(w.ctx, "app", w.multi.digest)
	if err == nil || oci.HasCode(err, oci.CodeManifestUnknown) {
		w.o.is("app", "multi", "")
	}
	w.o.freed.Store(err == nil)
	return err
}

func mount(w *world) error {
	return w.pushBy("lib", "v1", w.first, true, func(d oci.Digest, _ []byte) error {
		return second2(w.a.reg.MountBlob(w.ctx, "lib", "app", d))
	})
}

// adoptDistribution writes an image into the store as a Distribution registry does, and adopts it.
func adoptDistribution(w *world) error {
	if err := w.close(); err != nil {
		return err
	}
	im := w.adopted
	if !w.o.away.Load() {
		write := func(path string, b []byte) error {
			path = filepath.Join(w.objects(), "docker/registry/v2", path)
			if _, err := os.Stat(path); err == nil {
				return nil
			}
			return errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, b, 0o600))
		}
		link := func(dir string, d oci.Digest) error {
			return write("repositories/dist/"+dir+"/link", []byte(d))
		}
		var errs []error
		for _, d := range im.all() {
			errs = append(errs, write(strings.TrimPrefix(storage.BlobKey(d), "docker/registry/v2/"), w.bytes[d]), link("_layers/sha256/"+d.Encoded(), d))
		}
		m := "_manifests/"
		errs = append(errs, link(m+"revisions/sha256/"+im.digest.Encoded(), im.digest), link(m+"tags/v1/current", im.digest), link(m+"tags/v1/index/sha256/"+im.digest.Encoded(), im.digest))
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
	dry, dryErr := dataroot.AdoptInPlace(w.ctx, w.config(), true, adopt.Options{Verify: true, Logger: quiet})
	if !w.o.away.Load() {
		w.o.may("dist", "v1", im.digest)
	}
	rep, err := dataroot.AdoptInPlace(w.ctx, w.config(), false, adopt.Options{Verify: true, Logger: quiet})
	if err == nil && len(rep.Lacks()) > 0 { // the command does the same
		err = fmt.Errorf("the storage lacks %v", rep.Lacks())
	} else if err == nil && !w.o.away.Load() {
		w.o.is("dist", "v1", im.digest)
	}
	if err := w.open(); err != nil {
		return err
	}
	dry.Took, rep.Took = 0, 0
	if got, want := fmt.Sprintf("%+v", rep), fmt.Sprintf("%+v", dry); dryErr == nil && err == nil && got != want {
		w.fault("the dry run of an adoption is the run", fmt.Errorf("run %s, dry run %s", got, want))
	}
	return err
}

// damageOp changes the objects of two layers: one that several images share and one that only the
// first image has.
func damageOp(change func([]byte) []byte) func(*world) error {
	return func(w *world) error {
		w.o.harmed.Store(true)
		done := errNothing
		for _, d := range w.first.blobs {
			path := filepath.Join(w.objects(), storage.BlobKey(d))
			b, err := os.ReadFile(path)
			if errors.Is(err, fs.ErrNotExist) || len(b) == 0 {
				continue
			}
			if b = change(b); b == nil {
				err = os.Remove(path)
				if err == nil && w.remote == nil && d == w.first.blobs[1] { // another object is in its place
					err = errors.Join(os.Mkdir(path, 0o700), os.WriteFile(filepath.Join(path, "note"), []byte("not the registry's"), 0o600))
				}
			} else {
				err = os.WriteFile(path, b, 0o600)
				if err == nil && w.remote != nil { // whoever writes other bytes into S3 changes the ETag
					err = unix.Setxattr(path, "user.etag", fmt.Appendf(nil, "%x", md5.Sum(b)), 0)
				}
			}
			if err != nil {
				return err
			}
			done = nil
		}
		return done
	}
}

// returnObjects puts the objects of the first image's layers back, as an operator does who found
// them on another disk.
func returnObjects(w *world) error {
	w.o.harmed.Store(true)
	done := errNothing
	for _, d := range w.first.blobs {
		path := filepath.Join(w.objects(), storage.BlobKey(d))
		_, err := os.Stat(path)
		if !errors.Is(err, fs.ErrNotExist) || w.o.away.Load() || len(w.bytes[d]) <= seamLarge {
			continue
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, w.bytes[d], 0o600)); err != nil {
			return err
		}
		done = nil
	}
	return done
}

// seamLarge is a size. No larger content of a world is in the catalogue.
const seamLarge = 10_000

// flipRow changes a bit of two contents in the catalogue: a manifest and a small layer.
func flipRow(w *world) error {
	if w.o.lost.Load() {
		return errNothing
	}
	w.o.harmed.Store(true)
	db, err := w.catalogue()
	if err != nil {
		return err
	}
	defer db.Close()
	for _, d := range []oci.Digest{w.first.digest, w.first.blobs[3]} {
		flipped := bytes.Clone(w.bytes[d])
		flipped[len(flipped)/2] ^= 4
		if _, err := db.Exec(`UPDATE blobs SET content = $1 WHERE digest = $2 AND content IS NOT NULL`, flipped, d); err != nil {
			return err
		}
	}
	return nil
}

// storeAway removes everything but the catalogue, as if a disk were not mounted.
func storeAway(w *world) error { return w.moveStore(w.objects(), w.away(), true) }

func storeBack(w *world) error { return w.moveStore(w.away(), w.objects(), false) }

// away returns where the store's directories are while it is away. It is on the same file system.
func (w *world) away() string {
	if w.remote != nil {
		return w.objects() + ".away"
	}
	return filepath.Join(w.dir, "away")
}

func (w *world) moveStore(from, to string, away bool) error {
	if w.o.away.Load() == away {
		return errNothing
	}
	if err := w.close(); err != nil {
		return err
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		dst := filepath.Join(to, e.Name())
		err := errors.Join(os.MkdirAll(to, 0o700), os.RemoveAll(dst), os.Rename(filepath.Join(from, e.Name()), dst))
		if err != nil {
			return err
		}
	}
	w.o.away.Store(away)
	return w.open()
}

// fullOp fills the store or frees space in it.
func fullOp(full bool) func(*world) error {
	return func(w *world) error {
		if w.o.full.Swap(full) == full {
			return errNothing
		}
		return nil
	}
}

// upgradeOp leaves the root as version 0.1 did, which knew neither identities nor suspect contents.
// Then it opens the root.
func upgradeOp(w *world) error {
	if w.o.lost.Load() {
		return errNothing
	}
	if err := w.close(); err != nil {
		return err
	}
	db, err := w.catalogue()
	if err != nil {
		return err
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, db, os.DirFS("../registry/catalog/migrations/sqlite"))
	if err == nil {
		_, err = p.DownTo(w.ctx, 4)
	}
	if err == nil {
		_, err = db.Exec(`DELETE FROM settings WHERE name LIKE 'registry_id%'`)
	}
	errs := []error{err, db.Close()}
	for _, dir := range []string{w.objects(), w.away()} {
		for _, key := range []string{"slipway/registry", "docker/registry/v2/blobs/sha256/slipway-registry", "catalog.db-reserve", "catalog.db-synced"} {
			if err := os.Remove(filepath.Join(dir, key)); !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(append(errs, w.open())...)
}

// moveOp copies the catalogue into another one and continues with that.
func moveOp(w *world) error {
	if w.o.lost.Load() {
		return errNothing
	}
	if err := w.close(); err != nil {
		return err
	}
	moved := filepath.Join(w.dir, "moved")
	if err := os.MkdirAll(moved, 0o700); err != nil {
		return err
	}
	from, err := catalog.Open(w.ctx, filepath.Join(w.root(), registry.CatalogFile), nil)
	if err != nil {
		return err
	}
	to, err := catalog.Open(w.ctx, filepath.Join(moved, registry.CatalogFile), nil)
	if err != nil {
		return errors.Join(err, from.Close())
	}
	errs := []error{engine.Move(w.ctx, from.DB, to.DB, nil), from.Close(), to.Close()}
	for _, suffix := range []string{"", "-wal", "-shm", "-synced", "-reserve"} {
		name := registry.CatalogFile + suffix
		if err := os.Remove(filepath.Join(w.root(), name)); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		if err := os.Rename(filepath.Join(moved, name), filepath.Join(w.root(), name)); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, os.RemoveAll(moved), w.open())...)
}

// clockOp lets time pass while nothing runs, or sets the clock wrongly. A starting process cannot
// tell the two apart.
func clockOp(d time.Duration) func(*world) error {
	return func(w *world) error {
		if err := w.close(); err != nil {
			return err
		}
		time.Sleep(d)
		return w.open()
	}
}

var errUnclean = errors.New("problems remain")

func fsckOp(repair bool) func(*world) error {
	return func(w *world) error {
		rep, err := w.a.Fsck(w.ctx, dataroot.FsckArgs{Repair: repair}, nil)
		w.say("fsck: %v, repaired %v", rep.Counts, rep.Repaired)
		if err == nil && !rep.Clean() {
			err = errUnclean
		}
		return err
	}
}

// healOp repairs with the bytes of the backup. Restoring the backup sets the tags that it has. It
// therefore does not reach an image that had no tag then.
func healOp(w *world) error {
	if _, err := os.Stat(filepath.Join(w.backup(), registry.CatalogFile)); err != nil {
		return errNothing
	}
	rep, err := w.a.Fsck(w.ctx, dataroot.FsckArgs{Repair: true, From: &dataroot.FsckSource{Backup: w.backup()}}, nil)
	w.say("fsck --from: %v, repaired %v", rep.Counts, rep.Repaired)
	if err == nil && !rep.Clean() {
		err = errUnclean
	}
	return err
}

func collectOp(w *world) error {
	dry, dryErr := w.a.Collect(w.ctx, dataroot.GCArgs{DryRun: true, Now: true}, nil)
	rep, err := w.a.Collect(w.ctx, dataroot.GCArgs{Now: true}, nil)
	w.say("gc: %d contents", rep.Contents)
	same := dry.Contents == rep.Contents && dry.Bytes == rep.Bytes && dry.Manifests == rep.Manifests && dry.Blobs == rep.Blobs
	if err == nil && (dryErr != nil || !same && !dry.AtLeast) {
		w.fault("the dry run of gc is the run", fmt.Errorf("run %+v, dry run %+v, %v", rep, dry, dryErr))
	}
	return err
}

// retainOp applies the rule keep_newest: 3. The oracle knows the newest tags from the order of its
// own pushes, unless a push was cut off.
func retainOp(w *world) error {
	dry, dryErr := w.a.Retain(w.ctx, dataroot.RetainArgs{DryRun: true, Now: true})
	images := 0
	for _, t := range w.o.required() {
		if t.repo == "app" && !strings.HasPrefix(t.tag, "sha256-") && !oci.IsDigest(t.tag) {
			images++
		}
	}
	for _, d := range dry.Decisions {
		if d.Removed {
			w.o.may(d.Repo, d.Tag, "")
		}
	}
	rep, err := w.a.Retain(w.ctx, dataroot.RetainArgs{Now: true})
	w.say("retention: %d kept, %d removed", rep.Kept, rep.Removed)
	if err != nil {
		return err
	}
	if dryErr != nil || !slices.EqualFunc(dry.Decisions, rep.Decisions, func(a, b retention.Decision) bool {
		return a.Repo == b.Repo && a.Tag == b.Tag && a.Removed == b.Removed
	}) {
		w.fault("the dry run of retention is the run", fmt.Errorf("run %+v, dry run %+v, %v", rep, dry, dryErr))
	}
	kept := 0
	for _, d := range rep.Decisions {
		if d.Removed {
			w.o.is(d.Repo, d.Tag, "")
		} else if !strings.HasPrefix(d.Tag, "sha256-") && d.Repo == "app" {
			kept++
		}
	}
	if kept < min(3, images) {
		w.fault("retention keeps what the rule keeps", fmt.Errorf("%d of %d images kept, the rule says 3: %+v", kept, images, rep.Decisions))
	}
	return nil
}

func backupOp(w *world) error {
	return second2(w.a.Backup(w.ctx, dataroot.BackupArgs{Dir: w.backup()}, nil))
}

// errNothing reports that an operation has nothing to work on.
var errNothing = errors.New("nothing is there to work on")

func restoreOp(w *world) error {
	if _, err := os.Stat(filepath.Join(w.backup(), registry.CatalogFile)); err != nil {
		return errNothing
	}
	if err := w.mayTake(w.backup()); err != nil {
		return err
	}
	if err := w.close(); err != nil {
		return err
	}
	_, err := Restore(w.ctx, w.config(), w.backup(), RestoreOptions{Logger: quiet, wrap: w.wrap})
	if err == nil {
		err = w.takes(w.backup())
	}
	if err == nil && w.o.lost.Swap(false) {
		err = w.asBackedUp()
	}
	if openErr := w.open(); openErr != nil {
		return openErr
	}
	return err
}

func importOp(w *world) error {
	src, done, err := backup.Open(w.ctx, w.source, quiet)
	if err != nil {
		return err
	}
	defer func() { _ = done(w.ctx) }()
	tags, err := w.tagsOf(w.source)
	if err := errors.Join(err, w.mayTake(w.source)); err != nil {
		return err
	}
	for _, t := range tags {
		w.o.pushes(t.repo, t.tag, t.digest)
	}
	_, err = w.a.Copy(w.ctx, src, imagecopy.Options{Referrers: true, ContinueOnError: true}, false)
	if err == nil {
		err = w.takes(w.source)
	}
	return err
}

// tagsOf lists the tags in a backup's catalogue, and the image that the model pushes without one.
func (w *world) tagsOf(dir string) (list []seamTag, err error) {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, registry.CatalogFile)+"?mode=ro&immutable=1")
	if err != nil {
		return nil, err
	}
	defer db.Close()
	rows, err := db.Query(`SELECT r.name, t.name, b.digest FROM tags t JOIN repositories r ON r.id = t.repo_id JOIN manifests m ON m.id = t.manifest_id JOIN blobs b ON b.id = m.blob_id ORDER BY 1, 2`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var t seamTag
		if err := rows.Scan(&t.repo, &t.tag, &t.digest); err != nil {
			return nil, err
		}
		list = append(list, t)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	var n int
	loose := seamTag{seamRef{"app", string(w.loose.digest)}, w.loose.digest}
	err = db.QueryRow(`SELECT COUNT(*) FROM manifests m JOIN repositories r ON r.id = m.repo_id JOIN blobs b ON b.id = m.blob_id
		WHERE r.name = 'app' AND b.digest = ?`, w.loose.digest).Scan(&n)
	if n > 0 {
		list = append(list, loose)
	}
	return list, err
}

// mayTake allows each tag of a backup to be set to its value in the backup.
func (w *world) mayTake(dir string) error {
	w.o.freed.Store(false)
	tags, err := w.tagsOf(dir)
	for _, t := range tags {
		w.o.may(t.repo, t.tag, t.digest)
	}
	return err
}

// takes records that these tags are set.
func (w *world) takes(dir string) error {
	tags, err := w.tagsOf(dir)
	for _, t := range tags {
		w.o.is(t.repo, t.tag, t.digest)
	}
	return err
}
