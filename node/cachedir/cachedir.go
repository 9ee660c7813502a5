// Package cachedir is the directory of a node's cached files: complete and
// verified contents, each under its name, which the kernel reads without asking
// anybody, and beside them large contents of which a part is there.
//
// A file appears in the directory of [Dir.Files] only when all of it has been
// written and its SHA-256 is its name; it never changes afterwards and only
// disappears by being unlinked, so whoever has it open or mapped is not
// disturbed. It is read-only, and the directories are root's alone.
//
// What was published survives the death of the process at any moment, and a
// power cut too once a checkpoint has passed, a few seconds later; what is
// younger is hashed again before the directory is used, see [Open]. A byte budget
// is kept by evicting what was not used for longest, or came first, and what
// running containers need last.
//
// Where contents come from, and who may have them, is left to others.
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

// ErrInUse is returned, wrapped, by Open for a directory that another process,
// or another Dir, has open.
var ErrInUse = errors.New("cache directory is in use")

// ErrFull is returned, wrapped, when the disk is full and nothing is left to
// evict.
var ErrFull = errors.New("no space left for the cache")

// Policy is which files are evicted first.
type Policy uint8

// The policies.
const (
	// LRU: the one that was not used for longest. A use is an OpenFile, a Touch, or
	// what Observe finds.
	LRU Policy = iota
	// FIFO: the one that was published first.
	FIFO
)

// Options of Open. The zero value works.
type Options struct {
	// MaxBytes is the budget in bytes of disk space; 0 means none. It counts
	// complete and partial files, what is being written, and evicted files that
	// somebody still has open.
	MaxBytes int64
	// Policy is which files go first; default LRU.
	Policy Policy
	// SyncEvery is how long a published file may wait for the checkpoint that
	// makes it safe from a power cut; default 5 s. Until then a cut costs hashing
	// it again, or fetching it again. Negative: only Sync and Close make one.
	SyncEvery time.Duration
	// SyncBytes is after how many published bytes a checkpoint is made at once;
	// default 256 MiB, about a second of hashing at the next start.
	SyncBytes int64
	// Clock tells the time; default time.Now.
	Clock func() time.Time
	// Boot identifies the run of the kernel: files published in the same one
	// cannot have been lost to a power cut. Default the kernel's boot ID.
	Boot string
	// Logger is told of damage and of failed checkpoints; nil discards.
	Logger *slog.Logger
}

// Dir is an open cache directory. It may be used concurrently.
type Dir struct {
	root string
	opts Options
	log  *slog.Logger
	// fd is the root directory, for syncfs and handles; lock is held locked.
	fd   int
	lock *os.File

	// pub is held for reading while a file gets its generation and its name, and
	// for writing to begin a new generation. Before mu.
	pub sync.RWMutex
	gen uint32
	// unsynced are the bytes published since the last checkpoint, dirty tells
	// that there were any files.
	unsynced int64
	dirty    bool

	// syncMu is held during a checkpoint. Before pub.
	syncMu  sync.Mutex
	durable uint32
	// failed tells that the disk reported an error.
	failed atomic.Bool

	wake chan struct{} // a checkpoint is due soon; capacity 1
	now  chan struct{} // a checkpoint is due now; capacity 1
	stop chan struct{}
	done chan struct{}

	// mu guards all below.
	mu       sync.Mutex
	closed   bool
	files    *table
	views    map[ViewID]*View
	partials map[partialKey]*Partial
	leases   map[string]Set
	// Disk space in bytes: of complete files, of partial ones, set aside for what
	// is being written, and of evicted files that are still open somewhere.
	// Of the last, hoped may come back as soon as overlays forget them.
	used, partial, reserved, late, hoped int64
	ghosts                               []ghost
	ghostsAt                             time.Time
	holders                              Holders           // nil: unknown
	pins                                 map[gear.Name]int // who is about to open a file
	// queue has candidates for eviction, the next one first, with leased files or
	// without. barren is set while only leased files are left.
	queue               []candidate
	queueLeased, barren bool
	stats               Stats
}

// Stats are what a cache directory holds and has done since it was opened.
type Stats struct {
	// Files are complete, and take Bytes of disk space.
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"`
	// Partial files take PartialBytes.
	Partial      int   `json:"partial"`
	PartialBytes int64 `json:"partial_bytes"`
	// ReservedBytes are set aside for files being written, LateBytes taken by
	// evicted files that somebody still has open.
	ReservedBytes int64 `json:"reserved_bytes"`
	LateBytes     int64 `json:"late_bytes"`
	// MaxBytes is the budget, 0 for none.
	MaxBytes int64 `json:"max_bytes"`
	// Shown files were added to a view.
	Shown int64 `json:"shown"`
	// Published, Evicted and Damaged files; the latter were removed because their
	// bytes were not those of their name any more.
	Published    int64 `json:"published"`
	Evicted      int64 `json:"evicted"`
	EvictedBytes int64 `json:"evicted_bytes"`
	Damaged      int64 `json:"damaged"`
	// Gone files were removed by somebody else.
	Gone int64 `json:"gone"`
	// Rehashed files were hashed again by Open after an unclean stop.
	Rehashed int64 `json:"rehashed"`
	// Checkpoints that were made; CheckpointFailed tells that the disk reported an
	// error, after which none is made until the next Open has hashed again what
	// is younger than the last one.
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

// Open opens a cache directory and makes it if need be. It lists the files but
// does not read them, except those that a power cut may have damaged: published
// after the last checkpoint of an earlier run of the kernel, or written to by
// somebody. These are hashed, and removed if they are not what their name says.
// What was being written is removed; partial files stay. Errors: ErrInUse.
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

// open does what can fail in Open.
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

// release frees what is not memory.
func (d *Dir) release() {
	if d.fd >= 0 {
		_ = unix.Close(d.fd)
	}
	if d.lock != nil {
		_ = d.lock.Close() // and with it the lock
	}
}

// Close makes a last checkpoint and closes the directory. Handles of partial
// files must have been closed. Files that were handed out stay open.
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

// Directories below the root, and the form of names in them.
const (
	filesDir   = "files"
	partialDir = "partial"
	tmpDir     = "tmp"
)

// Files is the directory of the complete files: two hex digits of the name, a
// slash, the other 62.
func (d *Dir) Files() string { return filepath.Join(d.root, filesDir) }

// path is where a complete file is.
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

// OpenFile opens a complete file, which counts as a use. A file that somebody has
// written to is removed. Errors: fs.ErrNotExist.
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

// forget drops a file that is not there any more from the table.
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

// Damaged removes a file whose bytes turned out not to be those of its name, so
// that it is fetched again. Why is for the log.
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

// Touch counts as a use of each of the files that is there.
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

// stamp is the present time in an entry.
func (d *Dir) stamp() int64 { return d.opts.Clock().UnixNano() }

// Stats tells what the directory holds.
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
