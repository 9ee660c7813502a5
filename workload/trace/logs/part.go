package logs

import (
	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/logs/internal/tenfield"
)

// Part returns an Input of the same options for one of several files that are read at
// once, each by a part of its own. Files have an order: turn is closed when those before
// were joined, and what depends on them waits for that. Bytes that a part reads count as
// those of the whole at once, what it skips when it is joined.
//
// A part is read by one goroutine and then handed to Join, in the order of the files.
func (in *Input) Part(turn <-chan struct{}) *Input {
	part := &Input{o: in.o, turn: turn, uris: in.uris, read: in.read, identified: in.identified, skipped: map[trace.Bad]*Skipped{}}
	in.mu.Lock()
	defer in.mu.Unlock()
	if n := len(in.spare); n > 0 {
		part.interned, in.spare = in.spare[n-1], in.spare[:n-1]
	} else {
		part.interned = new(tenfield.Interner)
	}
	return part
}

// Join takes over what a part has skipped. The part may not be used any more.
func (in *Input) Join(part *Input) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.spare = append(in.spare, part.interned)
	for kind, more := range part.skipped {
		s := in.skippedOf(kind)
		s.Count += more.Count
		s.First = append(s.First, more.First[:min(len(more.First), firstPlaces-len(s.First))]...)
	}
}
