// Package upstream fetches content from another registry, the upstream of a mirror, and
// from mirrors of that registry. It is the HTTP side of pulling through a mirror. Package
// mirror decides what is fetched when, and what becomes of it.
//
// An upstream has one or more endpoints: mirrors, which are tried first and in order, and
// the upstream itself. Only the upstream itself can say that something does not exist or
// is denied, and lists come only from it.
//
// What it promises:
//
//   - Manifests are checked against their digest. Blobs are not, because the caller that
//     stores them hashes them anyway.
//   - Credentials go to the endpoint they are for and to the token service that it names,
//     and to nobody else. Tokens are kept until they expire, and are fetched once for all
//     requests that need the same token.
//   - Redirects may lead only to public addresses, unless the configuration allows
//     others. A token service may also have an address of the same kind as the
//     upstream's. Addresses are checked when a connection is made.
//   - An endpoint that answers 429 gets no more requests of that kind (for manifests, for
//     blobs, for lists or for tokens) for as long as it says. Requests do not wait for
//     the end of that time: they fail with [Busy].
//   - An error to HEAD counts only after a GET has failed, too.
//   - A request to an endpoint that stalls is given up. If an endpoint stalls again and
//     again, only one request at a time waits for it.
//
// Every error is an [Error], with two exceptions. If the caller no longer wants the
// answer, it is the context's error. If the caller's name, tag, digest or range is
// malformed, it is an error of the protocol.
package upstream

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"example.org/slipway/internal/reach"
	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
)

// Options configure an Upstream. Name and URL are required.
type Options struct {
	// Name is the upstream's name in metrics, errors and logs, such as "docker.io".
	Name string
	// URL is the upstream itself: https://host, or https://host/path if the registry is
	// not at the root. The part after /v2/ is a prefix of repository names:
	// https://host/v2/prefix is for registries that have the upstream's repositories
	// below another name.
	URL string
	// Mirrors are tried before URL, in this order. They are written as URL is.
	Mirrors []string
	// Credential is called with the host[:port] of an endpoint that wants credentials.
	// nil means anonymous.
	Credential client.CredentialFunc
	// TLS is for connections to the endpoints; nil means the defaults. Its certificates,
	// authorities and InsecureSkipVerify apply to no other host.
	TLS *tls.Config
	// OtherRoots certify token services elsewhere, and the hosts that redirects lead to;
	// nil means the system's.
	OtherRoots *x509.CertPool
	// Proxy chooses an HTTP proxy for a request; nil means the environment's. A proxy
	// resolves names itself, so addresses that redirects lead to are checked only if they
	// are written out.
	Proxy func(*http.Request) (*url.URL, error)
	// Concurrent is how many blobs are fetched at once, and how many other requests are
	// made at once beside them. 0 means 32, negative no limit.
	Concurrent int
	// RequestsPerSecond bounds the requests to all endpoints together; 0 means no limit.
	// Requests for tokens and to the targets of redirects do not count.
	RequestsPerSecond float64
	// Burst is how many requests may be made at once after a pause. 0 means as many as in
	// a second, at least one.
	Burst int
	// Redirects are addresses, besides the public ones, that redirects and token
	// services may lead to.
	Redirects []netip.Prefix
	// PublicOnly guards the endpoints themselves in the same way as redirects, because
	// somebody other than the configuration chose the host.
	PublicOnly bool
	// ConnectTimeout bounds a connection, and then a TLS handshake; 0 means 5 s.
	ConnectTimeout time.Duration
	// HeaderTimeout bounds the time until an answer begins, including its token and
	// redirects; 0 means 30 s.
	HeaderTimeout time.Duration
	// StallTimeout is how long a body may bring nothing; 0 means 30 s. Everything except
	// blobs must be complete within HeaderTimeout plus StallTimeout.
	StallTimeout time.Duration
	// Clock returns the time. nil means time.Now.
	Clock func() time.Time
	// Logger logs endpoints that fail, recover, or ask for a pause. nil discards.
	Logger *slog.Logger
	// UserAgent defaults to "slipway".
	UserAgent string
}

const (
	defaultConcurrent = 32
	defaultConnect    = 5 * time.Second
	defaultHeader     = 30 * time.Second
	defaultStall      = 30 * time.Second
	defaultUserAgent  = "slipway"

	// rounds is how often all endpoints are tried for small, quick requests.
	rounds = 8
	// firstRest is the pause after the first round, plus or minus half. Each further
	// pause is twice as long, up to lastRest. An endpoint that is down does not get that
	// many rounds, because it is noticed before.
	firstRest = 100 * time.Millisecond
	lastRest  = 500 * time.Millisecond
)

// Upstream is another registry. It is safe for concurrent use.
type Upstream struct {
	name      string
	agent     string
	endpoints []*endpoint // the last one is the upstream itself
	clock     func() time.Time
	log       *slog.Logger
	connect   time.Duration // timeouts
	header    time.Duration
	stall     time.Duration
	blobs     chan struct{} // turns; nil: no limit
	others    chan struct{}
	rate      *rate.Limiter // nil: no limit
	metrics   *metrics

	active atomic.Int64 // requests under way, bodies included
	bytes  atomic.Int64
}

// New returns an upstream. No request is made.
func New(o *Options) (*Upstream, error) {
	if o == nil || o.Name == "" {
		return nil, errors.New("an upstream needs a name")
	}
	v := *o
	v.UserAgent = cmp.Or(v.UserAgent, defaultUserAgent)
	v.ConnectTimeout = cmp.Or(max(0, v.ConnectTimeout), defaultConnect)
	if v.Proxy == nil {
		v.Proxy = http.ProxyFromEnvironment
	}
	u := &Upstream{
		name: v.Name, agent: v.UserAgent, clock: v.Clock, log: v.Logger,
		connect: v.ConnectTimeout,
		header:  cmp.Or(max(0, v.HeaderTimeout), defaultHeader),
		stall:   cmp.Or(max(0, v.StallTimeout), defaultStall),
	}
	if u.clock == nil {
		u.clock = time.Now
	}
	if u.log == nil {
		u.log = slog.New(slog.DiscardHandler)
	}
	if n := cmp.Or(v.Concurrent, defaultConcurrent); n > 0 {
		u.blobs, u.others = make(chan struct{}, n), make(chan struct{}, n)
	}
	switch r := v.RequestsPerSecond; {
	case r < 0 || math.IsNaN(r):
		return nil, fmt.Errorf("upstream %s: %v requests per second are no rate", v.Name, r)
	case r > 0:
		burst := max(1, v.Burst)
		if v.Burst == 0 {
			burst = int(max(1, min(r, 1e6)))
		}
		u.rate = rate.NewLimiter(rate.Limit(r), burst)
	}
	for i, s := range append(append([]string(nil), v.Mirrors...), v.URL) {
		e, err := newEndpoint(u, s, &v)
		if err != nil && i < len(v.Mirrors) {
			return nil, fmt.Errorf("upstream %s: mirror %d: %w", v.Name, i+1, err)
		} else if err != nil {
			return nil, fmt.Errorf("upstream %s: %w", v.Name, err)
		}
		if slices.ContainsFunc(u.endpoints, func(other *endpoint) bool { return other.name == e.name }) {
			return nil, fmt.Errorf("upstream %s: %s is there twice", v.Name, e.name)
		}
		u.endpoints = append(u.endpoints, e)
	}
	u.metrics = newMetrics(u)
	return u, nil
}

// Name returns the upstream's name.
func (u *Upstream) Name() string { return u.name }

// Close closes idle connections. Requests under way are not disturbed, and others
// may follow.
func (u *Upstream) Close() {
	for _, e := range u.endpoints {
		e.idle()
	}
}

// own returns the endpoint that is the upstream itself.
func (u *Upstream) own() *endpoint { return u.endpoints[len(u.endpoints)-1] }

func (u *Upstream) received(n int) {
	u.bytes.Add(int64(n))
	u.metrics.bytes.Add(float64(n))
}

// order returns the endpoints in the order in which to try them: as configured, but
// endpoints that failed or asked for a pause come last. Lists come only from the upstream
// itself, because the lists of mirrors may be incomplete.
func (u *Upstream) order(q quota) []*endpoint {
	if q == ofLists {
		return u.endpoints[len(u.endpoints)-1:]
	}
	now := u.clock()
	list := make([]*endpoint, 0, len(u.endpoints))
	var last []*endpoint
	for _, e := range u.endpoints {
		if e.health.after(now, q) {
			last = append(last, e)
		} else {
			list = append(list, e)
		}
	}
	return append(list, last...)
}

// round tries the endpoints in order until one delivers. The error is the upstream's own.
// If the upstream says that the content does not exist, later mirrors are not asked.
func (u *Upstream) round(ctx context.Context, q quota, op func(*endpoint) error) error {
	var own error
	for _, e := range u.order(q) {
		err := op(e)
		if gone(ctx) {
			return err
		}
		u.metrics.result(err)
		if err == nil {
			return nil
		}
		k := KindOf(err)
		if k == 0 { // what was asked for is malformed
			return err
		}
		if e != u.own() {
			u.log.DebugContext(ctx, "upstream mirror did not deliver", "upstream", u.name, "mirror", e.name, "err", err)
			continue
		}
		if own = err; k == NotFound || k == Denied {
			break
		}
	}
	return own
}

// rounds tries all endpoints again if that is quick and may help. It is for small
// requests.
func (u *Upstream) rounds(ctx context.Context, q quota, op func(*endpoint) error) error {
	rest := firstRest
	for n := 1; ; n++ {
		err := u.round(ctx, q, op)
		if err == nil || n == rounds || gone(ctx) || !passing(err) || u.own().health.down() {
			return err
		}
		t := time.NewTimer(rest/2 + rand.N(rest))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("%w (after %w)", ctx.Err(), err)
		}
		rest = min(2*rest, lastRest)
	}
}

// passing reports whether an error may be gone in a moment. It returns false for an error
// that took a while, and for an error in the configuration of the upstream or in ours.
func passing(err error) bool {
	var e *Error
	var cert *tls.CertificateVerificationError
	var dns *net.DNSError
	switch {
	case !errors.As(err, &e) || e.Kind != Unavailable && e.Kind != Wrong || e.slow || e.sure || e.RetryAfter > 0:
		return false
	case errors.As(err, &cert), errors.As(err, &dns) && dns.IsNotFound, errors.Is(err, reach.ErrRefused), errors.Is(err, errRedirect):
		return false
	}
	return true
}

// manifestOf checks a reference and returns the subject for errors.
func manifestOf(repo, ref string) (subject, error) {
	s := subject{"manifest", ref, repo, oci.CodeManifestUnknown}
	if err := oci.CheckName(repo); err != nil {
		return s, err
	}
	if oci.IsDigest(ref) {
		return s, oci.CheckDigest(oci.Digest(ref))
	}
	return s, oci.CheckTag(ref)
}

func blobOf(repo string, d oci.Digest) (subject, error) {
	s := subject{"blob", string(d), repo, oci.CodeBlobUnknown}
	if err := oci.CheckName(repo); err != nil {
		return s, err
	}
	return s, oci.CheckDigest(d)
}

// ResolveManifest asks what a tag or digest stands for: by HEAD, which Docker Hub does
// not count against its limit. If a registry does not answer that with a descriptor, it
// fetches the manifest.
func (u *Upstream) ResolveManifest(ctx context.Context, repo, ref string) (desc oci.Descriptor, err error) {
	s, err := manifestOf(repo, ref)
	if err != nil {
		return oci.Descriptor{}, err
	}
	err = u.rounds(ctx, ofManifests, func(e *endpoint) (err error) {
		desc, err = e.resolveManifest(ctx, s, repo, ref)
		return err
	})
	return desc, err
}

// ResolveBlob asks for a blob of a repository without fetching it. Its size is -1 if the
// registry does not say it.
func (u *Upstream) ResolveBlob(ctx context.Context, repo string, d oci.Digest) (desc oci.Descriptor, err error) {
	s, err := blobOf(repo, d)
	if err != nil {
		return oci.Descriptor{}, err
	}
	desc = oci.Descriptor{MediaType: oci.MediaTypeOctetStream, Digest: d}
	err = u.rounds(ctx, ofBlobs, func(e *endpoint) (err error) {
		desc.Size, err = e.resolveBlob(ctx, s, repo, d)
		return err
	})
	return desc, err
}

// Manifest fetches a manifest by tag or digest. have is the etag of an earlier call, or
// "". If the upstream says that the manifest is still the same, unchanged is true and m
// is nil. etag is "" if the upstream sends none.
func (u *Upstream) Manifest(ctx context.Context, repo, ref, have string) (m *oci.Manifest, etag string, unchanged bool, err error) {
	s, err := manifestOf(repo, ref)
	if err != nil {
		return nil, "", false, err
	}
	err = u.rounds(ctx, ofManifests, func(e *endpoint) (err error) {
		m, etag, unchanged, err = e.manifest(ctx, s, repo, ref, have)
		return err
	})
	return m, etag, unchanged, err
}

// Tags lists tags of a repository as [oci.Lister] does.
func (u *Upstream) Tags(ctx context.Context, repo, last string, n int) (tags []string, more bool, err error) {
	if err := oci.CheckName(repo); err != nil {
		return nil, false, err
	}
	s := subject{"tags", "", repo, oci.CodeNameUnknown}
	err = u.rounds(ctx, ofLists, func(e *endpoint) (err error) {
		if tags, more, err = e.list.Tags(ctx, e.prefix+repo, last, n); err != nil {
			return e.explain(ctx, s, err)
		}
		return nil
	})
	return tags, more, err
}

// Referrers lists everything that refers to a manifest, by the referrers API or by the
// referrers tag.
func (u *Upstream) Referrers(ctx context.Context, repo string, d oci.Digest) (list []oci.Descriptor, err error) {
	s, err := blobOf(repo, d)
	if err != nil {
		return nil, err
	}
	s.noun, s.notFound = "list of referrers of", oci.CodeManifestUnknown
	err = u.rounds(ctx, ofLists, func(e *endpoint) (err error) {
		if list, _, err = e.list.Referrers(ctx, e.prefix+repo, d, "", "", math.MaxInt); err != nil {
			return e.explain(ctx, s, err)
		}
		return nil
	})
	return list, err
}
