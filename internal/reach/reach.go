// Package reach classifies network addresses. Its guards keep connections whose destination
// somebody else chooses, such as a mirrored registry or a user, away from addresses that
// only this machine or its network can reach.
package reach

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
)

// ErrRefused is the error of a connection to an address to which nobody may send us.
var ErrRefused = errors.New("address is refused")

// Class says what an address is for, as far as it matters here. Classes are bits, so that
// several fit into one number.
type Class uint32

// The classes.
const (
	Public Class = 1 << iota
	Loopback
	Private
	// Special addresses are link-local, multicast and unspecified addresses, and the
	// addresses of cloud machines' metadata. No server that is meant has such an address.
	Special
)

// String returns the class's name in an error.
func (c Class) String() string {
	switch c {
	case Public:
		return "public"
	case Loopback:
		return "loopback"
	case Private:
		return "private"
	}
	return "link-local, metadata or otherwise special"
}

// ranges are the ranges that netip does not know. Azure's metadata service has a public
// address. The others' addresses are link-local, private or shared.
var ranges = []struct {
	prefix netip.Prefix
	class  Class
}{
	{netip.MustParsePrefix("100.64.0.0/10"), Private},    // RFC 6598, carriers' own
	{netip.MustParsePrefix("168.63.129.16/32"), Special}, // Azure
	{netip.MustParsePrefix("0.0.0.0/8"), Special},        // RFC 1122: this network
	{netip.MustParsePrefix("192.0.0.0/24"), Special},     // RFC 6890: protocol assignments
	{netip.MustParsePrefix("198.18.0.0/15"), Private},    // RFC 2544: benchmarks
	{netip.MustParsePrefix("240.0.0.0/4"), Special},      // RFC 1112: reserved, broadcast
	{netip.MustParsePrefix("fd00:ec2::/32"), Special},    // EC2's metadata
	{netip.MustParsePrefix("64:ff9b:1::/48"), Private},   // RFC 8215: local translation
	{netip.MustParsePrefix("fec0::/10"), Private},        // RFC 3879: site-local
	{netip.MustParsePrefix("2001::/32"), Special},        // RFC 4380: Teredo
	{netip.MustParsePrefix("::/96"), Special},            // RFC 4291: IPv4-compatible; ::1 is asked before
}

var (
	nat64  = netip.MustParsePrefix("64:ff9b::/96") // RFC 6052: an IPv4 address at the end
	sixto4 = netip.MustParsePrefix("2002::/16")    // RFC 3056: an IPv4 address after it
)

// ClassOf classifies an address, even if another address wraps it. It is Special for the
// zero Addr.
func ClassOf(a netip.Addr) Class {
	a = a.Unmap().WithZone("")
	switch {
	case !a.IsValid():
		return Special
	case a.IsLoopback():
		return Loopback
	}
	for _, r := range ranges {
		if r.prefix.Contains(a) {
			return r.class
		}
	}
	b := a.As16()
	switch {
	case nat64.Contains(a):
		return ClassOf(netip.AddrFrom4([4]byte(b[12:])))
	case sixto4.Contains(a):
		return ClassOf(netip.AddrFrom4([4]byte(b[2:6])))
	case a.IsPrivate():
		return Private
	case !a.IsGlobalUnicast():
		return Special
	}
	return Public
}

// Guard says where connections may go. It checks the address just before connecting,
// after names were resolved. So a name that changes its address between two lookups gains
// nothing. The zero value allows public addresses only.
type Guard struct {
	// Allow has networks that are allowed besides public addresses.
	Allow []netip.Prefix
	// Like holds classes of addresses that are also allowed, unless they are Special. nil
	// means none.
	Like *atomic.Uint32
	// Rule ends the sentence that an address is of some class, in errors.
	Rule string
}

// Check returns an error that wraps ErrRefused if connections must not go to an address.
func (g *Guard) Check(a netip.Addr) error {
	c := ClassOf(a)
	a = a.Unmap().WithZone("")
	if c == Public || g.Like != nil && c != Special && Class(g.Like.Load())&c != 0 {
		return nil
	}
	for _, p := range g.Allow {
		if p.Contains(a) {
			return nil
		}
	}
	return fmt.Errorf("%w: %s is a %s address, %s", ErrRefused, a, c, g.Rule)
}

// Control is the ControlContext of a net.Dialer.
func (g *Guard) Control(_ context.Context, _, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: %q is no address", ErrRefused, address)
	}
	return g.Check(ap.Addr())
}

// CheckURL checks the host of a URL if it is an address. It is for requests through a
// proxy, which looks up names itself.
func (g *Guard) CheckURL(u *url.URL) error {
	host := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
	if a, err := netip.ParseAddr(host); err == nil {
		return g.Check(a)
	}
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return g.Check(netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	}
	// Some resolvers take 0x7f.1, 2130706433 and the like for addresses.
	if last := host[strings.LastIndexByte(host, '.')+1:]; last == "" || last[0] >= '0' && last[0] <= '9' {
		return fmt.Errorf("%w: %q is no host name", ErrRefused, host)
	}
	return nil
}
