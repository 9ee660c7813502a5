package peers

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"time"
)

// order says how a node gets a piece that it does not have, for itself or for another node. An
// order for another node is in fetchHeader.
//
// Nodes wait for each other, so orders have levels. A node that is asked for a piece does not
// wait for a fetch of its own of a higher level, because that one may wait for the node that
// asks. Among fetches of one level, each waits for a node that comes before it in an order that
// is the same for all: by hash, by age, or by its place in a tree.
type order string

const (
	// present asks a node for what it has or is fetching. It is no order to fetch anything.
	present order = ""
	// owned is for the owner of a piece, as far as the asking node knows. A node that knows of
	// another owner asks that one.
	owned order = "1"
	// mine is for a piece that this node owns. Other nodes never get this order. older is for a
	// node that began to use the image earlier than the owner of a piece, and may have the piece
	// or be fetching it.
	mine  order = "mine"
	older order = "older"
	// led is for a piece that the leader has opened (see front), which comes along a tree. root
	// is for the leader itself.
	led  order = "led"
	root order = "root"
)

// orderOf returns the order of a request. Versions without other orders say owned.
func orderOf(header string) order {
	switch o := order(header); o {
	case present, older, led, root:
		return o
	}
	return owned
}

// level returns the level of an order.
func (o order) level() int {
	switch o {
	case led:
		return 2
	case owned, root:
		return 1
	}
	return 0
}

// hop is a node that is asked for a piece, and the order for it. The zero hop is the registry.
type hop struct {
	m   *member
	how order
}

// generation is how much earlier another node must have begun to use an image to be asked for a
// piece that this node owns. Nodes that begin together all have nothing.
const generation = 3 * time.Second

// route says which nodes are asked for pieces, one after the other.
type route struct {
	*plan
	how     order
	elders  []*member // those that began at least a generation earlier
	leader  *member
	parents [2]*member // in the two trees; nil if the leader is the parent
}

// route returns the route of an order.
func (s *swarm) route(how order, now time.Time) *route {
	r := &route{plan: s.plan(now), how: how}
	if how == led {
		if r.leader, _ = s.leader(now); r.leader != nil {
			r.parents = parentsOf(s.ref.Manifest, r.plan, r.leader)
		}
	}
	s.mu.Lock()
	since := s.since
	s.mu.Unlock()
	for _, m := range r.members {
		if m.since != 0 && m.since < since-generation.Microseconds() {
			r.elders = append(r.elders, m)
		}
	}
	return r
}

// hops returns the nodes that are asked for a piece before the registry.
func (r *route) hops(of piece) (out []hop) {
	add := func(m *member, how order) {
		if m != nil {
			out = append(out, hop{m, how})
		}
	}
	add(r.holder(of), present)
	switch r.how {
	case led:
		add(r.parents[treeOf(of)], led)
		add(r.leader, root)
		add(r.first(of), owned)
		return out
	case root:
		return out
	case owned:
		if m := r.first(of); m != nil {
			add(m, owned)
			return out
		}
	}
	// A node that has just come owns pieces that the nodes before it have fetched already.
	add(highest(r.elders, of), older)
	return out
}

// highest returns the node with the highest hash for a piece, or nil if there are none.
func highest(members []*member, of piece) (best *member) {
	seed, most := of.seed(), uint64(0)
	for _, m := range members {
		if w := mix(seed ^ binary.BigEndian.Uint64(m.key[:])); best == nil || w > most {
			best, most = m, w
		}
	}
	return best
}

// seed is what the hashes of nodes for a piece begin with.
func (p piece) seed() uint64 {
	return binary.BigEndian.Uint64(p.name[:]) ^ mix(uint64(uint32(p.chunk)))
}

// treeOf returns in which of the two trees a piece comes.
func treeOf(of piece) int { return int((of.name[0] ^ byte(of.chunk)) & 1) }

// parentsOf returns which nodes this one asks for the pieces of each of the two trees. Below the
// leader, each tree is a chain of one node and a binary tree below that. The second tree has the
// nodes in the opposite order, so that nodes with children in one of them have none in the
// other, and each node sends about as much as it receives.
func parentsOf(manifest string, p *plan, leader *member) (out [2]*member) {
	sum := sha256.Sum256([]byte(manifest))
	seed := binary.BigEndian.Uint64(sum[:])
	place := func(key [32]byte) uint64 { return mix(seed ^ binary.BigEndian.Uint64(key[:])) }
	self := place(p.self)
	var above [2][]*member
	for _, m := range p.members {
		if m.peer == leader.peer {
			continue
		}
		if place(m.key) > self {
			above[0] = append(above[0], m)
		} else {
			above[1] = append(above[1], m)
		}
	}
	slices.SortFunc(above[0], func(a, b *member) int { return cmp.Compare(place(b.key), place(a.key)) })
	slices.SortFunc(above[1], func(a, b *member) int { return cmp.Compare(place(a.key), place(b.key)) })
	for t, list := range above {
		if i := len(list); i > 0 {
			out[t] = list[(i-1)/2]
		}
	}
	return out
}
