package cache

import (
	"encoding/binary"
	"math"
	"sync"
	"sync/atomic"
)

const (
	// maxBlock bounds the bytes of a block of several records.
	maxBlock = 32 << 10
	// blockBytes is what a block costs in addition to its records.
	blockBytes = 320
	// indexBytes is what a record costs in the index: 20 bytes if the index is as full as
	// it may be, 40 if it has just grown.
	indexBytes = 34
	// maxSpared bounds the blocks whose hot records one put carries over, and so how long
	// the put holds the lock. Copying 256 KiB takes some 50 µs.
	maxSpared = 8
)

// shard is a part of the table with a separate lock.
type shard struct {
	mu sync.RWMutex
	// index finds a record by the hash of its key. The key is hashed once to find both
	// shard and record. Two keys with the same hash displace each other. A shard of
	// 100,000 records sees that once in 10^9 look-ups.
	index map[uint64]place
	// blocks are the blocks by slot. Slots that are in free have nil.
	blocks []*block
	free   []uint32
	// oldest is the block to be evicted next. filling is the block of several records
	// that has room for more, or nil.
	oldest, newest, filling *block
	// bytes is how many bytes are held, limit is their maximum, and blockSize is the size
	// of a block.
	bytes, limit int64
	blockSize    int
}

// place is the position of a record: the slot of its block and the offset in the block.
type place struct{ block, off uint32 }

// block holds records, one after the other. A byte that was written never changes, and
// the table does not use its memory again, so readers may hold on to values without a
// lock. The bytes of a dropped record are freed with the whole block. That happens when
// the block holds no other record, or is the oldest.
type block struct {
	buf          []byte
	slot         uint32
	live         int // records that the index knows
	older, newer *block
	// asked has a bit for each record that was requested since it was written. The bit's
	// position is the record's offset divided by the least size of a record.
	asked [maxBlock / minRecord / 32]atomic.Uint32
}

func askedBit(off uint32) (word, bit uint32) {
	i := off / minRecord
	return i / 32, 1 << (i % 32)
}

func (b *block) markAsked(off uint32) {
	word, bit := askedBit(off)
	if b.asked[word].Load()&bit == 0 { // storing on every hit would bounce the cache line
		b.asked[word].Or(bit)
	}
}

func (b *block) wasAsked(off uint32) bool {
	word, bit := askedBit(off)
	return b.asked[word].Load()&bit != 0
}

// cost returns what the block takes in memory.
func (b *block) cost() int64 { return int64(cap(b.buf)) + blockBytes }

func (s *shard) init(limit int64) {
	s.index = map[uint64]place{}
	s.limit = limit
	s.blockSize = int(max(0, min(maxBlock, limit/8)))
}

// find returns a key's record and its place, or nil. mu is held.
func (s *shard) find(k *Key, h uint64) (place, record) {
	p, ok := s.index[h]
	if !ok {
		return p, nil
	}
	r := s.record(p)
	if !r.is(k) {
		return p, nil
	}
	return p, r
}

// record returns the record at a place, and what follows it in the block.
func (s *shard) record(p place) record { return record(s.blocks[p.block].buf[p.off:]) }

// put adds a record and returns how many records it evicted. mu is held.
func (s *shard) put(k *Key, h uint64, value [][]byte) (evicted int64) {
	size := headerBytes + len(k.Repo) + len(k.Ref)
	for _, piece := range value {
		size += len(piece)
	}
	if int64(size)+blockBytes+indexBytes > s.limit/4 || int64(size) > math.MaxUint32 ||
		len(k.Repo) > math.MaxUint16 || len(k.Ref) > math.MaxUint16 {
		return 0
	}
	if p, ok := s.index[h]; ok { // the same key, or another key with the same hash
		s.remove(p, h)
	}
	for spared := 0; s.bytes+s.growth(size) > s.limit && s.oldest != nil; spared++ {
		evicted += s.evict(spared < maxSpared)
	}
	b := s.room(size)
	s.enter(b, h)
	b.buf = appendRecord(b.buf, k, h, value)
	return evicted
}

// alone reports whether a record gets a separate block, because it would waste much of a
// block of several records.
func (s *shard) alone(size int) bool { return size > s.blockSize/4 }

// fits reports whether a record can be added to the block that is being filled.
func (s *shard) fits(size int) bool {
	b := s.filling
	return b != nil && !s.alone(size) && size <= cap(b.buf)-len(b.buf)
}

// growth returns by how much bytes grows with a record of the given size.
func (s *shard) growth(size int) int64 {
	switch {
	case s.fits(size):
		return indexBytes
	case s.alone(size):
		return indexBytes + blockBytes + int64(size)
	}
	return indexBytes + blockBytes + int64(s.blockSize)
}

// room returns a block with room for a record.
func (s *shard) room(size int) *block {
	switch {
	case s.fits(size):
		return s.filling
	case s.alone(size):
		return s.add(size)
	}
	if b := s.filling; b != nil && b.live == 0 {
		s.release(b)
	}
	s.filling = s.add(s.blockSize)
	return s.filling
}

// add makes a block of the given size.
func (s *shard) add(size int) *block {
	b := &block{buf: make([]byte, 0, size), older: s.newest}
	if n := len(s.free); n > 0 {
		b.slot = s.free[n-1]
		s.free = s.free[:n-1]
		s.blocks[b.slot] = b
	} else {
		b.slot = uint32(len(s.blocks))
		s.blocks = append(s.blocks, b)
	}
	if s.newest != nil {
		s.newest.newer = b
	} else {
		s.oldest = b
	}
	s.newest = b
	s.bytes += b.cost()
	return b
}

// enter adds a record to the index. The record is about to be appended to the block.
func (s *shard) enter(b *block, h uint64) {
	s.index[h] = place{b.slot, uint32(len(b.buf))}
	b.live++
	s.bytes += indexBytes
}

// clear removes everything. mu is held.
func (s *shard) clear() {
	s.init(s.limit)
	s.blocks, s.free = nil, nil
	s.oldest, s.newest, s.filling = nil, nil, nil
	s.bytes = 0
}

// drop removes a key. mu is held.
func (s *shard) drop(k *Key, h uint64) {
	if p, r := s.find(k, h); r != nil {
		s.remove(p, h)
	}
}

// remove forgets a record. If it was the last one of its block, remove also drops the
// block, unless the block has room for more.
func (s *shard) remove(p place, h uint64) {
	b := s.blocks[p.block]
	s.forget(b, h)
	if b.live == 0 && b != s.filling {
		s.release(b)
	}
}

func (s *shard) forget(b *block, h uint64) {
	delete(s.index, h)
	b.live--
	s.bytes -= indexBytes
}

// release frees a block and its slot.
func (s *shard) release(b *block) {
	s.unlink(b)
	s.freeSlot(b)
}

// unlink removes a block from the eviction order and from the count of bytes held. The
// block's memory is free when no reader holds a part of it.
func (s *shard) unlink(b *block) {
	if b.older != nil {
		b.older.newer = b.newer
	} else {
		s.oldest = b.newer
	}
	if b.newer != nil {
		b.newer.older = b.older
	} else {
		s.newest = b.older
	}
	if s.filling == b {
		s.filling = nil
	}
	s.bytes -= b.cost()
}

func (s *shard) freeSlot(b *block) {
	s.blocks[b.slot] = nil
	s.free = append(s.free, b.slot)
}

// evict gives up the oldest block. If spare is set, the records that were requested move
// to a newer block, as if they had just been put. evict returns how many records did not
// move.
func (s *shard) evict(spare bool) (evicted int64) {
	b := s.oldest
	s.unlink(b)
	for off := uint32(0); int(off) < len(b.buf); {
		r := record(b.buf[off:])
		r = r[:r.size()]
		h := r.hash()
		if p, ok := s.index[h]; ok && p == (place{b.slot, off}) {
			s.forget(b, h)
			if spare && b.wasAsked(off) {
				to := s.room(len(r))
				s.enter(to, h)
				to.buf = append(to.buf, r...)
			} else {
				evicted++
			}
		}
		off += uint32(len(r))
	}
	s.freeSlot(b)
	return evicted
}

// record is a key and its value as bytes. It begins with
//
//	hash of the key   8 bytes, little endian as all
//	size of the value 4
//	size of Repo      2
//	size of Ref       2
//	Kind              1
//
// Then come Repo, Ref and the value. What follows them is not part of the record.
type record []byte

const (
	headerBytes = 17
	// minRecord is the least size of a record. It is a power of two.
	minRecord = 16
)

func appendRecord(b []byte, k *Key, h uint64, value [][]byte) []byte {
	size := 0
	for _, piece := range value {
		size += len(piece)
	}
	b = binary.LittleEndian.AppendUint64(b, h)
	b = binary.LittleEndian.AppendUint32(b, uint32(size))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(k.Repo)))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(k.Ref)))
	b = append(b, k.Kind)
	b = append(b, k.Repo...)
	b = append(b, k.Ref...)
	for _, piece := range value {
		b = append(b, piece...)
	}
	return b
}

func (r record) hash() uint64 { return binary.LittleEndian.Uint64(r) }

// bounds returns the offsets at which Ref and the value begin, and at which the value
// ends.
func (r record) bounds() (ref, value, end int) {
	ref = headerBytes + int(binary.LittleEndian.Uint16(r[12:]))
	value = ref + int(binary.LittleEndian.Uint16(r[14:]))
	return ref, value, value + int(binary.LittleEndian.Uint32(r[8:]))
}

func (r record) size() int {
	_, _, end := r.bounds()
	return end
}

// is reports whether the record belongs to a key.
func (r record) is(k *Key) bool {
	ref, value, _ := r.bounds()
	return r[16] == k.Kind && string(r[headerBytes:ref]) == k.Repo && string(r[ref:value]) == k.Ref
}

func (r record) value() []byte {
	_, value, end := r.bounds()
	return r[value:end:end]
}
