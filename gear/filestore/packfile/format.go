// Package packfile implements the format of packs, which are objects of many contents. It
// also trains the dictionary that the small contents of a pack share.
// docs/formats/gear-pack.md describes the format.
package packfile

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"example.org/slipway/gear"
	"example.org/slipway/registry/catalog/gearfacts"
)

// These constants describe the parts of a pack.
const (
	packMagic = "SLGPACK\x01"
	packEnd   = "SLGPEND\x01"
	// HeaderSize is the size of the header: magic 8, stored length of the dictionary 4.
	HeaderSize = 12
	// EntrySize is the size of an entry: name 32, size 8, stored length 8, encoding 1.
	EntrySize = 49
	// TrailerSize is the size of the trailer: count 4, stored length of the dictionary 4,
	// checksum 32, magic 8.
	TrailerSize = 48
	// MaxFiles bounds the number of contents that a reader of a footer accepts; the
	// footer then takes about 100 MB.
	MaxFiles = 2 << 20
)

// ErrFormat is in the chain of errors about bytes that are not a pack.
var ErrFormat = errors.New("malformed pack")

// ErrBrokeOff says that a read of a pack ended early although the pack is long enough. The
// connection to the object store may be the cause, so this says nothing about the pack.
var ErrBrokeOff = errors.New("the read of the pack broke off")

// Early turns an unexpected end of a read into ErrBrokeOff.
func Early(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return ErrBrokeOff
	}
	return err
}

// ErrShort says that a pack ends before the place that was to be read.
var ErrShort = errors.New("the pack is too short")

// IsDamage reports whether an error says that bytes differ from what was written.
// Otherwise the error is a failure to read.
func IsDamage(err error) bool {
	return errors.Is(err, gear.ErrFormat) || errors.Is(err, gear.ErrContent) || errors.Is(err, ErrFormat) || errors.Is(err, ErrShort)
}

// Header returns the beginning of a pack.
func Header(dict []byte) []byte {
	b := binary.LittleEndian.AppendUint32([]byte(packMagic), uint32(len(dict)))
	return append(b, dict...)
}

// Footer returns the table of a pack and its trailer.
func Footer(dict []byte, files []gearfacts.File) []byte {
	b := make([]byte, 0, len(files)*EntrySize+TrailerSize)
	for i := range files {
		f := &files[i]
		b = append(b, f.Name[:]...)
		b = binary.LittleEndian.AppendUint64(b, uint64(f.Size))
		b = binary.LittleEndian.AppendUint64(b, uint64(f.Stored))
		b = append(b, f.Encoding)
	}
	table := len(b)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(files)))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(dict)))
	sum := footerSum(dict, b[:table], b[table:])
	b = append(b, sum[:]...)
	return append(b, packEnd...)
}

// footerSum returns the checksum over everything except the contents.
func footerSum(dict, table, counts []byte) (sum [32]byte) {
	h := sha256.New()
	h.Write([]byte(packMagic))
	h.Write(dict)
	h.Write(table)
	h.Write(counts[:8])
	h.Sum(sum[:0])
	return sum
}

// Shape is what the trailer says.
type Shape struct {
	// Files is the number of contents in the pack. Dict is the length of its dictionary
	// in bytes.
	Files, Dict int
	trailer     []byte
}

// ParseTrailer reads the last TrailerSize bytes of a pack of size bytes.
func ParseTrailer(b []byte, size int64) (Shape, error) {
	if len(b) != TrailerSize || string(b[40:]) != packEnd {
		return Shape{}, fmt.Errorf("no trailer of version 1: %w", ErrFormat)
	}
	n, dict := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
	if n > MaxFiles || dict > gear.MaxDict || HeaderSize+int64(dict)+int64(n)*EntrySize+TrailerSize > size {
		return Shape{}, fmt.Errorf("%d contents and a dictionary of %d bytes in %d: %w", n, dict, size, ErrFormat)
	}
	return Shape{int(n), int(dict), b}, nil
}

// FooterOff returns the offset of the table of a pack of size bytes.
func (s Shape) FooterOff(size int64) int64 {
	return size - TrailerSize - int64(s.Files)*EntrySize
}

// Parse reads the header with the dictionary, and the table, of a pack of size bytes, and
// checks them against the trailer. files says where the contents are in the pack.
func (s Shape) Parse(header, table []byte, size int64) (dict []byte, files []gearfacts.File, err error) {
	if len(header) != HeaderSize+s.Dict || len(table) != s.Files*EntrySize || string(header[:8]) != packMagic ||
		binary.LittleEndian.Uint32(header[8:]) != uint32(s.Dict) {
		return nil, nil, fmt.Errorf("header does not fit the trailer: %w", ErrFormat)
	}
	dict = header[HeaderSize:]
	if sum := footerSum(dict, table, s.trailer); string(sum[:]) != string(s.trailer[8:40]) {
		return nil, nil, fmt.Errorf("checksum of the table is wrong: %w", ErrFormat)
	}
	files = make([]gearfacts.File, s.Files)
	off := int64(len(header))
	end := s.FooterOff(size)
	for i := range files {
		f := &files[i]
		b := table[i*EntrySize:]
		copy(f.Name[:], b)
		sz, stored := binary.LittleEndian.Uint64(b[32:]), binary.LittleEndian.Uint64(b[40:])
		if sz > gear.MaxFile || stored > uint64(end-off) {
			return nil, nil, fmt.Errorf("content %d of %d bytes in %d: %w", i, sz, stored, ErrFormat)
		}
		f.Size, f.Stored, f.Encoding, f.Off = int64(sz), int64(stored), b[48], off
		if err := gear.CheckStored(f.Size, gear.Encoding(f.Encoding), f.Stored); err != nil {
			return nil, nil, fmt.Errorf("content %d: %w: %w", i, ErrFormat, err)
		}
		off += f.Stored
	}
	if off != end {
		return nil, nil, fmt.Errorf("contents end at %d and not at %d: %w", off, end, ErrFormat)
	}
	return dict, files, nil
}

// DictLen reads the header of a pack and returns the length of the dictionary.
func DictLen(header []byte) (int, error) {
	n := binary.LittleEndian.Uint32(header[8:])
	if string(header[:8]) != packMagic || n > gear.MaxDict {
		return 0, fmt.Errorf("header with a dictionary of %d bytes: %w", n, ErrFormat)
	}
	return int(n), nil
}
