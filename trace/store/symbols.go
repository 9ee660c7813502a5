package store

import (
	"strings"
	"sync"
)

// strtab numbers strings. The number of the empty string is 0.
type strtab struct {
	syms  map[string]Symbol
	names []string
	// chunk holds the bytes of strings to come: one allocation for many of them.
	chunk strings.Builder
	bytes int64
}

func newStrtab() *strtab {
	return &strtab{syms: map[string]Symbol{"": None}, names: []string{""}}
}

// strtabEntry is about what a string takes beside its bytes: its header in names and
// in syms, the number, and the room that a map leaves.
const strtabEntry = 16 + (16+4)*2

// symbol returns the number of a string, which it keeps a copy of.
func (t *strtab) symbol(s string) Symbol {
	if s == "" {
		return None
	}
	if sym, ok := t.syms[s]; ok {
		return sym
	}
	if valid := validUTF8(s); valid != s {
		return t.symbol(valid)
	}
	if t.chunk.Cap()-t.chunk.Len() < len(s) {
		// Strings that were cut from the old chunk keep it.
		size := max(1<<10, min(1<<16, 2*t.chunk.Cap()), len(s))
		t.chunk = strings.Builder{}
		t.chunk.Grow(size)
		t.bytes += int64(size)
	}
	off := t.chunk.Len()
	t.chunk.WriteString(s) // never grows: the names would keep the old bytes alive
	own := t.chunk.String()[off:]
	sym := Symbol(len(t.names))
	t.names = append(t.names, own)
	t.syms[own] = sym
	t.bytes += strtabEntry
	return sym
}

// Table is one of a store's tables of symbols.
type Table int

// The tables.
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

// symbols numbers the strings of a dictionary, which get gives by index.
func (t *table) symbols(n int, get func(i int) []byte) []Symbol {
	out := make([]Symbol, n)
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range out {
		b := get(i)
		sym, ok := t.tab.syms[string(b)]
		if !ok {
			sym = t.tab.symbol(string(b))
		}
		out[i] = sym
	}
	return out
}

// Name returns the string that a symbol stands for, and "" for one that the table
// does not have.
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

// Lookup returns the symbol of a string. It knows what the scans so far have met:
// after [Store.Scan] of everything with that column, what it does not find is not in
// the store.
func (s *Store) Lookup(t Table, name string) (Symbol, bool) {
	if t < 0 || t >= numTables {
		return None, false
	}
	tab := &s.tables[t]
	tab.mu.RLock()
	defer tab.mu.RUnlock()
	sym, ok := tab.tab.syms[name]
	return sym, ok
}

// Symbols is one more than the largest symbol that scans so far have met: the length
// of a slice that has an element for each.
func (s *Store) Symbols(t Table) int {
	if t < 0 || t >= numTables {
		return 0
	}
	tab := &s.tables[t]
	tab.mu.RLock()
	defer tab.mu.RUnlock()
	return len(tab.tab.names)
}
