// Package edge is what stands between a registry's handler and the network: who a client
// behind proxies is, how much each address may ask for, which pages of other origins may
// ask at all, and that a small answer leaves in one piece.
package edge

import (
	"cmp"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// Proxies are the peers that are believed what they tell of a request.
type Proxies struct {
	// Trusted addresses.
	Trusted []netip.Prefix
	// UnixPeers makes every peer of a unix socket one.
	UnixPeers bool
}

// Through returns the request as its client sent it, if it came through a
// trusted proxy: RemoteAddr is then the client's address, without a port, Host is
// the name that the client used, and X-Forwarded-Proto is its scheme alone.
// Everything that asks who a client is or where it believes to be (limits, logs,
// events, packages auth and web) reads it there, so this is the one place that
// decides. What others than trusted proxies say of the scheme is removed.
func (p *Proxies) Through(r *http.Request) *http.Request {
	if !p.trustsPeer(r.RemoteAddr) {
		if r.Header[forwardedProto] == nil {
			return r
		}
		r = withHeader(r)
		delete(r.Header, forwardedProto)
		return r
	}
	client, ok := p.forwardedFor(r.Header["X-Forwarded-For"])
	proto, host := forwardedOrigin(r.Header)
	if !ok && proto == "" && host == "" {
		return r
	}
	r = withHeader(r)
	if ok {
		r.RemoteAddr = client.String()
	}
	if host != "" {
		r.Host = host
	}
	delete(r.Header, forwardedProto)
	if proto != "" {
		r.Header[forwardedProto] = []string{proto}
	}
	return r
}

// withHeader copies a request and its header: net/http's own stays as it is.
func withHeader(r *http.Request) *http.Request {
	r = r.WithContext(r.Context())
	r.Header = maps.Clone(r.Header)
	return r
}

const forwardedProto = "X-Forwarded-Proto"

// forwardedOrigin returns the scheme and the host that the client used, as proxies
// tell them; "" for what they do not tell. In a chain each proxy adds its own to the
// end of the list, so the first element is of the proxy that the client spoke to.
// X-Forwarded headers come before Forwarded (RFC 7239).
func forwardedOrigin(h http.Header) (proto, host string) {
	proto, host = firstElement(h[forwardedProto]), firstElement(h["X-Forwarded-Host"])
	if list := h["Forwarded"]; len(list) > 0 && (proto == "" || host == "") {
		p, name := forwardedPairs(list[0])
		proto, host = cmp.Or(proto, p), cmp.Or(host, name)
	}
	if proto = strings.ToLower(proto); proto != "http" && proto != "https" {
		proto = ""
	}
	if !validHost(host) {
		host = ""
	}
	return proto, host
}

// firstElement returns the first element of headers that are lists.
func firstElement(lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	first, _, _ := strings.Cut(lines[0], ",")
	return strings.TrimSpace(first)
}

// forwardedPairs reads proto and host of the first element of a Forwarded header.
func forwardedPairs(s string) (proto, host string) {
	for s != "" {
		var name, value string
		name, s, _ = strings.Cut(s, "=")
		if strings.HasPrefix(s, `"`) {
			value, s, _ = strings.Cut(s[1:], `"`) // a host has nothing that is escaped
		} else if end := strings.IndexAny(s, ",;"); end >= 0 {
			value, s = s[:end], s[end:]
		} else {
			value, s = s, ""
		}
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "proto":
			proto = strings.TrimSpace(value)
		case "host":
			host = strings.TrimSpace(value)
		}
		s = strings.TrimLeft(s, " \t")
		if !strings.HasPrefix(s, ";") {
			break
		}
		s = s[1:]
	}
	return proto, host
}

// validHost reports whether s is a host with or without a port, as URLs have it.
func validHost(s string) bool {
	const most = 255 + len(":65535")
	if s == "" || len(s) > most {
		return false
	}
	u, err := url.Parse("http://" + s) // without a scheme several colons are no error
	if err != nil || u.Host != s || u.User != nil || u.Hostname() == "" || strings.HasSuffix(s, ":") {
		return false
	}
	if strings.HasPrefix(s, "[") {
		_, err := netip.ParseAddr(u.Hostname())
		return err == nil
	}
	for i := range len(s) {
		if !isHostByte(s[i]) {
			return false
		}
	}
	return strings.Count(s, ":") <= 1
}

// isHostByte reports whether c may be in a registered name or its port.
func isHostByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~:", c) >= 0
}

// trustsPeer reports whether the peer of a connection is a trusted proxy. That of
// a unix socket has no address.
func (p *Proxies) trustsPeer(remote string) bool {
	ap, err := netip.ParseAddrPort(remote)
	if err != nil {
		return p.UnixPeers
	}
	return p.trusts(plainAddr(ap.Addr()))
}

func (p *Proxies) trusts(a netip.Addr) bool {
	for _, prefix := range p.Trusted {
		if prefix.Contains(a) {
			return true
		}
	}
	return false
}

// forwardedFor finds the client in X-Forwarded-For: the right-most address that
// is no trusted proxy. What stands left of it anybody may have written. When all
// are trusted it is the left-most, and before something that is no address, the
// last one: that proxy names nobody.
func (p *Proxies) forwardedFor(lines []string) (client netip.Addr, ok bool) {
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
			if !p.trusts(a) {
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
