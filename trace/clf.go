package trace

import (
	"bytes"
	"strconv"
	"strings"
	"time"
)

// clfTime is how Combined Log Format writes a time.
const clfTime = "02/Jan/2006:15:04:05 -0700"

// parseCLF reads a line of Common or Combined Log Format whose time is that of the
// request's arrival, as Apache and Slipway write it. What follows is ignored.
func parseCLF(line []byte, rec *Record) error {
	rest, when, err := clfHead(line, rec)
	if err != nil {
		return err
	}
	rec.Time = when
	_, err = clfTail(rest, rec)
	return err
}

// parseNginx is parseCLF for nginx, whose time is that of the answer's end. The first
// field after the user agent that is a number of seconds is $request_time; without
// one the duration is unknown.
func parseNginx(line []byte, rec *Record) error {
	rest, when, err := clfHead(line, rec)
	if err != nil {
		return err
	}
	rec.Time = when
	if rest, err = clfTail(rest, rec); err != nil {
		return err
	}
	setRequestTime(rest, rec)
	return nil
}

// setRequestTime looks for $request_time and takes it off the time.
func setRequestTime(rest []byte, rec *Record) {
	for len(rest) > 0 {
		var field string
		field, rest = nextField(rest)
		if i := strings.IndexByte(field, '='); i >= 0 {
			field = field[i+1:] // rt=0.123
		}
		if seconds, ok := parseSeconds(strings.Trim(field, `"`)); ok {
			rec.Duration = seconds
			rec.Time = rec.Time.Add(-seconds)
			return
		}
	}
}

// parseSeconds reads digits, a point and digits.
func parseSeconds(s string) (time.Duration, bool) {
	whole, fraction, ok := strings.Cut(s, ".")
	if !ok || whole == "" || fraction == "" || len(whole) > 9 || len(fraction) > 9 {
		return 0, false
	}
	for _, c := range []byte(whole + fraction) {
		if c < '0' || c > '9' {
			return 0, false
		}
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0, false
	}
	return durationOf(f), true
}

// clfHead reads the client, two names and the time.
func clfHead(line []byte, rec *Record) (_ []byte, when time.Time, err error) {
	client, rest := nextField(line)
	_, rest = nextField(rest)
	i := bytes.Index(rest, []byte(" ["))
	if client == "" || i < 0 {
		return nil, when, bad(BadSyntax, "the line is not in Combined Log Format")
	}
	user := strings.Trim(string(rest[:i]), `" `)
	rest = rest[i+2:]
	i = bytes.IndexByte(rest, ']')
	if i < 0 {
		return nil, when, bad(BadSyntax, "the time has no end")
	}
	if when, err = time.Parse(clfTime, string(rest[:i])); err != nil {
		return nil, when, bad(BadTime, "%.40q is no time", rest[:i])
	}
	rec.RemoteAddr = unescape(client)
	rec.User = unescape(dash(user))
	return rest[i+1:], when.UTC(), nil
}

// clfTail reads the request, the status, the size and the two headers, which may be
// missing, and returns what follows.
func clfTail(rest []byte, rec *Record) ([]byte, error) {
	request, rest, ok := quoted(rest)
	if !ok {
		return nil, bad(BadSyntax, "the request is not in quotes")
	}
	var known bool
	rec.Method, rec.URI, known = strings.Cut(request, " ")
	if i := strings.LastIndexByte(rec.URI, ' '); i >= 0 {
		rec.URI, rec.Proto = rec.URI[:i], rec.URI[i+1:]
	}
	if !known || rec.Method == "" || rec.URI == "" {
		return nil, bad(BadMissing, "the request %.40q has no method or no URI", request)
	}
	status, rest := nextField(rest)
	code, err := strconv.Atoi(status)
	if err != nil || code < 0 || code > 999 {
		return nil, bad(BadNumber, "the status is %.40q", status)
	}
	rec.Status = code
	size, rest := nextField(rest)
	if size != "-" {
		if rec.Written, err = strconv.ParseInt(size, 10, 64); err != nil || rec.Written < 0 {
			return nil, bad(BadNumber, "the size is %.40q", size)
		}
	}
	rec.Duration = Unknown
	if referer, after, ok := quoted(rest); ok {
		rec.Referer, rest = dash(referer), after
		if agent, after, ok := quoted(rest); ok {
			rec.UserAgent, rest = dash(agent), after
		}
	}
	answered(rec)
	return rest, nil
}

func dash(s string) string {
	if s == "-" {
		return ""
	}
	return s
}

// nextField cuts at the next space.
func nextField(b []byte) (field string, rest []byte) {
	b = bytes.TrimLeft(b, " ")
	i := bytes.IndexByte(b, ' ')
	if i < 0 {
		return string(b), nil
	}
	return string(b[:i]), b[i+1:]
}

// quoted reads a string in quotes, in which quotes are escaped.
func quoted(b []byte) (s string, rest []byte, ok bool) {
	b = bytes.TrimLeft(b, " ")
	if len(b) == 0 || b[0] != '"' {
		return "", b, false
	}
	for i := 1; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return unescape(string(b[1:i])), b[i+1:], true
		}
	}
	return "", b, false
}

// unescape undoes \xNN, \" and \\, as Apache and nginx escape.
func unescape(s string) string {
	if strings.IndexByte(s, '\\') < 0 {
		return s
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			out = append(out, s[i])
			continue
		}
		if s[i+1] == 'x' && i+3 < len(s) {
			if c, err := strconv.ParseUint(s[i+2:i+4], 16, 8); err == nil {
				out = append(out, byte(c))
				i += 3
				continue
			}
		}
		i++
		out = append(out, s[i])
	}
	return string(out)
}

// harborParser reads the log of Harbor's proxy: nginx with
//
//	$remote_addr - "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent" $request_time $upstream_response_time $pipe
//
// whose line has no time. What collects the log puts one in front: syslog, as Harbor's
// own installer sets it up ("Jun 20 01:28:15 172.18.0.1 proxy[1234]: "), or
// RFC 3339, as Kubernetes, Docker and newer syslogs do.
type harborParser struct {
	// now is when the log is read: syslog's times have no year, they are of the last
	// twelve months.
	now time.Time
}

func (p *harborParser) parse(line []byte, rec *Record) error {
	when, rest, ok := p.prefix(string(line))
	if !ok {
		return bad(BadTime, "there is no time before the line")
	}
	i := strings.Index(rest, " - \"")
	if i < 0 {
		return bad(BadOther, "the line is not of the proxy's access log")
	}
	client := rest[:i]
	client = client[strings.LastIndexByte(client, ' ')+1:]
	if client == "" {
		return bad(BadSyntax, "there is no client")
	}
	rec.RemoteAddr, rec.Time = client, when.UTC()
	after, err := clfTail([]byte(rest[i+3:]), rec)
	if err != nil {
		return err
	}
	setRequestTime(after, rec)
	return nil
}

// prefix reads the time in front of a line.
func (p *harborParser) prefix(line string) (when time.Time, rest string, ok bool) {
	if first, rest, found := strings.Cut(line, " "); found {
		if when, err := time.Parse(time.RFC3339Nano, first); err == nil {
			return when, rest, true
		}
	}
	if len(line) <= len(time.Stamp) {
		return when, "", false
	}
	when, err := time.Parse(time.Stamp, line[:len(time.Stamp)])
	if err != nil {
		return when, "", false
	}
	// Parse takes year 0 and so February 29 too.
	year := p.now.Year()
	dated := time.Date(year, when.Month(), when.Day(), when.Hour(), when.Minute(), when.Second(), 0, time.UTC)
	if dated.After(p.now.Add(24 * time.Hour)) {
		dated = time.Date(year-1, when.Month(), when.Day(), when.Hour(), when.Minute(), when.Second(), 0, time.UTC)
	}
	return dated, line[len(time.Stamp):], true
}
