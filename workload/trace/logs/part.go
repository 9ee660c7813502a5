package logs

import (
	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/logs/internal/tenfield"
)

// Part returns an Input with the same options, for one of several files that are read at
// the same time, each with its own part. Files have an order: turn is closed when the
// files before this one have been joined, and work that depends on them waits for that.
// Bytes that a part reads count for the whole at once; skipped records count when the
// part is joined.
//
// One goroutine reads a part and then hands it to Join, in the order of the files.
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

// Join takes over what a part has skipped. The part must not be used afterwards.
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
