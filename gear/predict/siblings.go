package predict

import (
	"path"

	"example.org/slipway/gear"
)

const (
	// siblingFile is the largest file that comes with another one.
	siblingFile = 64 << 10
	// siblingMost is how many bytes come with one file at most, siblingLeast at least.
	siblingLeast, siblingMost = 16 << 10, 2 << 20
	// siblingLoss is how many bytes may come in vain before the siblings end, besides
	// three for each one that was opened.
	siblingLoss  = 1 << 20
	siblingShare = 3
)

// Siblings says what is worth fetching with a file that nobody predicted: files of the same
// directory and suffix. A program that opens one of them often opens the next, and they cost
// less than the round trip that each would. It is used by one goroutine at a time.
type Siblings struct {
	t *Tree
	// budget is what the next miss may bring.
	budget int64
	// brought has the size of each file that came so and was not opened yet.
	brought     map[gear.Name]int64
	spent, used int64
}

// NewSiblings returns those of an image whose files come over a link of a round trip in
// seconds and a rate in bytes a second: while a file is asked for, so much could come.
func NewSiblings(t *Tree, roundTrip, ratePerSec float64) *Siblings {
	t.byName() // now, and not when somebody waits for a file
	t.wholes()
	return &Siblings{t: t, budget: min(max(int64(roundTrip*ratePerSec), siblingLeast), siblingMost), brought: map[gear.Name]int64{}}
}

// Open reports whether guessing still pays.
func (s *Siblings) Open() bool { return s.spent-s.used-siblingShare*s.used < siblingLoss }

// Opened notes that a file was opened, however it came.
func (s *Siblings) Opened(n gear.Name) {
	if size, ok := s.brought[n]; ok {
		delete(s.brought, n)
		s.used += size
	}
}

// Missed returns what is to come with a file that was opened and is not here: files that are
// wanted and fit into the budget, which doubles with each miss.
func (s *Siblings) Missed(n gear.Name, wanted func(gear.File) bool) []gear.File {
	e, ok := s.t.byName()[n]
	if !ok || !s.Open() {
		return nil
	}
	left := s.budget
	s.budget = min(2*s.budget, siblingMost)
	p := s.t.x.Entries[e].Path
	var out []gear.File
	for _, i := range nearest(s.t.wholes()[Whole{path.Dir(p), path.Ext(p)}], e) {
		f, ok := s.t.file(int(i))
		if _, had := s.brought[f.Name]; !ok || had || f.Name == n || f.Size > siblingFile || f.Size > left || !wanted(f) {
			continue
		}
		left -= f.Size
		s.spent += f.Size
		s.brought[f.Name] = f.Size
		out = append(out, f)
	}
	return out
}

// nearest lists at most maxSiblings of the entries of a directory, those that follow one
// first: programs go through directories in order.
func nearest(all []int32, e int32) []int32 {
	at := 0
	for at < len(all) && all[at] < e {
		at++
	}
	after := all[at:]
	after = after[:min(len(after), maxSiblings)]
	before := all[max(0, at-(maxSiblings-len(after))):at]
	return append(after[:len(after):len(after)], before...)
}

// maxSiblings is how many files are looked at for one miss.
const maxSiblings = 1024
