package plan

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"example.org/slipway/workload/replay/content"
	"example.org/slipway/workload/trace/store"
)

// The table is a file of records of 48 bytes, little endian. The first is a header:
//
//	 0  8  "SLWREPL1"
//	 8  8  hash of what the content is made with
//	16 32  zero
//
// Record n+1 belongs to symbol n of table "refs":
//
//	 0  8  size in bytes; 0 if the content is not needed
//	 8  8  key of the content
//	16 32  SHA-256 of the content
const (
	recordSize = 48
	magic      = "SLWREPL1"
)

// record is a record of the table.
type record struct {
	size   int64
	key    uint64
	digest [32]byte
}

// table is the side table of a plan. It has a record for each name that has content.
type table struct {
	f     *os.File
	names int
}

func (t *table) close() error {
	if t == nil || t.f == nil {
		return nil
	}
	return t.f.Close()
}

// get reads a name's record. The record is zero if the name has no content.
func (t *table) get(sym store.Symbol) (r record, err error) {
	if int(sym) >= t.names {
		return r, nil
	}
	var b [recordSize]byte
	if _, err := t.f.ReadAt(b[:], recordSize*(int64(sym)+1)); err != nil {
		return r, fmt.Errorf("read the table of digests: %w", err)
	}
	return parseRecord(b[:]), nil
}

func parseRecord(b []byte) (r record) {
	r.size = int64(binary.LittleEndian.Uint64(b))
	r.key = binary.LittleEndian.Uint64(b[8:])
	copy(r.digest[:], b[16:])
	return r
}

func appendRecord(b []byte, r *record) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(r.size))
	b = binary.LittleEndian.AppendUint64(b, r.key)
	return append(b, r.digest[:]...)
}

func header(m content.Maker) []byte {
	b := append(make([]byte, 0, recordSize), magic...)
	b = binary.LittleEndian.AppendUint64(b, content.Key(fmt.Sprintf("%d %g %g", m.Seed, m.Compressible, m.Duplicates)))
	return append(b, make([]byte, 32)...)
}

// earlier opens the table of an earlier run, or an empty one if none fits. close closes
// it.
func earlier(path string, m content.Maker) (r *bufio.Reader, close func()) {
	f, err := os.Open(path)
	if err != nil {
		return bufio.NewReader(strings.NewReader("")), func() {}
	}
	r = bufio.NewReaderSize(f, 1<<20)
	head := make([]byte, recordSize)
	if _, err := io.ReadFull(r, head); err != nil || string(head) != string(header(m)) {
		r.Reset(strings.NewReader(""))
	}
	return r, func() { _ = f.Close() }
}

// hashChunk is how many records are computed before they are written.
const hashChunk = 4096

// makeTable computes the digests of all content that the plan needs.
func makeTable(ctx context.Context, p *Plan, path string, progress Progress) (_ *table, err error) {
	for i := range p.blobs {
		if p.blobs[i].flags&flagHash != 0 {
			p.Blobs++
			p.BlobBytes += p.o.size(p.blobs[i].size)
		}
	}
	old, closeOld := earlier(path, p.o.Maker)
	defer closeOld()
	f, err := os.OpenFile(path+".tmp", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), os.Remove(path+".tmp"))
		}
	}()
	w := bufio.NewWriterSize(f, 1<<20)
	if _, err := w.Write(header(p.o.Maker)); err != nil {
		return nil, err
	}
	var done atomic.Int64
	for at := 0; at < len(p.blobs); at += hashChunk {
		records := p.hash(ctx, at, min(len(p.blobs), at+hashChunk), old, &done, progress)
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		var line []byte
		for i := range records {
			line = appendRecord(line[:0], &records[i])
			if _, err := w.Write(line); err != nil {
				return nil, fmt.Errorf("write the table of digests: %w", err)
			}
		}
	}
	if err := w.Flush(); err != nil {
		return nil, fmt.Errorf("write the table of digests: %w", err)
	}
	return &table{f, len(p.blobs)}, os.Rename(path+".tmp", path)
}

// hash computes the records from one symbol to another, in parallel.
func (p *Plan) hash(ctx context.Context, from, to int, old *bufio.Reader, done *atomic.Int64, progress Progress) []record {
	records := make([]record, to-from)
	var todo []int
	for i := range records {
		var b [recordSize]byte
		was := record{}
		if _, err := io.ReadFull(old, b[:]); err == nil {
			was = parseRecord(b[:])
		}
		bl := p.blobs[from+i]
		if bl.flags&flagHash == 0 {
			continue
		}
		r := &records[i]
		r.size, r.key = p.o.size(bl.size), content.Key(p.src.Name(store.Refs, store.Symbol(from+i)))
		if was.size == r.size && was.key == r.key {
			r.digest = was.digest
			done.Add(r.size)
			continue
		}
		todo = append(todo, i)
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	var mu sync.Mutex
	for range p.o.Hashers {
		wg.Go(func() {
			for {
				n := int(next.Add(1)) - 1
				if n >= len(todo) || ctx.Err() != nil {
					return
				}
				r := &records[todo[n]]
				r.digest = p.o.Maker.Digest(r.key, r.size)
				sum := done.Add(r.size)
				mu.Lock()
				progress("computing digests", sum, p.BlobBytes)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return records
}
