package analyze

import (
	"math"

	"example.org/slipway/workload/trace/store"
)

// sweep follows how many things are active at each moment of a zone. It is a sweep line
// with a heap of the ends to come, so its memory grows only with what is active at once.
type sweep struct {
	ends   endHeap
	now    int64
	begun  bool
	active int64
	// weighted counts how many were active, once for each microsecond. minutes holds the
	// mean of each calendar minute, in thousandths.
	weighted, minutes Hist
	minute            int64
	area              int64 // of this minute: the sum of active clients or requests over microseconds
	covered           int64 // of this minute: microseconds
	// The time from absentFrom to absentTo does not count.
	absentFrom, absentTo int64
	// clients, if not nil, makes sweep count active clients in place of requests. A
	// client may have several requests at once.
	clients *bySymbol[activeClient]
}

// activeClient holds until when a client is active. live reports whether it has an end in
// the heap.
type activeClient struct {
	until int64
	live  bool
}

type end struct {
	at     int64
	client store.Symbol
}

// endHeap is a binary heap with the earliest end first.
type endHeap []end

func (h *endHeap) push(e end) {
	*h = append(*h, e)
	s := *h
	for i := len(s) - 1; i > 0; {
		up := (i - 1) / 2
		if s[up].at <= s[i].at {
			return
		}
		s[up], s[i], i = s[i], s[up], up
	}
}

func (h *endHeap) pop() end {
	s := *h
	first, n := s[0], len(s)-1
	s[0] = s[n]
	s = s[:n]
	*h = s
	for i := 0; ; {
		least := 2*i + 1
		if least >= n {
			return first
		}
		if r := least + 1; r < n && s[r].at < s[least].at {
			least = r
		}
		if s[i].at <= s[least].at {
			return first
		}
		s[i], s[least], i = s[least], s[i], least
	}
}

// to moves on to the time of the next request. The time from absentFrom to absentTo
// before it does not count.
func (s *sweep) to(t, absentFrom, absentTo int64) {
	if !s.begun {
		s.now, s.begun, s.minute = t, true, floorDiv(t, microMinute)
	}
	s.absentFrom, s.absentTo = absentFrom, absentTo
	s.drain(t)
	s.advance(t)
}

// start begins something that lasts until the given time, which is not before now. The
// client matters only if clients are counted.
func (s *sweep) start(client store.Symbol, until int64) {
	if s.clients != nil {
		c := s.clients.at(client)
		if c.live {
			c.until = max(c.until, until)
			return
		}
		*c = activeClient{until: until, live: true}
	}
	s.active++
	s.ends.push(end{at: until, client: client})
}

// drain handles all ends up to t.
func (s *sweep) drain(t int64) {
	for len(s.ends) > 0 && s.ends[0].at <= t {
		e := s.ends.pop()
		if s.clients != nil {
			c := s.clients.at(e.client)
			if c.until > e.at { // it asked again meanwhile
				s.ends.push(end{at: c.until, client: e.client})
				continue
			}
			c.live = false
		}
		s.advance(e.at)
		s.active--
	}
}

// finish moves on to the last end.
func (s *sweep) finish() {
	s.absentFrom, s.absentTo = 0, 0
	s.drain(math.MaxInt64)
	s.flushMinute()
}

// advance counts the time up to t.
func (s *sweep) advance(t int64) {
	if s.absentFrom < s.absentTo && s.now < s.absentTo && t > s.absentFrom {
		s.span(s.now, min(t, s.absentFrom))
		s.now = max(s.now, min(t, s.absentTo))
	}
	s.span(s.now, t)
	s.now = max(s.now, t)
}

// span counts the time between two moments in which nothing begins or ends.
func (s *sweep) span(from, to int64) {
	if from >= to {
		return
	}
	s.weighted.AddN(s.active, to-from)
	for from < to {
		minute := floorDiv(from, microMinute)
		if minute != s.minute {
			s.flushMinute()
			s.minute = minute
		}
		if whole := (to - from) / microMinute; s.covered == 0 && from == minute*microMinute && whole > 0 {
			s.minutes.AddN(1000*s.active, whole) // in one step: a request may claim to last for years
			from += whole * microMinute
			continue
		}
		until := min(to, (minute+1)*microMinute)
		s.area += s.active * (until - from)
		s.covered += until - from
		from = until
	}
}

func (s *sweep) flushMinute() {
	if s.covered > 0 {
		s.minutes.Add(int64(math.Round(1000 * float64(s.area) / float64(s.covered))))
	}
	s.area, s.covered = 0, 0
}
