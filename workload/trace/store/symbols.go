package store

import (
	"hash/maphash"
	"math/bits"
	"math/rand/v2"
	"strings"
	"sync"
)

// strtab numbers strings. The number of the empty string is 0.
type strtab struct {
	seed maphash.Seed
	mix  uint64 // odd; it is random, so that nobody can make strings that get in each other's way
	// slots is a power of two long, 1<<(64-shift), and at most three quarters of it are
	// taken. A string is in the first slot that was free when it was added, in order from
	// the slot that its key points at.
	slots []strSlot
	shift uint8
	names []string
	// chunk holds the bytes of strings to come, in one allocation for many of them.
	chunk strings.Builder
	bytes int64
}

// strSlot is free if its symbol is None. Slots are mostly not in the processor's cache,
// so a short string is known from its slot alone.
type strSlot struct {
	key uint64 // the bytes of a string of at most shortString, the hash of others
	n   uint32 // its length
	sym Symbol
}

// shortString is the length of the pseudonyms in the IBM traces.
const shortString = 8

func newStrtab() *strtab {
	return &strtab{seed: maphash.MakeSeed(), mix: rand.Uint64() | 1, shift: 64, names: []string{""}}
}

// strtabEntry is about what a string takes beside its bytes: its header in names, and its
// slot with a share of the free ones.
const strtabEntry = 16 + 16*2

// symbol returns the number of a string. It keeps a copy of a new one.
func (t *strtab) symbol(s string) Symbol {
	if s == "" {
		return None
	}
	key := t.key(s)
	if sym := t.find(key, s); sym != None {
		return sym
	}
	if valid := validUTF8(s); valid != s {
		return t.symbol(valid)
	}
	return t.enter(key, s)
}

// key returns a string's key in slots. Together with the length it identifies a short
// string.
func (t *strtab) key(s string) uint64 {
	switch n := len(s); {
	case n > shortString:
		return maphash.String(t.seed, s)
	case n >= 4:
		return uint64(word(s)) | uint64(word(s[n-4:]))<<32
	case n > 0:
		return uint64(s[0]) | uint64(s[n/2])<<8 | uint64(s[n-1])<<16
	}
	return 0
}

// word returns the first four bytes.
func word(s string) uint32 {
	return uint32(s[0]) | uint32(s[1])<<8 | uint32(s[2])<<16 | uint32(s[3])<<24
}

// find returns the number of a string with its key, or None if it has none.
func (t *strtab) find(key uint64, s string) Symbol {
	n, mask := uint32(len(s)), len(t.slots)-1
	for i := int(key * t.mix >> t.shift); mask > 0; i++ {
		slot := &t.slots[i&mask]
		if slot.sym == None || slot.key == key && slot.n == n && (n <= shortString || t.names[slot.sym] == s) {
			return slot.sym
		}
	}
	return None
}

// findBytes is like find, for bytes.
func (t *strtab) findBytes(b []byte) Symbol {
	var key uint64
	if len(b) > shortString {
		key = maphash.Bytes(t.seed, b)
	} else {
		key = t.key(string(b))
	}
	n, mask := uint32(len(b)), len(t.slots)-1
	for i := int(key * t.mix >> t.shift); mask > 0; i++ {
		slot := &t.slots[i&mask]
		if slot.sym == None || slot.key == key && slot.n == n && (n <= shortString || t.names[slot.sym] == string(b)) {
			return slot.sym
		}
	}
	return None
}

// enter numbers a string that has no number yet.
func (t *strtab) enter(key uint64, s string) Symbol {
	if t.chunk.Cap()-t.chunk.Len() < len(s) {
		// Strings that were cut from the old chunk keep it.
		size := max(1<<10, min(1<<16, 2*t.chunk.Cap()), len(s))
		t.chunk = strings.Builder{}
		t.chunk.Grow(size)
		t.bytes += int64(size)
	}
	off := t.chunk.Len()
	t.chunk.WriteString(s) // never grows: the names would keep the old bytes alive
	sym := Symbol(len(t.names))
	t.names = append(t.names, t.chunk.String()[off:])
	t.bytes += strtabEntry
	if 4*len(t.names) > 3*len(t.slots) {
		old := t.slots
		t.slots = make([]strSlot, max(16, 2*len(old)))
		t.shift = uint8(64 - bits.TrailingZeros(uint(len(t.slots))))
		for _, slot := range old {
			if slot.sym != None {
				t.put(slot)
			}
		}
	}
	t.put(strSlot{key, uint32(len(s)), sym})
	return sym
}

// put takes a free slot.
func (t *strtab) put(slot strSlot) {
	mask := len(t.slots) - 1
	i := int(slot.key * t.mix >> t.shift)
	for t.slots[i&mask].sym != None {
		i++
	}
	t.slots[i&mask] = slot
}

// Table is one of a store's tables of symbols.
type Table int

// These are the tables.
const (
	Hosts Table = iota
	Clients
	Repos
	Refs
	Agents
	numTables
)

// String returns the table's name in lower case.
func (t Table) String() string {
	names := [...]string{"hosts", "clients", "repos", "refs", "agents"}
	if t >= 0 && int(t) < len(names) {
		return names[t]
	}
	return "invalid"
}

// table is a strtab that several scans fill.
type table struct {
	mu  sync.RWMutex
	tab *strtab
}

// symbols numbers the strings of a dictionary. get returns them by index.
func (t *table) symbols(n int, get func(i int) []byte) []Symbol {
	out := make([]Symbol, n)
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range out {
		b := get(i)
		sym := t.tab.findBytes(b)
		if sym == None {
			sym = t.tab.symbol(string(b))
		}
		out[i] = sym
	}
	return out
}

// Name returns the string of a symbol, or "" if the table does not have the symbol.
func (s *Store) Name(t Table, sym Symbol) string {
	if t < 0 || t >= numTables {
		return ""
	}
	tab := &s.tables[t]
	tab.mu.RLock()
	defer tab.mu.RUnlock()
	if int(sym) >= len(tab.tab.names) {
		return ""
	}
	return tab.tab.names[sym]
}

// Lookup returns the symbol of a string that the scans so far have met. After a
// [Store.Scan] of everything with that column, a string that it does not find is not in
// the store.
func (s *Store) Lookup(t Table, name string) (Symbol, bool) {
	if t < 0 || t >= numTables {
		return None, false
	}
	tab := &s.tables[t]
	tab.mu.RLock()
	defer tab.mu.RUnlock()
	sym := tab.tab.find(tab.tab.key(name), name)
	return sym, sym != None || name == ""
}

// Symbols returns the largest symbol that scans so far have met, plus 1: the length of a
// slice with an element for each.
func (s *Store) Symbols(t Table) int {
	if t < 0 || t >= numTables {
		return 0
	}
	tab := &s.tables[t]
	tab.mu.RLock()
	defer tab.mu.RUnlock()
	return len(tab.tab.names)
}
