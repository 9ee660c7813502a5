package cachedir

import (
	"encoding/binary"

	"example.org/slipway/gear"
)

// entry is a complete file. It takes 48 bytes and has no pointers, so that the garbage
// collector does not scan it.
type entry struct {
	name gear.Name
	// stamp is the time of the last use or of publication, in nanoseconds since 1970. In
	// an unused entry it is the number of the next unused entry.
	stamp int64
	// blocks is the number of 512-byte blocks that the file takes. It is freeEntry in an
	// unused entry.
	blocks uint32
}

const (
	// freeEntry marks an unused entry. No file takes 2 TiB.
	freeEntry = 1<<32 - 1
	// pageEntries is how many entries are allocated together: 48 KiB. A slice that
	// doubles would leave up to half of its memory unused.
	pageEntries = 1024
	// noEntry ends the list of unused entries.
	noEntry = 1<<32 - 1
)

// table finds files by name. It takes 48 bytes for each file, and 5 to 11 for the slot.
type table struct {
	pages []*[pageEntries]entry
	// slots use open addressing by the first 8 bytes of the name. These are mixed with
	// mix, because the maker of an image can choose contents whose names share some bits.
	// A slot holds the number of an entry plus 1, or 0.
	slots []uint32
	mix   uint64
	// n is the number of files in the table. top is the number of entries that were ever
	// used. free is the first entry that is unused again.
	n, top int
	free   uint32
}

// newTable returns a table; mix is random.
func newTable(mix uint64) *table {
	return &table{slots: make([]uint32, 256), mix: mix | 1, free: noEntry}
}

func (t *table) entry(id uint32) *entry { return &t.pages[id/pageEntries][id%pageEntries] }

// home returns the slot where a name belongs.
func (t *table) home(name *gear.Name) int {
	h := (binary.LittleEndian.Uint64(name[:]) ^ t.mix) * (t.mix<<1 | 1)
	return int(h>>32) & (len(t.slots) - 1)
}

// find returns the slot of a name, or the empty slot where it would be added.
func (t *table) find(name *gear.Name) (slot int, ok bool) {
	for i := t.home(name); ; i = (i + 1) & (len(t.slots) - 1) {
		id := t.slots[i]
		if id == 0 {
			return i, false
		}
		if t.entry(id-1).name == *name {
			return i, true
		}
	}
}

// get returns a file's entry, or nil.
func (t *table) get(name *gear.Name) *entry {
	i, ok := t.find(name)
	if !ok {
		return nil
	}
	return t.entry(t.slots[i] - 1)
}

// id returns the number of a file's entry. The number stays the same until the file is
// removed.
func (t *table) id(name *gear.Name) (uint32, bool) {
	i, ok := t.find(name)
	if !ok {
		return 0, false
	}
	return t.slots[i] - 1, true
}

// add adds a file that is not in the table.
func (t *table) add(name *gear.Name, blocks uint32, stamp int64) {
	if t.n*4 >= len(t.slots)*3 {
		t.grow()
	}
	id := t.free
	if id != noEntry {
		t.free = uint32(t.entry(id).stamp)
	} else {
		if t.top%pageEntries == 0 {
			t.pages = append(t.pages, new([pageEntries]entry))
		}
		id = uint32(t.top)
		t.top++
	}
	*t.entry(id) = entry{*name, stamp, blocks}
	slot, _ := t.find(name)
	t.slots[slot] = id + 1
	t.n++
}

// remove removes a file and returns its former entry.
func (t *table) remove(name *gear.Name) (entry, bool) {
	i, ok := t.find(name)
	if !ok {
		return entry{}, false
	}
	id := t.slots[i] - 1
	was := *t.entry(id)
	*t.entry(id) = entry{blocks: freeEntry, stamp: int64(t.free)}
	t.free = id
	t.n--
	// The gap is closed: a later slot whose name belongs at or before the gap moves into
	// it.
	mask := len(t.slots) - 1
	for j := (i + 1) & mask; t.slots[j] != 0; j = (j + 1) & mask {
		home := t.home(&t.entry(t.slots[j] - 1).name)
		if (j-home)&mask >= (j-i)&mask {
			t.slots[i] = t.slots[j]
			i = j
		}
	}
	t.slots[i] = 0
	return was, true
}

func (t *table) grow() {
	t.slots = make([]uint32, 2*len(t.slots))
	for id := range uint32(t.top) {
		if e := t.entry(id); e.blocks != freeEntry {
			slot, _ := t.find(&e.name)
			t.slots[slot] = id + 1
		}
	}
}

// each calls f for every file until f returns false.
func (t *table) each(f func(id uint32, e *entry) bool) {
	for id := range uint32(t.top) {
		if e := t.entry(id); e.blocks != freeEntry && !f(id, e) {
			return
		}
	}
}
