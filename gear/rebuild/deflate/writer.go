package deflate

import "encoding/binary"

// Writer writes the parts of a stream. Its output may begin at any bit of a byte.
type Writer struct {
	buf   []byte
	acc   uint64
	n     uint
	lit   [288]uint32 // code << 4 | length
	dist  [32]uint32
	match [maxMatch + 1]uint64 // code and extra bits of a length << 8 | number of bits
}

// Reset begins anew at the given bit of a byte, whose lower bits will be 0. It reuses the
// buffer of earlier output.
func (w *Writer) Reset(bit uint) { w.buf, w.acc, w.n = w.buf[:0], 0, bit }

// Bits returns the number of bits, including the skipped bits of the first byte.
func (w *Writer) Bits() int64 { return int64(len(w.buf))*8 + int64(w.n) }

// Bytes returns everything that was written. In the last byte, the bits behind the end
// are 0. The result is valid until the next call of Reset, and nothing may be written
// before that.
func (w *Writer) Bytes() []byte {
	if w.n > 0 {
		w.buf = append(w.buf, byte(w.acc))
		w.acc, w.n = 0, 0
	}
	return w.buf
}

func (w *Writer) put(v uint64, k uint) {
	w.acc |= v << w.n
	for w.n += k; w.n >= 8; w.n -= 8 {
		w.buf = append(w.buf, byte(w.acc))
		w.acc >>= 8
	}
}

// Raw writes bytes.
func (w *Writer) Raw(b []byte) {
	for _, c := range b {
		w.put(uint64(c), 8)
	}
}

// Pad fills the last byte with the given bits.
func (w *Writer) Pad(bits byte) {
	k := -w.n & 7
	w.put(uint64(bits)&(1<<k-1), k)
}

// Begin writes the beginning of a block, which is the same for all kinds.
func (w *Writer) Begin(k Kind, final bool) {
	v := uint64(k) << 1
	if final {
		v |= 1
	}
	w.put(v, 3)
}

// Stored writes the rest of a stored block.
func (w *Writer) Stored(plain []byte, pad byte) {
	w.Pad(pad)
	w.buf = binary.LittleEndian.AppendUint16(w.buf, uint16(len(plain)))
	w.buf = binary.LittleEndian.AppendUint16(w.buf, ^uint16(len(plain)))
	w.buf = append(w.buf, plain...)
}

// Kept writes the kept bits of a header.
func (w *Writer) Kept(b []byte, n int) {
	for ; n >= 8; n -= 8 {
		w.put(uint64(b[0]), 8)
		b = b[1:]
	}
	if n > 0 {
		w.put(uint64(b[0])&(1<<n-1), uint(n))
	}
}

// Header writes the header of a code that was built.
func (w *Writer) Header(c *Codes) {
	n := 19
	for n > 4 && c.meta[clOrder[n-1]] == 0 {
		n--
	}
	w.put(uint64(c.Lit.N-257)|uint64(c.Dist.N-1)<<5|uint64(n-4)<<10, 14)
	for _, s := range clOrder[:n] {
		w.put(uint64(c.meta[s]), 3)
	}
	var codes [19]uint32
	assign(c.meta[:], codes[:])
	for _, r := range c.runs {
		w.put(uint64(codes[r.sym]>>4), uint(codes[r.sym]&15))
		switch r.sym {
		case 16:
			w.put(uint64(r.extra), 2)
		case 17:
			w.put(uint64(r.extra), 3)
		case 18:
			w.put(uint64(r.extra), 7)
		}
	}
}

// Tokens writes the tokens of plain and the end of their block. If the lengths are nil,
// it uses the fixed code.
func (w *Writer) Tokens(toks []Token, plain []byte, lit, dist *Lengths) {
	if lit == nil {
		lit, dist = fixedLit, fixedDist
	}
	assign(lit.L[:288], w.lit[:])
	assign(dist.L[:30], w.dist[:30])
	for l := 3; l <= maxMatch; l++ {
		s := sym.lenOf[l]
		c := w.lit[257+int(s)]
		v := uint64(c>>4) | uint64(l-int(sym.lenBase[s]))<<(c&15)
		w.match[l] = v<<8 | uint64(c&15) + uint64(sym.lenExtra[s])
	}
	w.tokens(toks, plain)
	w.put(uint64(w.lit[256]>>4), uint(w.lit[256]&15))
}

func (w *Writer) tokens(toks []Token, plain []byte) {
	// A token has at most 48 bits, and the loop writes words of 8 bytes.
	if need := len(w.buf) + 6*len(toks) + 16; cap(w.buf) < need {
		grown := make([]byte, len(w.buf), need+need/4)
		copy(grown, w.buf)
		w.buf = grown
	}
	at, acc, n := len(w.buf), w.acc, w.n
	buf := w.buf[:cap(w.buf)]
	i := 0
	for _, t := range toks {
		if t == 0 {
			c := w.lit[plain[i]]
			acc |= uint64(c>>4) << n
			n += uint(c & 15)
			i++
		} else {
			l, d := int(t>>16), int(t&0xffff)
			i += l
			c := w.match[l]
			acc |= c >> 8 << n
			n += uint(c & 0xff)
			s := sym.disOf[disSlot(d)] & 31
			e := w.dist[s]
			acc |= (uint64(e>>4) | uint64(d-int(sym.disBase[s]))<<(e&15)) << n
			n += uint(e&15) + uint(sym.disExtra[s])
		}
		if n >= 16 { // otherwise the next token's 48 bits fit above these
			binary.LittleEndian.PutUint64(buf[at:], acc)
			at += int(n >> 3)
			acc >>= n &^ 7
			n &= 7
		}
	}
	w.buf, w.acc, w.n = buf[:at], acc, n
}

// assign sets for each symbol its reversed code << 4 | its length.
func assign(lengths []uint8, codes []uint32) {
	first, _ := firstCodes(lengths)
	for s, n := range lengths {
		codes[s] = 0
		if n != 0 {
			codes[s] = uint32(reverse(first[n], n))<<4 | uint32(n)
			first[n]++
		}
	}
}
