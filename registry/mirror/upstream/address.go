package upstream

import (
	"context"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"

	"example.org/slipway/internal/reach"
)

// These are the rules that errors of guards name.
const (
	ruleLed      = "which the upstream may lead to only where the configuration allows it"
	ruleUnlisted = "and a registry that is not listed must have a public one; list it as an upstream"
)

// controlFunc is a net.Dialer's ControlContext.
type controlFunc func(ctx context.Context, network, address string, _ syscall.RawConn) error

// remember returns a controlFunc that notes the classes of an endpoint's addresses.
func remember(seen *atomic.Uint32) controlFunc {
	return func(_ context.Context, _, address string, _ syscall.RawConn) error {
		if ap, err := netip.ParseAddrPort(address); err == nil {
			seen.Or(uint32(reach.ClassOf(ap.Addr())))
		}
		return nil
	}
}

// origin returns a URL's scheme, host and port in one form for all ways of writing it.
func origin(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = "443"
		if u.Scheme == "http" {
			port = "80"
		}
	}
	return u.Scheme + "://" + net.JoinHostPort(strings.ToLower(u.Hostname()), port)
}
