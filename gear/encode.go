package gear

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/klauspost/compress/zstd"

	"example.org/slipway/gear/rootfs"
)

// The encoding is specified in docs/formats/gear-index.md.
const (
	indexMagic   = "slipgear"
	indexVersion = 1
)

// These are the columns of an index, in order.
const (
	colPrefix    = iota // per entry: number of bytes shared with the path before
	colSuffix           // per entry: the rest of the path
	colAttrRows         // distinct type, mode, owner and attributes
	colAttr             // per entry: its row
	colTimeRows         // distinct times
	colTime             // per entry with metadata: its row
	colLink             // per symbolic link, and hard link to a layer below
	colHardLink         // per hard link: how far back its target is
	colFile             // per file: which content
	colSize             // per content
	colDevice           // per device
	columnsCount        // how many there are
)

// headerSize is the size of the header in bytes: magic 8, version 4, entries 4, files 4,
// path bytes 8, and per column its full length 4 and its stored length 4.
const headerSize = 8 + 4 + 4 + 4 + 8 + columnsCount*8

// Encode writes an index. The same index gives the same bytes as long as the compressor
// is the same. Readers must not rely on more than that. Encode returns ErrInvalid if the
// index is not in canonical form.
func (x *Index) Encode(w io.Writer) error {
	if err := x.check(); err != nil {
		return err
	}
	enc := encoder{attrs: map[attrKey]uint64{}, times: map[timeKey]uint64{}}
	if err := enc.columns(x); err != nil {
		return err
	}
	head, err := enc.compress(x)
	if err != nil {
		return err
	}
	if _, err := w.Write(head); err != nil {
		return fmt.Errorf("write gear index: %w", err)
	}
	for _, c := range enc.cols {
		if _, err := w.Write(c); err != nil {
			return fmt.Errorf("write gear index: %w", err)
		}
	}
	return writeNames(w, x.Files)
}

// attrKey is a row of attributes. xattrs has the stored form.
type attrKey struct {
	kind           rootfs.Type
	mode, uid, gid uint32
	xattrs         string
}

type timeKey struct {
	sec  int64
	nsec uint32
}

type encoder struct {
	cols      [columnsCount][]byte
	pathBytes uint64
	attrs     map[attrKey]uint64
	times     map[timeKey]uint64
	files     int32 // contents mentioned so far
	before    string
	scratch   []byte
}

// put appends a number to a column.
func (e *encoder) put(col int, v uint64) { e.cols[col] = binary.AppendUvarint(e.cols[col], v) }

// text appends a string without NUL bytes to a column.
func (e *encoder) text(col int, s string) { e.cols[col] = append(append(e.cols[col], s...), 0) }

func (e *encoder) columns(x *Index) error {
	for i := range x.Entries {
		n := &x.Entries[i]
		shared := 0
		for shared < len(e.before) && shared < len(n.Path) && e.before[shared] == n.Path[shared] {
			shared++
		}
		e.put(colPrefix, uint64(shared))
		e.text(colSuffix, n.Path[shared:])
		e.pathBytes += uint64(len(n.Path))
		e.before = n.Path
		e.attributes(&n.Entry)
		switch n.Type {
		case rootfs.Symlink:
			e.text(colLink, n.Link)
		case rootfs.HardLink:
			e.hardLink(x, i)
		case rootfs.File:
			if n.File == e.files {
				e.files++
				e.put(colFile, 0)
			} else {
				e.put(colFile, uint64(e.files-n.File))
			}
		case rootfs.CharDevice, rootfs.BlockDevice:
			e.put(colDevice, uint64(n.Major))
			e.put(colDevice, uint64(n.Minor))
		}
	}
	for i := range x.Files {
		e.put(colSize, uint64(x.Files[i].Size))
	}
	for i, c := range e.cols {
		if len(c) > math.MaxUint32 {
			return fmt.Errorf("%w: column %d has %d bytes", ErrTooLarge, i, len(c))
		}
	}
	return nil
}

func (e *encoder) hardLink(x *Index, i int) {
	t, ok := x.target(x.Entries[i].Link)
	if !ok {
		e.put(colHardLink, 0)
		e.text(colLink, x.Entries[i].Link)
		return
	}
	e.put(colHardLink, uint64(i-t))
}

// attributes appends the rows of an entry, unless they exist already. Mostly they exist.
func (e *encoder) attributes(n *rootfs.Entry) {
	e.scratch = e.scratch[:0]
	for i := range n.Xattrs {
		for _, s := range [...]string{n.Xattrs[i].Name, n.Xattrs[i].Value} {
			e.scratch = append(binary.AppendUvarint(e.scratch, uint64(len(s))), s...)
		}
	}
	key := attrKey{n.Type, n.Mode, n.UID, n.GID, string(e.scratch)}
	row, ok := e.attrs[key]
	if !ok {
		row = uint64(len(e.attrs))
		e.attrs[key] = row
		for _, v := range [...]uint64{uint64(n.Type), uint64(n.Mode), uint64(n.UID), uint64(n.GID), uint64(len(n.Xattrs))} {
			e.put(colAttrRows, v)
		}
		e.cols[colAttrRows] = append(e.cols[colAttrRows], e.scratch...)
	}
	e.put(colAttr, row)
	if !hasMetadata(n.Type) {
		return
	}
	at := timeKey{n.Sec, n.Nsec}
	row, ok = e.times[at]
	if !ok {
		row = uint64(len(e.times))
		e.times[at] = row
		e.cols[colTimeRows] = binary.AppendVarint(e.cols[colTimeRows], at.sec)
		e.put(colTimeRows, uint64(at.nsec))
	}
	e.put(colTime, row)
}

// These bounds say when the compressor is worth its cost. Below leastColumn bytes a frame
// is no shorter than its content. If all columns together have up to smallColumns bytes,
// clearing the 8 MB of tables of the better level takes longer than everything else.
const (
	leastColumn  = 48
	smallColumns = 128 << 10
)

// compress replaces each column by its stored form and returns the header. Each column is
// a separate frame because the columns' statistics have nothing in common.
func (e *encoder) compress(x *Index) ([]byte, error) {
	total := 0
	for _, c := range e.cols {
		total += len(c)
	}
	// This level lies between fast and best. The best level would save another 0.3 bytes
	// per entry of some 38, but takes six times as long (measured on image layers).
	level := zstd.SpeedBetterCompression
	if total <= smallColumns {
		level = zstd.SpeedDefault
	}
	var z *zstd.Encoder
	head := make([]byte, 0, headerSize)
	head = append(head, indexMagic...)
	head = binary.LittleEndian.AppendUint32(head, indexVersion)
	head = binary.LittleEndian.AppendUint32(head, uint32(len(x.Entries)))
	head = binary.LittleEndian.AppendUint32(head, uint32(len(x.Files)))
	head = binary.LittleEndian.AppendUint64(head, e.pathBytes)
	for i, c := range e.cols {
		head = binary.LittleEndian.AppendUint32(head, uint32(len(c)))
		if len(c) >= leastColumn {
			if z == nil {
				var err error
				z, err = zstd.NewWriter(nil, zstd.WithEncoderLevel(level),
					zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false))
				if err != nil {
					return nil, fmt.Errorf("start compressor: %w", err)
				}
				defer z.Close()
			}
			if packed := z.EncodeAll(c, nil); len(packed) < len(c) {
				e.cols[i] = packed
			}
		}
		head = binary.LittleEndian.AppendUint32(head, uint32(len(e.cols[i])))
	}
	return head, nil
}

// writeNames writes the names of files and then the names of chunks, uncompressed:
// digests do not compress.
func writeNames(w io.Writer, files []File) error {
	buf := make([]byte, 0, 64<<10)
	put := func(n Name) error {
		buf = append(buf, n[:]...)
		if len(buf) < cap(buf) {
			return nil
		}
		_, err := w.Write(buf)
		buf = buf[:0]
		return err
	}
	for i := range files {
		if files[i].Size == 0 {
			continue // its name is known
		}
		if err := put(files[i].Name); err != nil {
			return fmt.Errorf("write gear index: %w", err)
		}
	}
	for i := range files {
		for _, c := range files[i].Chunks {
			if err := put(c); err != nil {
				return fmt.Errorf("write gear index: %w", err)
			}
		}
	}
	if _, err := w.Write(buf); err != nil {
		return fmt.Errorf("write gear index: %w", err)
	}
	return nil
}
