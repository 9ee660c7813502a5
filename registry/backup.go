package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"example.org/slipway/catalog"
	"example.org/slipway/durable"
	"example.org/slipway/objstore"
	"example.org/slipway/objstore/fsstore"
	"example.org/slipway/oci"
)

// CatalogFile is the catalogue's name in a data root and in a backup, beside
// the directories of the objects.
const CatalogFile = "catalog.db"

// BackupMarker is a file that says that a directory is a backup. It is also what
// programs lock that write or read the backup.
const BackupMarker = "slipway-backup"

// LockFile is a file in a data root that a program locks while it uses that.
const LockFile = "slipway.lock"

// RestoreMarker is a file in a data root that says that a restore into it has
// begun. Without a catalogue beside it, the restore did not come to its end.
const RestoreMarker = "slipway-restore"

const (
	backupFormat  = "format 1\n"
	catalogUnborn = CatalogFile + ".new"
)

// BackupOptions of [Registry.Backup]. The zero value works.
type BackupOptions struct {
	// Parallel is how many objects are copied at once; default 4.
	Parallel int
	// Progress, if not nil, is called about ten times a second and at the end,
	// never twice at the same time. It delays the copy.
	Progress func(BackupReport)
}

// BackupReport is how far a backup or a restore has come.
type BackupReport struct {
	// Manifests and Blobs in the backup, wherever their bytes lie.
	Manifests int64 `json:"manifests"`
	Blobs     int64 `json:"blobs"`
	// Inline contents, which are in the catalogue and copied with it, and their
	// bytes: manifests and small blobs.
	Inline      int64 `json:"inline"`
	InlineBytes int64 `json:"inline_bytes"`
	// Objects and Bytes that are where they belong, of the totals. They are the
	// contents that are not in the catalogue.
	Objects      int64 `json:"objects"`
	ObjectsTotal int64 `json:"objects_total"`
	Bytes        int64 `json:"bytes"`
	BytesTotal   int64 `json:"bytes_total"`
	// Copied objects and bytes; the others were there already.
	Copied      int64 `json:"copied"`
	CopiedBytes int64 `json:"copied_bytes"`
	// Pruned objects, which the new backup does not need.
	Pruned int64 `json:"pruned"`
	// Damaged contents, at most 1000: they are missing at the source, or do not
	// have their digest. DamagedTotal counts all.
	Damaged      []oci.Digest `json:"damaged,omitempty"`
	DamagedTotal int64        `json:"damaged_total"`
	// UnreadPacks are packs of Gear files, at most 1000, that the source has and
	// that could not be read. They are left out, and what is in them is made again
	// from the layers. UnreadPacksTotal counts all.
	UnreadPacks      []string      `json:"unread_packs,omitempty"`
	UnreadPacksTotal int64         `json:"unread_packs_total"`
	Took             time.Duration `json:"took"`
}

// Backup copies the registry, as it is at one moment, into the directory dir,
// while it serves. Collection of garbage waits meanwhile. Every byte is checked
// against its digest on the way.
//
// dir is made if it is missing; else it must be empty or hold an earlier backup,
// of which only what is new is copied. The catalogue is exchanged at the end, in
// one step, so that after an interruption the earlier backup is still whole;
// objects only it needed are then removed. If contents are damaged at the
// source the backup is not exchanged either, and an error says so: repair the
// registry with Fsck and begin again.
func (r *Registry) Backup(ctx context.Context, dir string, o BackupOptions) (BackupReport, error) {
	t := newTransfer(r.store, o.Parallel, o.Progress)
	err := r.backup(ctx, dir, t)
	if err != nil {
		err = fmt.Errorf("back up to %s: %w", dir, err)
	}
	return t.finish(), err
}

func (r *Registry) backup(ctx context.Context, dir string, t *transfer) (err error) {
	if err := r.CheckStore(ctx); err != nil {
		return err
	}
	lock, err := claimBackup(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := lockPatiently(ctx, r.collects.objects.TryRLock); err != nil {
		return err
	}
	defer r.collects.objects.RUnlock()
	if r.replica != nil { // nor may another replica collect
		held, release, busy := r.aloneSoon(ctx, leaseCollect, "backup")
		if busy != nil {
			return busy
		}
		defer release()
		defer func() { err = because(held, err) }()
		ctx = held
	}
	dst, err := fsstore.New(dir, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	// What an interrupted backup left. The lock says that no other one runs.
	if _, _, err := dst.SweepUploads(ctx, time.Now().Add(time.Hour), func(string) bool { return false }); err != nil {
		return err
	}
	unborn := filepath.Join(dir, catalogUnborn)
	if err := os.Remove(unborn); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	t.dst = dst
	for try := 1; ; try++ {
		if err := r.cat.Backup(ctx, unborn); err != nil {
			return err
		}
		if err := withSnapshot(ctx, unborn, func(s *catalog.Snapshot) error { return t.copyAll(ctx, s) }); err != nil {
			return errors.Join(err, os.Remove(unborn))
		}
		if try == packTries || !t.again() {
			break
		}
		if err := os.Remove(unborn); err != nil {
			return err
		}
	}
	if n := t.rep.DamagedTotal; n > 0 {
		return errors.Join(fmt.Errorf("%d contents of the registry are damaged, the first is %s; run slipway fsck --repair", n, t.rep.Damaged[0]), os.Remove(unborn))
	}
	if err := renameDurably(unborn, filepath.Join(dir, CatalogFile)); err != nil {
		return err
	}
	return withSnapshot(ctx, filepath.Join(dir, CatalogFile), func(s *catalog.Snapshot) error { return t.prune(ctx, s) })
}

// withSnapshot calls fn with the catalogue's copy at path open.
func withSnapshot(ctx context.Context, path string, fn func(*catalog.Snapshot) error) error {
	s, err := catalog.OpenSnapshot(ctx, path)
	if err != nil {
		return err
	}
	return errors.Join(fn(s), s.Close())
}

// claimBackup makes dir a backup's directory if it is none, and locks it for
// one writer.
func claimBackup(dir string) (*os.File, error) {
	if err := makeDir(dir); err != nil {
		return nil, err
	}
	marker := filepath.Join(dir, BackupMarker)
	if _, err := os.Stat(marker); errors.Is(err, fs.ErrNotExist) {
		if err := checkEmpty(dir); err != nil {
			return nil, fmt.Errorf("it holds no earlier backup: %w", err)
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
	// A log beside the catalogue says that somebody serves from the backup, or
	// did. It belongs to the old catalogue and would spoil the new one.
	for _, suffix := range []string{"-wal", "-journal"} {
		if _, err := os.Stat(filepath.Join(dir, CatalogFile+suffix)); err == nil {
			return nil, errors.Join(fmt.Errorf("%s%s is there: a registry serves from the backup or did; give another directory", CatalogFile, suffix), f.Close())
		}
	}
	return f, nil
}

// lockMarker locks a marker and checks, or writes, what it says.
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
	case string(b) == backupFormat:
		return nil
	case how == syscall.LOCK_EX && strings.HasPrefix(backupFormat, string(b)): // a crash cut it short
		if _, err := f.WriteAt([]byte(backupFormat), 0); err != nil {
			return err
		}
		return f.Sync()
	}
	return fmt.Errorf("%s is not of a format this program knows: %.40q", BackupMarker, b)
}

// ErrNotEmpty is returned for a directory that should hold nothing.
var ErrNotEmpty = errors.New("the directory is not empty")

// CheckRestorable returns an error unless a backup may be restored into the
// directory root: unless it is missing or holds nothing but a lock and what a
// new file system has. Errors: ErrNotEmpty.
func CheckRestorable(root string) error {
	err := checkEmpty(root, LockFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// checkEmpty refuses a directory that holds anything but what a new file system
// has and the allowed names.
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

// renameDurably renames a file that is durable itself.
func renameDurably(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return durable.SyncDir(filepath.Dir(to))
}

// makeDir makes a directory, and what is missing above it, each name durable.
func makeDir(dir string) error {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	return fsstore.MakeDir(abs, 0o700)
}

// RestoreOptions of [Restore]. The zero value works.
type RestoreOptions struct {
	// Parallel and Progress as in BackupOptions.
	Parallel int
	Progress func(BackupReport)
	// AllowDamaged restores what it can of a backup that is damaged. Run Fsck
	// with Repair before the registry is used.
	AllowDamaged bool
	// Claim, if not nil, keeps others away from root until it is released. It is
	// called when root is there, before anything in it is looked at.
	Claim func() (release func() error, err error)
}

// Restore makes the directory root a data root that holds what the backup in
// dir holds. root must be missing or empty, and nobody may use it meanwhile.
// Every byte is checked against its digest. The catalogue comes last, so that
// a root with a catalogue is whole; one that has [RestoreMarker] and none is not,
// and must be emptied. Errors: ErrNotEmpty.
func Restore(ctx context.Context, dir, root string, o RestoreOptions) (BackupReport, error) {
	t := newTransfer(nil, o.Parallel, o.Progress)
	err := restore(ctx, dir, root, o, t)
	if err != nil {
		err = fmt.Errorf("restore %s to %s: %w", dir, root, err)
	}
	return t.finish(), err
}

func restore(ctx context.Context, dir, root string, o RestoreOptions, t *transfer) (err error) {
	src, lock, err := openBackup(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, src.Close(), lock.Close()) }()
	release, err := claimRoot(root, o.Claim)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	dst, err := fsstore.New(root, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	t.src, t.dst = src, dst
	err = withSnapshot(ctx, filepath.Join(dir, CatalogFile), func(s *catalog.Snapshot) error {
		complaints, err := s.Integrity(ctx, false, 1)
		if err == nil && len(complaints) > 0 {
			err = fmt.Errorf("the backup's catalogue is damaged: %s", complaints[0])
		}
		if err != nil {
			return err
		}
		if err := t.copyAll(ctx, s); err != nil {
			return err
		}
		return keepStoreID(ctx, s, dst)
	})
	if err != nil {
		return err
	}
	if n := t.rep.DamagedTotal; n > 0 && !o.AllowDamaged {
		return fmt.Errorf("%d contents of the backup are damaged, the first is %s; empty %s and restore with damage allowed to get the others", n, t.rep.Damaged[0], root)
	}
	unborn := filepath.Join(root, catalogUnborn)
	if err := copyFile(filepath.Join(dir, CatalogFile), unborn); err != nil {
		return err
	}
	if err := renameDurably(unborn, filepath.Join(root, CatalogFile)); err != nil {
		return err
	}
	return os.Remove(filepath.Join(root, RestoreMarker)) // beside a catalogue it means nothing
}

// keepStoreID gives a restored store the id of the registry that the backup is of.
func keepStoreID(ctx context.Context, s *catalog.Snapshot, dst objstore.Store) error {
	id, err := s.RegistryID(ctx)
	if err != nil || id == "" {
		return err
	}
	return WriteStoreID(ctx, dst, id)
}

// claimRoot makes the directory to restore into, claims and marks it.
func claimRoot(root string, claim func() (func() error, error)) (release func() error, err error) {
	if err := makeDir(root); err != nil {
		return nil, err
	}
	release = func() error { return nil }
	if claim != nil {
		if release, err = claim(); err != nil {
			return nil, err
		}
	}
	if err = CheckRestorable(root); err != nil {
		err = fmt.Errorf("a backup is only restored into an empty directory: %w", err)
	} else if err = os.WriteFile(filepath.Join(root, RestoreMarker), nil, 0o600); err == nil {
		err = durable.SyncDir(root)
	}
	if err != nil {
		return nil, errors.Join(err, release())
	}
	return release, nil
}

// openBackup opens a backup's objects for reading and keeps writers away.
func openBackup(dir string) (store objstore.Store, lock *os.File, err error) {
	if _, err := os.Stat(filepath.Join(dir, CatalogFile)); err != nil {
		return nil, nil, fmt.Errorf("no complete backup is there: %w", err)
	}
	if lock, err = os.Open(filepath.Join(dir, BackupMarker)); err != nil {
		return nil, nil, fmt.Errorf("no backup is there: %w", err)
	}
	if err := lockMarker(lock, syscall.LOCK_SH); err != nil {
		return nil, nil, errors.Join(err, lock.Close())
	}
	fsys, err := fsstore.New(dir, nil)
	if err != nil {
		return nil, nil, errors.Join(err, lock.Close())
	}
	return readOnly{fsys}, lock, nil
}

// copyFile copies a file durably; the new one is only for its owner.
func copyFile(from, to string) (err error) {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Sync(), dst.Close())
}

// OpenBackup opens a backup as a registry that can be read but not written, so
// that repositories and tags can be copied out of it into a registry that is
// running. It works on a copy of the backup's catalogue in the directory for
// temporary files, which close removes. close must be called.
func OpenBackup(ctx context.Context, dir string, log *slog.Logger) (r *Registry, close func(context.Context) error, err error) {
	store, lock, err := openBackup(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("open backup %s: %w", dir, err)
	}
	var cat *catalog.Catalog
	tmp := ""
	close = func(ctx context.Context) error {
		var errs []error
		if r != nil {
			errs = append(errs, r.Close(ctx))
		}
		if cat != nil {
			errs = append(errs, cat.Close())
		}
		errs = append(errs, store.Close(), lock.Close())
		if tmp != "" {
			errs = append(errs, os.RemoveAll(tmp))
		}
		return errors.Join(errs...)
	}
	fail := func(err error) (*Registry, func(context.Context) error, error) {
		return nil, nil, errors.Join(fmt.Errorf("open backup %s: %w", dir, err), close(ctx))
	}
	if tmp, err = os.MkdirTemp("", "slipway-backup-"); err != nil {
		return fail(err)
	}
	path := filepath.Join(tmp, CatalogFile)
	if err := copyFile(filepath.Join(dir, CatalogFile), path); err != nil {
		return fail(err)
	}
	if cat, err = catalog.Open(ctx, path, nil); err != nil {
		return fail(err)
	}
	if r, err = New(ctx, cat, store, &Options{Logger: log, ReadOnly: true, backup: true}); err != nil {
		r = nil
		return fail(err)
	}
	return r, close, nil
}

// errReadOnly is returned for a write to a backup.
var errReadOnly = errors.New("a backup is not written to")

// readOnly is a store that is only read. It hides the abilities of the one
// below, such as sweeping uploads.
type readOnly struct{ store objstore.Store }

var _ objstore.Store = readOnly{}

func (s readOnly) Get(ctx context.Context, key string, off, n int64) (objstore.Object, error) {
	return s.store.Get(ctx, key, off, n)
}

func (s readOnly) Stat(ctx context.Context, key string) (objstore.Info, error) {
	return s.store.Stat(ctx, key)
}

func (s readOnly) List(ctx context.Context, prefix, after string) iter.Seq2[objstore.Info, error] {
	return s.store.List(ctx, prefix, after)
}

func (s readOnly) Put(context.Context, string, []byte, bool) error { return errReadOnly }
func (s readOnly) Delete(context.Context, string) error            { return errReadOnly }
func (s readOnly) Abandon(context.Context, string) error           { return errReadOnly }
func (s readOnly) Close() error                                    { return s.store.Close() }

func (s readOnly) NewUpload(context.Context, int64) (objstore.Upload, error) {
	return nil, errReadOnly
}

func (s readOnly) Resume(context.Context, string, int64) (objstore.Upload, error) {
	return nil, errReadOnly
}
