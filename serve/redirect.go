package serve

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"example.org/slipway/config"
	"example.org/slipway/internal/policy"
	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/auth/patterns"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/prefetch"
	"example.org/slipway/registry/server"
	"example.org/slipway/registry/storage"
	"example.org/slipway/serve/dataroot"
)

// redirector decides which clients are redirected to the object store, and for which
// blobs.
type redirector struct {
	store objstore.Redirector
	// holds and ahead report whether the cache has a blob or will soon have it.
	holds func(key string) bool
	ahead *prefetch.Prefetcher // may be nil
	// away returns an error while the object store is not the registry's.
	away func() error
	// stored reports whether a blob of a repository is in the object store; it may still
	// be on its way there. If stored is nil, blobs always are.
	stored func(ctx context.Context, repo string, d oci.Digest) bool
	// pulled records the pull of a blob, if anybody needs the record.
	pulled func(context.Context, registry.Event) error
	rules  []redirectRule // the last rule is for all blobs that match no other
	min    int64
	expiry time.Duration
}

// redirectRule is a compiled rule.
type redirectRule struct {
	repos    func(repo string) bool
	networks []netip.Prefix // if empty, all networks match
	mode     string
}

var _ server.Redirector = (*redirector)(nil)

// redirector returns the configured redirector, or nil if there is none.
func (s *Server) redirector() (server.Redirector, error) {
	c := &s.cfg.Storage.Redirect
	rules, err := redirectRules(c)
	if err != nil {
		return nil, err
	}
	if c.Disable || !ever(rules) {
		return nil, nil
	}
	store, ok := objstore.As[objstore.Redirector](s.root.Objects)
	if !ok { // the configuration check warns of this
		return nil, nil
	}
	r := &redirector{store: store, away: s.root.Registry.StoreAway, ahead: s.root.Prefetch, pulled: s.root.Notify,
		rules: rules, min: int64(c.MinSize), expiry: c.Expiry,
		holds: func(key string) bool { return s.root.Cache != nil && s.root.Cache.Holds(key) != policy.Nowhere }}
	if m := s.root.Mirrors; m != nil {
		r.stored = func(ctx context.Context, repo string, d oci.Digest) bool {
			if !m.Mirrored(repo) {
				return true
			}
			_, err := s.root.Registry.ResolveBlob(ctx, repo, d)
			return err == nil
		}
	}
	return r, nil
}

func redirectRules(c *config.Redirect) ([]redirectRule, error) {
	var rules []redirectRule
	for i, r := range c.Rules {
		repos, err := patterns.CompileAll(r.Repositories)
		if err != nil {
			return nil, fmt.Errorf("storage.redirect.rules[%d].repositories: %w", i, err)
		}
		rules = append(rules, redirectRule{repos, r.Prefixes(), r.Mode})
	}
	return append(rules, redirectRule{func(string) bool { return true }, nil, c.Mode}), nil
}

// ever reports whether any rule redirects clients.
func ever(rules []redirectRule) bool {
	for _, r := range rules {
		if r.mode != "never" {
			return true
		}
	}
	return false
}

func (r *redirectRule) isFor(repo, client string) bool {
	if !r.repos(repo) {
		return false
	}
	if len(r.networks) == 0 {
		return true
	}
	addr, ok := addrOf(client)
	if !ok {
		return false // a client of a unix socket
	}
	for _, n := range r.networks {
		if n.Contains(addr) {
			return true
		}
	}
	return false
}

// addrOf parses an address with or without a port.
func addrOf(s string) (netip.Addr, bool) {
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return ap.Addr().Unmap().WithZone(""), true
	}
	a, err := netip.ParseAddr(s)
	return a.Unmap().WithZone(""), err == nil
}

// Redirect implements server.Redirector.
func (r *redirector) Redirect(ctx context.Context, q server.Redirect) (string, error) {
	if q.Blob.Size <= dataroot.SmallBlob || r.away() != nil || !r.wants(q) || r.stored != nil && !r.stored(ctx, q.Repo, q.Blob.Digest) {
		return "", nil
	}
	url, err := r.store.URL(ctx, storage.BlobKey(q.Blob.Digest), r.expiry)
	if errors.Is(err, objstore.ErrNotExist) { // this server rebuilds it
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("make an address for a client: %w", err)
	}
	// This counts as it does for a blob that goes through this server: a part is not a
	// pull, and a blob fetched in many parts was requested once.
	if !q.Part {
		err := r.pulled(ctx, registry.Event{Action: registry.ActionPull, Repo: q.Repo, Blob: true, Descriptor: q.Blob, Time: time.Now()})
		if err != nil {
			return "", fmt.Errorf("record the pull: %w", err)
		}
	}
	if r.ahead != nil && q.Offset == 0 {
		r.ahead.GetBlob(ctx, q.Repo, q.Blob.Digest, q.Blob.Size)
	}
	return url, nil
}

// wants reports whether a client is to be redirected to the object store.
func (r *redirector) wants(q server.Redirect) bool {
	for i := range r.rules {
		if !r.rules[i].isFor(q.Repo, q.Client) {
			continue
		}
		switch r.rules[i].mode {
		case "always":
			return true
		case "large":
			return q.Blob.Size >= r.min
		case "uncached":
			return q.Blob.Size >= r.min && !r.holds(storage.BlobKey(q.Blob.Digest)) && (r.ahead == nil || !r.ahead.Ahead(q.Blob.Digest))
		}
		return false
	}
	return false
}
