package logs

import (
	"cmp"
	"slices"
	"strings"

	"example.org/slipway/workload/trace"
)

// Place is where a record was skipped.
type Place struct {
	File string `json:"file"`
	// Record is its number in the file, from 1, among all records that were read or skipped.
	Record int64  `json:"record"`
	Why    string `json:"why"`
}

// Skipped counts what was skipped for one reason.
type Skipped struct {
	Kind  trace.Bad `json:"kind"`
	Count int64     `json:"count"`
	// First holds the first few places.
	First []Place `json:"first"`
}

// firstPlaces is the number of places listed for each reason.
const firstPlaces = 5

// Skipped returns what has been skipped so far, the most frequent reason first.
func (in *Input) Skipped() []Skipped {
	in.mu.Lock()
	defer in.mu.Unlock()
	out := make([]Skipped, 0, len(in.skipped))
	for _, s := range in.skipped {
		v := *s
		v.First = slices.Clone(s.First)
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b Skipped) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(string(a.Kind), string(b.Kind)))
	})
	return out
}

// Skip counts a record that the caller could not use.
func (in *Input) Skip(kind trace.Bad, file string, record int64, why string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	s := in.skippedOf(kind)
	s.Count++
	if len(s.First) < firstPlaces {
		s.First = append(s.First, Place{file, record, why})
	}
}

// skippedOf returns the entry for one reason. The mutex is held.
func (in *Input) skippedOf(kind trace.Bad) *Skipped {
	s := in.skipped[kind]
	if s == nil {
		s = &Skipped{Kind: kind}
		in.skipped[kind] = s
	}
	return s
}
