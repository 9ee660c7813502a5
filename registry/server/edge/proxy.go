// Package edge stands between a registry's handler and the network. It finds out who a
// client behind proxies is, limits the requests of each address, decides which pages of
// other origins may send requests, and sends small answers in one piece.
package edge

import (
	"cmp"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// Proxies are the peers whose statements about a request are trusted.
type Proxies struct {
	// Trusted addresses.
	Trusted []netip.Prefix
	// UnixPeers makes every peer of a unix socket a trusted proxy.
	UnixPeers bool
}

// Through returns the request as its client sent it, if the request came through a
// trusted proxy. RemoteAddr is then the client's address, without a port, Host is the
// name that the client used, and X-Forwarded-Proto is its scheme alone. Limits, logs,
// events, and the packages auth and web read the client and the host there, so that this
// is the only place that determines them. If the peer is not a trusted proxy, Through
// removes what it says about the scheme.
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

// withHeader copies a request and its header. The original of net/http does not change.
func withHeader(r *http.Request) *http.Request {
	r = r.WithContext(r.Context())
	r.Header = maps.Clone(r.Header)
	return r
}

const forwardedProto = "X-Forwarded-Proto"

// forwardedOrigin returns the scheme and the host that the client used, as reported by
// proxies. A value that they do not report is "". In a chain each proxy appends its value
// to the end of the list, so the first element comes from the proxy that the client spoke
// to. X-Forwarded headers take precedence over Forwarded (RFC 7239).
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

// firstElement returns the first element of headers that contain lists.
func firstElement(lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	first, _, _ := strings.Cut(lines[0], ",")
	return strings.TrimSpace(first)
}

// forwardedPairs reads proto and host from the first element of a Forwarded header.
func forwardedPairs(s string) (proto, host string) {
	for s != "" {
		var name, value string
		name, s, _ = strings.Cut(s, "=")
		if strings.HasPrefix(s, `"`) {
			value, s, _ = strings.Cut(s[1:], `"`) // hosts contain nothing that is escaped
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

// validHost reports whether s is a host with or without a port, in the form used in URLs.
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

// isHostByte reports whether c may occur in a registered name or its port.
func isHostByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~:", c) >= 0
}

// trustsPeer reports whether the peer of a connection is a trusted proxy. The peer of a
// unix socket has no address.
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

// forwardedFor finds the client in X-Forwarded-For: the right-most address that is not a
// trusted proxy. Anybody may have written what stands left of it. If all addresses are
// trusted, the client is the left-most. If the search meets an entry that is not an
// address, the client is the address read before it, because that proxy names nobody.
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

// parseForwarded parses an address, with or without a port, in the form that proxies
// write.
func parseForwarded(s string) (netip.Addr, bool) {
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return plainAddr(ap.Addr()), true
	}
	a, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(s, "["), "]"))
	return plainAddr(a), err == nil
}

// plainAddr returns an address in the normal form in which addresses are compared.
func plainAddr(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// WithoutPrefix returns u without a path prefix. If the path lacks the prefix, the result
// is a path that is not found.
func WithoutPrefix(u *url.URL, prefix string) *url.URL {
	v := *u
	rest, ok := strings.CutPrefix(u.Path, prefix)
	if !ok {
		rest = ""
	}
	v.Path = rest
	if u.RawPath != "" {
		v.RawPath = strings.TrimPrefix(u.RawPath, prefix)
	}
	return &v
}
