package file

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"example.org/slipway/volume/block"
)

// writer is a volume that is being written.
//
// A block becomes the volume's own in this order: its data, its bit in recent, its bit in
// memory. So a killed process loses nothing that was reported as written. If the machine
// stops, the bits of recent are worthless, because the data may not have reached the disk
// before them. The bits of map are good, because flush writes them after it has made the
// data durable. A block whose bit is lost is the parent's again.
type writer struct {
	size         int64
	data         *os.File
	durable      *os.File // map
	recent       *os.File
	parent       *layer
	mu           sync.RWMutex // guards bits, dirty; held alone while a block becomes the volume's own
	bits         bitmap
	dirty        map[int64]bool // pages with bits that the file map may lack
	flushing     sync.Mutex     // one flush at a time; before mu
	failed       error          // a flush failed: written data may be lost although reads return it
	withoutPunch bool           // the file system makes no holes
}

// openWriter opens the files of a volume in its directory. It takes over the parent.
func (s *Store) openWriter(id string, m *meta, parent *layer) (_ *writer, err error) {
	w := &writer{size: m.Size, parent: parent, bits: newBitmap(m.Size / block.BlockSize), dirty: map[int64]bool{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	for _, f := range []struct {
		to   **os.File
		name string
	}{{&w.data, "data"}, {&w.durable, "map"}, {&w.recent, "recent"}} {
		if *f.to, err = os.OpenFile(s.volume(id, f.name), os.O_RDWR, 0); err != nil {
			return nil, err
		}
	}
	// A crash of the machine may have lost the size.
	if err := w.data.Truncate(m.Size); err != nil {
		return nil, err
	}
	if err := w.bits.load(w.durable, 0); err != nil {
		return nil, err
	}
	return w, w.loadRecent(s.boot)
}

// loadRecent takes over the bits of an earlier writer, if that ran on this machine and
// the machine has not stopped since.
func (w *writer) loadRecent(boot string) error {
	head := make([]byte, pageBytes)
	n, err := w.recent.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if strings.TrimRight(string(head[:n]), "\x00") == boot {
		if err := w.bits.load(w.recent, pageBytes); err != nil {
			return err
		}
		for i, p := range w.bits {
			if p != nil {
				w.dirty[int64(i)] = true
			}
		}
		return nil
	}
	if err := w.recent.Truncate(0); err != nil {
		return err
	}
	copy(head, make([]byte, pageBytes))
	copy(head, boot)
	_, err = w.recent.WriteAt(head, 0)
	return err
}

func (w *writer) close() error {
	var err error
	for _, f := range []*os.File{w.data, w.durable, w.recent} {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	return err
}

func (w *writer) readAt(p []byte, off int64) error {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.read(p, off)
}

// read is like readAt, for a caller that holds mu.
func (w *writer) read(p []byte, off int64) error {
	return readMapped(p, off, w.size, w.data, w.parent, w.bits.run)
}

// writeAt writes p, all within the volume.
func (w *writer) writeAt(p []byte, off int64) error {
	if done, err := w.overwrite(p, off); done {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	first, end := off/block.BlockSize, blocksUp(off+int64(len(p)))
	whole := p
	if off%block.BlockSize != 0 || len(p)%block.BlockSize != 0 {
		// These are the remaining bytes of the blocks at both ends.
		whole = make([]byte, (end-first)*block.BlockSize)
		for _, b := range []int64{first, end - 1} {
			at := (b - first) * block.BlockSize
			if err := w.read(whole[at:at+block.BlockSize], b*block.BlockSize); err != nil {
				return err
			}
		}
		copy(whole[off-first*block.BlockSize:], p)
	}
	if _, err := w.data.WriteAt(whole, first*block.BlockSize); err != nil {
		return err
	}
	return w.own(first, end)
}

// overwrite writes p if all of its blocks are the volume's own.
func (w *writer) overwrite(p []byte, off int64) (done bool, err error) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	end := blocksUp(off + int64(len(p)))
	n, own := w.bits.run(off/block.BlockSize, end)
	if !own || off/block.BlockSize+n < end {
		return false, nil
	}
	_, err = w.data.WriteAt(p, off)
	return true, err
}

// blocksUp returns how many blocks n bytes need.
func blocksUp(n int64) int64 { return (n + block.BlockSize - 1) / block.BlockSize }

// own makes blocks the volume's own after their data was written. mu is held exclusively.
func (w *writer) own(b, end int64) error {
	for b < end {
		i := b / pageBlocks
		to := min(end, (i+1)*pageBlocks)
		if n, in := w.bits.run(b, to); in {
			b += n
			continue
		}
		// This comes before the bits in memory, which must not be set if this fails.
		next := new(page)
		if w.bits[i] != nil {
			*next = *w.bits[i]
		}
		bitmap{next}.set(b-i*pageBlocks, to-i*pageBlocks)
		first, last := b%pageBlocks/64, (to-1)%pageBlocks/64
		var words []byte
		for _, v := range next[first : last+1] {
			words = binary.LittleEndian.AppendUint64(words, v)
		}
		if _, err := w.recent.WriteAt(words, pageBytes+i*pageBytes+first*8); err != nil {
			return err
		}
		w.bits[i] = next
		w.dirty[i] = true
		b = to
	}
	return nil
}

// zero makes n bytes from off on zeros.
func (w *writer) zero(off, n int64, alive beat) error {
	if n == 0 {
		return nil
	}
	first, last := blocksUp(off), (off+n)/block.BlockSize
	if first >= last { // within one block or two
		return w.writeAt(make([]byte, n), off)
	}
	if head := first*block.BlockSize - off; head > 0 {
		if err := w.writeAt(make([]byte, head), off); err != nil {
			return err
		}
	}
	if tail := off + n - last*block.BlockSize; tail > 0 {
		if err := w.writeAt(make([]byte, tail), last*block.BlockSize); err != nil {
			return err
		}
	}
	return w.zeroBlocks(first, last, alive)
}

// zeroBlocks makes holes of blocks, which hide the parent's data.
func (w *writer) zeroBlocks(b, end int64, alive beat) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for b < end {
		n, own := w.bits.run(b, end)
		hide := false
		if !own {
			n, hide = w.parent.has(b, b+n)
		}
		if own || hide {
			if err := w.punch(b*block.BlockSize, n*block.BlockSize, alive); err != nil {
				return err
			}
		}
		if hide {
			if err := w.own(b, b+n); err != nil {
				return err
			}
		}
		b += n
		alive()
	}
	return nil
}

// punch makes a stretch of data zeros.
func (w *writer) punch(off, n int64, alive beat) error {
	if !w.withoutPunch {
		err := unix.Fallocate(int(w.data.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
		if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOSYS) {
			return err
		}
		w.withoutPunch = true
	}
	zeros := make([]byte, min(n, maxStep))
	for n > 0 {
		k, err := w.data.WriteAt(zeros[:min(n, maxStep)], off)
		if err != nil {
			return err
		}
		off, n = off+int64(k), n-int64(k)
		alive()
	}
	return nil
}

// flushStep is how many bytes of a file are written out in one step: a second or two of a
// slow disk.
const flushStep = 128 << 20

// flush makes everything written durable: the data first, then the bits.
func (w *writer) flush(alive beat) error {
	w.flushing.Lock()
	defer w.flushing.Unlock()
	if w.failed != nil {
		return w.failed
	}
	pages := w.snapshot()
	err := w.syncData(alive)
	for i := range pages {
		if err != nil {
			break
		}
		if _, err := w.durable.WriteAt(pages[i].bits.bytes(), pages[i].i*pageBytes); err != nil {
			w.again(pages[i:]) // no room; nothing is lost
			return err
		}
	}
	if err == nil {
		err = unix.Fdatasync(int(w.durable.Fd()))
	}
	if err != nil {
		// The kernel may have dropped bytes that it could not write, and would then
		// report success at the next flush, even to the next writer.
		mark := os.WriteFile(filepath.Join(filepath.Dir(w.data.Name()), lost), nil, 0o600)
		w.failed = errors.Join(fmt.Errorf("%w: %w", errLost, err), mark)
	}
	return w.failed
}

// lost is the name of a file that records a failed flush of the volume.
const lost = "lost"

// errLost is returned for a volume of which a flush failed.
var errLost = errors.New("what was written to it may be lost: it can only be removed")

type dirtyPage struct {
	i    int64
	bits page
}

// snapshot returns the pages that the file map lacks, as they are now. Their data is
// written.
func (w *writer) snapshot() []dirtyPage {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []dirtyPage
	for i := range w.dirty {
		list = append(list, dirtyPage{i, *w.bits[i]})
	}
	clear(w.dirty)
	slices.SortFunc(list, func(a, b dirtyPage) int { return int(a.i - b.i) })
	return list
}

// again leaves pages to the next flush.
func (w *writer) again(pages []dirtyPage) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range pages {
		w.dirty[pages[i].i] = true
	}
}

// syncData makes data durable, in steps that show that the storage works.
func (w *writer) syncData(alive beat) error {
	const out = unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WRITE | unix.SYNC_FILE_RANGE_WAIT_AFTER
	for off := int64(0); off < w.size; off += flushStep {
		err := unix.SyncFileRange(int(w.data.Fd()), off, flushStep, out)
		if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ESPIPE) {
			break // not needed: the steps only show that the storage works
		}
		if err != nil {
			return err
		}
		alive()
	}
	return unix.Fdatasync(int(w.data.Fd()))
}
