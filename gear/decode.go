package gear

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"unsafe"

	"github.com/klauspost/compress/zstd"

	"example.org/slipway/gear/rootfs"
)

// Limits are the bounds of an index.
type Limits struct {
	// Entries is the maximum number of entries; default 1,000,000, as many as package
	// rootfs accepts for a layer.
	Entries int
	// Bytes is the maximum memory that decoding may take, in bytes, including the columns
	// and the result; default 512 MiB. An index of a million entries with typical names
	// needs some 300 MB.
	Bytes int64
}

const (
	defaultEntries = 1_000_000
	defaultBytes   = 512 << 20
)

func (l *Limits) orDefault() Limits {
	out := Limits{Entries: defaultEntries, Bytes: defaultBytes}
	if l != nil && l.Entries > 0 {
		out.Entries = min(l.Entries, math.MaxInt32-1)
	}
	if l != nil && l.Bytes > 0 {
		out.Bytes = l.Bytes
	}
	return out
}

// Decode reads an index, to the end of r. It compares every length with the limits before
// it allocates memory for it. The result is in canonical form. The encoding has no
// checksum, because an index is addressed by its digest, which the caller compares.
// Errors: ErrVersion, ErrInvalid, ErrTooLarge.
func Decode(r io.Reader, limits *Limits) (*Index, error) {
	d := &decoder{limits: limits.orDefault()}
	d.left = d.limits.Bytes
	x, err := d.decode(r)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("%w: it ends early", ErrInvalid)
	}
	if err != nil {
		return nil, err
	}
	return x, nil
}

type decoder struct {
	limits    Limits
	left      int64 // of limits.Bytes
	cols      [columnsCount][]byte
	entries   int
	files     int
	pathBytes int64
}

// take reserves memory for n things of size bytes.
func (d *decoder) take(n, size int64) error {
	if n < 0 || n > d.left/size {
		return fmt.Errorf("%w: it needs more than %d bytes of memory", ErrTooLarge, d.limits.Bytes)
	}
	d.left -= n * size
	return nil
}

func (d *decoder) decode(r io.Reader) (*Index, error) {
	var head [headerSize]byte
	if _, err := io.ReadFull(r, head[:12]); err != nil {
		return nil, err
	}
	if string(head[:8]) != indexMagic {
		return nil, fmt.Errorf("%w: it begins with other bytes", ErrInvalid)
	}
	if v := binary.LittleEndian.Uint32(head[8:]); v != indexVersion {
		return nil, fmt.Errorf("%w: %d, this code reads %d", ErrVersion, v, indexVersion)
	}
	if _, err := io.ReadFull(r, head[12:]); err != nil {
		return nil, err
	}
	if err := d.header(head[:]); err != nil {
		return nil, err
	}
	if err := d.readColumns(r, head[headerSize-columnsCount*8:]); err != nil {
		return nil, err
	}
	x := &Index{Entries: make([]Entry, d.entries), Files: make([]File, d.files)}
	for _, step := range []func(*Index) error{d.paths, d.attributes, d.times, d.sizes, d.rest} {
		if err := step(x); err != nil {
			return nil, err
		}
	}
	for i, c := range d.cols {
		if len(c) > 0 {
			return nil, fmt.Errorf("%w: column %d has %d bytes too many", ErrInvalid, i, len(c))
		}
	}
	if err := d.readNames(r, x); err != nil {
		return nil, err
	}
	return x, x.check()
}

// header checks the numbers that determine how much memory is needed.
func (d *decoder) header(head []byte) error {
	entries, files := binary.LittleEndian.Uint32(head[12:]), binary.LittleEndian.Uint32(head[16:])
	pathBytes := binary.LittleEndian.Uint64(head[20:])
	if uint64(entries) > uint64(d.limits.Entries) {
		return fmt.Errorf("%w: %d entries, the limit is %d", ErrTooLarge, entries, d.limits.Entries)
	}
	if files > entries {
		return fmt.Errorf("%w: %d files of %d entries", ErrInvalid, files, entries)
	}
	if pathBytes > math.MaxInt64 {
		return fmt.Errorf("%w: %d bytes of paths", ErrTooLarge, pathBytes)
	}
	d.entries, d.files, d.pathBytes = int(entries), int(files), int64(pathBytes)
	if err := d.take(int64(entries), int64(unsafe.Sizeof(Entry{}))); err != nil {
		return err
	}
	if err := d.take(int64(files), int64(unsafe.Sizeof(File{}))); err != nil {
		return err
	}
	return d.take(d.pathBytes, 1)
}

func (d *decoder) readColumns(r io.Reader, table []byte) error {
	for i := range d.cols {
		full, stored := binary.LittleEndian.Uint32(table[i*8:]), binary.LittleEndian.Uint32(table[i*8+4:])
		if stored > full {
			return fmt.Errorf("%w: column %d is longer as stored than in full", ErrInvalid, i)
		}
		if err := d.take(int64(full)+int64(stored), 1); err != nil {
			return err
		}
	}
	var z *zstd.Decoder
	for i := range d.cols {
		full, stored := binary.LittleEndian.Uint32(table[i*8:]), binary.LittleEndian.Uint32(table[i*8+4:])
		packed := make([]byte, stored)
		if _, err := io.ReadFull(r, packed); err != nil {
			return err
		}
		if stored == full {
			d.cols[i] = packed
			continue
		}
		if z == nil {
			var err error
			z, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecodeAllCapLimit(true))
			if err != nil {
				return fmt.Errorf("start decompressor: %w", err)
			}
			defer z.Close()
		}
		c, err := z.DecodeAll(packed, make([]byte, 0, full))
		if err != nil || len(c) != int(full) {
			return fmt.Errorf("%w: column %d does not decompress to %d bytes: %v", ErrInvalid, i, full, err)
		}
		d.cols[i] = c
	}
	return nil
}

// number returns the next number of a column. The number must be at most limit.
func (d *decoder) number(col int, limit uint64) (uint64, error) {
	v, n := binary.Uvarint(d.cols[col])
	if n <= 0 || v > limit {
		return 0, fmt.Errorf("%w: column %d has a bad number", ErrInvalid, col)
	}
	d.cols[col] = d.cols[col][n:]
	return v, nil
}

// text returns the next NUL-terminated string of a column, without copying it.
func (d *decoder) text(col int) ([]byte, error) {
	i := bytes.IndexByte(d.cols[col], 0)
	if i < 0 {
		return nil, fmt.Errorf("%w: column %d ends in a string", ErrInvalid, col)
	}
	s := d.cols[col][:i]
	d.cols[col] = d.cols[col][i+1:]
	return s, nil
}

// paths builds all paths in one allocation.
func (d *decoder) paths(x *Index) error {
	var all strings.Builder
	all.Grow(int(d.pathBytes))
	before := ""
	for i := range x.Entries {
		shared, err := d.number(colPrefix, uint64(len(before)))
		if err != nil {
			return err
		}
		rest, err := d.text(colSuffix)
		if err != nil {
			return err
		}
		start := all.Len()
		if int64(start)+int64(shared)+int64(len(rest)) > d.pathBytes {
			return fmt.Errorf("%w: paths are longer than announced", ErrInvalid)
		}
		all.WriteString(before[:shared])
		all.Write(rest)
		before = all.String()[start:]
		x.Entries[i].Path = before
	}
	if int64(all.Len()) != d.pathBytes {
		return fmt.Errorf("%w: paths are shorter than announced", ErrInvalid)
	}
	return nil
}

// attributes sets the type, mode, owner and extended attributes of entries.
func (d *decoder) attributes(x *Index) error {
	var rows []rootfs.Entry
	for len(d.cols[colAttrRows]) > 0 {
		if err := d.take(1, int64(unsafe.Sizeof(rootfs.Entry{}))); err != nil {
			return err
		}
		row, err := d.attributeRow()
		if err != nil {
			return err
		}
		rows = append(rows, row)
	}
	for i := range x.Entries {
		r, err := d.number(colAttr, math.MaxUint32)
		if err != nil {
			return err
		}
		if r >= uint64(len(rows)) {
			return fmt.Errorf("%w: entry %d has attributes %d of %d", ErrInvalid, i, r, len(rows))
		}
		e, row := &x.Entries[i], &rows[r]
		e.Type, e.Mode, e.UID, e.GID, e.Xattrs = row.Type, row.Mode, row.UID, row.GID, row.Xattrs
	}
	return nil
}

func (d *decoder) attributeRow() (rootfs.Entry, error) {
	var v [5]uint64
	for i, limit := range [...]uint64{math.MaxUint8, math.MaxUint32, math.MaxUint32, math.MaxUint32, math.MaxUint32} {
		var err error
		if v[i], err = d.number(colAttrRows, limit); err != nil {
			return rootfs.Entry{}, err
		}
	}
	e := rootfs.Entry{Type: rootfs.Type(v[0]), Mode: uint32(v[1]), UID: uint32(v[2]), GID: uint32(v[3])}
	if v[4] == 0 {
		return e, nil
	}
	if v[4] > uint64(len(d.cols[colAttrRows])) {
		return e, fmt.Errorf("%w: %d extended attributes", ErrInvalid, v[4])
	}
	if err := d.take(int64(v[4]), int64(unsafe.Sizeof(rootfs.Xattr{}))); err != nil {
		return e, err
	}
	e.Xattrs = make([]rootfs.Xattr, v[4])
	for i := range e.Xattrs {
		for _, s := range [...]*string{&e.Xattrs[i].Name, &e.Xattrs[i].Value} {
			n, err := d.number(colAttrRows, math.MaxUint32)
			if err != nil {
				return e, err
			}
			if n > uint64(len(d.cols[colAttrRows])) {
				return e, fmt.Errorf("%w: an extended attribute of %d bytes", ErrInvalid, n)
			}
			*s = string(d.cols[colAttrRows][:n])
			d.cols[colAttrRows] = d.cols[colAttrRows][n:]
		}
	}
	return e, nil
}

func (d *decoder) times(x *Index) error {
	var rows []timeKey
	for len(d.cols[colTimeRows]) > 0 {
		if err := d.take(1, int64(unsafe.Sizeof(timeKey{}))); err != nil {
			return err
		}
		sec, n := binary.Varint(d.cols[colTimeRows])
		if n <= 0 {
			return fmt.Errorf("%w: column %d has a bad number", ErrInvalid, colTimeRows)
		}
		d.cols[colTimeRows] = d.cols[colTimeRows][n:]
		nsec, err := d.number(colTimeRows, 1e9-1)
		if err != nil {
			return err
		}
		rows = append(rows, timeKey{sec, uint32(nsec)})
	}
	for i := range x.Entries {
		e := &x.Entries[i]
		if !hasMetadata(e.Type) {
			continue
		}
		r, err := d.number(colTime, math.MaxUint32)
		if err != nil {
			return err
		}
		if r >= uint64(len(rows)) {
			return fmt.Errorf("%w: entry %d has time %d of %d", ErrInvalid, i, r, len(rows))
		}
		e.Sec, e.Nsec = rows[r].sec, rows[r].nsec
	}
	return nil
}

// sizes sets the sizes of files and allocates room for their chunks.
func (d *decoder) sizes(x *Index) error {
	total := int64(0)
	for i := range x.Files {
		size, err := d.number(colSize, MaxFile)
		if err != nil {
			return err
		}
		n := chunksOf(int64(size))
		if err := d.take(n, int64(len(Name{}))); err != nil {
			return err
		}
		total += n
		x.Files[i].Size = int64(size)
	}
	all := make([]Name, total)
	for i := range x.Files {
		if n := chunksOf(x.Files[i].Size); n > 0 {
			x.Files[i].Chunks, all = all[:n:n], all[n:]
		}
	}
	return nil
}

// rest sets the fields that only entries of some types have.
func (d *decoder) rest(x *Index) error {
	files := int32(0)
	for i := range x.Entries {
		e := &x.Entries[i]
		e.File = -1
		var err error
		switch e.Type {
		case rootfs.Symlink:
			e.Link, err = d.link()
		case rootfs.HardLink:
			err = d.hardLink(x, i)
		case rootfs.File:
			var back uint64
			back, err = d.number(colFile, uint64(files))
			e.File = files - int32(back)
			if back == 0 {
				files++
			}
			if int(e.File) >= len(x.Files) {
				return fmt.Errorf("%w: entries mention more than %d files", ErrInvalid, len(x.Files))
			}
			e.Size = x.Files[e.File].Size
		case rootfs.CharDevice, rootfs.BlockDevice:
			var major, minor uint64
			if major, err = d.number(colDevice, math.MaxUint32); err == nil {
				minor, err = d.number(colDevice, math.MaxUint32)
			}
			e.Major, e.Minor = uint32(major), uint32(minor)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *decoder) link() (string, error) {
	s, err := d.text(colLink)
	if err != nil {
		return "", err
	}
	return string(s), d.take(int64(len(s)), 1)
}

func (d *decoder) hardLink(x *Index, i int) error {
	back, err := d.number(colHardLink, uint64(i))
	if err != nil {
		return err
	}
	e := &x.Entries[i]
	if back == 0 {
		e.Link, err = d.link()
		return err
	}
	t := &x.Entries[i-int(back)]
	e.Link, e.File = t.Path, t.File
	return nil
}

func (d *decoder) readNames(from io.Reader, x *Index) error {
	r := bufio.NewReaderSize(from, 64<<10)
	for i := range x.Files {
		if x.Files[i].Size == 0 {
			x.Files[i].Name = Empty().Name
			continue
		}
		if _, err := io.ReadFull(r, x.Files[i].Name[:]); err != nil {
			return err
		}
	}
	for i := range x.Files {
		for j := range x.Files[i].Chunks {
			if _, err := io.ReadFull(r, x.Files[i].Chunks[j][:]); err != nil {
				return err
			}
		}
	}
	var one [1]byte
	switch _, err := io.ReadFull(r, one[:]); {
	case err == nil:
		return fmt.Errorf("%w: bytes follow it", ErrInvalid)
	case !errors.Is(err, io.EOF):
		return err
	}
	return nil
}
