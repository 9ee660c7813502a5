package deflate

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
)

// EventKind says what a [Reader] found.
type EventKind uint8

// These are the parts of a gzip stream, in order: each member has a header, blocks and a
// trailer. A tail may follow the last member.
const (
	MemberHeader EventKind = iota
	BlockData
	MemberTrailer
	Tail
)

// Event is one part of a stream.
type Event struct {
	Kind EventKind
	// Bit is where the part begins in the stream, and Plain where its plain bytes begin.
	Bit, Plain int64
	// Raw has the bytes of a MemberHeader or Tail.
	Raw []byte
	// Block is the block of BlockData. It belongs to the event.
	Block Block
	// These fields are set for a MemberTrailer: the bits up to the next byte, and what
	// the trailer says about the plain bytes.
	Pad       byte
	CRC, Size uint32
}

// Reader splits a stream of gzip members into its parts. It needs memory for one block
// and its input's buffer.
type Reader struct {
	src  io.Reader
	in   []byte // in[pos:end] was read and is not yet in acc
	pos  int
	end  int
	base int64 // position of in[0] in the stream
	eof  bool
	err  error
	acc  uint64 // the next n bits; the bits above them are equal to the bits that follow
	n    uint

	// Out is the slice to which plain bytes are appended. The caller may remove bytes
	// from its front with Drop.
	Out    []byte
	plain  int64 // bytes appended so far
	member int   // where the member begins in Out; negative once that was dropped
	state  EventKind
	begun  bool
	done   bool

	lit, dist decoder
}

// NewReader reads from src.
func NewReader(src io.Reader) *Reader {
	return &Reader{src: src, in: make([]byte, 64<<10)}
}

// Drop removes n bytes from the front of Out. The last 32 KiB must stay.
func (r *Reader) Drop(n int) {
	r.Out = r.Out[:copy(r.Out, r.Out[n:])]
	r.member -= n
}

// Next returns the next part of the stream, or io.EOF at its end. Errors: ErrFormat,
// ErrUnsupported, and errors of the source.
func (r *Reader) Next() (*Event, error) {
	e := &Event{Bit: r.bit(), Plain: r.plain}
	err := r.next(e)
	switch {
	case err == nil || err == io.EOF:
	case r.err != nil:
		err = r.err
	default:
		err = fmt.Errorf("%w (at byte %d)", err, r.bit()/8)
	}
	return e, err
}

func (r *Reader) next(e *Event) error {
	switch {
	case r.done:
		return io.EOF
	case !r.begun, r.state == MemberTrailer:
		return r.head(e)
	case r.state == MemberHeader:
		return r.block(e)
	}
	return r.trailer(e)
}

// bit returns how many bits were taken.
func (r *Reader) bit() int64 { return (r.base+int64(r.pos))*8 - int64(r.n) }

// more reads until 8 bytes are available, or until the end. It keeps the bytes that acc
// holds.
func (r *Reader) more() {
	if r.end-r.pos >= 8 || r.eof {
		return
	}
	keep := r.pos - int(r.n+7)/8
	r.end = copy(r.in, r.in[keep:r.end])
	r.base += int64(keep)
	r.pos -= keep
	for r.end-r.pos < 8 {
		n, err := r.src.Read(r.in[r.end:])
		r.end += n
		if err != nil {
			r.eof = true
			if err != io.EOF {
				r.err = err
			}
			return
		}
	}
}

func (r *Reader) refill() {
	if r.end-r.pos < 8 {
		r.more()
	}
	if r.end-r.pos >= 8 {
		r.acc |= binary.LittleEndian.Uint64(r.in[r.pos:]) << r.n
		k := (63 - r.n) >> 3
		r.pos += int(k)
		r.n += k << 3
		return
	}
	for r.n <= 55 && r.pos < r.end {
		r.acc |= uint64(r.in[r.pos]) << r.n
		r.pos++
		r.n += 8
	}
}

// take returns k bits, at most 32.
func (r *Reader) take(k uint) (uint32, error) {
	if r.n < k {
		r.refill()
		if r.n < k {
			return 0, ErrFormat
		}
	}
	v := uint32(r.acc & (1<<k - 1))
	r.acc >>= k
	r.n -= k
	return v, nil
}

// raw appends n bytes to dst. The position must be at the boundary of a byte.
func (r *Reader) raw(dst []byte, n int) ([]byte, error) {
	for range n {
		v, err := r.take(8)
		if err != nil {
			return dst, err
		}
		dst = append(dst, byte(v))
	}
	return dst, nil
}

// head reads the header of a member, or finds that there is none.
func (r *Reader) head(e *Event) error {
	r.refill()
	if r.n == 0 {
		r.done = true
		if !r.begun {
			return ErrFormat
		}
		if r.err != nil {
			return r.err
		}
		return io.EOF
	}
	if r.n < 24 || r.acc&0xffffff != 0x088b1f {
		return r.tail(e)
	}
	e.Kind = MemberHeader
	b, err := r.raw(nil, 10)
	if err != nil {
		return err
	}
	flags := b[3]
	if flags&4 != 0 { // an extra field
		if b, err = r.raw(b, 2); err == nil {
			b, err = r.raw(b, int(binary.LittleEndian.Uint16(b[10:])))
		}
	}
	for _, f := range []byte{8, 16} { // name and comment
		for done := flags&f == 0; err == nil && !done; {
			if len(b) > MaxHeader {
				return ErrUnsupported
			}
			b, err = r.raw(b, 1)
			done = err == nil && b[len(b)-1] == 0
		}
	}
	if err == nil && flags&2 != 0 {
		b, err = r.raw(b, 2)
	}
	e.Raw, r.state, r.begun, r.member = b, MemberHeader, true, len(r.Out)
	return err
}

func (r *Reader) tail(e *Event) error {
	if !r.begun {
		return ErrFormat
	}
	e.Kind, r.done = Tail, true
	for {
		v, err := r.take(8)
		if err != nil {
			return r.err
		}
		if e.Raw = append(e.Raw, byte(v)); len(e.Raw) > MaxHeader {
			return ErrUnsupported
		}
	}
}

func (r *Reader) trailer(e *Event) error {
	e.Kind, r.state = MemberTrailer, MemberTrailer
	pad, err := r.take(uint(-r.bit() & 7))
	if err != nil {
		return err
	}
	b, err := r.raw(nil, 8)
	if err != nil {
		return err
	}
	e.Pad, e.CRC, e.Size = byte(pad), binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
	return nil
}

func (r *Reader) block(e *Event) error {
	e.Kind = BlockData
	b, from := &e.Block, len(r.Out)
	h, err := r.take(3)
	if err != nil {
		return err
	}
	b.Final, b.Kind = h&1 == 1, Kind(h>>1)
	switch b.Kind {
	case Stored:
		err = r.stored(b)
	case Fixed:
		_ = r.lit.build(fixedLit.L[:fixedLit.N])
		_ = r.dist.build(fixedDist.L[:fixedDist.N])
		err = r.tokens(b)
	case Dynamic:
		if err = r.header(b); err == nil {
			err = r.tokens(b)
		}
	default:
		err = ErrFormat
	}
	b.Plain = len(r.Out) - from
	r.plain += int64(b.Plain)
	if b.Final {
		r.state = BlockData
	}
	return err
}

func (r *Reader) stored(b *Block) error {
	pad, err := r.take(uint(-r.bit() & 7))
	if err != nil {
		return err
	}
	v, err := r.take(32)
	if err != nil || v>>16 != ^v&0xffff {
		return ErrFormat
	}
	b.Pad = byte(pad)
	r.pos -= int(r.n / 8)
	r.acc, r.n = 0, 0
	for left := int(v & 0xffff); left > 0; {
		r.more()
		k := min(left, r.end-r.pos)
		if k == 0 {
			return ErrFormat
		}
		r.Out = append(r.Out, r.in[r.pos:r.pos+k]...)
		r.pos += k
		left -= k
	}
	return nil
}

func (r *Reader) header(b *Block) error {
	h := new(Header)
	b.Header = h
	v, err := r.keep(h, 14)
	if err != nil {
		return err
	}
	h.Lit.N, h.Dist.N = int(v&31)+257, int(v>>5&31)+1
	if h.Lit.N > 286 || h.Dist.N > 30 {
		return ErrFormat
	}
	var cl [19]uint8
	for i := range v>>10 + 4 {
		v, err := r.keep(h, 3)
		if err != nil {
			return err
		}
		cl[clOrder[i]] = uint8(v)
	}
	if err := r.lit.build(cl[:]); err != nil {
		return err
	}
	var all [320]uint8
	for i := 0; i < h.Lit.N+h.Dist.N; {
		n, val, err := r.lengthRun(h, all[:i])
		if err != nil || i+n > h.Lit.N+h.Dist.N {
			return ErrFormat
		}
		for ; n > 0; n-- {
			all[i] = val
			i++
		}
	}
	copy(h.Lit.L[:], all[:h.Lit.N])
	copy(h.Dist.L[:], all[h.Lit.N:h.Lit.N+h.Dist.N])
	if err := r.lit.build(all[:h.Lit.N]); err != nil {
		return err
	}
	return r.dist.build(all[h.Lit.N : h.Lit.N+h.Dist.N])
}

// lengthRun reads one symbol of the code of code lengths, which means n times val.
func (r *Reader) lengthRun(h *Header, before []uint8) (n int, val uint8, err error) {
	r.refill()
	s, k := r.lit.symbol(r.acc)
	if k == 0 {
		return 0, 0, ErrFormat
	}
	if _, err := r.keep(h, k); err != nil {
		return 0, 0, err
	}
	var v uint32
	switch {
	case s < 16:
		return 1, uint8(s), nil
	case s == 16:
		if len(before) == 0 {
			return 0, 0, ErrFormat
		}
		v, err = r.keep(h, 2)
		return int(v) + 3, before[len(before)-1], err
	case s == 17:
		v, err = r.keep(h, 3)
		return int(v) + 3, 0, err
	}
	v, err = r.keep(h, 7)
	return int(v) + 11, 0, err
}

// keep takes k bits and appends them to the bits of the header.
func (r *Reader) keep(h *Header, k uint) (uint32, error) {
	v, err := r.take(k)
	if err != nil {
		return 0, err
	}
	for i := range k {
		if h.N&7 == 0 {
			h.Bits = append(h.Bits, 0)
		}
		h.Bits[h.N>>3] |= byte(v>>i&1) << (h.N & 7)
		h.N++
	}
	return v, nil
}

// ParseHeader reads the bits of a header as [Header] keeps them.
func ParseHeader(kept []byte, n int) (*Header, error) {
	r := &Reader{src: bytes.NewReader(kept), in: make([]byte, 64)}
	var b Block
	if err := r.header(&b); err != nil {
		return nil, err
	}
	if b.Header.N != n {
		return nil, ErrFormat
	}
	return b.Header, nil
}

// tokens reads the part of a block that follows its header.
func (r *Reader) tokens(b *Block) error {
	out, toks := r.Out, make([]Token, 0, 16<<10)
	limit := len(out) + MaxPlain
	acc, n := r.acc, r.n
	defer func() { r.acc, r.n, r.Out, b.Tokens = acc, n, out, toks }()
	for {
		if n < 48 {
			r.acc, r.n = acc, n
			r.refill()
			acc, n = r.acc, r.n
		}
		s, k := r.lit.symbol(acc)
		if k == 0 || k > n {
			return ErrFormat
		}
		acc >>= k
		n -= k
		switch {
		case s < 256:
			if len(toks) == MaxTokens {
				return ErrUnsupported
			}
			out, toks = append(out, byte(s)), append(toks, 0)
			continue
		case s == 256:
			return nil
		case s > 285:
			return ErrFormat
		}
		x := uint(sym.lenExtra[s-257])
		length := int(sym.lenBase[s-257]) + int(acc&(1<<x-1))
		if s == 284 && length == maxMatch {
			return ErrUnsupported // the greatest length has its own symbol
		}
		acc >>= x
		s, k = r.dist.symbol(acc)
		if k == 0 || s > 29 {
			return ErrFormat
		}
		acc >>= k
		y := uint(sym.disExtra[s])
		dist := int(sym.disBase[s]) + int(acc&(1<<y-1))
		acc >>= y
		if x+k+y > n || dist > len(out)-r.member {
			return ErrFormat
		}
		n -= x + k + y
		if len(toks) == MaxTokens || len(out)+length > limit {
			return ErrUnsupported
		}
		out, toks = appendMatch(out, length, dist), append(toks, Match(length, dist))
	}
}

// appendMatch copies bytes that are dist bytes back. The copy may overlap its source.
func appendMatch(out []byte, length, dist int) []byte {
	from := len(out) - dist
	for length > dist {
		out = append(out, out[from:from+dist]...)
		length -= dist
		from += dist
	}
	return append(out, out[from:from+length]...)
}

// fastBits is the length of the longest codes that are found in one step.
const fastBits = 10

// decoder finds symbols.
type decoder struct {
	fast   [1 << fastBits]uint16 // symbol << 4 | length; 0: none, or a longer code
	count  [16]uint16            // of codes by length
	sorted [320]uint16           // symbols by code
}

func (d *decoder) build(lengths []uint8) error {
	first, err := firstCodes(lengths)
	if err != nil {
		return err
	}
	clear(d.fast[:])
	clear(d.count[:])
	for _, n := range lengths {
		d.count[n]++
	}
	d.count[0] = 0
	var at [16]uint16
	for n := 1; n < 16; n++ {
		at[n] = at[n-1] + d.count[n-1]
	}
	for s, n := range lengths {
		if n == 0 {
			continue
		}
		d.sorted[at[n]] = uint16(s)
		at[n]++
		if n <= fastBits {
			for c := int(reverse(first[n], n)); c < 1<<fastBits; c += 1 << n {
				d.fast[c] = uint16(s)<<4 | uint16(n)
			}
		}
		first[n]++
	}
	return nil
}

// symbol returns the symbol whose code comes first in acc, and the length of the code. A
// length of 0 means that there is none.
func (d *decoder) symbol(acc uint64) (s int, n uint) {
	if e := d.fast[acc&(1<<fastBits-1)]; e != 0 {
		return int(e >> 4), uint(e & 15)
	}
	return d.slow(acc)
}

func (d *decoder) slow(acc uint64) (s int, n uint) {
	code, first, at := 0, 0, 0
	for n := 1; n < 16; n++ {
		code |= int(acc & 1)
		acc >>= 1
		count := int(d.count[n])
		if code-first < count {
			return int(d.sorted[at+code-first]), uint(n)
		}
		at += count
		first = (first + count) << 1
		code <<= 1
	}
	return 0, 0
}
