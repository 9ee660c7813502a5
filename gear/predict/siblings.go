package predict

import (
	"path"

	"example.org/slipway/gear"
)

const (
	// siblingFile is the size of the largest file that is fetched along with another
	// file.
	siblingFile = 64 << 10
	// siblingLeast and siblingMost bound how many bytes are fetched along with one file.
	siblingLeast, siblingMost = 16 << 10, 2 << 20
	// siblingLoss is how many bytes may be fetched in vain before siblings are no longer
	// fetched. Three more bytes are allowed for each byte that was opened.
	siblingLoss  = 1 << 20
	siblingShare = 3
)

// Siblings decides what is worth fetching along with a file that nobody predicted: files
// with the same directory and suffix. A program that opens one of them often opens the
// next, and fetching them costs less than a round trip for each. It may be used by one
// goroutine at a time.
type Siblings struct {
	t *Tree
	// budget is how many bytes the next miss may fetch.
	budget int64
	// brought has the size of each file that was fetched this way and not opened yet.
	brought     map[gear.Name]int64
	spent, used int64
}

// NewSiblings returns the Siblings of an image whose files are fetched over a link. The
// link has a round trip in seconds and a rate in bytes per second. The first budget is
// what the link could transfer during a round trip.
func NewSiblings(t *Tree, roundTrip, ratePerSec float64) *Siblings {
	t.byName() // makes the tables now, while nobody waits for a file
	t.wholes()
	return &Siblings{t: t, budget: min(max(int64(roundTrip*ratePerSec), siblingLeast), siblingMost), brought: map[gear.Name]int64{}}
}

// Open reports whether guessing still pays.
func (s *Siblings) Open() bool { return s.spent-s.used-siblingShare*s.used < siblingLoss }

// Opened records that a file was opened, whether or not it was predicted.
func (s *Siblings) Opened(n gear.Name) {
	if size, ok := s.brought[n]; ok {
		delete(s.brought, n)
		s.used += size
	}
}

// Missed returns what to fetch along with a file that was opened and is missing: wanted
// files that fit into the budget, which doubles with each miss.
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

// nearest returns at most maxSiblings of the entries of a directory. It begins with the
// entries that follow e, because programs go through directories in order.
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

// maxSiblings is how many files are considered for one miss.
const maxSiblings = 1024
