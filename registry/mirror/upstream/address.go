package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
)

// errRefused is the error of a connection to an address to which an upstream must not
// send us.
var errRefused = errors.New("address is refused")

// class says what an address is for, as far as it matters here.
type class uint32

const (
	public class = 1 << iota
	loopback
	private
	// special addresses are link-local, multicast and unspecified addresses, and the
	// addresses of cloud machines' metadata. No registry has such an address.
	special
)

// String returns the class's name in an error.
func (c class) String() string {
	switch c {
	case public:
		return "public"
	case loopback:
		return "loopback"
	case private:
		return "private"
	}
	return "link-local, metadata or otherwise special"
}

// ranges are the ranges that netip does not know. Azure's metadata service has a public
// address. The others' addresses are link-local, private or shared.
var ranges = []struct {
	prefix netip.Prefix
	class  class
}{
	{netip.MustParsePrefix("100.64.0.0/10"), private},    // RFC 6598, carriers' own
	{netip.MustParsePrefix("168.63.129.16/32"), special}, // Azure
	{netip.MustParsePrefix("0.0.0.0/8"), special},        // RFC 1122: this network
	{netip.MustParsePrefix("192.0.0.0/24"), special},     // RFC 6890: protocol assignments
	{netip.MustParsePrefix("198.18.0.0/15"), private},    // RFC 2544: benchmarks
	{netip.MustParsePrefix("240.0.0.0/4"), special},      // RFC 1112: reserved, broadcast
	{netip.MustParsePrefix("fd00:ec2::/32"), special},    // EC2's metadata
	{netip.MustParsePrefix("64:ff9b:1::/48"), private},   // RFC 8215: local translation
	{netip.MustParsePrefix("fec0::/10"), private},        // RFC 3879: site-local
	{netip.MustParsePrefix("2001::/32"), special},        // RFC 4380: Teredo
	{netip.MustParsePrefix("::/96"), special},            // RFC 4291: IPv4-compatible; ::1 is asked before
}

var (
	nat64  = netip.MustParsePrefix("64:ff9b::/96") // RFC 6052: an IPv4 address at the end
	sixto4 = netip.MustParsePrefix("2002::/16")    // RFC 3056: an IPv4 address after it
)

// classOf classifies an address, even if another address wraps it.
func classOf(a netip.Addr) class {
	a = a.Unmap().WithZone("")
	switch {
	case !a.IsValid():
		return special
	case a.IsLoopback():
		return loopback
	}
	for _, r := range ranges {
		if r.prefix.Contains(a) {
			return r.class
		}
	}
	b := a.As16()
	switch {
	case nat64.Contains(a):
		return classOf(netip.AddrFrom4([4]byte(b[12:])))
	case sixto4.Contains(a):
		return classOf(netip.AddrFrom4([4]byte(b[2:6])))
	case a.IsPrivate():
		return private
	case !a.IsGlobalUnicast():
		return special
	}
	return public
}

// guard says where connections may go. It checks the address just before connecting,
// after names were resolved. So a name that changes its address between two lookups gains
// nothing.
type guard struct {
	allow []netip.Prefix // besides public addresses
	// peer marks the guard of the upstream itself.
	peer bool
	// like holds classes of addresses that are also allowed. nil means none.
	like *atomic.Uint32
}

func (g *guard) check(a netip.Addr) error {
	c := classOf(a)
	a = a.Unmap().WithZone("")
	if c == public || g.like != nil && c != special && class(g.like.Load())&c != 0 {
		return nil
	}
	for _, p := range g.allow {
		if p.Contains(a) {
			return nil
		}
	}
	if g.peer {
		return fmt.Errorf("%w: %s is a %s address, and a registry that is not listed must have a public one; list it as an upstream", errRefused, a, c)
	}
	return fmt.Errorf("%w: %s is a %s address, which the upstream may lead to only where the configuration allows it", errRefused, a, c)
}

// control is a controlFunc.
func (g *guard) control(_ context.Context, _, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: %q is no address", errRefused, address)
	}
	return g.check(ap.Addr())
}

// literal checks a host to which a proxy will connect. Only the URL can be checked there.
func (g *guard) literal(u *url.URL) error {
	host := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
	if a, err := netip.ParseAddr(host); err == nil {
		return g.check(a)
	}
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return g.check(netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	}
	// Some resolvers take 0x7f.1, 2130706433 and the like for addresses.
	if last := host[strings.LastIndexByte(host, '.')+1:]; last == "" || last[0] >= '0' && last[0] <= '9' {
		return fmt.Errorf("%w: %q is no host name", errRefused, host)
	}
	return nil
}

// controlFunc is a net.Dialer's ControlContext.
type controlFunc func(ctx context.Context, network, address string, _ syscall.RawConn) error

// remember returns a controlFunc that notes the classes of an endpoint's addresses.
func remember(seen *atomic.Uint32) controlFunc {
	return func(_ context.Context, _, address string, _ syscall.RawConn) error {
		if ap, err := netip.ParseAddrPort(address); err == nil {
			seen.Or(uint32(classOf(ap.Addr())))
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
