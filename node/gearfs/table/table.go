// Package table finds the files of an image in a table on disk, and compares the files of
// two images.
package table

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"slices"
	"sort"

	"example.org/slipway/gear"
)

// This is the table of an image's files. It is stored beside the image's index, from
// which it is made. All numbers are little endian.
//
//	0   8        magic
//	8   4        number of files F
//	12  8        number of digests of chunks C
//	20  4        CRC-32C of bytes 0 to 19 and of all bytes from 24 on
//	24  48 * F   files in order of their names: name 32, size 8, and the index
//	             of the first digest of its chunks 8
//	    32 * C   digests of chunks
//
// Empty files are omitted. Only what is needed to find a file is kept in memory: the
// first 8 bytes of each name. So fifty images of 13,000 files take 5 MB.
const (
	tableMagic  = "SLGFTBL\x01"
	tableHeader = 24
	tableEntry  = 48
	// maxTableFiles is greater than the number of entries that an index may have.
	maxTableFiles = 1 << 24
)

// Table finds the files of an image.
type Table struct {
	f      *os.File
	keys   []uint64 // the first 8 bytes of each name, ascending
	chunks int64
	// bytes is the size of all files. large is the size of the files with chunks.
	bytes int64
	large int
}

// Open reads a table and keeps its file open.
func Open(path string) (*Table, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	var t *Table
	if err == nil && st.Size() > tableHeader+maxTableFiles*tableEntry {
		err = fmt.Errorf("table of %d bytes", st.Size())
	}
	if err == nil {
		b := make([]byte, st.Size())
		if _, err = f.ReadAt(b, 0); err == nil {
			t, err = Parse(b)
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	t.f = f
	return t, nil
}

// Close closes the table's file.
func (t *Table) Close() error {
	if t.f == nil {
		return nil
	}
	return t.f.Close()
}

// Len returns the number of files.
func (t *Table) Len() int { return len(t.keys) }

// Bytes returns the size of all files.
func (t *Table) Bytes() int64 { return t.bytes }

// Encode returns the encoded table of an index's files.
func Encode(files []gear.File) ([]byte, error) {
	order := make([]int32, 0, len(files))
	for i := range files {
		if files[i].Size > 0 {
			order = append(order, int32(i))
		}
	}
	slices.SortFunc(order, func(a, b int32) int { return bytes.Compare(files[a].Name[:], files[b].Name[:]) })
	order = slices.CompactFunc(order, func(a, b int32) bool { return files[a].Name == files[b].Name && files[a].Size == files[b].Size })
	chunks := 0
	for _, i := range order {
		chunks += len(files[i].Chunks)
	}
	b := make([]byte, tableHeader, tableHeader+tableEntry*len(order)+32*chunks)
	copy(b, tableMagic)
	binary.LittleEndian.PutUint32(b[8:], uint32(len(order)))
	binary.LittleEndian.PutUint64(b[12:], uint64(chunks))
	at := 0
	for k, i := range order {
		f := &files[i]
		if k > 0 && files[order[k-1]].Name == f.Name {
			return nil, fmt.Errorf("file %x has two sizes: %w", f.Name, gear.ErrInvalid)
		}
		b = append(b, f.Name[:]...)
		b = binary.LittleEndian.AppendUint64(b, uint64(f.Size))
		b = binary.LittleEndian.AppendUint64(b, uint64(at))
		at += len(f.Chunks)
	}
	for _, i := range order {
		for k := range files[i].Chunks {
			b = append(b, files[i].Chunks[k][:]...)
		}
	}
	binary.LittleEndian.PutUint32(b[20:], tableSum(b))
	return b, nil
}

func tableSum(b []byte) uint32 {
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	return crc32.Update(crc32.Checksum(b[:20], castagnoli), castagnoli, b[tableHeader:])
}

// Parse checks an encoded table and returns the part of it that is kept in memory.
func Parse(b []byte) (*Table, error) {
	if len(b) < tableHeader || string(b[:8]) != tableMagic {
		return nil, errors.New("not a table of files of version 1")
	}
	n, chunks := binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint64(b[12:])
	if n > maxTableFiles || chunks > uint64(len(b)) || uint64(len(b)) != tableHeader+tableEntry*uint64(n)+32*chunks {
		return nil, fmt.Errorf("table of %d files and %d chunks in %d bytes", n, chunks, len(b))
	}
	if binary.LittleEndian.Uint32(b[20:]) != tableSum(b) {
		return nil, errors.New("table of files with a wrong checksum")
	}
	t := &Table{keys: make([]uint64, n), chunks: int64(chunks)}
	at := uint64(0)
	for i := range t.keys {
		e := b[tableHeader+tableEntry*i:]
		f, first, err := parseEntry(e)
		if err != nil {
			return nil, err
		}
		if first != int64(at) || i > 0 && bytes.Compare(b[tableHeader+tableEntry*(i-1):][:32], e[:32]) >= 0 {
			return nil, fmt.Errorf("table of files is out of order at file %d", i)
		}
		t.keys[i] = binary.BigEndian.Uint64(e)
		t.bytes += f.Size
		if n := chunkCount(f.Size); n > 0 {
			at += uint64(n)
			t.large++
		}
	}
	if at != chunks {
		return nil, fmt.Errorf("table of files has %d digests of chunks, not %d", chunks, at)
	}
	return t, nil
}

// chunkCount returns how many digests of chunks a file has in an index.
func chunkCount(size int64) int {
	if size < gear.LargeFile {
		return 0
	}
	return gear.ChunkCount(size)
}

// parseEntry decodes the 48 bytes of a file.
func parseEntry(b []byte) (f gear.File, chunks int64, err error) {
	f.Name = gear.Name(b[:32])
	size, first := binary.LittleEndian.Uint64(b[32:]), binary.LittleEndian.Uint64(b[40:])
	if size == 0 || size > gear.MaxFile || first > 1<<40 {
		return f, 0, fmt.Errorf("table of files has a file of %d bytes with chunks at %d", size, first)
	}
	f.Size = int64(size)
	return f, int64(first), nil
}

// at returns the file at index i, without its chunks, and the position of its chunks.
func (t *Table) at(i int) (gear.File, int64, error) {
	var b [tableEntry]byte
	if _, err := t.f.ReadAt(b[:], tableHeader+tableEntry*int64(i)); err != nil {
		return gear.File{}, 0, fmt.Errorf("read the table of files: %w", err)
	}
	return parseEntry(b[:])
}

// seek returns the index of the first file whose key is not less than key.
func (t *Table) seek(key uint64) int {
	return sort.Search(len(t.keys), func(i int) bool { return t.keys[i] >= key })
}

// Find returns a file, without its chunks, and its index. The index is -1 if the file is
// not there.
func (t *Table) Find(name gear.Name) (gear.File, int, error) {
	key := binary.BigEndian.Uint64(name[:])
	for i := t.seek(key); i < len(t.keys) && t.keys[i] == key; i++ {
		f, _, err := t.at(i)
		if err != nil {
			return gear.File{}, -1, err
		}
		if f.Name == name {
			return f, i, nil
		}
	}
	return gear.File{}, -1, nil
}

// Whole returns the file at index i with its chunks.
func (t *Table) Whole(i int) (gear.File, error) {
	f, first, err := t.at(i)
	if err != nil {
		return f, err
	}
	n := chunkCount(f.Size)
	if n == 0 {
		return f, nil
	}
	raw := make([]byte, 32*n)
	if _, err := t.f.ReadAt(raw, tableHeader+tableEntry*int64(len(t.keys))+32*first); err != nil {
		return f, fmt.Errorf("read the table of files: %w", err)
	}
	f.Chunks = make([]gear.Name, n)
	for k := range f.Chunks {
		f.Chunks[k] = gear.Name(raw[32*k:])
	}
	return f, nil
}

// Each calls do for every file in order, without its chunks, until do returns false.
func (t *Table) Each(do func(i int, f gear.File) bool) error { return t.EachFrom(0, do) }

// EachFrom is like Each, from an index on.
func (t *Table) EachFrom(from int, do func(i int, f gear.File) bool) error {
	r := bufio.NewReaderSize(io.NewSectionReader(t.f, tableHeader+tableEntry*int64(from), tableEntry*int64(len(t.keys)-from)), 1<<16)
	var b [tableEntry]byte
	for i := from; i < len(t.keys); i++ {
		if _, err := io.ReadFull(r, b[:]); err != nil {
			return fmt.Errorf("read the table of files: %w", err)
		}
		f, _, err := parseEntry(b[:])
		if err != nil {
			return err
		}
		if !do(i, f) {
			return nil
		}
	}
	return nil
}
