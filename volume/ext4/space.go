package ext4

import "math/bits"

// run is a run of adjacent blocks.
type run struct{ block, n uint32 }

// join appends runs. It merges runs that touch.
func join(a, b []run) []run {
	for _, r := range b {
		if k := len(a) - 1; k >= 0 && a[k].block+a[k].n == r.block {
			a[k].n += r.n
			continue
		}
		a = append(a, r)
	}
	return a
}

func blocksOf(runs []run) int64 {
	n := int64(0)
	for _, r := range runs {
		n += int64(r.n)
	}
	return n
}

// space records which blocks are in use, and allocates new ones, always after all blocks
// that were ever used.
type space struct {
	next    int64 // the first block never used
	aligned bool  // whether blocks were handed out since fresh
	// groups holds the bitmaps of groups of blocks in which a block was ever used. Each
	// block is a bit, as on disk.
	groups map[int64]*bitmap
}

type bitmap struct {
	bits [blockSize]byte
	used int
}

func newSpace() space { return space{groups: map[int64]*bitmap{}, next: metaEnd(0)} }

// fresh makes the next blocks begin at a boundary of objects.
func (s *space) fresh() { s.aligned = false }

// alloc allocates n blocks. It does not check the size of the device. The end of the step
// finds out whether the largest device is exceeded.
func (s *space) alloc(n int64) []run {
	var out []run
	for n > 0 {
		if !s.aligned {
			s.next, s.aligned = roundUp(s.next, objectBlocks), true
		}
		flex := s.next / flexBlocks
		if s.next < metaEnd(flex) {
			s.next = roundUp(metaEnd(flex), objectBlocks)
		}
		take := min(n, (flex+1)*flexBlocks-s.next)
		if s.next+take <= maxBlocks {
			r := run{uint32(s.next), uint32(take)}
			s.mark(r, true)
			out = append(out, r)
		}
		s.next += take
		n -= take
	}
	return out
}

// mark marks blocks as used or free.
func (s *space) mark(r run, used bool) {
	for b, end := int64(r.block), int64(r.block)+int64(r.n); b < end; {
		next := min(end, (b/groupBlocks+1)*groupBlocks)
		from := int(b % groupBlocks)
		s.group(b/groupBlocks).set(from, from+int(next-b), used)
		b = next
	}
}

// group returns the bitmap of a group. In a new one, the file system's own blocks are
// marked as used.
func (s *space) group(g int64) *bitmap {
	bm := s.groups[g]
	if bm != nil {
		return bm
	}
	bm = &bitmap{}
	s.groups[g] = bm
	if g%flexGroups == 0 {
		flex := g / flexGroups
		bm.set(int(metaStart(flex)%groupBlocks), int(metaEnd(flex)%groupBlocks), true)
	}
	return bm
}

// set marks the blocks from one up to, but not including, another as used or free.
func (m *bitmap) set(from, to int, used bool) {
	for from < to {
		n := min(to-from, 8-from%8)
		mask := byte(1<<n-1) << (from % 8)
		b := &m.bits[from/8]
		m.used -= bits.OnesCount8(*b & mask)
		if *b &^= mask; used {
			*b |= mask
			m.used += n
		}
		from += n
	}
}

func roundUp(n, to int64) int64 { return (n + to - 1) / to * to }
