package server

import (
	"net/http"
	"net/netip"
	"strings"
)

// throughProxy returns the request as its client would have sent it, if it came
// through a trusted proxy: RemoteAddr is then the client's address, without a
// port. Everything that asks who a client is (limits, logs, events, package
// auth) reads it there, so this is the one place that decides.
func (s *Server) throughProxy(r *http.Request) *http.Request {
	if !s.trustsPeer(r.RemoteAddr) {
		return r
	}
	client, ok := s.forwardedFor(r.Header["X-Forwarded-For"])
	if !ok {
		return r
	}
	r = r.WithContext(r.Context()) // net/http's own request stays as it is
	r.RemoteAddr = client.String()
	return r
}

// trustsPeer tells whether the peer of a connection is a trusted proxy. That of
// a unix socket has no address.
func (s *Server) trustsPeer(remote string) bool {
	ap, err := netip.ParseAddrPort(remote)
	if err != nil {
		return s.opts.TrustUnixPeers
	}
	return s.trusts(plainAddr(ap.Addr()))
}

func (s *Server) trusts(a netip.Addr) bool {
	for _, p := range s.opts.TrustedProxies {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// forwardedFor finds the client in X-Forwarded-For: the right-most address that
// is no trusted proxy. What stands left of it anybody may have written. When all
// are trusted it is the left-most, and before something that is no address, the
// last one: that proxy names nobody.
func (s *Server) forwardedFor(lines []string) (client netip.Addr, ok bool) {
	for i := len(lines) - 1; i >= 0; i-- {
		for rest, more := lines[i], true; more; {
			var entry string
			if at := strings.LastIndexByte(rest, ','); at >= 0 {
				rest, entry = rest[:at], rest[at+1:]
			} else {
				entry, more = rest, false
			}
			a, valid := parseForwarded(strings.TrimSpace(entry))
			if !valid {
				return client, ok
			}
			client, ok = a, true
			if !s.trusts(a) {
				return client, true
			}
		}
	}
	return client, ok
}

// parseForwarded reads an address, with or without a port, as proxies write it.
func parseForwarded(s string) (netip.Addr, bool) {
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return plainAddr(ap.Addr()), true
	}
	a, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(s, "["), "]"))
	return plainAddr(a), err == nil
}

// plainAddr is an address in the one form in which addresses are compared.
func plainAddr(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }
