package manage

import "slices"

// Fact is a name with a value, as pages list them.
type Fact struct{ Name, Value string }

// Facts returns the facts of names and values, which take turns.
func Facts(list ...string) (facts []Fact) {
	for p := range slices.Chunk(list, 2) {
		facts = append(facts, Fact{p[0], p[1]})
	}
	return facts
}

// Outcome is the result of work, in a form for people.
type Outcome struct {
	Text  string
	Facts []Fact
	// Head and Rows are a table. Lacking counts rows that were left out of it.
	Head    []string
	Rows    [][]string
	Lacking int
}

// MaxRows is how many rows the table of an outcome has at most.
const MaxRows = 200

// Row adds a row to the table, or only counts it if the table is full.
func (o *Outcome) Row(cells ...string) {
	if len(o.Rows) == MaxRows {
		o.Lacking++
		return
	}
	o.Rows = append(o.Rows, cells)
}
