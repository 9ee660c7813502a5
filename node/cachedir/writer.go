package cachedir

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"example.org/slipway/gear"
)

const (
	// writeBuffer is how many bytes are collected for one write. Most files need one
	// write.
	writeBuffer = 128 << 10
	// holeBytes is the unit in which zeros become holes. It is the block size of the
	// usual file systems.
	holeBytes = 4 << 10
)

var zeros [holeBytes]byte

// buffers holds the buffers of finished writers.
var buffers = sync.Pool{New: func() any { return new([writeBuffer]byte) }}

// Writer writes the content of a file. Nothing of the file is visible before Commit. A
// Writer is used by one goroutine.
type Writer struct {
	d    *Dir
	f    gear.File
	fd   int
	hash hash.Hash
	buf  *[writeBuffer]byte
	fill int
	// n counts the bytes received. The buffer holds the received bytes from off on. end
	// is the end of the last bytes written.
	n, off, end int64
	reserved    int64
}

// Create starts to write a file. It makes room for the file in the budget. Errors:
// ErrFull.
func (d *Dir) Create(f gear.File) (*Writer, error) {
	if f.Size < 0 || f.Size > gear.MaxFile {
		return nil, fmt.Errorf("file %x of %d bytes: %w", f.Name, f.Size, gear.ErrContent)
	}
	reserved := (f.Size + holeBytes - 1) / holeBytes * holeBytes
	d.reserve(reserved)
	w := &Writer{d: d, f: f, fd: -1, reserved: reserved, hash: sha256.New(), buf: buffers.Get().(*[writeBuffer]byte)}
	err := d.withRoom(f.Size, func() (err error) {
		w.fd, err = unix.Open(filepath.Join(d.root, tmpDir), unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o400)
		return err
	})
	if err != nil {
		w.Cancel()
		return nil, fmt.Errorf("make a temporary file: %w", err)
	}
	return w, nil
}

// Write appends bytes. More bytes than the file's size are an error, gear.ErrContent.
func (w *Writer) Write(p []byte) (int, error) {
	if w.fd < 0 {
		return 0, fs.ErrClosed
	}
	if int64(len(p)) > w.f.Size-w.n {
		return 0, fmt.Errorf("file %x has more than %d bytes: %w", w.f.Name, w.f.Size, gear.ErrContent)
	}
	w.n += int64(len(p))
	w.hash.Write(p)
	for took := 0; took < len(p); {
		n := copy(w.buf[w.fill:], p[took:])
		took += n
		if w.fill += n; w.fill == len(w.buf) {
			if err := w.flush(); err != nil {
				return took, err
			}
		}
	}
	return len(p), nil
}

// flush writes the buffer, which begins at a multiple of its size.
func (w *Writer) flush() error {
	b, off := w.buf[:w.fill], w.off
	w.off += int64(w.fill)
	w.fill = 0
	end, err := w.d.writeSparse(w.fd, b, off)
	w.end = max(w.end, end)
	return err
}

// writeSparse writes bytes at an offset that is a multiple of holeBytes. It omits blocks
// of zeros. It returns the end of what it wrote, or 0 if it wrote nothing.
func (d *Dir) writeSparse(fd int, b []byte, off int64) (int64, error) {
	end := int64(0)
	for len(b) > 0 {
		hole := zeroBlocks(b)
		b, off = b[hole:], off+int64(hole)
		n := dataBlocks(b)
		for n > 0 {
			var m int
			err := d.withRoom(int64(len(b)), func() (err error) {
				m, err = unix.Pwrite(fd, b[:n], off)
				return err
			})
			if err != nil {
				return end, fmt.Errorf("write: %w", err)
			}
			b, off, n = b[m:], off+int64(m), n-m
			end = off
		}
	}
	return end, nil
}

// zeroBlocks returns how many bytes at the beginning of b are whole blocks of zeros. The
// last block may be shorter.
func zeroBlocks(b []byte) int {
	n := 0
	for n < len(b) {
		block := b[n:min(n+holeBytes, len(b))]
		if !bytes.Equal(block, zeros[:len(block)]) {
			break
		}
		n += len(block)
	}
	return n
}

// dataBlocks returns how many bytes of b precede the first block of zeros.
func dataBlocks(b []byte) int {
	n := 0
	for n < len(b) {
		block := b[n:min(n+holeBytes, len(b))]
		if bytes.Equal(block, zeros[:len(block)]) {
			break
		}
		n += len(block)
	}
	return n
}

// Commit publishes the file if it matches its name. If the file already exists, the
// existing one stays. The writer cannot be used afterwards, whatever Commit returns.
// Errors: gear.ErrContent, ErrFull.
func (w *Writer) Commit() error {
	defer w.Cancel()
	if w.fd < 0 {
		return fs.ErrClosed
	}
	if w.n != w.f.Size {
		return fmt.Errorf("file %x has %d bytes, not %d: %w", w.f.Name, w.n, w.f.Size, gear.ErrContent)
	}
	if got := gear.Name(w.hash.Sum(nil)); got != w.f.Name {
		return fmt.Errorf("file %x has the name %x: %w", w.f.Name, got, gear.ErrContent)
	}
	if err := w.flush(); err != nil {
		return err
	}
	if w.end < w.f.Size {
		if err := unix.Ftruncate(w.fd, w.f.Size); err != nil {
			return fmt.Errorf("set the size: %w", err)
		}
	}
	proc := "/proc/self/fd/" + strconv.Itoa(w.fd)
	link := func(to string) error {
		return unix.Linkat(unix.AT_FDCWD, proc, unix.AT_FDCWD, to, unix.AT_SYMLINK_FOLLOW)
	}
	// The pin keeps the file from being evicted even if it is larger than the budget.
	w.d.Pin(w.f.Name)
	defer w.d.Unpin(w.f.Name)
	err := w.d.publish(w.f.Name, w.fd, link, func() {
		w.d.reserved -= w.reserved
		w.reserved = 0
	})
	w.d.makeRoom()
	return err
}

// Cancel discards what was written. After Commit it does nothing.
func (w *Writer) Cancel() {
	if w.fd >= 0 {
		_ = unix.Close(w.fd) // the file has no name, so its blocks are freed
		w.fd = -1
	}
	if w.buf != nil {
		buffers.Put(w.buf)
		w.buf = nil
		w.d.reserve(-w.reserved)
	}
}

// publish gives a verified file, open as fd, its mode and its generation, and calls link
// to give it its name. It calls settle while the directory is locked. settle removes what
// was counted for the file so far.
func (d *Dir) publish(name gear.Name, fd int, link func(to string) error, settle func()) error {
	if err := unix.Fchmod(fd, 0o444); err != nil {
		return fmt.Errorf("set the mode: %w", err)
	}
	to, proc := d.path(name), "/proc/self/fd/"+strconv.Itoa(fd)
	d.pub.RLock()
	times := []unix.Timespec{unix.NsecToTimespec(d.stamp()), {Sec: int64(d.gen)}}
	err := unix.UtimesNanoAt(unix.AT_FDCWD, proc, times, 0)
	if err == nil {
		err = d.withRoom(0, func() error { return link(to) })
	}
	d.pub.RUnlock()
	if errors.Is(err, unix.EEXIST) {
		return d.adopt(name, to, settle)
	}
	if err != nil {
		return fmt.Errorf("publish file %x: %w", name, err)
	}
	return d.account(name, fd, settle)
}

// adopt adds a file that already has the name to the table, unless it is there.
func (d *Dir) adopt(name gear.Name, path string, settle func()) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("look at file %x: %w", name, err)
	}
	defer unix.Close(fd)
	return d.account(name, fd, settle)
}

// account adds a published file, open as fd, to the table.
func (d *Dir) account(name gear.Name, fd int, settle func()) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("stat file %x: %w", name, err)
	}
	d.mu.Lock()
	settle()
	if d.files.get(&name) == nil {
		d.files.add(&name, blocksOf(st.Blocks), d.stamp())
		d.used += st.Blocks * 512
		d.stats.Published++
	}
	d.barren = d.barren && d.leased(name)
	d.mu.Unlock()
	d.published(st.Blocks * 512)
	return nil
}

// blocksOf limits a number of blocks to the range of an entry.
func blocksOf(n int64) uint32 { return uint32(min(max(n, 0), freeEntry-1)) }
