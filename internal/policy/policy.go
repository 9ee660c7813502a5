// Package policy decides what a cache keeps. It knows keys, sizes and times, but no
// bytes. The owner of the bytes calls it, and moves or drops bytes as it decides.
//
// A [Cache] is one level. It has a limit in bytes, a [Policy] that chooses victims when
// room is needed, and pins, which keep an entry regardless of the policy. [TwoLevel] adds
// a second, larger level below: contents for which memory has no room go to the disk.
// [Algorithm1] and [Manifests] decide what is worth fetching before it is requested.
//
// Nothing here does I/O, starts a goroutine, or reads a clock or a source of randomness
// by itself: the same calls give the same answers. Nothing here is safe for concurrent
// use. The owner of a cache that is shared between goroutines must guard it.
package policy

import (
	"encoding/binary"
	"fmt"
)

// Key names a content by the first 16 bytes of its digest. Two contents do not have the
// same 128 bits by chance. An attacker does not find such a pair either, as long as the
// digest's function is not broken, because that takes 2^64 attempts.
type Key [16]byte

// KeyOf returns the key of a digest's bytes (not of its hexadecimal form). Missing bytes
// are zero.
func KeyOf(sum []byte) Key {
	var k Key
	copy(k[:], sum)
	return k
}

// NumberKey returns the key of the n-th content of a source that numbers its contents.
func NumberKey(n uint64) Key {
	var k Key
	binary.LittleEndian.PutUint64(k[:], n)
	return k
}

// hash spreads a key over 64 bits, whether it is a digest or a small number.
func (k *Key) hash() uint64 {
	return mix64(binary.LittleEndian.Uint64(k[:8]) ^ mix64(binary.LittleEndian.Uint64(k[8:])))
}

// mix64 is the finalizer of splitmix64: every bit of x changes half the bits of the
// result.
func mix64(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Entry is what a cache knows about a content that it holds.
type Entry struct {
	Key Key
	// Size is the size of the content in bytes. It is at least 1.
	Size int64
	// Cost is the cost of getting the content again. Its unit must be the same for all
	// entries of a cache: seconds, or 1 if all misses cost the same. It is above 0.
	Cost float64
	// Hits counts the requests for the entry since it was added, including the first
	// request.
	Hits int64

	// The other fields belong to the policy that holds the entry.

	// Rank and Slot are for policies outside this package, too.
	Rank float64
	Slot int

	prev, next *Entry
	stamp      int64
	last       int64
	freq       int64
	queue      uint8
	pinned     int32 // place in the heap of pins, from 1; 0 means not pinned
	until      int64 // when the pin ends
}

// Policy orders the entries of one level by their worth. A policy belongs to one cache,
// which reports everything that happens and asks for victims.
type Policy interface {
	// SetLimit sets how many bytes the policy's entries may take together. It is called
	// first, and again whenever pins take or free room.
	SetLimit(limit int64)
	// Offer announces a requested entry that is not held and is about to come in. The
	// policy refuses it by returning false. Otherwise calls of Evict and then Add follow,
	// with nothing in between.
	Offer(e *Entry) bool
	// Evict gives up and forgets the entry of least worth. forEntry is the entry that
	// needs the room. If the policy finds that forEntry is worth less than all entries
	// that it holds, it returns forEntry. nil means that the policy holds nothing.
	Evict(forEntry *Entry) *Entry
	// Add adds an entry.
	Add(e *Entry)
	// Hit notes a request for an entry.
	Hit(e *Entry)
	// Remove forgets an entry.
	Remove(e *Entry)
}

// Names returns the names of the policies that New knows, in alphabetical order.
func Names() []string {
	return []string{"2q", "arc", "arc-unit", "fifo", "gdsf", "hyperbolic", "lfuda", "lhd", "lru", "s3-fifo", "sieve", "slru", "w-tinylfu"}
}

// New returns a policy by its name, with its default settings. The seed is for policies
// that choose at random: the same seed gives the same choices.
func New(name string, seed uint64) (Policy, error) {
	switch name {
	case "2q":
		return NewTwoQ(), nil
	case "arc":
		return NewARC(nil), nil
	case "arc-unit":
		return NewARC(&ARCOptions{Step: 1}), nil
	case "fifo":
		return NewFIFO(), nil
	case "gdsf":
		return NewGDSF(), nil
	case "hyperbolic":
		return NewHyperbolic(seed), nil
	case "lfuda":
		return NewLFUDA(), nil
	case "lhd":
		return NewLHD(&LHDOptions{Seed: seed}), nil
	case "lru":
		return NewLRU(), nil
	case "s3-fifo":
		return NewS3FIFO(), nil
	case "sieve":
		return NewSIEVE(), nil
	case "slru":
		return NewSLRU(), nil
	case "w-tinylfu":
		return NewTinyLFU(nil), nil
	}
	return nil, fmt.Errorf("no policy is called %q; there are %v", name, Names())
}

// list is a queue of entries, newest at the head, with the bytes they take.
type list struct {
	head, tail *Entry
	bytes      int64
}

func (l *list) pushFront(e *Entry) {
	e.prev, e.next = nil, l.head
	if l.head != nil {
		l.head.prev = e
	} else {
		l.tail = e
	}
	l.head = e
	l.bytes += e.Size
}

func (l *list) remove(e *Entry) {
	if e.prev != nil {
		e.prev.next = e.next
	} else {
		l.head = e.next
	}
	if e.next != nil {
		e.next.prev = e.prev
	} else {
		l.tail = e.prev
	}
	e.prev, e.next = nil, nil
	l.bytes -= e.Size
}

func (l *list) toFront(e *Entry) {
	if l.head != e {
		l.remove(e)
		l.pushFront(e)
	}
}

// popBack removes the oldest entry and returns it, or nil if there is none.
func (l *list) popBack() *Entry {
	e := l.tail
	if e != nil {
		l.remove(e)
	}
	return e
}

// ghosts remembers keys of contents that are gone. It is limited to limit bytes of
// contents and to maxGhosts keys.
type ghosts struct {
	limit int64
	list  list
	index map[Key]*Entry
}

// maxGhosts bounds the memory of a list of ghosts even if the contents are small. A key
// takes about 150 bytes, so the bound is 150 MB.
const maxGhosts = 1 << 20

// add remembers a key, unless its content is larger than the limit.
func (g *ghosts) add(k Key, size int64) {
	if size > g.limit {
		return
	}
	if g.index == nil {
		g.index = map[Key]*Entry{}
	}
	if e := g.index[k]; e != nil {
		return
	}
	for g.list.bytes+size > g.limit || len(g.index) >= maxGhosts {
		g.pop()
	}
	e := &Entry{Key: k, Size: size}
	g.index[k] = e
	g.list.pushFront(e)
}

// take forgets a key and reports whether it was remembered.
func (g *ghosts) take(k Key) bool {
	e := g.index[k]
	if e == nil {
		return false
	}
	delete(g.index, k)
	g.list.remove(e)
	return true
}

// pop forgets the oldest key.
func (g *ghosts) pop() {
	if e := g.list.popBack(); e != nil {
		delete(g.index, e.Key)
	}
}
