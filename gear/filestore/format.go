package filestore

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"example.org/slipway/gear"
	"example.org/slipway/registry/catalog/gearfacts"
)

// The format of packs; docs/formats/gear-pack.md describes it.
const (
	packMagic = "SLGPACK\x01"
	packEnd   = "SLGPEND\x01"
	// headerSize: magic 8, stored length of the dictionary 4.
	headerSize = 12
	// entrySize: name 32, size 8, stored length 8, encoding 1.
	entrySize = 49
	// trailerSize: count 4, stored length of the dictionary 4, checksum 32, magic 8.
	trailerSize = 48
	// maxPackFiles bounds what a reader of a footer takes on, about 100 MB.
	maxPackFiles = 2 << 20
)

// errPack is in the chain of errors about bytes that are not a pack.
var errPack = errors.New("malformed pack")

func packHeader(dict []byte) []byte {
	b := binary.LittleEndian.AppendUint32([]byte(packMagic), uint32(len(dict)))
	return append(b, dict...)
}

// packFooter returns the table of a pack and its trailer.
func packFooter(dict []byte, files []gearfacts.File) []byte {
	b := make([]byte, 0, len(files)*entrySize+trailerSize)
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

// footerSum is the checksum over everything but the contents.
func footerSum(dict, table, counts []byte) (sum [32]byte) {
	h := sha256.New()
	h.Write([]byte(packMagic))
	h.Write(dict)
	h.Write(table)
	h.Write(counts[:8])
	h.Sum(sum[:0])
	return sum
}

// packShape is what the trailer tells.
type packShape struct {
	files, dict int
	trailer     []byte
}

// parseTrailer reads the last trailerSize bytes of a pack of size bytes.
func parseTrailer(b []byte, size int64) (packShape, error) {
	if len(b) != trailerSize || string(b[40:]) != packEnd {
		return packShape{}, fmt.Errorf("no trailer of version 1: %w", errPack)
	}
	n, dict := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
	if n > maxPackFiles || dict > gear.MaxDict || headerSize+int64(dict)+int64(n)*entrySize+trailerSize > size {
		return packShape{}, fmt.Errorf("%d contents and a dictionary of %d bytes in %d: %w", n, dict, size, errPack)
	}
	return packShape{int(n), int(dict), b}, nil
}

// footerOff is where the table of a pack of size bytes begins.
func (s packShape) footerOff(size int64) int64 {
	return size - trailerSize - int64(s.files)*entrySize
}

// parse reads the header with the dictionary, and the table, of a pack of size
// bytes, and checks them by the trailer. Contents of size bytes lie where the
// files say.
func (s packShape) parse(header, table []byte, size int64) (dict []byte, files []gearfacts.File, err error) {
	if len(header) != headerSize+s.dict || len(table) != s.files*entrySize || string(header[:8]) != packMagic ||
		binary.LittleEndian.Uint32(header[8:]) != uint32(s.dict) {
		return nil, nil, fmt.Errorf("header does not fit the trailer: %w", errPack)
	}
	dict = header[headerSize:]
	if sum := footerSum(dict, table, s.trailer); string(sum[:]) != string(s.trailer[8:40]) {
		return nil, nil, fmt.Errorf("checksum of the table is wrong: %w", errPack)
	}
	files = make([]gearfacts.File, s.files)
	off := int64(len(header))
	end := s.footerOff(size)
	for i := range files {
		f := &files[i]
		b := table[i*entrySize:]
		copy(f.Name[:], b)
		sz, stored := binary.LittleEndian.Uint64(b[32:]), binary.LittleEndian.Uint64(b[40:])
		if sz > gear.MaxFile || stored > uint64(end-off) {
			return nil, nil, fmt.Errorf("content %d of %d bytes in %d: %w", i, sz, stored, errPack)
		}
		f.Size, f.Stored, f.Encoding, f.Off = int64(sz), int64(stored), b[48], off
		if err := gear.CheckStored(f.Size, gear.Encoding(f.Encoding), f.Stored); err != nil {
			return nil, nil, fmt.Errorf("content %d: %w: %w", i, errPack, err)
		}
		off += f.Stored
	}
	if off != end {
		return nil, nil, fmt.Errorf("contents end at %d and not at %d: %w", off, end, errPack)
	}
	return dict, files, nil
}

// dictLen reads the header of a pack.
func dictLen(header []byte) (int, error) {
	n := binary.LittleEndian.Uint32(header[8:])
	if string(header[:8]) != packMagic || n > gear.MaxDict {
		return 0, fmt.Errorf("header with a dictionary of %d bytes: %w", n, errPack)
	}
	return int(n), nil
}
