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

// leasePrefix begins the names of the leases of members: member/ID. The owner is
// INCARNATION and URL for peers, with a space between.
const leasePrefix = "member/"

func (c *Cluster) leaseName() string { return leasePrefix + c.cfg.ID }

func (c *Cluster) leaseOwner() string { return c.self + " " + c.cfg.URL }

// errTaken says that the id of this replica belongs to another one.
var errTaken = errors.New("another replica has the same id; each needs one of its own")

// refresh renews this replica's lease and learns who is there.
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
	// It is this replica's own if the URL is: an earlier process here was killed.
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

// setMembers takes over what the directory says. Peers that stay keep what is known
// of them.
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

// parseMember reads a lease of a member.
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

// peer is a member. Its fields below the line are guarded by Cluster.mu.
type peer struct {
	id, incarnation, url string
	hash                 uint64
	own                  bool // this replica
	// ----
	inFlight int
	// failures and slow count since the last good answer.
	failures, slow int
	// away is until when it is not asked.
	away time.Time
}

// How long a peer is not asked.
const (
	firstPause = 500 * time.Millisecond // after a failure; doubled with each further one
	maxPause   = 30 * time.Second
	busyPause  = 100 * time.Millisecond // after it said that it is busy
	wrongPause = 10 * time.Minute       // after it sent wrong bytes: somebody should look at it
	// maxSlow is how often in a row the object store may be faster than a peer, with
	// the start that the peer has.
	maxSlow = 3
)

// verdict is what a read tells of a peer.
type verdict int

const (
	verdictNone    verdict = iota // nothing: the caller gave up, or the peer had a reason
	verdictGood                   // it delivered
	verdictSlow                   // the object store was faster
	verdictBusy                   // it said so
	verdictFailure                // gone, cut off, too slow, refused, or an answer that is none
	verdictWrong                  // it sent other bytes than the digest's
)

// judge notes what a read told of a peer. c.mu is held.
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
		// Reads that fail together count once: p is away already.
		if p.away.After(now) {
			return
		}
		p.slow = 0
		pause(min(firstPause<<min(p.failures, 10), maxPause))
		p.failures++
	}
}

// choose returns the peer to read an object from and counts the read, or nil: then
// this replica reads it itself. c.mu is held.
func (c *Cluster) choose(key uint64) *peer {
	if len(c.members) < 2 {
		return nil
	}
	now := c.opts.Clock()
	// Bounded loads: nobody gets more than LoadFactor times its share.
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

// next returns the member with the highest score for a key below a score, or the
// highest of all: rendezvous hashing. A member that comes takes from each other one
// the keys for which it scores highest, one that leaves gives its keys to all others,
// and nothing else moves.
func next(members []*peer, key, below uint64, first bool) (best *peer, score uint64) {
	for _, p := range members {
		s := mix(p.hash ^ key)
		if (first || s < below) && (best == nil || s > score) {
			best, score = p, s
		}
	}
	return best, score
}

// hashString is FNV-1a, mixed: all replicas must agree on it for ever.
func hashString(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return mix(h)
}

// mix is the finaliser of splitmix64: each bit of the result depends on all of x.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
