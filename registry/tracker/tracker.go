// Package tracker knows which nodes use which images, so that nodes can get files from each
// other. It introduces the nodes that use the same image to each other, and signs their
// grants ([peering.Grant]). Only a client that may pull from a repository may announce a
// node there and gets a grant for it, which the caller checks.
//
// What nodes announced is kept in memory. Behind a load balancer each server knows the
// nodes that announced themselves to it.
package tracker

import (
	"cmp"
	"crypto/ed25519"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/oci"
	"example.org/slipway/oci/peering"
)

const (
	// grantFor is how long a grant counts. A node goes on with its grant while the registry
	// is away, and a client that lost its right to pull reads from other nodes until it ends.
	grantFor = 15 * time.Minute
	// soon is when a node should announce an image again that other nodes have begun to use
	// or to complete within the last starting, and later is when it should otherwise.
	soon, later = time.Second, 45 * time.Second
	starting    = 20 * time.Second
	// crowd is how long after a change many nodes may be coming, and atOnce the pause then.
	// Nodes that come within rush do not know each other yet, and each fetches everything from
	// the registry until it does, so its pause is hasty.
	crowd, atOnce = 3 * time.Second, 300 * time.Millisecond
	rush, hasty   = time.Second, 100 * time.Millisecond
	// lifetime is how long an announcement counts.
	lifetime = 2*later + 10*time.Second

	// cell is how many nodes know of each other. More nodes make more cells, each of which
	// fetches the image from the registry once. foreign is how many complete nodes of other
	// cells a node is told of.
	cell, foreign = 48, 4
	// maxMembers bounds the announcements of all nodes. One takes about 400 bytes. One client
	// has at most half of them.
	maxMembers = 100_000
	maxShare   = 2
	// perSecond bounds how many nodes of one image announce it per second, by when they are
	// to announce it again. sweepEvery is how often room is made for more at most.
	perSecond  = 500
	sweepEvery = time.Second
)

// Tracker introduces nodes to each other. New makes one. It is safe for concurrent use.
type Tracker struct {
	key   ed25519.PrivateKey
	clock func() time.Time

	mu     sync.Mutex
	swarms map[swarmKey]*swarm
	count  int
	shares map[netip.Addr]int // of count, by client
	swept  time.Time

	announcements *prometheus.CounterVec
}

// swarmKey identifies an image of a repository. Nodes of different repositories are never
// introduced to each other, even for the same image.
type swarmKey struct{ repo, manifest string }

// swarm is the nodes that use an image. changed is when one came, left or was completed.
type swarm struct {
	members map[string]*member
	changed time.Time
}

// member is a node that uses an image.
type member struct {
	peering.Peer
	client     netip.Addr
	zone, rack string
	cell       int
	seen       time.Time
}

// New returns a tracker that signs with a key. If clock is nil, time.Now is used.
func New(key ed25519.PrivateKey, clock func() time.Time) *Tracker {
	if clock == nil {
		clock = time.Now
	}
	t := &Tracker{key: key, clock: clock, swarms: map[swarmKey]*swarm{}, shares: map[netip.Addr]int{}}
	t.announcements = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "slipway_peers_announcements_total", Help: "Announcements of nodes that use an image, by outcome."}, []string{"outcome"})
	for _, outcome := range []string{"answered", "refused"} {
		t.announcements.WithLabelValues(outcome)
	}
	return t
}

// Metrics returns the tracker's metrics.
func (t *Tracker) Metrics() []prometheus.Collector {
	return []prometheus.Collector{t.announcements, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "slipway_peers_announced_images", Help: "Images of nodes that other nodes are told of."}, func() float64 {
		t.mu.Lock()
		defer t.mu.Unlock()
		return float64(t.count)
	})}
}

// Announce notes that a node uses an image of a repository, from which its client may pull,
// and returns the other nodes that use it. seen is the address that the client has here,
// with or without a port. It returns an error if the announcement is wrong, or if there are
// too many.
func (t *Tracker) Announce(repo, seen string, a *peering.Announcement) (*peering.Answer, error) {
	ip := netip.IPv6Unspecified()
	if ap, err := netip.ParseAddrPort(seen); err == nil {
		ip = ap.Addr()
	} else if at, err := netip.ParseAddr(seen); err == nil {
		ip = at
	}
	out, err := t.announce(repo, oci.ClientOf(seen), ip.Unmap(), a)
	outcome := "answered"
	if err != nil {
		outcome = "refused"
	}
	t.announcements.WithLabelValues(outcome).Inc()
	return out, err
}

func (t *Tracker) announce(repo string, client, seen netip.Addr, a *peering.Announcement) (*peering.Answer, error) {
	if err := a.Check(); err != nil {
		return nil, err
	}
	at, err := a.At(seen)
	if err != nil {
		return nil, err
	}
	holder, err := peering.ParseKey(a.Key)
	if err != nil {
		return nil, err
	}
	now := t.clock()
	out := &peering.Answer{Time: now, Ends: now.Add(grantFor).Truncate(time.Second), Signer: t.key.Public().(ed25519.PublicKey), Again: later.Milliseconds(), Peers: []peering.Peer{}}
	if out.Grant, err = peering.Sign(&peering.Grant{Repo: repo, Holder: holder, Ends: out.Ends.Unix()}, t.key); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	k := swarmKey{repo, a.Manifest}
	s := t.swarms[k]
	if a.Leaving {
		if s != nil {
			t.leave(k, s, a.Key, now)
		}
		return out, nil
	}
	me, err := t.join(k, client, now, a, at)
	if err != nil {
		return nil, err
	}
	s = t.swarms[k]
	t.expire(k, s, now)
	out.Since, out.Peers = me.Since, s.peersOf(me)
	switch age := now.Sub(s.changed); {
	case age < rush:
		out.Again = hasty.Milliseconds()
	case age < crowd:
		out.Again = atOnce.Milliseconds()
	case age < starting:
		out.Again = soon.Milliseconds()
	}
	out.Again = min(max(out.Again, int64(len(s.members))*1000/perSecond), later.Milliseconds())
	return out, nil
}

// join adds or renews the member of an announcement. mu is held.
func (t *Tracker) join(k swarmKey, client netip.Addr, now time.Time, a *peering.Announcement, at netip.AddrPort) (*member, error) {
	s := t.swarms[k]
	var old *member
	if s != nil {
		old = s.members[a.Key]
	}
	m := &member{Peer: peering.Peer{Key: a.Key, Address: at.String(), Complete: a.Complete, Since: now.UnixMicro()}, client: client, zone: a.Zone, rack: a.Rack, seen: now}
	if old != nil {
		if a.Complete && !old.Complete {
			s.changed = now
		}
		m.cell, m.Since = old.cell, old.Since
		t.drop(s, a.Key)
		t.add(s, m)
		return m, nil
	}
	if err := t.room(client, now); err != nil {
		return nil, err
	}
	if s = t.swarms[k]; s == nil {
		s = &swarm{members: map[string]*member{}}
		t.swarms[k] = s
	}
	if !t.restarted(s, a, at) {
		s.changed = now
	}
	m.cell = s.roomIn(a.Zone)
	t.add(s, m)
	return m, nil
}

// room returns an error if there is no room for another member of a client. mu is held.
func (t *Tracker) room(client netip.Addr, now time.Time) error {
	full := func() bool { return t.count >= maxMembers || t.shares[client] >= maxMembers/maxShare }
	if full() && now.Sub(t.swept) >= sweepEvery {
		t.swept = now
		t.expireAll(now)
	}
	if full() {
		return fmt.Errorf("there is no room for more: nodes announced %d images already, and %d of them from this address", t.count, t.shares[client])
	}
	return nil
}

// add and drop count the members. mu is held.
func (t *Tracker) add(s *swarm, m *member) {
	s.members[m.Key] = m
	t.count++
	t.shares[m.client]++
}

func (t *Tracker) drop(s *swarm, key string) {
	m := s.members[key]
	delete(s.members, key)
	t.count--
	if t.shares[m.client]--; t.shares[m.client] == 0 {
		delete(t.shares, m.client)
	}
}

// restarted drops the member that had a new member's address before: the node has restarted
// and has another key. It reports whether there was one. An address that a node only claims
// drops nobody. Nodes behind one address, of a proxy say, drop each other all the time, so
// that does not count as a change. mu is held.
func (t *Tracker) restarted(s *swarm, a *peering.Announcement, at netip.AddrPort) (was bool) {
	if !strings.HasPrefix(a.Address, ":") {
		return false
	}
	for key, m := range s.members {
		if m.Address == at.String() {
			t.drop(s, key)
			was = true
		}
	}
	return was
}

// roomIn returns the cell of a new member. Members of a zone share cells if they can.
func (s *swarm) roomIn(zone string) int {
	most, sizes, zones := -1, map[int]int{}, map[int]string{}
	for _, m := range s.members {
		sizes[m.cell]++
		zones[m.cell] = m.zone
		most = max(most, m.cell)
	}
	for c := most; c >= 0; c-- {
		if zones[c] == zone && sizes[c] > 0 && sizes[c] < cell {
			return c
		}
	}
	return most + 1
}

// peersOf returns the nodes that a member is told of.
func (s *swarm) peersOf(me *member) []peering.Peer {
	own, others := []peering.Peer{}, []peering.Peer{}
	for _, m := range s.members {
		if m.Key == me.Key {
			continue
		}
		p := m.Peer
		switch {
		case m.zone == me.zone && m.rack == me.rack && m.rack != "":
			p.Near = 2
		case m.zone == me.zone:
			p.Near = 1
		}
		if m.cell == me.cell {
			own = append(own, p)
		} else if m.Complete {
			p.Since = 0 // each cell has its own order
			others = append(others, p)
		}
	}
	byKey := func(a, b peering.Peer) int { return cmp.Compare(a.Key, b.Key) }
	slices.SortFunc(own, byKey)
	slices.SortFunc(others, func(a, b peering.Peer) int { return cmp.Or(cmp.Compare(b.Near, a.Near), byKey(a, b)) })
	return append(own, others[:min(len(others), foreign)]...)
}

// leave drops a member. mu is held.
func (t *Tracker) leave(k swarmKey, s *swarm, key string, now time.Time) {
	if s.members[key] == nil {
		return
	}
	t.drop(s, key)
	s.changed = now
	if len(s.members) == 0 {
		delete(t.swarms, k)
	}
}

// expire drops the members of a swarm that announced nothing for too long. mu is held.
func (t *Tracker) expire(k swarmKey, s *swarm, now time.Time) {
	for key, m := range s.members {
		if now.Sub(m.seen) > lifetime {
			t.leave(k, s, key, now)
		}
	}
}

func (t *Tracker) expireAll(now time.Time) {
	for k, s := range t.swarms {
		t.expire(k, s, now)
	}
}
