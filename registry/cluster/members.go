package cluster

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// leasePrefix begins the names of the leases of members: member/ID. The owner of such a
// lease is INCARNATION and the URL for peers, separated by a space.
const leasePrefix = "member/"

func (c *Cluster) leaseName() string { return leasePrefix + c.cfg.ID }

func (c *Cluster) leaseOwner() string { return c.self + " " + c.cfg.URL }

// errTaken says that another replica has the id of this replica.
var errTaken = errors.New("another replica has the same id; each needs one of its own")

// refresh renews this replica's lease and reads which members are present.
func (c *Cluster) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.opts.Lease)
	defer cancel()
	ok, err := c.dir.Lease(ctx, c.leaseName(), c.leaseOwner(), c.opts.Lease)
	if err != nil {
		return fmt.Errorf("renew the lease: %w", err)
	}
	leases, err := c.dir.Leases(ctx, leasePrefix)
	if err != nil {
		return fmt.Errorf("list the members: %w", err)
	}
	c.setMembers(leases)
	if ok {
		return nil
	}
	// If the lease has this replica's URL, it belongs to an earlier process of this replica.
	// That process was killed.
	old := leases[c.leaseName()]
	if p, err := parseMember(c.leaseName(), old); err != nil || p.url != c.url {
		return fmt.Errorf("id %s: %w", c.cfg.ID, errTaken)
	}
	if err := c.dir.Unlease(ctx, c.leaseName(), old); err != nil {
		return fmt.Errorf("end the lease of an earlier process: %w", err)
	}
	ok, err = c.dir.Lease(ctx, c.leaseName(), c.leaseOwner(), c.opts.Lease)
	if err == nil && !ok {
		err = errTaken
	}
	return err
}

// setMembers adopts the members from the directory. It keeps what is known about peers
// that stay.
func (c *Cluster) setMembers(leases map[string]string) {
	list := []*peer{{id: c.cfg.ID, incarnation: c.self, hash: hashString(c.cfg.ID), own: true}}
	for name, owner := range leases {
		p, err := parseMember(name, owner)
		if err != nil {
			c.opts.Logger.Warn("a member that cannot be understood is left out", "err", err)
		} else if p.id != c.cfg.ID {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b *peer) int { return strings.Compare(a.id, b.id) })

	c.mu.Lock()
	var came, left []string
	for i, p := range list {
		old := slices.IndexFunc(c.members, func(m *peer) bool {
			return m.id == p.id && m.incarnation == p.incarnation && m.url == p.url
		})
		switch {
		case old >= 0:
			list[i] = c.members[old]
		case !p.own:
			came = append(came, p.id)
		}
	}
	for _, m := range c.members {
		if !slices.Contains(list, m) {
			left = append(left, m.id)
		}
	}
	c.members = list
	c.mu.Unlock()
	if len(came)+len(left) > 0 {
		c.opts.Logger.Info("the members have changed", "members", len(list), "came", came, "left", left)
	}
}

// parseMember parses the lease of a member.
func parseMember(name, owner string) (*peer, error) {
	id := strings.TrimPrefix(name, leasePrefix)
	incarnation, url, _ := strings.Cut(owner, " ")
	if !validID(id) || !validID(incarnation) {
		return nil, fmt.Errorf("lease %q of %q is none of a replica", name, owner)
	}
	base, err := parsePeerURL(url)
	if err != nil {
		return nil, fmt.Errorf("member %s: URL %w", id, err)
	}
	return &peer{id: id, incarnation: incarnation, url: base, hash: hashString(id)}, nil
}

// peer is a member. Cluster.mu guards the fields below the line.
type peer struct {
	id, incarnation, url string
	hash                 uint64
	own                  bool // this replica
	// ----
	inFlight int
	// failures and slow count since the last good answer.
	failures, slow int
	// away is the time until which the peer is not asked.
	away time.Time
}

// These constants say for how long a peer is not asked.
const (
	firstPause = 500 * time.Millisecond // after a failure; doubled after each further failure
	maxPause   = 30 * time.Second
	busyPause  = 100 * time.Millisecond // after the peer said that it is busy
	wrongPause = 10 * time.Minute       // after wrong bytes: somebody should look at the peer
	// maxSlow is how often in a row the object store may be faster than a peer, although
	// the peer has a head start.
	maxSlow = 3
)

// verdict is what a read says about a peer.
type verdict int

const (
	verdictNone    verdict = iota // nothing: the caller gave up, or the peer had a good reason
	verdictGood                   // the peer delivered
	verdictSlow                   // the object store was faster
	verdictBusy                   // the peer said so
	verdictFailure                // gone, cut off, too slow, refused, or an invalid answer
	verdictWrong                  // the peer sent bytes that do not have the digest
)

// judge notes what a read said about a peer. c.mu is held.
func (c *Cluster) judge(p *peer, v verdict) {
	now := c.opts.Clock()
	pause := func(d time.Duration) {
		if until := now.Add(d); until.After(p.away) {
			p.away = until
		}
	}
	switch v {
	case verdictNone:
	case verdictGood:
		p.failures, p.slow = 0, 0
	case verdictBusy:
		pause(busyPause)
	case verdictWrong:
		pause(wrongPause)
	case verdictSlow:
		if p.slow++; p.slow < maxSlow {
			return
		}
		fallthrough
	case verdictFailure:
		// Reads that fail together count once. p is already away.
		if p.away.After(now) {
			return
		}
		p.slow = 0
		pause(min(firstPause<<min(p.failures, 10), maxPause))
		p.failures++
	}
}

// choose returns the peer to read an object from, and counts the read. It returns nil if
// this replica is to read the object itself. c.mu is held.
func (c *Cluster) choose(key uint64) *peer {
	if len(c.members) < 2 {
		return nil
	}
	now := c.opts.Clock()
	// Loads are bounded: no peer gets more than LoadFactor times its share.
	share := c.opts.LoadFactor * float64(c.inFlight+1) / float64(len(c.members)-1)
	bound := min(max(int(math.Ceil(share)), ownFloor), c.opts.MaxPerPeer)
	p, score := next(c.members, key, 0, true)
	for ; p != nil; p, score = next(c.members, key, score, false) {
		if p.own {
			return nil
		}
		if p.inFlight < bound && !p.away.After(now) {
			p.inFlight++
			c.inFlight++
			return p
		}
	}
	return nil
}

// next returns the member with the highest score for a key below a given score. If first
// is set, it returns the member with the highest score of all. This is rendezvous
// hashing. A new member takes from each other member the keys for which the new one
// scores highest. A member that leaves gives its keys to all others. No other key moves.
func next(members []*peer, key, below uint64, first bool) (best *peer, score uint64) {
	for _, p := range members {
		s := mix(p.hash ^ key)
		if (first || s < below) && (best == nil || s > score) {
			best, score = p, s
		}
	}
	return best, score
}

// hashString returns FNV-1a, mixed. All replicas must agree on it for ever.
func hashString(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return mix(h)
}

// mix is the finaliser of splitmix64. Each bit of the result depends on all bits of x.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
