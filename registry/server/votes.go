package server

import (
	"sync"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/auth"
)

const (
	// voteEvery is the time in which what one client reports of an image counts once.
	voteEvery = time.Hour
	// maxVotes bounds what is remembered of votes, to about 30 MB.
	maxVotes = 100_000
)

// vote is by whom a report is, and of what.
type vote struct{ client, image string }

// votes remembers which clients have had their say, so that no client decides alone
// what is done for all. Safe for concurrent use.
type votes struct {
	mu   sync.Mutex
	cast map[vote]time.Time
}

// take reports whether a vote counts, and remembers that it was cast. When so many
// are remembered that there is no room, none counts until some are over.
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

// giveBack forgets a vote that came to nothing.
func (v *votes) giveBack(k vote) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.cast, k)
}

// mayReport checks that the client may say what nodes do with a repository's images.
// Anonymous clients may where everybody may do everything, or the configuration says so.
// A client that has a password sends it only when it is asked, so the refusal of an
// anonymous one asks for it.
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

// reporter is who a node's report is by: the user, or without one the address.
func (q *request) reporter() string {
	if q.id.Anonymous() {
		return oci.ClientOf(q.r.RemoteAddr).String()
	}
	return "user " + q.id.Name
}
