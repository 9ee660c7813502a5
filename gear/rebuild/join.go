package rebuild

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"sort"

	"example.org/slipway/gear"
)

// Contents provides the contents of files.
type Contents interface {
	// ReadContent fills p with the content of f from off on. These bytes are within the
	// content. It may be called concurrently.
	ReadContent(f gear.File, p []byte, off int64) error
}

// Archive is a tar archive that is put together while it is read.
type Archive struct {
	k     *Skeleton
	files []gear.File
	src   Contents
	marks []cursor // of every markEvery-th entry
	tail  int64    // where the last entry ends
	size  int64
}

// markEvery is the maximum number of entries that are skipped to find a position in the
// archive.
const markEvery = 64

// Open checks a skeleton and makes its archive readable. files are the files that the
// Splitter was given.
func (k *Skeleton) Open(files []gear.File, src Contents) (*Archive, error) {
	a := &Archive{k: k, files: files, src: src}
	c := cursor{scan: scan{-1}, last: -1}
	for c.entry < k.entries {
		if c.entry%markEvery == 0 {
			a.marks = append(a.marks, c)
		}
		if _, err := a.next(&c); err != nil {
			return nil, err
		}
		if c.off > maxLayer {
			return nil, errSkeleton
		}
	}
	for i, col := range k.cols[:colEnd] {
		if c.at[i] != len(col) {
			return nil, errSkeleton
		}
	}
	a.tail = c.off
	a.size = c.off + k.zeros + int64(len(k.cols[colEnd]))
	return a, nil
}

var errSkeleton = fmt.Errorf("%w: a skeleton whose columns contradict each other", ErrDamaged)

// Size returns the size of the archive in bytes.
func (a *Archive) Size() int64 { return a.size }

// cursor is a position in the columns.
type cursor struct {
	entry int
	off   int64 // in the archive
	at    [columns]int
	scan  scan
	last  int
}

// entry is one entry of the archive.
type entry struct {
	h    header
	size int64
	file int    // index of the file; -1: body has the whole content
	body []byte // of size bytes
	pad  []byte // nil: zeros
	off  int64  // in the archive
}

// end returns where the entry ends.
func (e *entry) end() int64 { return e.off + record + e.size + int64(padding(e.size)) }

// take returns the next n bytes of a column.
func (a *Archive) take(c *cursor, col int, n int64) ([]byte, error) {
	from := c.at[col]
	if n > int64(len(a.k.cols[col])-from) {
		return nil, errSkeleton
	}
	c.at[col] += int(n)
	return a.k.cols[col][from : from+int(n)], nil
}

// next reads an entry.
func (a *Archive) next(c *cursor) (e entry, err error) {
	form, err := a.take(c, colForm, 1)
	if err != nil {
		return e, err
	}
	e.off, e.file = c.off, -1
	if err := a.header(c, &e.h, form[0]); err != nil {
		return e, err
	}
	kind, size, ok := c.scan.next(&e.h)
	if !ok {
		return e, errSkeleton
	}
	e.size = size
	switch {
	case kind == metaBody:
		if e.body, err = a.take(c, colMeta, size); err == nil {
			c.scan.meta(&e.h, e.body)
		}
	case kind == fileBody && size > 0:
		err = a.content(c, &e)
	}
	if err == nil && form[0]&formPad != 0 {
		e.pad, err = a.take(c, colPad, int64(padding(size)))
	}
	c.entry++
	c.off = e.end()
	return e, err
}

func (a *Archive) header(c *cursor, h *header, form byte) error {
	if form&formRaw != 0 {
		b, err := a.take(c, colRaw, record)
		copy(h[:], b)
		return err
	}
	for i, f := range fields {
		n := f.to - f.from
		if f.text {
			rest := a.k.cols[i][c.at[i]:]
			n = bytes.IndexByte(rest[:min(len(rest), n+1)], 0)
			if n < 0 {
				return errSkeleton
			}
		}
		b, err := a.take(c, i, int64(n))
		if err != nil {
			return err
		}
		copy(h[f.from:f.to], b)
		if f.text {
			c.at[i]++
		}
	}
	sum := h.usualSum()
	if form&formSum != 0 {
		b, err := a.take(c, colSum, int64(len(sum)))
		if err != nil {
			return err
		}
		copy(sum[:], b)
	}
	copy(h[sumFrom:sumTo], sum[:])
	return nil
}

// content finds the content of an entry that is a file.
func (a *Archive) content(c *cursor, e *entry) (err error) {
	v, n := binary.Uvarint(a.k.cols[colFile][c.at[colFile]:])
	if n <= 0 || v > 1<<32 {
		return errSkeleton
	}
	c.at[colFile] += n
	if v == 0 {
		e.body, err = a.take(c, colInline, e.size)
		return err
	}
	e.file = c.last + 1 + unzigzag(v-1)
	if e.file < 0 || e.file >= len(a.files) || a.files[e.file].Size != e.size {
		return errSkeleton
	}
	c.last = e.file
	return nil
}

// ReadAt reads bytes of the archive. It may be called concurrently.
func (a *Archive) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("read an archive at %d", off)
	}
	n := 0
	if off < a.tail && len(p) > 0 {
		i := sort.Search(len(a.marks), func(i int) bool { return a.marks[i].off > off }) - 1
		for c := a.marks[i]; n < len(p) && c.off < a.tail; {
			e, err := a.next(&c)
			if err != nil {
				return n, err
			}
			if e.end() <= off {
				continue
			}
			k, err := a.read(&e, p[n:], off+int64(n))
			n += k
			if err != nil {
				return n, err
			}
		}
	}
	for n < len(p) && off+int64(n) < a.size {
		at := off + int64(n) - a.tail
		if left := a.k.zeros - at; left > 0 {
			k := int(min(left, int64(len(p)-n)))
			clear(p[n : n+k])
			n += k
			continue
		}
		n += copy(p[n:], a.k.cols[colEnd][at-a.k.zeros:])
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// read copies the bytes of an entry from off on.
func (a *Archive) read(e *entry, p []byte, off int64) (n int, err error) {
	at := off - e.off
	if at < record {
		n = copy(p, e.h[at:])
	}
	if at = off + int64(n) - e.off - record; n < len(p) && at < e.size {
		k := int(min(e.size-at, int64(len(p)-n)))
		if e.file < 0 {
			copy(p[n:n+k], e.body[at:])
		} else if err := a.src.ReadContent(a.files[e.file], p[n:n+k], at); err != nil {
			return n, err
		}
		n += k
	}
	if at = off + int64(n) - e.off - record - e.size; n < len(p) && at >= 0 {
		k := int(min(int64(padding(e.size))-at, int64(len(p)-n)))
		if clear(p[n : n+k]); e.pad != nil {
			copy(p[n:n+k], e.pad[at:])
		}
		n += k
	}
	return n, nil
}
