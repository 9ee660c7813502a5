package block

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"

	"example.org/slipway/oci/volref"
)

// A diff is what a committed volume has over its parent, as a stream; numbers are
// little-endian:
//
//	magic    8 bytes, the last one is the version
//	size     uint64, of the device in bytes
//	length   uint8, and so many bytes: the parent's name, none without a parent
//	records:
//	  kind   uint8: 1 data, 2 zeros, 3 end
//	  off    uint64, ascending; of the end: 0
//	  n      uint64: of data at most 1 MiB; of the end: 0
//	  data   n bytes of a data record
//	  sum    uint32: CRC-32C of the record up to here
//	SHA-256 of all before it
//
// Offsets and lengths of records are multiples of 4,096.
const (
	diffMagic  = "SLVDIFF\x01"
	diffData   = 1
	diffZeros  = 2
	diffEnd    = 3
	diffHead   = 1 + 8 + 8
	diffRecord = 1 << 20
)

// ErrDiff is returned, wrapped, for bytes that are no diff of a volume, or not a
// whole one.
var ErrDiff = errors.New("invalid diff of a volume")

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	zeroBlocks [diffRecord]byte
)

// Diff writes what a committed volume has over its parent, for [ApplyDiff] of this
// place or another. Equal volumes over equal parents need not have equal diffs.
// Errors: ErrNotFound, ErrNotCommitted, those of the storage and of w.
func Diff(ctx context.Context, s Store, id string, w io.Writer) error {
	if err := diff(ctx, s, id, w); err != nil {
		return fmt.Errorf("diff of volume %s: %w", id, err)
	}
	return nil
}

func diff(ctx context.Context, s Store, id string, w io.Writer) error {
	info, err := s.Stat(ctx, id)
	if err != nil {
		return err
	}
	v, err := s.Open(ctx, id)
	if err != nil {
		return err
	}
	defer v.Close() // only read from
	buf := bufio.NewWriterSize(w, 64<<10)
	d := &diffWriter{w: buf, sum: sha256.New(), v: v, buf: make([]byte, diffRecord)}
	head := binary.LittleEndian.AppendUint64([]byte(diffMagic), uint64(v.Size()))
	head = append(append(head, byte(len(info.Parent))), info.Parent...)
	if err := d.write(head); err != nil {
		return err
	}
	err = s.Changes(ctx, id, func(off, n int64) error { return d.extent(ctx, off, n) })
	if err == nil {
		err = d.record(diffEnd, 0, 0, nil)
	}
	if err == nil {
		_, err = buf.Write(d.sum.Sum(nil))
	}
	if err != nil {
		return err
	}
	return buf.Flush()
}

type diffWriter struct {
	w   *bufio.Writer
	sum hash.Hash
	v   Volume
	buf []byte // diffRecord bytes
	end int64  // of what is written
}

func (d *diffWriter) write(b []byte) error {
	d.sum.Write(b)
	_, err := d.w.Write(b)
	return err
}

func (d *diffWriter) record(kind byte, off, n int64, data []byte) error {
	head := append(make([]byte, 0, diffHead), kind)
	head = binary.LittleEndian.AppendUint64(head, uint64(off))
	head = binary.LittleEndian.AppendUint64(head, uint64(n))
	crc := crc32.Update(crc32.Checksum(head, castagnoli), castagnoli, data)
	for _, b := range [][]byte{head, data, binary.LittleEndian.AppendUint32(nil, crc)} {
		if err := d.write(b); err != nil {
			return err
		}
	}
	return nil
}

// extent writes what lies in a stretch. The storage may know it in other units
// than blocks; its ends are moved outwards, but not into the stretch before.
func (d *diffWriter) extent(ctx context.Context, off, n int64) error {
	end := min((off+n+BlockSize-1)&^(BlockSize-1), d.v.Size())
	for off = max(off&^(BlockSize-1), d.end); off < end; {
		if err := ctx.Err(); err != nil {
			return err
		}
		b := d.buf[:min(end-off, diffRecord)]
		if k, err := d.v.ReadAt(b, off); k < len(b) {
			return fmt.Errorf("read %d bytes at %d: %w", len(b), off, err)
		}
		var err error
		if bytes.Equal(b, zeroBlocks[:len(b)]) {
			err = d.record(diffZeros, off, int64(len(b)), nil)
		} else {
			err = d.record(diffData, off, int64(len(b)), b)
		}
		if err != nil {
			return err
		}
		off += int64(len(b))
		d.end = off
	}
	return nil
}

// ApplyDiff makes the volume of a diff as a clone of parent, which must have the
// name that the diff says, or none. It ends committed, or there is no such volume:
// a diff that is damaged or breaks off leaves nothing. Errors: those of
// [Store].Create, ErrDiff, and that of r.
func ApplyDiff(ctx context.Context, s Store, id, parent string, r io.Reader) error {
	if err := applyDiff(ctx, s, id, parent, r); err != nil {
		return fmt.Errorf("apply a diff as volume %s: %w", id, err)
	}
	return nil
}

func applyDiff(ctx context.Context, s Store, id, parent string, r io.Reader) error {
	d := &diffReader{sum: sha256.New(), buf: make([]byte, diffRecord)}
	d.r = bufio.NewReaderSize(r, 64<<10)
	size, of, err := d.header()
	if err != nil {
		return err
	}
	if of != parent {
		return fmt.Errorf("%w: it is over the volume %q, not %q", ErrDiff, of, parent)
	}
	v, err := s.Create(ctx, id, parent, size)
	if err != nil {
		return err
	}
	err = d.apply(ctx, v)
	if err == nil {
		err = v.Flush()
	}
	if err = errors.Join(err, v.Close()); err == nil {
		err = s.Commit(ctx, id)
	}
	if err != nil {
		// Even when ctx is why.
		err = errors.Join(err, s.Remove(context.WithoutCancel(ctx), id))
	}
	return err
}

type diffReader struct {
	r    *bufio.Reader
	sum  hash.Hash
	buf  []byte // diffRecord bytes
	last int64  // end of the record before
}

// read fills b with what comes next.
func (d *diffReader) read(b []byte) error {
	if _, err := io.ReadFull(d.r, b); err != nil {
		return short(err)
	}
	d.sum.Write(b)
	return nil
}

// short says of the end of a stream that it came too early.
func short(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it breaks off", ErrDiff)
	}
	return err
}

func (d *diffReader) header() (size int64, parent string, err error) {
	var head [len(diffMagic) + 8 + 1]byte
	if err := d.read(head[:]); err != nil {
		return 0, "", err
	}
	if string(head[:len(diffMagic)]) != diffMagic {
		return 0, "", fmt.Errorf("%w: it does not begin as one of this version", ErrDiff)
	}
	n := binary.LittleEndian.Uint64(head[len(diffMagic):])
	if n == 0 || n > volref.MaxDevice || n%BlockSize != 0 {
		return 0, "", fmt.Errorf("%w: it is of a volume of %d bytes", ErrDiff, n)
	}
	name := make([]byte, head[len(head)-1])
	if err := d.read(name); err != nil {
		return 0, "", err
	}
	return int64(n), string(name), nil
}

func (d *diffReader) apply(ctx context.Context, v Volume) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		kind, off, data, n, err := d.record(v.Size())
		if err != nil {
			return err
		}
		switch kind {
		case diffEnd:
			return d.end()
		case diffData:
			_, err = v.WriteAt(data, off)
		case diffZeros:
			err = v.Zero(off, n)
		}
		if err != nil {
			return err
		}
	}
}

// record reads the next record of the diff of a volume of size bytes. data is good
// until the next call.
func (d *diffReader) record(size int64) (kind byte, off int64, data []byte, n int64, err error) {
	var head [diffHead]byte
	if err := d.read(head[:]); err != nil {
		return 0, 0, nil, 0, err
	}
	kind = head[0]
	off, n = int64(binary.LittleEndian.Uint64(head[1:])), int64(binary.LittleEndian.Uint64(head[9:]))
	end := kind == diffEnd && off == 0 && n == 0
	// Compared so that no sum overflows.
	inside := off >= d.last && off <= size && n > 0 && n <= size-off && (off|n)%BlockSize == 0
	if !end && (!inside || kind != diffZeros && (kind != diffData || n > diffRecord)) {
		return 0, 0, nil, 0, fmt.Errorf("%w: record of kind %d with %d bytes at %d", ErrDiff, kind, n, off)
	}
	if kind == diffData {
		data = d.buf[:n]
		if err := d.read(data); err != nil {
			return 0, 0, nil, 0, err
		}
	}
	var sum [4]byte
	if err := d.read(sum[:]); err != nil {
		return 0, 0, nil, 0, err
	}
	if binary.LittleEndian.Uint32(sum[:]) != crc32.Update(crc32.Checksum(head[:], castagnoli), castagnoli, data) {
		return 0, 0, nil, 0, fmt.Errorf("%w: the record at %d is damaged", ErrDiff, off)
	}
	d.last = off + n
	return kind, off, data, n, nil
}

// end checks the sum of the whole, and that nothing follows.
func (d *diffReader) end() error {
	want := d.sum.Sum(nil)
	got := make([]byte, len(want))
	if _, err := io.ReadFull(d.r, got); err != nil {
		return short(err)
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%w: its sum is not that of its bytes", ErrDiff)
	}
	_, err := d.r.ReadByte()
	switch {
	case err == nil:
		return fmt.Errorf("%w: something follows it", ErrDiff)
	case errors.Is(err, io.EOF):
		return nil
	}
	return err
}
