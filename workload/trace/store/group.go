package store

import (
	"encoding/binary"
	"math"

	"github.com/parquet-go/parquet-go/format"
)

// These are the columns of strings that have a dictionary, and whose rows have a Symbol.
const (
	textHost = iota
	textClient
	textMethod
	textKind
	textRepo
	textRef
	textDigest
	textAgent
	textURI
	numTexts
)

// These are the tables of the symbols. One table for all columns would be possible.
// Separate tables keep the symbols of a column close together, so that what is looked up
// by them is small.
const (
	tabNames = iota
	tabPaths
	tabRefs
	numTabs
)

// textTabs is each column's table.
var textTabs = [numTexts]int{tabNames, tabNames, tabNames, tabNames, tabPaths, tabRefs, tabRefs, tabNames, tabPaths}

// memRow is a record in memory: 72 bytes, and its strings.
type memRow struct {
	time, duration, size int64
	texts                [numTexts]Symbol
	status               int32
	idChunk              uint32 // where its id is, see hourBuffer
	idOff, idLen         uint16
}

// tabs are the tables of the rows of a day, or of a row group.
type tabs [numTabs]*strtab

func newTabs() (t tabs) {
	for i := range t {
		t[i] = newStrtab()
	}
	return t
}

// name returns the string of a row's column.
func (t *tabs) name(m *memRow, column int) string { return t[textTabs[column]].names[m.texts[column]] }

// group collects the rows of a row group by column.
type group struct {
	maxRows              int // at most maxGroup
	rows                 int
	time, duration, size []int64
	texts                [numTexts]textColumn
	status               statusColumn
	ids                  []byte
	idEnds               []uint32 // the first is 0
}

// textColumn numbers the symbols of a column in the order of their first rows.
type textColumn struct {
	tab     *strtab
	numbers []int32 // by symbol: 1 more than its number; 0 for what is not in the dictionary yet
	used    []Symbol
	dict    []byte // as it lies in a file: the length of each string in 4 bytes, and the string
	index   []int32
}

// statusColumn is a textColumn for statuses.
type statusColumn struct {
	numbers map[int32]int32
	values  []int32
	index   []int32
	last    int32 // the last row's status
}

// use makes the group take rows with symbols of other tables. The group must be empty.
func (g *group) use(t *tabs) {
	for i := range g.texts {
		g.texts[i].tab = t[textTabs[i]]
	}
}

// add adds rows. Each row also needs a call of addID.
func (g *group) add(rows []memRow) {
	g.rows += len(rows)
	for i := range rows {
		m := &rows[i]
		g.time, g.duration, g.size = append(g.time, m.time), append(g.duration, m.duration), append(g.size, m.size)
		g.status.add(m.status)
	}
	for i := range g.texts {
		g.texts[i].add(rows, i)
	}
}

// addID adds the id of the next row.
func (g *group) addID(id string) {
	g.ids = append(g.ids, id...)
	if len(g.idEnds) == 0 {
		g.idEnds = append(g.idEnds, 0)
	}
	g.idEnds = append(g.idEnds, uint32(len(g.ids)))
}

// add adds the symbols of a column of rows.
func (c *textColumn) add(rows []memRow, column int) {
	for i := range rows {
		sym, n := rows[i].texts[column], int32(0)
		if int(sym) < len(c.numbers) {
			n = c.numbers[sym]
		}
		if n == 0 {
			n = c.enter(sym)
		}
		c.index = append(c.index, n-1)
	}
}

// enter puts a symbol into the dictionary and returns its number plus 1.
func (c *textColumn) enter(sym Symbol) int32 {
	if int(sym) >= len(c.numbers) {
		more := max(len(c.tab.names), 2*len(c.numbers)) - len(c.numbers)
		c.numbers = append(c.numbers, make([]int32, more)...)
	}
	name := c.tab.names[sym]
	c.dict = append(binary.LittleEndian.AppendUint32(c.dict, uint32(len(name))), name...)
	c.used = append(c.used, sym)
	c.numbers[sym] = int32(len(c.used))
	return int32(len(c.used))
}

func (c *statusColumn) add(status int32) {
	n := len(c.index)
	if n > 0 && status == c.last {
		c.index = append(c.index, c.index[n-1])
		return
	}
	c.last = status
	number, ok := c.numbers[status]
	if !ok {
		number = int32(len(c.values))
		if c.numbers == nil {
			c.numbers = map[int32]int32{}
		}
		c.numbers[status] = number
		c.values = append(c.values, status)
	}
	c.index = append(c.index, number)
}

// bounds returns the least and the greatest status of rows.
func (c *statusColumn) bounds(index []int32) (low, high int64) {
	low, high = math.MaxInt32, math.MinInt32
	for _, i := range index {
		low, high = min(low, int64(c.values[i])), max(high, int64(c.values[i]))
	}
	return low, high
}

// full reports whether the group has no room for n more rows, because of their number or
// of the length of its strings.
func (g *group) full(n int) bool {
	if g.rows+n > g.maxRows || len(g.ids) >= maxGroupText {
		return true
	}
	for i := range g.texts {
		if len(g.texts[i].dict) >= maxGroupText {
			return true
		}
	}
	return false
}

// write writes the rows as a row group, in the order of the columns of row, and
// forgets them.
func (g *group) write(w *pageWriter) error {
	w.beginGroup(g.rows)
	text := func(i int) error {
		c := &g.texts[i]
		return w.indexed(format.ByteArray, len(c.used), c.dict, c.index, nil)
	}
	statuses := make([]byte, 0, 4*len(g.status.values))
	for _, v := range g.status.values {
		statuses = binary.LittleEndian.AppendUint32(statuses, uint32(v))
	}
	for _, column := range []func() error{
		func() error { return w.numbers(g.time, format.Ascending) },
		func() error { return w.numbers(g.duration, format.Unordered) },
		func() error { return text(textHost) },
		func() error { return text(textClient) },
		func() error { return text(textMethod) },
		func() error { return text(textKind) },
		func() error { return text(textRepo) },
		func() error { return text(textRef) },
		func() error { return text(textDigest) },
		func() error { return w.numbers(g.size, format.Unordered) },
		func() error {
			return w.indexed(format.Int32, len(g.status.values), statuses, g.status.index, g.status.bounds)
		},
		func() error { return text(textAgent) },
		func() error { return w.strings(g.ids, g.idEnds) },
		func() error { return text(textURI) },
	} {
		if err := column(); err != nil {
			return err
		}
	}
	g.reset()
	return nil
}

// reset forgets the rows and keeps the memory.
func (g *group) reset() {
	g.rows = 0
	g.time, g.duration, g.size = g.time[:0], g.duration[:0], g.size[:0]
	for i := range g.texts {
		c := &g.texts[i]
		for _, sym := range c.used { // a small part of all symbols
			c.numbers[sym] = 0
		}
		c.used, c.dict, c.index = c.used[:0], c.dict[:0], c.index[:0]
	}
	clear(g.status.numbers)
	g.status.values, g.status.index = g.status.values[:0], g.status.index[:0]
	g.ids, g.idEnds = g.ids[:0], g.idEnds[:0]
}
