package cachedir

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"example.org/slipway/gear"
)

// mapMagic begins the bitmap of a partial file; its last byte is the version.
const mapMagic = "SLGPMAP\x01"

// mapHeader is the length in bytes of the header before the bits:
//
//	0   8   magic
//	8   32  name of the file
//	40  8   its size, little endian
//	48  32  SHA-256 of the concatenated digests of its chunks
//	80  4   CRC-32C of all bytes before, little endian
//	84      a bit for each chunk, the low ones of a byte first
const mapHeader = 84

// mapRecord is the bitmap of a partial file. The bits have no checksum: they only say
// which chunks are worth comparing.
type mapRecord struct {
	name gear.Name
	size int64
	sum  gear.Name
	bits bitmap
}

func (m mapRecord) append(b []byte) []byte {
	at := len(b)
	b = append(b, mapMagic...)
	b = append(b, m.name[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(m.size))
	b = append(b, m.sum[:]...)
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[at:], crc32.MakeTable(crc32.Castagnoli)))
	return append(b, m.bits...)
}

// parseMap decodes a bitmap.
func parseMap(b []byte) (mapRecord, error) {
	var m mapRecord
	if len(b) < mapHeader || string(b[:8]) != mapMagic {
		return m, errors.New("not a bitmap of version 1")
	}
	if binary.LittleEndian.Uint32(b[80:]) != crc32.Checksum(b[:80], crc32.MakeTable(crc32.Castagnoli)) {
		return m, errors.New("bitmap with a wrong checksum")
	}
	size := binary.LittleEndian.Uint64(b[40:])
	if size < gear.LargeFile || size > gear.MaxFile {
		return m, fmt.Errorf("bitmap of a file of %d bytes", size)
	}
	n := gear.ChunkCount(int64(size))
	if len(b)-mapHeader != (n+7)/8 {
		return m, fmt.Errorf("bitmap of %d chunks in %d bytes", n, len(b)-mapHeader)
	}
	m = mapRecord{name: gear.Name(b[8:40]), size: int64(size), sum: gear.Name(b[48:80]), bits: b[mapHeader:]}
	for i := n; i < 8*len(m.bits); i++ {
		if m.bits.get(i) {
			return mapRecord{}, fmt.Errorf("bitmap of %d chunks has chunk %d", n, i)
		}
	}
	return m, nil
}

// loadPartials finds the partial files and counts their disk space. It removes chunks
// without a bitmap, and bitmaps without chunks.
func (d *Dir) loadPartials() error {
	dir := filepath.Join(d.root, partialDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		base, isMap := strings.CutSuffix(e.Name(), bitmapSuffix)
		key, ok := parsePartial(base)
		other := base + bitmapSuffix
		if isMap {
			other = base
		}
		var st unix.Stat_t
		if ok {
			ok = unix.Lstat(filepath.Join(dir, other), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG
		}
		if ok {
			v, err := d.View(key.view)
			if err != nil {
				return err
			}
			ok = !v.Has(key.name)
		}
		if !ok {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			continue
		}
		if isMap { // st is the information about the file of chunks
			p := &Partial{d: d, view: key.view, stamp: max(st.Mtim.Nano(), st.Atim.Nano()), bytes: st.Blocks * 512}
			p.f.Name, p.f.Size = key.name, st.Size
			d.partials[key] = p
			d.partial += p.bytes
		}
	}
	return nil
}
