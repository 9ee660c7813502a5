// Package backup copies a registry into a directory while the registry serves, keeps good copies of
// what the registry has lost, and restores backups.
package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"example.org/slipway/internal/durable"
	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog/snapshot"
	"example.org/slipway/registry/objstore/fsstore"
	"example.org/slipway/registry/replica"
	"example.org/slipway/registry/storage"
)

// Marker is the name of a file that marks a directory as a backup. Programs that write or read the
// backup also lock it.
const Marker = "slipway-backup"

// RestoreMarker is the name of a file in a data root. It says that a restore into the
// root has begun. If there is no catalogue beside the file, the restore was not
// completed.
const RestoreMarker = "slipway-restore"

const (
	format        = "format 1\n"
	catalogUnborn = registry.CatalogFile + ".new"
)

// Options are the options of [Make]. The zero value works.
type Options struct {
	// Parallel is the number of objects that are copied at the same time; default 4.
	Parallel int
	// Progress, if not nil, is called about ten times a second and at the end,
	// never twice at the same time. It delays the copy.
	Progress func(Report)
	// Verify also reads the objects that the earlier backup has, and copies damaged ones again.
	// Otherwise only their sizes are compared.
	Verify bool
	// ReplaceOther replaces the backup of another registry.
	ReplaceOther bool
	// AllowShrink makes the backup even if it holds far less than the earlier one.
	AllowShrink bool
}

// Report says how far a backup or a restore has come.
type Report struct {
	// Manifests and Blobs count the contents of the backup, wherever their bytes are.
	Manifests int64 `json:"manifests"`
	Blobs     int64 `json:"blobs"`
	// Inline counts the contents whose bytes are in the catalogue and copied with it.
	// They are manifests and small blobs. InlineBytes is their size.
	Inline      int64 `json:"inline"`
	InlineBytes int64 `json:"inline_bytes"`
	// Objects and Bytes count the objects that are in place. ObjectsTotal and BytesTotal
	// count all objects. Objects are the contents that are not in the catalogue.
	Objects      int64 `json:"objects"`
	ObjectsTotal int64 `json:"objects_total"`
	Bytes        int64 `json:"bytes"`
	BytesTotal   int64 `json:"bytes_total"`
	// Copied and CopiedBytes count the copied objects. The other objects were already in
	// place.
	Copied      int64 `json:"copied"`
	CopiedBytes int64 `json:"copied_bytes"`
	// Pruned counts the objects that were removed because the new backup does not need
	// them.
	Pruned int64 `json:"pruned"`
	// Damaged lists at most 1000 contents that are missing at the source or do not match their
	// digest. DamagedTotal counts all of them.
	Damaged      []oci.Digest `json:"damaged,omitempty"`
	DamagedTotal int64        `json:"damaged_total"`
	// UnreadPacks lists at most 1000 packs of Gear files that the source has but that
	// could not be read. They are left out, and their content is made again from the
	// layers. UnreadPacksTotal counts all of them.
	UnreadPacks      []string `json:"unread_packs,omitempty"`
	UnreadPacksTotal int64    `json:"unread_packs_total"`
	// Kept counts contents that are damaged or missing in the registry, but have good
	// copies in the earlier backup. The backup keeps these copies.
	Kept int64 `json:"kept,omitempty"`
	// Incomplete lists at most 1000 images, as repo:tag or repo@digest, that lack a
	// content of which there is no good copy. IncompleteTotal counts all such images.
	Incomplete      []string `json:"incomplete,omitempty"`
	IncompleteTotal int64    `json:"incomplete_total,omitempty"`
	// Done says that the directory holds the new backup, or that everything is restored.
	Done bool          `json:"done"`
	Took time.Duration `json:"took"`
}

// Make copies the registry's state at one moment into the directory dir, while the
// registry serves. Garbage collection waits meanwhile. Every byte is checked against its
// digest on the way.
//
// dir is created if it is missing. Otherwise it must be empty or hold an earlier backup
// of this registry. Then only what is new is copied. The catalogue is replaced at the
// end, in one step, so that the earlier backup is still whole after an interruption. Then
// Make removes the objects that no manifest names any more.
//
// If a content is damaged or missing in the registry, the backup keeps the earlier
// backup's good copy. If there is none, everything else is backed up, and the error is an
// [*IncompleteError]. A layer that is kept as a recipe is saved as the layer. If one of
// the packs that it consists of cannot be read, the error is a [*NeededPacksError],
// whatever the backup has of the layer. Errors: [*OtherRegistryError], [*ShrinkError].
// After these two, the earlier backup is untouched.
func Make(ctx context.Context, reg *registry.Registry, dir string, o Options) (Report, error) {
	up := reg.Upkeep()
	t := newTransfer(up.Store, o.Parallel, o.Progress)
	t.verify = o.Verify
	b := &maker{reg: reg, up: up, dir: dir, o: o, t: t}
	err := b.run(ctx)
	if err != nil {
		err = fmt.Errorf("back up to %s: %w", dir, err)
	}
	return t.finish(), err
}

// maker makes one backup.
type maker struct {
	reg *registry.Registry
	up  *registry.Upkeep
	dir string
	o   Options
	t   *transfer
}

func (b *maker) run(ctx context.Context) (err error) {
	if err := b.reg.CheckStore(ctx); err != nil {
		return err
	}
	dir, t := b.dir, b.t
	lock, err := claimBackup(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	thaw, err := b.up.Freeze(ctx)
	if err != nil {
		return err
	}
	defer thaw()
	ctx, release, err := b.up.Replica.AloneSoon(ctx, replica.LeaseCollect, "backup") // no other replica may collect either
	if err != nil {
		return err
	}
	defer release()
	defer func() { err = replica.LeaseError(ctx, err) }()
	dst, err := fsstore.New(dir, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	// Remove what an interrupted backup left. The lock guarantees that no other backup
	// runs.
	if _, _, err := dst.SweepUploads(ctx, time.Now().Add(time.Hour), func(string) bool { return false }); err != nil {
		return err
	}
	t.dst = dst
	if err := b.draft(ctx); err != nil {
		return errors.Join(err, removeDraft(dir))
	}
	if err := renameDurably(filepath.Join(dir, catalogUnborn), filepath.Join(dir, registry.CatalogFile)); err != nil {
		return err
	}
	t.step(func(rep *Report) { rep.Done = true })
	if err := withSnapshot(ctx, filepath.Join(dir, registry.CatalogFile), func(s *snapshot.Snapshot) error { return t.prune(ctx, s) }); err != nil {
		return err
	}
	return errors.Join(incomplete("backup", t.rep.Incomplete, t.rep.IncompleteTotal), b.neededPacks(ctx))
}

// draft makes the new backup's catalogue beside the earlier one, and copies the objects
// that the new catalogue names.
func (b *maker) draft(ctx context.Context) error {
	before, err := earlierCatalog(ctx, b.dir, b.o.ReplaceOther)
	if err != nil {
		return err
	}
	for try := 1; ; try++ {
		if err := removeDraft(b.dir); err != nil {
			return err
		}
		unborn := filepath.Join(b.dir, catalogUnborn)
		if err := b.up.Catalog.DB.Backup(ctx, unborn); err != nil {
			return err
		}
		d, err := snapshot.OpenDraft(ctx, unborn, before)
		if err != nil {
			return err
		}
		if err := b.fillDraft(ctx, d, before); err != nil {
			return errors.Join(err, d.Close())
		}
		if try == packTries || !b.t.again() {
			return d.Finish()
		}
		if err := d.Close(); err != nil {
			return err
		}
	}
}

func (b *maker) fillDraft(ctx context.Context, d *snapshot.Draft, before string) error {
	if before != "" {
		if err := checkReplaces(ctx, d, before, b.o); err != nil {
			return err
		}
	}
	var err error
	if b.t.suspects, err = d.Suspects(ctx); err != nil {
		return fmt.Errorf("list the suspect contents: %w", err)
	}
	if err := b.t.copyAll(ctx, d.Snapshot); err != nil {
		return err
	}
	return b.keepGood(ctx, d)
}

// removeDraft removes what an interrupted backup left of its catalogue.
func removeDraft(dir string) error {
	for _, suffix := range []string{"-journal", ""} { // a journal alone would spoil the next draft
		if err := os.Remove(filepath.Join(dir, catalogUnborn+suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// withSnapshot opens the copy of a catalogue at path and calls fn with it.
func withSnapshot(ctx context.Context, path string, fn func(*snapshot.Snapshot) error) error {
	s, err := snapshot.Open(ctx, path)
	if err != nil {
		return err
	}
	return errors.Join(fn(s), s.Close())
}

// claimBackup makes dir the directory of a backup if it is not one yet, and locks it for
// one writer.
func claimBackup(dir string) (*os.File, error) {
	if err := makeDir(dir); err != nil {
		return nil, err
	}
	marker := filepath.Join(dir, Marker)
	if _, err := os.Stat(marker); errors.Is(err, fs.ErrNotExist) {
		if err := checkEmpty(dir); err != nil {
			return nil, fmt.Errorf("it holds no earlier backup; give an empty directory, or one of a backup of this registry: %w", err)
		}
	} else if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(marker, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := lockMarker(f, syscall.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	// A log beside the catalogue shows that somebody serves, or has served, from the
	// backup. The log belongs to the old catalogue and would corrupt the new one.
	for _, suffix := range []string{"-wal", "-journal"} {
		if _, err := os.Stat(filepath.Join(dir, registry.CatalogFile+suffix)); err == nil {
			return nil, errors.Join(fmt.Errorf("%s%s is there: a registry serves from the backup or did; give another directory", registry.CatalogFile, suffix), f.Close())
		}
	}
	return f, nil
}

// lockMarker locks a marker, and checks or writes its content.
func lockMarker(f *os.File, how int) error {
	err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return errors.New("another program writes or reads this backup")
	}
	if err != nil {
		return err
	}
	b, err := io.ReadAll(io.LimitReader(f, 100))
	switch {
	case err != nil:
		return err
	case string(b) == format:
		return nil
	case how == syscall.LOCK_EX && strings.HasPrefix(format, string(b)): // a crash cut it short
		if _, err := f.WriteAt([]byte(format), 0); err != nil {
			return err
		}
		return f.Sync()
	}
	return fmt.Errorf("%s is not of a format this program knows: %.40q", Marker, b)
}

// ErrNotEmpty is returned for a directory that should hold nothing.
var ErrNotEmpty = errors.New("the directory is not empty")

// CheckRestorable returns an error unless a backup may be restored into the directory
// root. It allows four cases: the directory is missing; it is empty, apart from a lock
// and what a new file system contains; an incomplete restore left its content; it is a
// data root without its catalogue. Errors: ErrNotEmpty.
func CheckRestorable(root string) error {
	err := checkEmpty(root, registry.LockFile)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrNotEmpty) && (RestoreCutOff(root) || CatalogLost(root)) {
		return nil
	}
	return err
}

// RestoreCutOff reports whether a restore into root was begun and not completed.
func RestoreCutOff(root string) bool {
	_, catErr := os.Lstat(filepath.Join(root, registry.CatalogFile))
	_, err := os.Lstat(filepath.Join(root, RestoreMarker))
	return err == nil && errors.Is(catErr, fs.ErrNotExist)
}

// CatalogLost reports whether the directory root has the objects of a registry but no
// catalogue.
func CatalogLost(root string) bool {
	lacks := func(name string) bool {
		_, err := os.Lstat(filepath.Join(root, name))
		return errors.Is(err, fs.ErrNotExist)
	}
	return lacks(registry.CatalogFile) && (storage.HasID(root) || !lacks(storage.BlobPrefix) && lacks(storage.RepositoryPrefix))
}

// checkEmpty returns an error if a directory contains anything except the allowed names
// and what a new file system contains.
func checkEmpty(dir string, allowed ...string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() != "lost+found" && !slices.Contains(allowed, e.Name()) {
			return fmt.Errorf("%w: %s holds %s", ErrNotEmpty, dir, e.Name())
		}
	}
	return nil
}

// renameDurably renames a file and makes the new name durable. The content of the file
// must be durable already.
func renameDurably(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return durable.SyncDir(filepath.Dir(to))
}

// makeDir makes a directory and its missing parents, and makes each name durable.
func makeDir(dir string) error {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	return fsstore.MakeDir(abs, 0o700)
}
