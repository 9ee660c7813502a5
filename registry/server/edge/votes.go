package edge

import (
	"sync"
	"time"
)

const (
	// voteEvery is the period in which a client's reports about an image count once.
	voteEvery = time.Hour
	// maxVotes bounds the number of remembered votes. They take about 30 MB.
	maxVotes = 100_000
)

// Vote identifies the client of a report, and the image that the report is about.
type Vote struct{ Client, Image string }

// Votes remembers which clients have voted, so that no single client decides what is done
// for all. It is safe for concurrent use.
// The zero value is empty.
type Votes struct {
	mu   sync.Mutex
	cast map[Vote]time.Time
}

// Take reports whether a vote counts, and remembers that it was cast. If there is no room
// for another vote, none counts until some have expired.
func (v *Votes) Take(k Vote, now time.Time) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if at, known := v.cast[k]; known && now.Sub(at) < voteEvery {
		return false
	}
	if len(v.cast) >= maxVotes {
		for other, at := range v.cast {
			if now.Sub(at) >= voteEvery {
				delete(v.cast, other)
			}
		}
		if len(v.cast) >= maxVotes {
			return false
		}
	}
	if v.cast == nil {
		v.cast = map[Vote]time.Time{}
	}
	v.cast[k] = now
	return true
}

// GiveBack forgets a vote that had no effect.
func (v *Votes) GiveBack(k Vote) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.cast, k)
}
