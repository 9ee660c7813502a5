package trace

import (
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// clientOf reads the field of a log that names the client: an address, an address with a
// port, or what X-Forwarded-For has, a list of these whose first is the client. Where the
// log has nothing to name, as for a socket of the machine itself, the client is empty. A
// field that cannot be a client is not ok.
func clientOf(s string) (client string, ok bool) {
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
		if client, ok := address(one); ok {
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

// address reads an address with a port or without. IPv4 in IPv6 is IPv4: the same client
// is the same in the logs of all listeners.
func address(s string) (string, bool) {
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
			return "", false
		}
		a = ap.Addr()
	}
	if a.Is4In6() {
		a = a.Unmap()
	}
	if a.Is4() && a.As4()[0] == 0 { // what is left of an address that was cut
		return "", false
	}
	if a.Is4() && strings.HasPrefix(s, a.String()) {
		return s[:len(a.String())], true
	}
	return a.String(), true
}

// hostName reads the name of a host, which Apache writes with HostnameLookups, or a
// pseudonym, with a port or without.
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

// isDigits reports whether s is decimal digits and nothing else.
func isDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// maxSize is the largest size that a field can have: 1 PiB.
const maxSize = 1 << 50

// sizeOf reads a number of bytes.
func sizeOf(s string) (int64, bool) {
	if !isDigits(s) {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil && n <= maxSize
}

// sizeOrNone is sizeOf for logs that write nothing, or "-", where nothing was sent.
func sizeOrNone(s string) (int64, bool) {
	if s == "" || s == "-" {
		return 0, true
	}
	return sizeOf(s)
}

// statusOf reads a status. 0, which proxies write for a client that has gone, is unknown.
func statusOf(s string) (int, bool) {
	if s == "0" || s == "000" || s == "-" || s == "-1" {
		return 0, true
	}
	if len(s) != 3 || !isDigits(s) || s[0] == '0' {
		return 0, false
	}
	n, err := strconv.Atoi(s)
	return n, err == nil
}

// timeLayouts are how logs write times, but for numbers.
var timeLayouts = []string{
	time.RFC3339Nano, clfTime, "2006-01-02T15:04:05.999999999-0700", "02/Jan/2006:15:04:05.999999999 -0700",
	"02/Jan/2006:15:04:05.999999999 MST", "2006-01-02T15:04:05.999999999", "2006-01-02 15:04:05.999999999Z07:00",
	"2006-01-02 15:04:05.999999999 -0700", "2006-01-02 15:04:05.999999999", "2006/01/02 15:04:05.999999999",
	"02/Jan/2006:15:04:05.999999999",
}

// timeOf reads a time as logs write it: the forms above, or the seconds since 1970 with
// a fraction or in milliseconds, microseconds or nanoseconds. A time without a zone is
// in UTC.
func timeOf(s string) (time.Time, bool) {
	if s == "" || len(s) > 64 {
		return time.Time{}, false
	}
	if t, ok := parseTimeFast([]byte(s)); ok {
		return t, true
	}
	if whole, fraction, _ := strings.Cut(s, "."); isDigits(whole) && len(whole) >= 9 && (fraction == "" || isDigits(fraction)) {
		return epoch(whole, fraction)
	}
	s = strings.Replace(s, ",", ".", 1) // as Python and Java write fractions
	for _, layout := range timeLayouts {
		if t, err := time.Parse(layout, s); err == nil && knownZone(t) {
			return t.UTC(), true
		}
	}
	return time.Time{}, false
}

// knownZone reports whether a time has an offset: Parse takes any abbreviation for a
// zone, and those that it does not know for UTC.
func knownZone(t time.Time) bool {
	name, offset := t.Zone()
	return offset != 0 || name == "" || name == "UTC" || name == "GMT" || name == "Z" || name[0] == '+' || name[0] == '-'
}

// epoch reads a time in seconds since 1970, or in thousandths of what is less. 14 digits
// are those of a date and a time.
func epoch(whole, fraction string) (time.Time, bool) {
	n, err := strconv.ParseInt(whole, 10, 64)
	if err != nil || len(fraction) > 18 || fraction != "" && len(whole) > 10 {
		return time.Time{}, false
	}
	switch len(whole) {
	case 9, 10:
		ns, err := strconv.ParseInt((fraction + "000000000")[:9], 10, 64)
		return time.Unix(n, ns).UTC(), err == nil
	case 12, 13:
		return time.UnixMilli(n).UTC(), true
	case 14:
		when, err := time.Parse("20060102150405", whole)
		return when, err == nil
	case 15, 16:
		return time.UnixMicro(n).UTC(), true
	case 18, 19:
		return time.Unix(0, n).UTC(), true
	}
	return time.Time{}, false
}

// parseSeconds reads digits, a point and digits.
func parseSeconds(s string) (time.Duration, bool) {
	whole, fraction, ok := strings.Cut(s, ".")
	if !ok || len(whole) > 9 || len(fraction) > 9 || !isDigits(whole) || !isDigits(fraction) {
		return 0, false
	}
	f, err := strconv.ParseFloat(s, 64)
	return durationOf(f), err == nil
}

// durationIn reads a number of units, or a duration with its unit.
func durationIn(s string, unit time.Duration) (time.Duration, bool) {
	if f, err := strconv.ParseFloat(s, 64); err == nil {
		d := durationOf(f * unit.Seconds())
		return d, d >= 0 && f >= 0
	}
	d, err := time.ParseDuration(s)
	return d, err == nil && d >= 0 && d < 1e9*time.Second
}

// pathOf is the path and query of a request's target. A proxy writes the whole URL.
// Artifactory and Nexus have repositories of the registry below paths of their own:
// there the name of theirs becomes the first segment of the repository's.
func pathOf(uri string) string {
	if scheme, rest, ok := strings.Cut(uri, "://"); ok && !strings.ContainsAny(scheme, "/?") {
		i := strings.IndexAny(rest, "/?")
		if i < 0 {
			return "/"
		}
		uri = rest[i:]
	}
	for _, below := range []string{"/artifactory/api/docker/", "/api/docker/", "/repository/", "/nexus/repository/"} {
		rest, ok := strings.CutPrefix(uri, below)
		if !ok {
			continue
		}
		repo, rest, ok := strings.Cut(rest, "/v2/")
		if !ok || strings.ContainsAny(repo, "/?") {
			continue
		}
		if rest == "" || rest == "_catalog" || rest[0] == '?' {
			return "/v2/" + rest
		}
		return "/v2/" + repo + "/" + rest
	}
	return uri
}

// setRequest reads a request line into the record: the method, the target, which may
// have blanks, and the protocol, which may be missing.
func setRequest(request string, rec *Record) error {
	method, uri, _ := strings.Cut(request, " ")
	proto := ""
	if i := strings.LastIndexByte(uri, ' '); i >= 0 {
		uri, proto = uri[:i], uri[i+1:]
	}
	if proto != "" && !strings.HasPrefix(proto, "HTTP/") {
		return notUnderstood("the protocol is %.40q", proto)
	}
	return setTarget(method, uri, proto, rec)
}

// setTarget sets what a client asked for.
func setTarget(method, uri, proto string, rec *Record) error {
	if !isToken(method) || uri == "" || uri == "-" {
		return notUnderstood("the request is %.60q, without a method or a URI", method+" "+uri)
	}
	rec.Method, rec.URI, rec.Proto = method, pathOf(uri), proto
	return nil
}

// isToken reports whether s can be a method: RFC 9110, section 5.6.2.
func isToken(s string) bool {
	if s == "" || len(s) > 40 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c >= 0x7f || strings.IndexByte(`"(),/:;<=>?@[\]{}`, c) >= 0 {
			return false
		}
	}
	return s != "-"
}
