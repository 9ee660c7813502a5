package rebuild

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"

	"github.com/klauspost/compress/zstd"

	"example.org/slipway/gear"
)

// These are the columns of a skeleton: first the fields of a header, then the columns
// below.
const (
	colForm   = len(fields) + iota // a byte for each header
	colSum                         // checksums in an unusual form
	colRaw                         // headers as they are
	colMeta                        // the bodies of headers that are not files
	colPad                         // padding that is not zero
	colFile                        // contents, by their index among the files
	colInline                      // contents that are here
	colEnd                         // what follows the last entry
	columns
)

// These are bits of colForm.
const (
	formSum = 1 << iota // the checksum has an unusual form
	formRaw             // the header is in colRaw
	formPad             // the padding is in colPad
)

const (
	// maxInline is the size of the largest content that a skeleton itself holds. Such a
	// content is in the archive but not in the layer's index, because a later entry
	// replaces it.
	maxInline = 64 << 10
	// maxMeta is the maximum size of the body of a header that is not a file's.
	maxMeta = 1 << 20
	// maxSkeleton is the maximum uncompressed size of all columns.
	maxSkeleton = 256 << 20
	maxEnd      = 1 << 20
	maxEntries  = 4 << 20
)

// Skeleton is a tar archive without the contents of its files.
type Skeleton struct {
	cols    [columns][]byte
	entries int
	zeros   int64 // after the last entry, before colEnd
}

// Splitter makes the skeleton of an archive that is written to it.
type Splitter struct {
	sk    Skeleton
	files map[gear.Name]int
	// collected has the contents that were found, if they are not known beforehand.
	collect   bool
	collected []gear.File
	scan      scan
	last      int // index of the last content among the files
	err       error
	bytes     int

	state splitState
	h     header
	n     int // bytes of it
	form  byte
	size  int64 // of what follows it
	left  int64 // missing bytes of that content, or of padding
	sum   hash.Hash
	body  []byte
}

type splitState uint8

const (
	inHeader splitState = iota
	inFile
	inMeta
	inPad
	inEnd
)

// NewSplitter returns a Splitter for an archive whose contents are the given files, in
// the order of the layer's index. Opening the skeleton needs the same files.
func NewSplitter(files []gear.File) *Splitter {
	s := &Splitter{files: make(map[gear.Name]int, len(files)), scan: scan{-1}, last: -1, sum: sha256.New()}
	for i := range files {
		s.files[files[i].Name] = i
	}
	return s
}

// NewCollector returns a Splitter that considers each content one of the layer's files,
// in the order of the archive. Opening the skeleton needs the files that Files returns.
func NewCollector() *Splitter {
	s := NewSplitter(nil)
	s.collect = true
	return s
}

// Files returns the contents that a collector has found.
func (s *Splitter) Files() []gear.File { return s.collected }

// Write takes the next bytes of the archive. For an archive that has no skeleton, this
// call or Skeleton returns ErrUnsupported.
func (s *Splitter) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 && s.err == nil {
		var k int
		switch s.state {
		case inHeader:
			k = s.takeHeader(b)
		case inFile:
			k = s.takeFile(b)
		case inMeta:
			k = s.takeMeta(b)
		case inPad:
			k = s.takePad(b)
		case inEnd:
			k = len(b)
			s.takeEnd(b)
		}
		b = b[k:]
	}
	if s.err != nil {
		return n - len(b), s.err
	}
	return n, nil
}

// Skeleton returns the skeleton of everything that was written.
func (s *Splitter) Skeleton() (*Skeleton, error) {
	switch {
	case s.err != nil:
		return nil, s.err
	case s.state == inHeader:
		s.takeEnd(s.h[:s.n]) // the archive may have no end
	case s.state != inEnd:
		s.fail("it ends within an entry")
	}
	if s.err != nil {
		return nil, s.err
	}
	return &s.sk, nil
}

func (s *Splitter) fail(why string) {
	s.err = fmt.Errorf("%w: its archive has no skeleton: %s", ErrUnsupported, why)
}

func (s *Splitter) add(col int, b []byte) {
	if s.bytes += len(b); s.bytes > maxSkeleton {
		s.fail("too large")
		return
	}
	s.sk.cols[col] = append(s.sk.cols[col], b...)
}

func (s *Splitter) takeHeader(b []byte) int {
	k := copy(s.h[s.n:], b)
	if s.n += k; s.n < record {
		return k
	}
	s.n = 0
	if s.h == (header{}) || !s.h.valid() {
		s.state = inEnd
		s.takeEnd(s.h[:])
		return k
	}
	kind, size, ok := s.scan.next(&s.h)
	if !ok || s.sk.entries == maxEntries {
		s.fail("a size that cannot be, or too many entries")
		return k
	}
	s.sk.entries++
	s.addHeader()
	s.size, s.left, s.body = size, size, s.body[:0]
	switch kind {
	case noBody:
		s.addForm()
	case fileBody:
		s.state = inFile
		s.sum.Reset()
	case metaBody:
		s.state = inMeta
		if size > maxMeta {
			s.fail("an entry of an unknown type")
		}
	}
	if kind != noBody && size == 0 {
		s.state = inHeader
		s.addForm()
	}
	return k
}

// addHeader adds the header to its columns.
func (s *Splitter) addHeader() {
	s.form = 0
	if !s.h.plain() {
		s.form |= formRaw
		s.add(colRaw, s.h[:])
		return
	}
	for i, f := range fields {
		v := s.h[f.from:f.to]
		if f.text {
			n := len(v)
			for n > 0 && v[n-1] == 0 {
				n--
			}
			s.add(i, v[:n])
			v = []byte{0}
		}
		s.add(i, v)
	}
	if usual := s.h.usualSum(); [sumTo - sumFrom]byte(s.h[sumFrom:sumTo]) != usual {
		s.form |= formSum
		s.add(colSum, s.h[sumFrom:sumTo])
	}
}

func (s *Splitter) addForm() { s.add(colForm, []byte{s.form}) }

func (s *Splitter) takeFile(b []byte) int {
	b = b[:min(int64(len(b)), s.left)]
	s.sum.Write(b)
	if s.size <= maxInline {
		s.body = append(s.body, b...)
	}
	if s.left -= int64(len(b)); s.left > 0 {
		return len(b)
	}
	name := gear.Name(s.sum.Sum(nil))
	i, ok := s.files[name]
	if !ok && s.collect {
		i, ok = len(s.collected), true
		s.files[name] = i
		s.collected = append(s.collected, gear.File{Name: name, Size: s.size})
	}
	switch {
	case ok:
		// 0 means a content that is in the skeleton. Other values are differences from
		// the expected content.
		s.add(colFile, binary.AppendUvarint(nil, zigzag(i-s.last-1)+1))
		s.last = i
	case s.size <= maxInline:
		s.add(colFile, []byte{0})
		s.add(colInline, s.body)
	default:
		s.fail("a content that is not in the layer's index")
	}
	s.beginPad()
	return len(b)
}

func zigzag(n int) uint64 { return uint64(n<<1) ^ uint64(n>>63) }

func unzigzag(v uint64) int { return int(v>>1) ^ -int(v&1) }

func (s *Splitter) takeMeta(b []byte) int {
	b = b[:min(int64(len(b)), s.left)]
	s.body = append(s.body, b...)
	if s.left -= int64(len(b)); s.left == 0 {
		s.scan.meta(&s.h, s.body)
		s.add(colMeta, s.body)
		s.beginPad()
	}
	return len(b)
}

func (s *Splitter) beginPad() {
	s.body = s.body[:0]
	if s.left = int64(padding(s.size)); s.left == 0 {
		s.state = inHeader
		s.addForm()
		return
	}
	s.state = inPad
}

func (s *Splitter) takePad(b []byte) int {
	b = b[:min(int64(len(b)), s.left)]
	s.body = append(s.body, b...)
	if s.left -= int64(len(b)); s.left == 0 {
		if !allZero(s.body) {
			s.form |= formPad
			s.add(colPad, s.body)
		}
		s.state = inHeader
		s.addForm()
	}
	return len(b)
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// takeEnd takes what follows the last entry. It counts zeros and keeps what may follow
// them.
func (s *Splitter) takeEnd(b []byte) {
	if len(s.sk.cols[colEnd]) == 0 {
		n := 0
		for n < len(b) && b[n] == 0 {
			n++
		}
		s.sk.zeros += int64(n)
		b = b[n:]
	}
	if len(s.sk.cols[colEnd])+len(b) > maxEnd {
		s.fail("much behind its end, or it is no tar archive")
		return
	}
	s.add(colEnd, b)
}

// Append appends the stored form of the skeleton: docs/formats/recipe.md.
func (k *Skeleton) Append(b []byte) ([]byte, error) {
	z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBetterCompression), zstd.WithEncoderConcurrency(1), zstd.WithSingleSegment(true))
	if err != nil {
		return nil, err
	}
	b = binary.AppendUvarint(b, uint64(k.entries))
	b = binary.AppendUvarint(b, uint64(k.zeros))
	var stored [columns][]byte
	for i, c := range k.cols {
		stored[i] = c
		if f := z.EncodeAll(c, nil); len(f) < len(c) {
			stored[i] = f
		}
		b = binary.AppendUvarint(b, uint64(len(c)))
		b = binary.AppendUvarint(b, uint64(len(stored[i])))
	}
	for _, c := range stored {
		b = append(b, c...)
	}
	return b, z.Close()
}

// ParseSkeleton reads a skeleton. It returns ErrDamaged, wrapped, if b is not a skeleton.
func ParseSkeleton(b []byte) (*Skeleton, error) {
	p := &parser{b: b}
	k := &Skeleton{entries: int(p.number(maxEntries)), zeros: p.number(maxLayer)}
	var full, stored [columns]int64
	total := int64(0)
	for i := range full {
		full[i], stored[i] = p.number(maxSkeleton), p.number(maxSkeleton)
		total += full[i]
		p.bad = p.bad || stored[i] > full[i]
	}
	if p.bad || total > maxSkeleton {
		return nil, fmt.Errorf("%w: columns that are too long", ErrDamaged)
	}
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxSkeleton), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, err
	}
	defer z.Close()
	for i := range k.cols {
		c := p.take(int(stored[i]))
		if stored[i] < full[i] {
			// The memory is limited to the announced size.
			var h zstd.Header
			if err := h.Decode(c); err != nil || !h.HasFCS || h.FrameContentSize != uint64(full[i]) {
				return nil, fmt.Errorf("%w: a column that is no frame of its length", ErrDamaged)
			}
			if c, err = z.DecodeAll(c, make([]byte, 0, full[i])); err != nil || int64(len(c)) != full[i] {
				return nil, fmt.Errorf("%w: a column that does not unpack", ErrDamaged)
			}
		}
		k.cols[i] = c
	}
	if p.bad || len(p.b) > 0 {
		return nil, fmt.Errorf("%w: the skeleton is cut off, or something follows", ErrDamaged)
	}
	return k, nil
}
