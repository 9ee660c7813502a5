package wire

import (
	"net/url"
	"strings"
)

// Challenge is a way in which a server lets a client authenticate. The scheme and the
// names of the parameters are in lower case.
type Challenge struct {
	Scheme string
	Params map[string]string
}

// ParseChallenges parses WWW-Authenticate headers, each of which may hold several
// challenges (RFC 9110, section 11.6.1). If it cannot parse something, it skips to the
// next comma.
func ParseChallenges(headers []string) []Challenge {
	var list []Challenge
	for _, s := range headers {
		p := &scanner{s: s}
		for {
			if c, ok := p.challenge(); ok {
				list = append(list, c)
				continue
			}
			var more bool
			if _, p.s, more = strings.Cut(p.s, ","); !more {
				break
			}
		}
	}
	return list
}

// scanner parses a header from its start. s is the rest of the header.
type scanner struct{ s string }

// skip drops leading bytes that are in set.
func (p *scanner) skip(set string) { p.s = strings.TrimLeft(p.s, set) }

// token parses a token. It returns "" if there is none.
func (p *scanner) token() string {
	i := 0
	for i < len(p.s) && isTokenByte(p.s[i]) {
		i++
	}
	t := p.s[:i]
	p.s = p.s[i:]
	return t
}

// isTokenByte reports whether c is a tchar of RFC 9110, section 5.6.2.
func isTokenByte(c byte) bool {
	return isAlphanumeric(c) || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}

func isAlphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// challenge parses a scheme with its parameters. A name is a parameter if '=' follows it.
// Otherwise it is the next scheme.
func (p *scanner) challenge() (Challenge, bool) {
	p.skip(" \t,")
	c := Challenge{Scheme: strings.ToLower(p.token()), Params: map[string]string{}}
	if c.Scheme == "" {
		return c, false
	}
	if p.skipToken68() {
		return c, true
	}
	for {
		p.skip(" \t,;")
		before := p.s
		name := strings.ToLower(p.token())
		p.skip(" \t")
		if name == "" || !strings.HasPrefix(p.s, "=") {
			p.s = before
			return c, true
		}
		p.s = p.s[1:]
		p.skip(" \t")
		value, ok := p.value()
		if !ok {
			p.s = ""
			return c, true
		}
		if _, again := c.Params[name]; !again && value != "" {
			c.Params[name] = value
		}
	}
}

// skipToken68 drops the token68 that challenges of schemes like Negotiate have in place
// of parameters. It reports whether there was one.
func (p *scanner) skipToken68() bool {
	rest := strings.TrimLeft(p.s, " ")
	if len(rest) == len(p.s) {
		return false
	}
	i := 0
	for i < len(rest) && (isAlphanumeric(rest[i]) || strings.IndexByte("-._~+/", rest[i]) >= 0) {
		i++
	}
	if i == 0 {
		return false
	}
	rest = strings.TrimLeft(strings.TrimLeft(rest[i:], "="), " \t")
	if rest != "" && rest[0] != ',' {
		return false
	}
	p.s = rest
	return true
}

// value parses a parameter's value. Some servers write URLs without quotes or in single
// quotes. So a value without quotes ends at a comma, a semicolon or a space, and may have
// bytes that a token may not have.
func (p *scanner) value() (string, bool) {
	if strings.HasPrefix(p.s, `"`) {
		return p.quoted()
	}
	if s, ok := strings.CutPrefix(p.s, "'"); ok {
		if v, rest, closed := strings.Cut(s, "'"); closed {
			p.s = rest
			return v, true
		}
	}
	end := strings.IndexAny(p.s, " \t,;")
	if end < 0 {
		end = len(p.s)
	}
	v := p.s[:end]
	p.s = p.s[end:]
	return v, true
}

// quoted parses a quoted string. The next byte is its opening quote.
func (p *scanner) quoted() (string, bool) {
	var b strings.Builder
	for i := 1; i < len(p.s); i++ {
		switch c := p.s[i]; c {
		case '"':
			p.s = p.s[i+1:]
			return b.String(), true
		case '\\':
			if i++; i == len(p.s) {
				return "", false
			}
			b.WriteByte(p.s[i])
		default:
			b.WriteByte(c)
		}
	}
	return "", false
}

// ChooseChallenge returns the best challenge in the WWW-Authenticate headers of an answer
// from the server at a URL. If it knows none of the challenges it returns the zero
// Challenge. It prefers Bearer to Basic, because Bearer also works without a password. It
// makes the realm of a Bearer challenge absolute. If credentials must not be sent to the
// token service of a Bearer challenge, that challenge is returned only if there is no
// other, so that the error can say what is wrong.
func ChooseChallenge(headers []string, from *url.URL) Challenge {
	var basic, refused Challenge
	for _, c := range ParseChallenges(headers) {
		switch {
		case c.Scheme == "bearer" && c.Params["realm"] != "":
			if c.resolve(from) {
				return c
			}
			if refused.Scheme == "" {
				refused = c
			}
		case c.Scheme == "basic":
			basic = c
		}
	}
	if basic.Scheme != "" {
		return basic
	}
	return refused
}

// resolve makes the realm of a Bearer challenge absolute. It reports whether a client of
// the registry at this URL may use the token service.
func (c Challenge) resolve(from *url.URL) (usable bool) {
	u, err := from.Parse(c.Params["realm"])
	if err != nil {
		return false
	}
	c.Params["realm"] = u.String()
	return u.Host != "" && (u.Scheme == "https" || u.Scheme == "http" && from.Scheme == "http")
}

// Header returns a Basic or Bearer challenge in its plain spelling.
func (c Challenge) Header() string {
	if c.Scheme == "basic" {
		return "Basic realm=" + Quote(c.Params["realm"])
	}
	h := "Bearer realm=" + Quote(c.Params["realm"])
	for _, name := range []string{"service", "scope"} {
		if v := c.Params[name]; v != "" {
			h += "," + name + "=" + Quote(v)
		}
	}
	return h
}
