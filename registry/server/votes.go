package server

import (
	"sync"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/auth"
)

const (
	// voteEvery is the period in which a client's reports about an image count once.
	voteEvery = time.Hour
	// maxVotes bounds the number of remembered votes. They take about 30 MB.
	maxVotes = 100_000
)

// vote identifies the client of a report, and the image that the report is about.
type vote struct{ client, image string }

// votes remembers which clients have voted, so that no single client decides what is done
// for all. It is safe for concurrent use.
type votes struct {
	mu   sync.Mutex
	cast map[vote]time.Time
}

// take reports whether a vote counts, and remembers that it was cast. If there is no room
// for another vote, none counts until some have expired.
func (v *votes) take(k vote, now time.Time) bool {
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
		v.cast = map[vote]time.Time{}
	}
	v.cast[k] = now
	return true
}

// giveBack forgets a vote that had no effect.
func (v *votes) giveBack(k vote) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.cast, k)
}

// mayReport checks that the client may report what nodes do with a repository's images.
// Anonymous clients may report if everybody may do everything, or if the configuration
// allows it. A client that has a password sends it only on request, so the refusal of an
// anonymous client asks for it.
func (s *Server) mayReport(q *request) error {
	if s.open || s.opts.AnonymousReports || !q.id.Anonymous() {
		return nil
	}
	err, challenge := s.opts.Auth.Refuse(q.r, q.id, q.Repo, auth.Pull)
	if challenge != "" {
		q.w.Header().Set("WWW-Authenticate", challenge)
	}
	err.Message = "reports of nodes are taken from users only; gear.anonymous_reports takes those of anonymous clients, too"
	return err
}

// reporter returns the author of a node's report: the user, or the address if there is no
// user.
func (q *request) reporter() string {
	if q.id.Anonymous() {
		return oci.ClientOf(q.r.RemoteAddr).String()
	}
	return "user " + q.id.Name
}
