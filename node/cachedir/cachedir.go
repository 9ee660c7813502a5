// Package cachedir is the directory of a node's cached files. It holds complete and
// verified contents, each under its name, which the kernel reads without asking a server.
// Beside them it holds large contents that are partly there.
//
// A file appears in the directory of [Dir.Files] only when all of it has been written and
// its SHA-256 equals its name. It never changes afterwards, and it disappears only by
// being unlinked, so a process that has it open or mapped is not disturbed. The file is
// read-only, and only root can access the directories.
//
// A published file survives the death of the process at any moment. It survives a power
// cut after the next checkpoint, a few seconds later. Younger files are hashed again
// before the directory is used, see [Open]. A byte budget is kept by evicting the files
// that were unused for longest, or came first. Files that running containers need are
// evicted last.
//
// Other packages decide where contents come from and who may have them.
package cachedir

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/gear"
)

// ErrInUse is returned, wrapped, by Open if another process, or another Dir, has the
// directory open.
var ErrInUse = errors.New("cache directory is in use")

// ErrFull is returned, wrapped, if the disk is full and nothing is left to evict.
var ErrFull = errors.New("no space left for the cache")

// Policy determines which files are evicted first.
type Policy uint8

// These are the policies.
const (
	// LRU evicts the file that was unused for longest. A use is an OpenFile, a Touch, or
	// a use that Observe finds.
	LRU Policy = iota
	// FIFO evicts the file that was published first.
	FIFO
)

// Options are the options of Open. The zero value works.
type Options struct {
	// MaxBytes is the budget in bytes of disk space. 0 means no budget. It covers
	// complete and partial files, files being written, and evicted files that a process
	// still has open.
	MaxBytes int64
	// Policy determines which files are evicted first. The default is LRU.
	Policy Policy
	// SyncEvery is how long a published file may wait for the checkpoint that makes it
	// safe from a power cut. The default is 5 s. If the power is cut before that, the
	// file is hashed again or fetched again. If SyncEvery is negative, only Sync and
	// Close make checkpoints.
	SyncEvery time.Duration
	// SyncBytes is the number of published bytes after which a checkpoint is made at
	// once. The default is 256 MiB, about a second of hashing at the next start.
	SyncBytes int64
	// Clock returns the time. The default is time.Now.
	Clock func() time.Time
	// Boot identifies the run of the kernel. A power cut cannot have lost files that were
	// published in the same run. The default is the kernel's boot ID.
	Boot string
	// Logger logs damage and failed checkpoints. If it is nil, nothing is logged.
	Logger *slog.Logger
}

// Dir is an open cache directory. It may be used concurrently.
type Dir struct {
	root string
	opts Options
	log  *slog.Logger
	// fd is the root directory, for syncfs and for handles. lock holds the lock on the
	// directory.
	fd   int
	lock *os.File

	// pub is held for reading while a file gets its generation and its name, and for
	// writing when a new generation begins. It is locked before mu.
	pub sync.RWMutex
	gen uint32
	// unsynced counts the bytes published since the last checkpoint. dirty says whether
	// any files were published since.
	unsynced int64
	dirty    bool

	// syncMu is held during a checkpoint. It is locked before pub.
	syncMu  sync.Mutex
	durable uint32
	// failed says that the disk reported an error.
	failed atomic.Bool

	wake chan struct{} // a checkpoint is due soon; capacity 1
	now  chan struct{} // a checkpoint is due now; capacity 1
	stop chan struct{}
	done chan struct{}

	// mu guards all fields below.
	mu       sync.Mutex
	closed   bool
	files    *table
	views    map[ViewID]*View
	partials map[partialKey]*Partial
	leases   map[string]Set
	// These count disk space in bytes: of complete files, of partial files, reserved for
	// files being written, and of evicted files that are still open. hoped is the part of
	// late that may be freed as soon as overlays release the files.
	used, partial, reserved, late, hoped int64
	ghosts                               []ghost
	ghostsAt                             time.Time
	holders                              Holders           // nil: unknown
	pins                                 map[gear.Name]int // counts callers that are about to open a file
	// queue holds the candidates for eviction, the next one first. queueLeased says whether
	// they include leased files. barren is set while only leased files are left.
	queue               []candidate
	queueLeased, barren bool
	stats               Stats
}

// Stats is what a cache directory holds, and what it has done since it was opened.
type Stats struct {
	// Files counts the complete files. Bytes is their disk space.
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"`
	// Partial counts the partial files. PartialBytes is their disk space.
	Partial      int   `json:"partial"`
	PartialBytes int64 `json:"partial_bytes"`
	// ReservedBytes is reserved for files being written. LateBytes is taken by evicted
	// files that a process still has open.
	ReservedBytes int64 `json:"reserved_bytes"`
	LateBytes     int64 `json:"late_bytes"`
	// MaxBytes is the budget, 0 for none.
	MaxBytes int64 `json:"max_bytes"`
	// Shown counts the files that were added to a view.
	Shown int64 `json:"shown"`
	// Published, Evicted and Damaged count files. Damaged files were removed because
	// their bytes no longer matched their name.
	Published    int64 `json:"published"`
	Evicted      int64 `json:"evicted"`
	EvictedBytes int64 `json:"evicted_bytes"`
	Damaged      int64 `json:"damaged"`
	// Gone counts the files that somebody else removed.
	Gone int64 `json:"gone"`
	// Rehashed counts the files that Open hashed again after an unclean stop.
	Rehashed int64 `json:"rehashed"`
	// Checkpoints counts the checkpoints made. CheckpointFailed says that the disk
	// reported an error. After that no checkpoint is made until the next Open has hashed
	// everything published after the last one.
	Checkpoints      int64 `json:"checkpoints"`
	CheckpointFailed bool  `json:"checkpoint_failed"`
}

func (o *Options) withDefaults() (Options, error) {
	var r Options
	if o != nil {
		r = *o
	}
	if r.SyncEvery == 0 {
		r.SyncEvery = 5 * time.Second
	}
	if r.SyncBytes <= 0 {
		r.SyncBytes = 256 << 20
	}
	if r.Clock == nil {
		r.Clock = time.Now
	}
	if r.Logger == nil {
		r.Logger = slog.New(slog.DiscardHandler)
	}
	if r.Boot == "" {
		b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
		if err != nil {
			return r, fmt.Errorf("read the kernel's boot ID: %w", err)
		}
		r.Boot = string(b[:max(0, len(b)-1)])
	}
	return r, nil
}

// Open opens a cache directory and creates it if necessary. It lists the files but does
// not read them, except for files that a power cut may have damaged: files published
// after the last checkpoint of an earlier run of the kernel, and files that somebody has
// written to. It hashes these files, and removes a file that does not match its name. It
// removes incompletely written files, and keeps partial files. Errors: ErrInUse.
func Open(dir string, o *Options) (*Dir, error) {
	opts, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	d := &Dir{
		root: dir, opts: opts, log: opts.Logger, fd: -1,
		wake: make(chan struct{}, 1), now: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
		files: newTable(rand.Uint64()), views: map[ViewID]*View{}, partials: map[partialKey]*Partial{}, leases: map[string]Set{}, pins: map[gear.Name]int{},
	}
	if err := d.open(); err != nil {
		d.release()
		return nil, fmt.Errorf("open cache directory %s: %w", dir, err)
	}
	go d.checkpoints()
	return d, nil
}

// open does the part of Open that can fail.
func (d *Dir) open() error {
	for _, dir := range []string{"", filesDir, viewsDir, partialDir, tmpDir} {
		if err := os.MkdirAll(filepath.Join(d.root, dir), 0o700); err != nil {
			return err
		}
	}
	var err error
	if d.lock, err = os.OpenFile(filepath.Join(d.root, "lock"), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return err
	}
	if err := unix.Flock(int(d.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("%w by another process: %w", ErrInUse, err)
	}
	if d.fd, err = unix.Open(d.root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return err
	}
	for i := range 256 {
		err := os.Mkdir(filepath.Join(d.root, filesDir, hex.EncodeToString([]byte{byte(i)})), 0o700)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return d.recover()
}

// release frees everything but memory.
func (d *Dir) release() {
	if d.fd >= 0 {
		_ = unix.Close(d.fd)
	}
	if d.lock != nil {
		_ = d.lock.Close() // this releases the lock
	}
}

// Close makes a last checkpoint and closes the directory. All handles of partial files
// must have been closed before. Files that were handed out stay open.
func (d *Dir) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	d.mu.Unlock()
	close(d.stop)
	<-d.done
	err := d.Sync()
	d.release()
	return err
}

// These are the directories below the root.
const (
	filesDir   = "files"
	partialDir = "partial"
	tmpDir     = "tmp"
)

// Files returns the directory of the complete files. A file's path in it is two hex
// digits of the name, a slash, and the other 62.
func (d *Dir) Files() string { return filepath.Join(d.root, filesDir) }

// path returns the path of a complete file.
func (d *Dir) path(name gear.Name) string {
	var b [65]byte
	hex.Encode(b[1:], name[:])
	b[0], b[1], b[2] = b[1], b[2], '/'
	return d.root + "/" + filesDir + "/" + string(b[:])
}

// Has reports whether a complete file is there.
func (d *Dir) Has(name gear.Name) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.files.get(&name) != nil
}

// OpenFile opens a complete file, which counts as a use. It removes a file that somebody
// has written to. Errors: fs.ErrNotExist.
func (d *Dir) OpenFile(name gear.Name) (*os.File, error) {
	d.mu.Lock()
	there := d.files.get(&name) != nil
	d.mu.Unlock()
	if !there {
		return nil, fmt.Errorf("file %x: %w", name, fs.ErrNotExist)
	}
	f, err := os.Open(d.path(name))
	if errors.Is(err, fs.ErrNotExist) { // somebody else removed it, or it was evicted meanwhile
		d.forget(name)
	}
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("stat file %x: %w", name, err)
	}
	if !isGeneration(st.Mtim.Sec) {
		_ = f.Close()
		d.Damaged(name, "it was written to")
		return nil, fmt.Errorf("file %x was damaged: %w", name, fs.ErrNotExist)
	}
	if d.opts.Policy == LRU {
		d.markUsed(name, int(f.Fd()))
	}
	return f, nil
}

// forget removes from the table a file that no longer exists.
func (d *Dir) forget(name gear.Name) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := os.Lstat(d.path(name)); err == nil {
		return // published again
	}
	d.hide(name)
	if e, ok := d.files.remove(&name); ok {
		d.used -= int64(e.blocks) * 512
		d.stats.Gone++
	}
}

// Damaged removes a file whose bytes did not match its name, so that it is fetched again.
// why is logged.
func (d *Dir) Damaged(name gear.Name, why string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.unlink(name) {
		return
	}
	if d.holders != nil {
		d.holders.Release(name)
	}
	d.stats.Damaged++
	d.log.Warn("cached file is damaged and was removed", "file", hex.EncodeToString(name[:]), "why", why)
}

// Touch counts as a use of each of the files that is in the cache.
func (d *Dir) Touch(names ...gear.Name) {
	if d.opts.Policy != LRU {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	at := d.stamp()
	for i := range names {
		if e := d.files.get(&names[i]); e != nil {
			e.stamp = at
		}
	}
}

// stamp returns the current time in the form used in an entry.
func (d *Dir) stamp() int64 { return d.opts.Clock().UnixNano() }

// Stats returns what the directory holds and has done.
func (d *Dir) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.layGhosts()
	s := d.stats
	s.Files, s.Bytes = d.files.n, d.used
	s.Partial, s.PartialBytes = len(d.partials), d.partial
	s.ReservedBytes, s.LateBytes = d.reserved, d.late
	s.MaxBytes, s.CheckpointFailed = d.opts.MaxBytes, d.failed.Load()
	return s
}
