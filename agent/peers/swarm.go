package peers

import (
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"net/netip"
	"slices"
	"sync"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/node/gearfs"
	"example.org/slipway/oci"
	"example.org/slipway/oci/peering"
)

const (
	// firstWait is how long the first request of an image waits to learn of other nodes. The
	// announcement runs beside other requests to the registry, so mostly it is over.
	firstWait = 300 * time.Millisecond
	// announceTime bounds one announcement, leaveTime the last one.
	announceTime, leaveTime = 10 * time.Second, time.Second
	// minAgain and maxAgain bound the pause that a registry may ask for. retryFirst is the
	// pause after an announcement failed; each further one is twice as long, up to 32 times.
	minAgain, maxAgain = 100 * time.Millisecond, 2 * time.Minute
	retryFirst         = time.Second
	// meetFor is how long an image is announced at once when a node that is not known asks for
	// its files.
	meetFor = 5 * time.Second
	// unwanted is how long a registry that introduces no nodes is not asked again.
	unwanted = time.Hour
)

// swarm is the nodes that use an image, as this node knows them.
type swarm struct {
	x    *Exchange
	ref  gearfs.SourceRef
	at   place
	made time.Time

	ctx  context.Context
	end  context.CancelFunc
	kick chan struct{} // announces at once

	first chan struct{} // closed after the first answer or failure
	// settled is closed after the first answer if no others are coming at the moment, else after the
	// second. By then nodes that came in the same moment know each other.
	settled chan struct{}

	mu       sync.Mutex
	inner    gearfs.Source
	whole    bool // this node has all files
	known    []*member
	since    int64 // when this node came, by the registry's clock; see peering.Peer
	grant    string
	ends     time.Time // by this node's clock
	claims   map[piece]*claim
	registry tempo
	front    front
}

// member is another node of a swarm.
type member struct {
	*peer
	complete bool
	near     int
	since    int64
}

func newSwarm(x *Exchange, ref gearfs.SourceRef) *swarm {
	s := &swarm{x: x, ref: ref, at: placeOf(ref), made: time.Now(), kick: make(chan struct{}, 1), first: make(chan struct{}), settled: make(chan struct{}), claims: map[piece]*claim{}}
	s.ctx, s.end = context.WithCancel(x.ctx)
	s.registry.init()
	s.front.init()
	return s
}

func (s *swarm) setInner(inner gearfs.Source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inner = inner
}

func (s *swarm) stop() { s.end() }

// complete notes whether this node has all files of the image.
func (s *swarm) complete(is bool) {
	s.mu.Lock()
	changed := s.whole != is
	s.whole = is
	s.mu.Unlock()
	if changed {
		s.announceNow()
	}
}

// knows reports whether a node is known, even if it is left out now.
func (s *swarm) knows(key peering.Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.known, func(m *member) bool { return m.key == key })
}

func (s *swarm) announceNow() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// announceAll announces the image until the swarm ends.
func (s *swarm) announceAll() {
	defer s.leave()
	t := time.NewTimer(0)
	defer t.Stop()
	failures := 0
	first, settled := sync.OnceFunc(func() { close(s.first) }), sync.OnceFunc(func() { close(s.settled) })
	answers := 0
	var last time.Time
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-t.C:
		case <-s.kick:
			if early := minAgain - time.Since(last); early > 0 {
				t.Reset(early)
				continue
			}
		}
		last = time.Now()
		again, err := s.announce()
		first()
		if answers++; answers > 1 || err != nil || again > minAgain {
			settled()
		}
		s.followLeader()
		if err == nil {
			failures = 0
		} else {
			failures++
			again = retryFirst << min(failures-1, 5)
			if oci.HasCode(err, oci.CodeUnsupported, oci.CodeNameUnknown, oci.CodeDenied, oci.CodeUnauthorized) {
				again = unwanted
				s.forget()
			}
			s.x.log.Debug("announcement to a registry", "source", s.ref.String(), "err", err)
		}
		t.Reset(again)
	}
}

// tell announces the image to the registry.
func (s *swarm) tell(ctx context.Context, leaving bool) (*peering.Answer, error) {
	s.mu.Lock()
	a := &peering.Announcement{Manifest: s.ref.Manifest, Address: s.x.addr, Zone: s.x.opts.Zone, Rack: s.x.opts.Rack, Complete: s.whole, Leaving: leaving}
	s.mu.Unlock()
	if err := a.Sign(s.x.id.private); err != nil {
		return nil, err
	}
	return s.x.opts.Announce(ctx, s.ref, a)
}

// maxKnown bounds how many nodes of an answer are used. A registry names about 50.
const maxKnown = 256

// membersOf returns the nodes of an answer.
func (s *swarm) membersOf(a *peering.Answer) (known []*member) {
	for _, p := range a.Peers {
		key, err := peering.ParseKey(p.Key)
		at, wrong := netip.ParseAddrPort(p.Address) // or it could be any part of a URL
		if err != nil || wrong != nil || at.Addr().IsUnspecified() || at.Addr().IsMulticast() || at.Addr().Zone() != "" || key == s.x.id.key {
			continue
		}
		if known = append(known, &member{s.x.peer(key, at.String()), p.Complete, p.Near, p.Since}); len(known) == maxKnown {
			break
		}
	}
	slices.SortFunc(known, func(a, b *member) int { return slices.Compare(a.key[:], b.key[:]) })
	return known
}

// announce announces the image once, and returns when to do so again.
func (s *swarm) announce() (time.Duration, error) {
	ctx, cancel := context.WithTimeout(s.ctx, announceTime)
	defer cancel()
	sent := time.Now()
	a, err := s.tell(ctx, false)
	if err != nil {
		return 0, err
	}
	now := time.Now()
	// The answer's time lies between the two.
	s.x.vouch(s.at, a, sent.Add(now.Sub(sent)/2))
	known := s.membersOf(a)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known, s.since, s.grant, s.ends = known, a.Since, a.Grant, sent.Add(a.Ends.Sub(a.Time))
	return min(max(time.Duration(a.Again)*time.Millisecond, minAgain), maxAgain), nil
}

// forget forgets other nodes, because the registry no longer lets this one have anything.
func (s *swarm) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known, s.grant = nil, ""
}

// leave tells the registry that this node does not serve the image any more.
func (s *swarm) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
	defer cancel()
	if _, err := s.tell(ctx, true); err != nil {
		s.x.log.Debug("leaving", "source", s.ref.String(), "err", err)
	}
}

// await waits for first or settled, but not for long.
func (s *swarm) await(ctx context.Context, known <-chan struct{}) {
	select {
	case <-known:
		return
	default:
	}
	t := time.NewTimer(firstWait - time.Since(s.made))
	defer t.Stop()
	select {
	case <-known:
	case <-t.C:
	case <-ctx.Done():
	}
}

// members returns the nodes that may be asked now. There are none without a grant.
func (s *swarm) members(now time.Time) []*member {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.grant == "" || !now.Before(s.ends) {
		return nil
	}
	var out []*member
	for _, m := range s.known {
		if m.usable(now) {
			out = append(out, m)
		}
	}
	return out
}

// plan says which node each of some pieces comes from. nil stands for this node, which
// fetches the piece itself.
type plan struct {
	self    peering.Key
	members []*member
	holders []*member // those with all files that are nearest
	most    bool      // at least half of the nodes have all files
	led     bool      // pieces come along the trees of the leader, see front
}

func (s *swarm) plan(now time.Time) *plan { return planOf(s.x.id.key, s.members(now)) }

func planOf(self peering.Key, members []*member) *plan {
	p := &plan{self: self, members: members}
	nearest, complete := -1, 0
	for _, m := range p.members {
		if !m.complete {
			continue
		}
		complete++
		if m.near > nearest {
			nearest, p.holders = m.near, nil
		}
		if m.near == nearest {
			p.holders = append(p.holders, m)
		}
	}
	p.most = 2*complete > len(p.members)
	return p
}

// owner returns the node that a piece comes from.
func (p *plan) owner(of piece) *member {
	if p.most {
		return p.holder(of)
	}
	return p.first(of)
}

// first returns the node with the highest hash for a piece. The hash depends on the piece and
// the node alone, so a node that comes, or that another one leaves out, changes the owners of
// no other pieces. A node passes a request only to one with a higher hash than its own, so
// requests never go in a circle, even if nodes know different others.
func (p *plan) first(of piece) *member {
	seed := of.seed()
	var best *member
	most := mix(seed ^ binary.BigEndian.Uint64(p.self[:]))
	for _, m := range p.members {
		if w := mix(seed ^ binary.BigEndian.Uint64(m.key[:])); w > most {
			best, most = m, w
		}
	}
	return best
}

// without returns the plan of a swarm without a node, which did not give what it was asked for.
func (s *swarm) without(out *member, now time.Time) *plan {
	return planOf(s.x.id.key, slices.DeleteFunc(s.members(now), func(m *member) bool { return m.peer == out.peer }))
}

// holder returns a node that has all files, or nil. Different nodes get different ones.
func (p *plan) holder(of piece) *member {
	if len(p.holders) == 0 {
		return nil
	}
	seed := binary.BigEndian.Uint64(of.name[:]) ^ uint64(uint32(of.chunk))<<32 ^ binary.BigEndian.Uint64(p.self[:])
	return p.holders[mix(seed)%uint64(len(p.holders))]
}

// mix spreads the bits of a number (splitmix64).
func mix(z uint64) uint64 {
	z += 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// tempo is how fast the registry answers this node: the time to the first byte of a request,
// and bytes a second of one request after it.
type tempo struct {
	mu   sync.Mutex
	wait time.Duration
	rate float64
	// The registry failed this many times in a row, and is asked last until then.
	failures int
	until    time.Time
}

// away reports whether the registry failed lately.
func (p *tempo) away(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return now.Before(p.until)
}

// answered notes whether the registry gave what it was asked for. An answer about one file
// is an answer.
func (p *tempo) answered(now time.Time, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, gear.ErrContent) || errors.Is(err, context.Canceled) {
		p.failures, p.until = 0, time.Time{}
		return
	}
	p.until = now.Add(awayFor << min(p.failures, 3))
	p.failures++
}

// awayFor is how long a registry that failed is asked last.
const awayFor = 4 * time.Second

const (
	// minPatience and maxPatience bound how long another node may send nothing.
	minPatience, maxPatience = time.Second, 5 * time.Second
	// maxComing bounds how long a node may say that it is fetching a piece.
	maxComing   = 10 * time.Second
	assumedWait = 200 * time.Millisecond
	assumedRate = 1 << 20
	tempoWeight = 0.3
)

func (p *tempo) init() { p.wait, p.rate = assumedWait, assumedRate }

// note adds a measurement.
func (p *tempo) note(wait, took time.Duration, bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wait += time.Duration(tempoWeight * float64(wait-p.wait))
	if bytes >= 64<<10 && took > 0 {
		p.rate += tempoWeight * (float64(bytes)/took.Seconds() - p.rate)
	}
}

// limits returns how long a node may take for bytes: somewhat longer than the registry
// would.
func (p *tempo) limits(bytes int64) limits {
	p.mu.Lock()
	defer p.mu.Unlock()
	idle := min(max(2*p.wait, minPatience), maxPatience)
	all := 2*idle + time.Duration(4*float64(bytes)/p.rate*float64(time.Second))
	return limits{idle, all, int(maxComing / comingEvery), maxComing + 2*all}
}

// sizeOfAll returns how many bytes some pieces have.
func sizeOfAll(list []want) (n int64) {
	for i := range list {
		size, _, _ := list[i].of(list[i].f)
		n += int64(size)
	}
	return n
}

// filesOf returns the files of pieces that are whole files.
func filesOf(list []*claim) []gear.File {
	out := make([]gear.File, len(list))
	for i, c := range list {
		out[i] = *c.want.f
	}
	return out
}
