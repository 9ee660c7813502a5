package tier

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/internal/policy"
	"example.org/slipway/registry/cache/tier/format"
)

// Names in Options.Dir.
const (
	tmpDir   = "tmp"   // files that are not complete yet
	lockName = "lock"  // locked (flock) by the Store that has the directory
	markName = "clean" // mark of a clean shutdown, see snapshot.go
)

// errInUse says that another Store has the directory.
var errInUse = errors.New("the cache's directory is in use by another process")

// pieceSize is how many bytes are read or written at once. For objects shorter than
// smallPiece it is smallPiece, so that many clients that read slowly take little memory.
const (
	pieceSize  = 256 << 10
	smallPiece = 16 << 10
)

// disk is the files of the SSD tier. An object's file is
//
//	<Dir>/<first 2 digits of the key>/<32 digits of the key>-<number>-<size>
//
// The digits and numbers are hexadecimal. The number counts all files that were ever
// written, so that no name is used twice. The file holds the object's bytes and a footer.
// Its modification time is the object's, in whole seconds. Any later write would change
// it.
type disk struct {
	dir    string
	log    *slog.Logger
	seq    atomic.Uint64
	state  atomic.Int32
	errors atomic.Int64
	pieces *pieces

	mu   sync.Mutex // held while mounting
	lock *os.File
	said bool // the failure to mount was logged
}

// States of a disk.
const (
	unmounted int32 = iota // the files are not known
	inUse
	aside // a write failed; files can still be read
)

// pieces lends buffers of two sizes.
type pieces struct{ pool, small sync.Pool }

func (p *pieces) get() *[pieceSize]byte {
	if b, ok := p.pool.Get().(*[pieceSize]byte); ok {
		return b
	}
	return new([pieceSize]byte)
}

func (p *pieces) put(b *[pieceSize]byte) { p.pool.Put(b) }

func (p *pieces) getSmall() *[smallPiece]byte {
	if b, ok := p.small.Get().(*[smallPiece]byte); ok {
		return b
	}
	return new([smallPiece]byte)
}

func (p *pieces) putSmall(b *[smallPiece]byte) { p.small.Put(b) }

// usable reports whether files can be written.
func (d *disk) usable() bool { return d.state.Load() == inUse }

// aside stops using the disk until it is mounted again, and logs that once.
func (d *disk) aside(what string, err error) {
	d.errors.Add(1)
	if d.state.CompareAndSwap(inUse, aside) {
		d.log.Error("the cache's SSD cannot be written and is left alone for a while", "doing", what, "dir", d.dir, "error", err)
	}
}

func (d *disk) newFile(size int64) *file {
	f := &file{seq: d.seq.Add(1), size: size}
	f.path = filepath.Join(d.dir, tmpDir, strconv.FormatUint(f.seq, 16))
	return f
}

// create begins to write a file. It is an error if the disk has no room for the file's
// bytes.
func (d *disk) create(f *file) (*os.File, error) {
	w, err := os.OpenFile(f.path, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil || f.size < 1<<20 {
		return w, err
	}
	err = unix.Fallocate(int(w.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, f.size+format.FooterSize)
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// finish writes the footer after the bytes, gives the file its name and closes it.
func (d *disk) finish(f *file, w *os.File, k policy.Key, mod time.Time, crc uint32) error {
	ft := format.Footer{Key: k, Size: f.size, Mod: mod.UnixNano(), CRC: crc}
	if y := mod.Year(); y < 1970 || y > 2200 {
		ft.Mod = 0
	}
	b := ft.Encode()
	_, err := w.WriteAt(b[:], f.size)
	if err = errors.Join(err, w.Close()); err != nil {
		return err
	}
	sealed := time.Unix(ft.Mod/1e9, 0)
	if err := os.Chtimes(f.path, sealed, sealed); err != nil {
		return err
	}
	f.seal.mu.Lock()
	defer f.seal.mu.Unlock()
	final := filepath.Join(d.dir, format.FileName(k, f.seq, f.size))
	err = os.Rename(f.path, final)
	if errors.Is(err, fs.ErrNotExist) { // the first file in its directory
		if err = os.Mkdir(filepath.Dir(final), 0o700); err == nil || errors.Is(err, fs.ErrExist) {
			err = os.Rename(f.path, final)
		}
	}
	if err != nil {
		return err
	}
	f.path = final
	f.seal.footer = ft
	f.seal.mtime.Store(sealed.UnixNano())
	f.seal.known.Store(true)
	return nil
}

// writeSlab writes an object that is in RAM.
func (d *disk) writeSlab(f *file, k policy.Key, b *slab) error {
	w, err := d.create(f)
	if err != nil {
		return err
	}
	if _, err := w.Write(b.data); err != nil {
		return errors.Join(err, w.Close())
	}
	return d.finish(f, w, k, b.mod, b.crc)
}

// readSlab reads a file into RAM and checks it.
func (d *disk) readSlab(f *file, k policy.Key) (*slab, error) {
	h, err := d.open(f, k)
	if err != nil {
		return nil, err
	}
	b := &slab{data: make([]byte, f.size), mod: f.modTime(), crc: f.seal.footer.CRC}
	_, err = h.ReadAt(b.data, 0)
	if err = errors.Join(err, h.Close()); err != nil {
		return nil, err
	}
	if crc32.Checksum(b.data, format.Castagnoli) != b.crc {
		return nil, format.ErrDamaged
	}
	return b, nil
}

// seal says whether a file is complete.
type seal struct {
	// doubtful says that the bytes have to be read before the file is used. They were
	// written before an event that may have lost some of them.
	doubtful bool
	// known says that the footer was read and the bytes are right. The bytes have stayed
	// right if the file's modification time is still mtime, in nanoseconds.
	known atomic.Bool
	mtime atomic.Int64

	mu     sync.Mutex // guards all but the atomics, and also the file's path
	footer format.Footer
}

// modTime returns the object's modification time. The seal must be known.
func (f *file) modTime() time.Time { return time.Unix(0, f.seal.footer.Mod) }

// open opens a complete file after checking it. It always checks the length and the
// modification time. At the first use it also checks the footer, and if there is a doubt,
// the bytes.
func (d *disk) open(f *file, k policy.Key) (*os.File, error) {
	h, err := os.OpenFile(f.path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := d.check(f, k, h); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

func (d *disk) check(f *file, k policy.Key, h *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(h.Fd()), &st); err != nil {
		return fmt.Errorf("stat file: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size != f.size+format.FooterSize {
		return fmt.Errorf("%d bytes instead of %d: %w", st.Size, f.size+format.FooterSize, format.ErrDamaged)
	}
	s := &f.seal
	mtime := st.Mtim.Nano()
	if s.known.Load() && s.mtime.Load() == mtime {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known.Load() && s.mtime.Load() == mtime {
		return nil // another request checked it meanwhile
	}
	var b [format.FooterSize]byte
	if _, err := h.ReadAt(b[:], f.size); err != nil {
		return fmt.Errorf("read footer: %w", err)
	}
	ft, err := format.DecodeFooter(b[:])
	if err != nil {
		return err
	}
	if ft.Key != k || ft.Size != f.size {
		return fmt.Errorf("footer of another object: %w", format.ErrDamaged)
	}
	if s.doubtful || s.known.Load() || mtime != ft.Mod/1e9*1e9 {
		crc, err := d.sum(h, f.size)
		if err != nil {
			return err
		}
		if crc != ft.CRC {
			return format.ErrDamaged
		}
	}
	if !s.known.Load() {
		s.footer = ft
	}
	s.mtime.Store(mtime)
	s.known.Store(true)
	return nil
}

// sum returns the checksum of the first n bytes of a file.
func (d *disk) sum(h io.ReaderAt, n int64) (uint32, error) {
	p := d.pieces.get()
	defer d.pieces.put(p)
	var crc uint32
	for off := int64(0); off < n; {
		m, err := h.ReadAt(p[:min(pieceSize, n-off)], off)
		crc = crc32.Update(crc, format.Castagnoli, p[:m])
		if off += int64(m); err != nil && off < n {
			return 0, fmt.Errorf("read file at %d: %w", off, err)
		}
	}
	return crc, nil
}

// prepare takes over the directory. It makes the directory if necessary.
func (d *disk) prepare() error {
	if err := os.MkdirAll(filepath.Join(d.dir, tmpDir), 0o700); err != nil {
		return err
	}
	if d.lock == nil {
		f, err := os.OpenFile(filepath.Join(d.dir, lockName), os.O_RDONLY|os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			err = errors.Join(err, f.Close())
			if errors.Is(err, unix.EWOULDBLOCK) {
				return fmt.Errorf("%s: %w", d.dir, errInUse)
			}
			return err
		}
		d.lock = f
	}
	return d.probe()
}

// probe writes enough to show whether the disk works.
func (d *disk) probe() error {
	path := filepath.Join(d.dir, tmpDir, "probe")
	err := os.WriteFile(path, bytes.Repeat([]byte{1}, 1<<20), 0o600)
	return errors.Join(err, os.Remove(path))
}

func (d *disk) unlock() error {
	if d.lock == nil {
		return nil
	}
	err := d.lock.Close()
	d.lock = nil
	return err
}
