// Package cluster lets several replicas of a registry use each other's caches.
//
// Each blob has a home: one of the replicas that are present. The digest alone determines
// the home, so all replicas choose the same home without asking. A replica that has not
// cached a blob reads it from the blob's home. The home reads the blob once from the
// object store and caches it. Without homes each replica caches the same popular blobs,
// and the caches of N replicas together hold little more than one of them.
//
// Terms: a member is a replica that has registered in the [Directory], the shared
// catalogue, within the last seconds. A peer is a member other than this replica. An
// incarnation is one life of a replica's process.
//
// What it promises: a peer makes reads cheaper, never wrong, and never impossible.
// Whatever happens to a peer (it is slow, gone, busy, lying, or cut off in the middle),
// the read continues from the object store. There is one exception: a peer may send a
// whole large blob with wrong bytes in it. The read then ends in an error before its last
// byte, because the bytes that were passed on cannot be taken back, and the peer is not
// used for a while. A request of a peer is never passed on to another peer, and no two
// replicas can wait for each other (see [Cluster.Handler]).
//
// What it leaves to others: what is cached and for how long, who may read which
// repository, and that an object is in the store.
package cluster

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/oci"
)

// Directory is where replicas announce themselves to each other. A lease is a name that
// one owner holds for a time. It expires by itself, by the directory's clock. All methods
// may run concurrently.
type Directory interface {
	// Lease takes or renews a lease. ok is false while another owner has it.
	Lease(ctx context.Context, name, owner string, d time.Duration) (ok bool, err error)
	// Unlease gives a lease back. It is not an error if the owner does not have it.
	Unlease(ctx context.Context, name, owner string) error
	// Leases returns the current leases whose names begin with prefix, as a map from name
	// to owner.
	Leases(ctx context.Context, prefix string) (map[string]string, error)
}

// Config identifies this replica. All fields are required.
type Config struct {
	// ID names the replica among its peers. It has 1 to 64 characters of [A-Za-z0-9._-].
	// It should stay the same over restarts, because homes depend on it.
	ID string
	// URL is where peers reach the handler: http or https, host, no path.
	URL string
	// Secret is known to all replicas and to nobody else. It has at least MinSecret
	// bytes.
	Secret []byte
	// Digest returns the digest of the content of an object with the given key.
	// ok is false for objects that replicas do not read from each other.
	Digest func(key string) (d oci.Digest, ok bool)
}

// MinSecret is the length of the shortest secret, in bytes: 128 bits.
const MinSecret = 16

// Options are the options of New. The zero value works.
type Options struct {
	// Lease is how long a member counts as present after its last sign of life; default
	// 10 s. It is renewed three times in that time.
	Lease time.Duration
	// HedgeAfter is how long a peer may take to begin its answer before the object store
	// is also asked; default 250 ms. That is longer than a home needs to read from its
	// store.
	HedgeAfter time.Duration
	// AnswerTimeout is how long a peer may take to begin its answer before it is given
	// up; default 5 s.
	AnswerTimeout time.Duration
	// StallTimeout is how long a peer may pause in the middle; default 3 s.
	StallTimeout time.Duration
	// MinRate is the least average rate of a peer, in bytes per second of waiting for it;
	// default 1 MiB. If the peer is slower, the store is the better source.
	MinRate int64
	// LoadFactor bounds how much more than its share of the current reads one peer may
	// get; default 1.25. Further reads go to the blob's next home.
	LoadFactor float64
	// MaxPerPeer is how many concurrent reads from one peer are allowed; default 64.
	MaxPerPeer int
	// MaxServed is how many reads of peers are served at once; default 256. Further reads
	// are refused, and the peer reads from the store.
	MaxServed int
	// Skew is how far the clocks of two replicas may differ; default 5 min.
	Skew time.Duration
	// VerifyFirst is the size, in bytes, of the largest blob that is read and verified
	// before its first byte is passed on; default 1 MiB. For each peer, up to MaxPerPeer
	// such blobs are held in memory.
	VerifyFirst int64
	// TLS is the configuration for peers with https; default the system's authorities.
	TLS *tls.Config
	// Clock returns the time; default time.Now.
	Clock func() time.Time
	// Logger; default slog.Default.
	Logger *slog.Logger
}

// ownFloor is how many concurrent reads from one peer are always allowed. While there are
// few reads, a bound on shares would only scatter them.
const ownFloor = 8

func (o *Options) withDefaults() Options {
	var v Options
	if o != nil {
		v = *o
	}
	duration := func(d *time.Duration, def time.Duration) {
		if *d <= 0 {
			*d = def
		}
	}
	duration(&v.Lease, 10*time.Second)
	duration(&v.HedgeAfter, 250*time.Millisecond)
	duration(&v.AnswerTimeout, 5*time.Second)
	duration(&v.StallTimeout, 3*time.Second)
	duration(&v.Skew, 5*time.Minute)
	if v.MinRate <= 0 {
		v.MinRate = 1 << 20
	}
	if v.LoadFactor <= 1 {
		v.LoadFactor = 1.25
	}
	if v.MaxPerPeer <= 0 {
		v.MaxPerPeer = 64
	}
	if v.MaxServed <= 0 {
		v.MaxServed = 256
	}
	if v.VerifyFirst <= 0 {
		v.VerifyFirst = 1 << 20
	}
	if v.Clock == nil {
		v.Clock = time.Now
	}
	if v.Logger == nil {
		v.Logger = slog.Default()
	}
	return v
}

// Cluster is this replica's view of all replicas. All methods may run concurrently.
type Cluster struct {
	dir  Directory
	cfg  Config
	opts Options
	key  macKey
	// self is the incarnation of this process. url is where peers reach it.
	self    string
	url     string
	client  *http.Client
	windows windows
	served  chan struct{}
	metrics metrics
	// background waits for the reads that lost a race.
	background sync.WaitGroup

	mu sync.Mutex
	// members are all members that are present, including this replica.
	members []*peer
	// asking and serving count, for each key, the current reads from peers and for peers.
	// One of the two is always zero, so that replicas do not wait for each other.
	asking, serving map[string]int
	// inFlight counts all reads from peers.
	inFlight int
	// count numbers the requests to peers.
	count uint64
}

// New returns a cluster that consists of this replica alone. Run finds the others. The
// caller must close the cluster.
func New(dir Directory, cfg Config, o *Options) (*Cluster, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	opts := o.withDefaults()
	c := &Cluster{dir: dir, cfg: cfg, opts: opts, key: newMACKey(cfg.Secret),
		served: make(chan struct{}, opts.MaxServed), asking: map[string]int{}, serving: map[string]int{}}
	c.windows.init(2 * opts.Skew)
	var random [8]byte
	if _, err := rand.Read(random[:]); err != nil {
		return nil, fmt.Errorf("choose the name of this incarnation: %w", err)
	}
	c.self = hex.EncodeToString(random[:])
	c.url, _ = parsePeerURL(cfg.URL) // checked above
	c.client = &http.Client{
		Transport: &http.Transport{
			// The proxy of the environment is not used, because peers are next to each
			// other.
			DialContext:         (&net.Dialer{Timeout: 2 * time.Second, KeepAlive: 10 * time.Second}).DialContext,
			TLSClientConfig:     opts.TLS,
			TLSHandshakeTimeout: 2 * time.Second,
			MaxIdleConnsPerHost: opts.MaxPerPeer,
			IdleConnTimeout:     time.Minute,
			DisableCompression:  true,
			ReadBufferSize:      64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	c.metrics.init(c)
	return c, nil
}

func (cfg *Config) check() error {
	switch {
	case !validID(cfg.ID):
		return fmt.Errorf("replica id %q must be 1 to 64 of A-Z a-z 0-9 . _ -", cfg.ID)
	case len(cfg.Secret) < MinSecret:
		return fmt.Errorf("the secret of the cluster has %d bytes, at least %d are needed", len(cfg.Secret), MinSecret)
	case cfg.Digest == nil:
		return errors.New("cluster.Config.Digest is nil")
	}
	if _, err := parsePeerURL(cfg.URL); err != nil {
		return fmt.Errorf("URL for peers: %w", err)
	}
	return nil
}

func validID(id string) bool {
	for i := range len(id) {
		switch b := id[i]; {
		case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9', b == '.', b == '_', b == '-':
		default:
			return false
		}
	}
	return 0 < len(id) && len(id) <= 64
}

// parsePeerURL returns the part of a URL that precedes the path in requests to a peer.
func parsePeerURL(s string) (string, error) {
	u, err := url.Parse(s)
	if err != nil || len(s) > 512 {
		return "", errors.New("is not a URL") // the parser's message repeats the whole URL
	}
	if (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("%q must be http:// or https:// and a host, no more", u.Redacted())
	}
	return u.Scheme + "://" + u.Host, nil
}

// Run keeps this replica registered with the others, and learns about the others, until
// ctx ends. If the directory is away, Run keeps the members that it last learnt.
func (c *Cluster) Run(ctx context.Context) error {
	tick := time.NewTicker(c.opts.Lease / 3)
	defer tick.Stop()
	failing := false
	for {
		err := c.refresh(ctx)
		switch {
		case ctx.Err() != nil:
		case err != nil && !failing:
			c.opts.Logger.Warn("look for peers; those known last are kept", "err", err)
		case err == nil && failing:
			c.opts.Logger.Info("peers are known again", "members", len(c.Members()))
		}
		failing = err != nil
		select {
		case <-tick.C:
		case <-ctx.Done():
			end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			defer cancel()
			if err := c.dir.Unlease(end, c.leaseName(), c.leaseOwner()); err != nil {
				c.opts.Logger.Info("leave the cluster; the lease runs out", "err", err)
			}
			return nil
		}
	}
}

// Close closes the connections to peers and waits for background work. Reads of objects
// that are still open may fail.
func (c *Cluster) Close() error {
	c.background.Wait()
	c.client.CloseIdleConnections()
	return nil
}

// Metrics returns the collectors of the cluster.
func (c *Cluster) Metrics() []prometheus.Collector { return c.metrics.all }

// Members returns the ids of the members that are present, in order.
func (c *Cluster) Members() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	ids := make([]string, 0, len(c.members))
	for _, p := range c.members {
		ids = append(ids, p.id)
	}
	return ids
}

// Home returns the id of the replica that caches an object while no replica is overloaded
// or away. ok is false for objects without a home.
func (c *Cluster) Home(key string) (id string, ok bool) {
	if _, ok := c.cfg.Digest(key); !ok {
		return "", false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if p, _ := next(c.members, hashString(key), 0, true); p != nil {
		return p.id, true
	}
	return c.cfg.ID, true
}

// discard reads the rest of a body, which may be small, so that its connection can be
// used again. Then it closes the body.
func discard(body io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, body, 4<<10) // if it fails, the connection is not used again
	body.Close()
}
