package values

import (
	"net/netip"
	"strconv"
	"strings"
)

// Client reads the field of a log that names the client: an address, an address with a port, or the
// value of X-Forwarded-For, a list of addresses whose first is the client. If the log has nothing
// to name, as for a socket of the machine itself, the client is empty. ok is false for a field that
// cannot be a client.
func Client(s string) (client string, ok bool) {
	list := strings.Trim(s, `"' `)
	if len(list) > 2 && list[0] == '[' && list[len(list)-1] == ']' && strings.ContainsAny(list, ".,") {
		list = list[1 : len(list)-1] // the list of ingress-nginx
	}
	if nobody(list) {
		return "", true
	}
	for len(list) > 0 {
		var one string
		one, list, _ = strings.Cut(list, ",")
		if one = strings.TrimSpace(one); nobody(one) {
			continue
		}
		if client, ok := Address(one); ok {
			return client, true
		}
		return hostName(one)
	}
	return "", false
}

// nobody reports whether a field says that there is no client to name.
func nobody(s string) bool {
	return s == "-" || s == "unix:" || s == "@" || s == "unknown"
}

// Address reads an address with or without a port. IPv4 in IPv6 becomes IPv4, so that the same
// client is the same in the logs of all listeners.
func Address(s string) (string, bool) {
	if len(s) < 2 || len(s) > 64 || s[0] != '[' && s[0] != ':' && !isHex(s[0]) {
		return "", false
	}
	bare := s
	if s[0] == '[' && s[len(s)-1] == ']' {
		bare = s[1 : len(s)-1]
	}
	a, err := netip.ParseAddr(bare)
	if err != nil {
		ap, err := netip.ParseAddrPort(s)
		if err != nil {
			return bareIPv6(s)
		}
		a = ap.Addr()
	}
	if a.Is4In6() {
		a = a.Unmap()
	}
	if a.Is4() && a.As4()[0] == 0 { // the rest of an address that was cut
		return "", false
	}
	if a.Is4() && strings.HasPrefix(s, a.String()) {
		return s[:len(a.String())], true
	}
	return a.String(), true
}

// bareIPv6 reads an IPv6 address with a port but without brackets, as load balancers
// write it. The whole must not be a valid address.
func bareIPv6(s string) (string, bool) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return "", false
	}
	if _, err := strconv.ParseUint(s[i+1:], 10, 16); err != nil {
		return "", false
	}
	a, err := netip.ParseAddr(s[:i])
	if err != nil || !a.Is6() {
		return "", false
	}
	return a.Unmap().String(), true
}

// ClientPort reads the client of a log that always writes a port after the address.
func ClientPort(s string) (string, bool) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 || !IsDigits(s[i+1:]) {
		return "", false
	}
	return Client(s[:i])
}

// hostName reads the name of a host, which Apache writes with HostnameLookups, or a pseudonym, with
// or without a port.
func hostName(s string) (string, bool) {
	if host, port, ok := strings.Cut(s, ":"); ok {
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return "", false
		}
		s = host
	}
	if s == "" || len(s) > 253 || s[0] == '-' || s[0] == '.' {
		return "", false
	}
	letters := false
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c == '_':
			letters = true
		case c >= '0' && c <= '9', c == '-', c == '.':
		default:
			return "", false
		}
	}
	return s, letters
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}
