package rebuild

import "math/bits"

// chance is the adaptive probability of a 0, in units of 1/65,536.
type chance uint16

const (
	even = 1 << 15
	// adapt is the rate of adaptation: each bit moves a chance by 1/32 of its error.
	adapt = 5
)

func newChances(n int) []chance {
	p := make([]chance, n)
	for i := range p {
		p[i] = even
	}
	return p
}

func (p *chance) saw(b int) {
	if b == 0 {
		*p += (1<<16 - 1 - *p) >> adapt
	} else {
		*p -= *p >> adapt
	}
}

// split divides the interval of a coder. The bit 0 gets the part up to the result.
func (p chance) split(low, high uint32) uint32 {
	return low + uint32(uint64(high-low)*uint64(p)>>16)
}

// encoder is a binary arithmetic coder. Its state is an interval of 32-bit numbers, which
// becomes narrower with each bit. Once the leading bytes of both ends are equal, they are
// written.
type encoder struct {
	out       []byte
	low, high uint32
}

func newEncoder() *encoder { return &encoder{high: 1<<32 - 1} }

func (e *encoder) narrow(mid uint32, b int) {
	if b == 0 {
		e.high = mid
	} else {
		e.low = mid + 1
	}
	for (e.low^e.high)>>24 == 0 {
		e.out = append(e.out, byte(e.high>>24))
		e.low <<= 8
		e.high = e.high<<8 | 255
	}
}

func (e *encoder) bit(p *chance, b int) {
	e.narrow(p.split(e.low, e.high), b)
	p.saw(b)
}

func (e *encoder) flag(p *chance, b bool) {
	if b {
		e.bit(p, 1)
	} else {
		e.bit(p, 0)
	}
}

// plain codes the low n bits of v. Each bit is equally likely to be 0 or 1.
func (e *encoder) plain(v uint32, n int) {
	for n--; n >= 0; n-- {
		e.narrow(chance(even).split(e.low, e.high), int(v>>n&1))
	}
}

func (e *encoder) bytes(b []byte) {
	for _, c := range b {
		e.plain(uint32(c), 8)
	}
}

// finish returns what was written. It ends with the shortest number of the interval,
// because a decoder reads zeros behind it.
func (e *encoder) finish() []byte {
	for shift := 32; ; shift -= 8 {
		unit := uint64(1) << shift
		if v := (uint64(e.low) + unit - 1) &^ (unit - 1); v <= uint64(e.high) {
			for at := 24; at >= shift; at -= 8 {
				e.out = append(e.out, byte(v>>at))
			}
			return e.out
		}
	}
}

// decoder reads the output of an encoder. It reads zeros behind the end of its input, and
// over counts them.
type decoder struct {
	in        []byte
	over      int
	low, high uint32
	code      uint32
}

func newDecoder(in []byte) *decoder {
	d := &decoder{in: in, high: 1<<32 - 1}
	for range 4 {
		d.next()
	}
	d.over = 0
	return d
}

func (d *decoder) next() {
	var b byte
	if len(d.in) > 0 {
		b, d.in = d.in[0], d.in[1:]
	} else {
		d.over++
	}
	d.code = d.code<<8 | uint32(b)
}

func (d *decoder) narrow(mid uint32) (b int) {
	if d.code <= mid {
		d.high = mid
	} else {
		d.low, b = mid+1, 1
	}
	for (d.low^d.high)>>24 == 0 {
		d.low <<= 8
		d.high = d.high<<8 | 255
		d.next()
	}
	return b
}

func (d *decoder) bit(p *chance) int {
	b := d.narrow(p.split(d.low, d.high))
	p.saw(b)
	return b
}

func (d *decoder) flag(p *chance) bool { return d.bit(p) == 1 }

func (d *decoder) plain(n int) (v uint32) {
	for range n {
		v = v<<1 | uint32(d.narrow(chance(even).split(d.low, d.high)))
	}
	return v
}

func (d *decoder) bytes(n int) []byte {
	b := make([]byte, 0, min(n, 4<<10))
	for range n {
		if d.over > maxOver {
			return b
		}
		b = append(b, byte(d.plain(8)))
	}
	return b
}

// maxOver is more than a decoder reads beyond the end of a valid input. It reads four
// bytes ahead.
const maxOver = 8

// symbols codes numbers below a power of two. Each number has a separate chance.
type symbols []chance

func newSymbols(bits int) symbols { return newChances(1 << bits) }

func (s symbols) put(e *encoder, v int) {
	at := 1
	for i := len(s) >> 1; i > 0; i >>= 1 {
		b := 0
		if v&i != 0 {
			b = 1
		}
		e.bit(&s[at], b)
		at = at<<1 | b
	}
}

func (s symbols) get(d *decoder) int {
	at := 1
	for at < len(s) {
		at = at<<1 | d.bit(&s[at])
	}
	return at - len(s)
}

// number codes numbers below maxNumber. Their number of bits has a chance, and so have
// the two bits behind the first.
type number struct {
	size []chance
	high [33][4]chance
	last uint32
	same chance // that the number is the same as the last time
}

func newNumber() *number {
	n := &number{size: newChances(33), same: even}
	for i := range n.high {
		copy(n.high[i][:], newChances(4))
	}
	return n
}

func (n *number) put(e *encoder, v uint32) {
	e.flag(&n.same, v == n.last)
	if v == n.last {
		return
	}
	n.last = v
	v++
	size := bits.Len32(v) - 1
	for i := range size {
		e.bit(&n.size[i], 1)
	}
	e.bit(&n.size[size], 0)
	at := 1
	for i := size - 1; i >= 0; i-- {
		if at > 3 {
			e.plain(v, i+1)
			return
		}
		b := int(v >> i & 1)
		e.bit(&n.high[size][at&3], b)
		at = at<<1 | b
	}
}

func (n *number) get(d *decoder) uint32 {
	if d.flag(&n.same) {
		return n.last
	}
	size := 0
	for size < 31 && d.bit(&n.size[size]) == 1 {
		size++
	}
	v := uint32(1)
	at := 1
	for i := size - 1; i >= 0; i-- {
		if at > 3 {
			v = v<<(i+1) | d.plain(i+1)
			break
		}
		b := d.bit(&n.high[size][at&3])
		v = v<<1 | uint32(b)
		at = at<<1 | b
	}
	n.last = v - 1
	return n.last
}
