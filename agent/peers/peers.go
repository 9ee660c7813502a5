// Package peers lets nodes that use the same image get its files from each other. The
// registry tells nodes of each other and signs grants (package oci/peering).
//
// Terms: a piece is a small file, or a chunk of a large one. A swarm is the nodes that use
// an image of a repository. Each piece has an owner among the nodes of a swarm, which
// follows from the piece's name and the nodes' keys, so that all nodes agree without asking.
// The owner fetches the piece from the registry, and the others ask the owner. So a registry
// sends an image about once, however many nodes start it in the same second, and each node
// sends about as much as it receives.
//
// The package promises the following. Every byte that another node sends is compared with
// its name before it is passed on. A node gives a piece only to the holder of a grant for a
// repository, and only of an image that it pulled from this repository itself. Whether it
// has other files cannot be learnt from it. A node that lies, stalls, or is away is left out
// for a time, and what it was asked for comes from the registry instead. Without other nodes,
// everything goes to the registry as if this package were not there.
package peers

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"example.org/slipway/gear"
	"example.org/slipway/node/gearfs"
	"example.org/slipway/node/gearfs/pace"
	"example.org/slipway/oci/peering"
)

// Announcer announces this node to the registry of a source.
type Announcer func(ctx context.Context, ref gearfs.SourceRef, a *peering.Announcement) (*peering.Answer, error)

// Sharer finds a file among the images of this node that have a source for which from
// returns true; [gearfs.Service.Share] is one.
type Sharer func(name gear.Name, from func(gearfs.SourceRef) bool) (*gearfs.Shared, bool)

// Options are the options of New.
type Options struct {
	// Advertise is the address under which other nodes reach this one. Empty means the
	// listener's port at the address that the registry sees.
	Advertise string
	// Zone and Rack say where the node is.
	Zone, Rack string
	// UploadRate bounds what this node sends, in bytes per second; 0 means no bound.
	UploadRate int64
	// Uploads bounds how many requests of other nodes are answered at a time; default 64.
	Uploads int
	// HotBytes is the memory for pieces that were fetched or sent recently; default 64 MiB.
	HotBytes int
	// Announce announces this node.
	Announce Announcer
	// Logger logs nodes that are left out. If it is nil, nothing is logged.
	Logger *slog.Logger
}

// Exchange trades pieces with other nodes. New makes one. It is safe for concurrent use.
type Exchange struct {
	opts  Options
	log   *slog.Logger
	id    *identity
	hot   *hot
	share Sharer
	addr  string // as it is announced

	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup

	uploads chan struct{}
	doors   *doors
	held    atomic.Int64 // bytes that uploads keep, see maxHeld
	// followers counts the nodes that are told what this one opens.
	followers atomic.Int64
	limit     *rate.Limiter
	server    *http.Server

	mu      sync.Mutex
	swarms  map[gearfs.SourceRef]*swarm
	peers   map[string]*peer // by key and address
	signers map[place]map[string]*signer

	late  pace.Metronome // of this process, while it asks other nodes
	count measures
}

// signer is a registry's key, as one of its servers gave it.
type signer struct {
	key ed25519.PublicKey
	// offset is how far ahead of this node's clock the registry's is.
	offset time.Duration
	seen   time.Time
}

const (
	// maxSigners bounds the keys of one registry. Each of its servers may have one.
	maxSigners = 16
	// signerFor is how long a key counts after the registry has shown it. Grants end sooner
	// while it is away, and a key that it has given up must not count for ever.
	signerFor = 30 * time.Minute
)

// New returns an exchange that other nodes reach at the listener's port. Share is set with
// Serve.
func New(o *Options, port int) (*Exchange, error) {
	x := &Exchange{opts: *o, log: o.Logger, swarms: map[gearfs.SourceRef]*swarm{}, peers: map[string]*peer{}, signers: map[place]map[string]*signer{}}
	x.count.begin()
	if x.log == nil {
		x.log = slog.New(slog.DiscardHandler)
	}
	if x.opts.Uploads <= 0 {
		x.opts.Uploads = 64
	}
	if x.opts.HotBytes <= 0 {
		x.opts.HotBytes = 64 << 20
	}
	x.hot = newHot(x.opts.HotBytes)
	x.uploads, x.doors = make(chan struct{}, x.opts.Uploads), newDoors()
	x.limit = rate.NewLimiter(rate.Inf, 0)
	if r := x.opts.UploadRate; r > 0 {
		x.limit = rate.NewLimiter(rate.Limit(r), int(max(r/4, gear.LargeFile+frameHeader)))
	}
	if x.addr = x.opts.Advertise; x.addr == "" {
		x.addr = ":" + strconv.Itoa(port)
	}
	var err error
	if x.id, err = newIdentity(); err != nil {
		return nil, err
	}
	x.ctx, x.cancel = context.WithCancel(context.Background())
	return x, nil
}

// Serve answers other nodes until Close.
func (x *Exchange) Serve(l net.Listener, share Sharer) error {
	x.mu.Lock()
	x.share = share
	x.server = &http.Server{Handler: http.HandlerFunc(x.serveHTTP), TLSConfig: x.id.serverTLS(), ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
		ConnState: x.doors.changed, Protocols: &http.Protocols{}}
	x.server.Protocols.SetHTTP1(true) // a connection of HTTP/2 would bring many requests at a time
	s := x.server
	x.mu.Unlock()
	if x.ctx.Err() != nil {
		return l.Close()
	}
	if err := s.ServeTLS(l, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Close ends all work, and tells registries that this node is leaving if they answer soon.
func (x *Exchange) Close() error {
	x.mu.Lock()
	x.cancel()
	s := x.server
	x.mu.Unlock()
	var err error
	if s != nil {
		err = s.Close()
	}
	x.work.Wait()
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, p := range x.peers {
		p.client.CloseIdleConnections()
	}
	return err
}

// Using names the images that this node has, by their sources, and whether they are
// complete. Only these are announced.
func (x *Exchange) Using(images map[gearfs.SourceRef]bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ctx.Err() != nil {
		return
	}
	now := time.Now()
	for ref, s := range x.swarms {
		if _, ok := images[ref]; !ok && now.Sub(s.made) > unusedFor {
			s.stop()
			delete(x.swarms, ref)
		}
	}
	for ref, complete := range images {
		x.swarm(ref, nil).complete(complete)
	}
	x.prune(now)
}

// prune forgets nodes that no swarm has any more, except those that are left out. mu is held.
func (x *Exchange) prune(now time.Time) {
	used := map[*peer]bool{}
	for _, s := range x.swarms {
		s.mu.Lock()
		for _, m := range s.known {
			used[m.peer] = true
		}
		s.mu.Unlock()
	}
	for id, p := range x.peers {
		if !used[p] && p.usable(now) {
			p.client.CloseIdleConnections()
			delete(x.peers, id)
		}
	}
	for at, all := range x.signers {
		maps.DeleteFunc(all, func(_ string, sg *signer) bool { return sg.over(now) })
		if len(all) == 0 {
			delete(x.signers, at)
		}
	}
}

func (sg *signer) over(now time.Time) bool { return now.Sub(sg.seen) > signerFor }

// goWork runs f in a goroutine that Close waits for. It returns false after Close.
func (x *Exchange) goWork(f func()) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ctx.Err() != nil {
		return false
	}
	x.work.Go(f)
	return true
}

// unusedFor is how long a source may be used before its image is known.
const unusedFor = time.Minute

// swarm returns the swarm of a source. mu is held.
func (x *Exchange) swarm(ref gearfs.SourceRef, inner gearfs.Source) *swarm {
	s := x.swarms[ref]
	if s == nil {
		s = newSwarm(x, ref)
		x.swarms[ref] = s
		x.work.Go(s.announceAll)
	}
	if inner != nil {
		s.setInner(inner)
	}
	return s
}

// Expect announces an image that is about to start, so that other nodes are known when its first
// file is needed.
func (x *Exchange) Expect(ref gearfs.SourceRef) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ctx.Err() == nil {
		x.swarm(ref, nil)
	}
}

// Dial returns a dialer whose sources get files from other nodes, too.
func (x *Exchange) Dial(dial gearfs.Dialer) gearfs.Dialer {
	return func(ref gearfs.SourceRef) (gearfs.Source, error) {
		inner, err := dial(ref)
		if err != nil {
			return nil, err
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.ctx.Err() != nil {
			return inner, nil
		}
		return &source{Source: inner, s: x.swarm(ref, inner)}, nil
	}
}

// peer returns the node with a key at an address.
func (x *Exchange) peer(key peering.Key, addr string) *peer {
	x.mu.Lock()
	defer x.mu.Unlock()
	id := key.String() + " " + addr
	p := x.peers[id]
	if p == nil {
		p = newPeer(x.id, key, addr, &x.late)
		x.peers[id] = p
	}
	return p
}

// vouch notes that a registry signs the grants of a repository with a key.
func (x *Exchange) vouch(at place, a *peering.Answer, now time.Time) {
	if len(a.Signer) != ed25519.PublicKeySize {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	m := x.signers[at]
	if m == nil {
		m = map[string]*signer{}
		x.signers[at] = m
	}
	if m[string(a.Signer)] == nil && len(m) >= maxSigners {
		clear(m)
	}
	m[string(a.Signer)] = &signer{a.Signer, a.Time.Sub(now), now}
}

// vouched is a key with which a registry signs the grants of a repository.
type vouched struct {
	at place
	*signer
}

// vouched returns all keys that count. Signatures are checked without holding mu: strangers
// can ask for that, too.
func (x *Exchange) vouched(now time.Time) (out []vouched) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for at, all := range x.signers {
		for _, sg := range all {
			if !sg.over(now) {
				out = append(out, vouched{at, sg})
			}
		}
	}
	return out
}

// leeway is how long after its end a grant counts, because clocks drift.
const leeway = 30 * time.Second

// allows returns which places the holder of a key may read from with a grant. It returns
// an error if the grant gives no right at all.
func (x *Exchange) allows(grant string, holder peering.Key, now time.Time) (func(gearfs.SourceRef) bool, error) {
	tried := map[string]*peering.Grant{}
	may := map[place]bool{}
	for _, v := range x.vouched(now) {
		k := string(v.key)
		g, known := tried[k]
		if !known {
			g, _ = peering.Verify(grant, v.key)
			tried[k] = g
		}
		if g != nil && g.Holder == holder && g.Repo == v.at.repo && !now.Add(v.offset).After(time.Unix(g.Ends, 0).Add(leeway)) {
			may[v.at] = true
		}
	}
	if len(may) == 0 {
		return nil, peering.ErrGrant
	}
	return func(ref gearfs.SourceRef) bool { return may[placeOf(ref)] }, nil
}

func placeOf(ref gearfs.SourceRef) place { return place{ref.Registry, ref.Repo} }

// measures are the counters of an exchange.
type measures struct {
	fromPeers, fromRegistry, sent atomic.Int64 // bytes
	banned, refusals              prometheus.Counter
}

// begin makes the counters that are metrics themselves.
func (m *measures) begin() {
	m.banned = prometheus.NewCounter(prometheus.CounterOpts{Name: "slipway_agent_peers_bans_total",
		Help: "Times that a node was left out for a while, as it lied, stalled or was away."})
	m.refusals = prometheus.NewCounter(prometheus.CounterOpts{Name: "slipway_agent_peers_refused_requests_total",
		Help: "Requests of other nodes without a valid grant."})
}

// Moved is how many bytes a node has exchanged since its agent began.
type Moved struct {
	// FromPeers and FromRegistry are bytes of content of images that other nodes use. Sent
	// are bytes for other nodes.
	FromPeers, FromRegistry, Sent int64
}

// Moved returns how much was exchanged.
func (x *Exchange) Moved() Moved {
	return Moved{x.count.fromPeers.Load(), x.count.fromRegistry.Load(), x.count.sent.Load()}
}

// Metrics returns the metrics of the exchange.
func (x *Exchange) Metrics() []prometheus.Collector {
	received := func(from string, of *atomic.Int64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "slipway_agent_peers_received_bytes_total", ConstLabels: prometheus.Labels{"from": from},
			Help: "Bytes of content of images that other nodes use, by where they came from: peers or registry."}, counted(of))
	}
	sent := prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "slipway_agent_peers_sent_bytes_total", Help: "Bytes sent to other nodes."}, counted(&x.count.sent))
	return []prometheus.Collector{received("peers", &x.count.fromPeers), received("registry", &x.count.fromRegistry), sent, x.count.banned, x.count.refusals,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "slipway_agent_peers_known", Help: "Other nodes that are used now."}, x.known)}
}

// counted returns the value of a counter for a metric.
func counted(n *atomic.Int64) func() float64 { return func() float64 { return float64(n.Load()) } }

// known counts the nodes of all swarms.
func (x *Exchange) known() float64 {
	x.mu.Lock()
	swarms := make([]*swarm, 0, len(x.swarms))
	for _, s := range x.swarms {
		swarms = append(swarms, s)
	}
	x.mu.Unlock()
	now, seen := time.Now(), map[*peer]bool{}
	for _, s := range swarms {
		for _, m := range s.members(now) {
			seen[m.peer] = true
		}
	}
	return float64(len(seen))
}

// blame leaves a node out after an error.
func (x *Exchange) blame(p *peer, err error) {
	d := banFor(err)
	if d == 0 {
		return
	}
	p.ban(time.Now(), d)
	x.count.banned.Inc()
	level := slog.LevelDebug
	if errors.Is(err, errLie) { // another key may be that of the same node, which has restarted
		level = slog.LevelWarn
	}
	x.log.Log(x.ctx, level, "a node is left out for a while", "node", p.addr, "err", err)
}

// readWhole reads a content of a known size.
func readWhole(r io.Reader, f *gear.File) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, f.Size+1))
	if err == nil && int64(len(b)) != f.Size {
		err = fmt.Errorf("file %x has %d bytes, not %d: %w", f.Name, len(b), f.Size, errLie)
	}
	return b, err
}
