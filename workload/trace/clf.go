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
func parseCLF(l *line, rec *Record) error {
	rest, err := clfHead(l.text, rec)
	if err == nil {
		_, err = clfTail(rest, rec)
	}
	return err
}

// parseNginx is parseCLF for nginx, whose time is that of the answer's end. Without a
// $request_time the duration is unknown.
func parseNginx(l *line, rec *Record) error {
	rest, err := clfHead(l.text, rec)
	if err != nil {
		return err
	}
	if rest, err = clfTail(rest, rec); err == nil {
		setRequestTime(rest, rec)
	}
	return err
}

// parseTraefikCLF reads Traefik's access log in its format "common": Combined Log Format
// with the number of the request, router, server and duration. The time is the arrival.
func parseTraefikCLF(l *line, rec *Record) error {
	rest, err := clfHead(l.text, rec)
	if err != nil {
		return err
	}
	if rest, err = clfTail(rest, rec); err != nil {
		return err
	}
	f := splitFields(rest)
	if len(f) != 4 || !isDigits(f[0].text) || !f[1].quoted || !f[2].quoted {
		return notUnderstood("there is no router and no server after the user agent")
	}
	took, ok := durationIn(f[3].text, time.Second)
	if !ok || !strings.HasSuffix(f[3].text, "ms") {
		return notUnderstood("the duration is %.40q", f[3].text)
	}
	rec.Duration = took
	return nil
}

// parseNexus reads the request log of Nexus: Common Log Format with the bytes that came,
// where it has them, those that were sent, milliseconds and the user agent. The time is
// the end.
func parseNexus(l *line, rec *Record) error {
	rest, err := clfHead(l.text, rec)
	if err != nil {
		return err
	}
	request, rest, ok := quoted(rest)
	f := splitFields(rest)
	if !ok || len(f) < 4 {
		return notUnderstood("there is no request, or too little after it")
	}
	if err := setRequest(request, rec); err != nil {
		return err
	}
	numbers := 1 // the status
	for numbers < len(f) && !f[numbers].quoted {
		numbers++
	}
	if numbers < 3 || numbers > 4 || numbers == len(f) {
		return notUnderstood("there are %d numbers after the request", numbers)
	}
	received, sent, took := "-", f[numbers-2].text, f[numbers-1].text
	if numbers == 4 {
		received = f[1].text
	}
	if err := setAnswer(f[0].text, sent, rec); err != nil {
		return err
	}
	if err := setReceived(received, rec); err != nil {
		return err
	}
	if !isDigits(took) {
		return notUnderstood("the duration is %.40q", took)
	}
	rec.UserAgent = dash(f[numbers].text)
	return ended(took, time.Millisecond, rec)
}

// parseQuay reads nginx's lines in the log of Quay, which have the address of the proxy
// protocol behind that of the connection. Its other servers log the same requests: their
// lines have no such field.
func parseQuay(l *line, rec *Record) error {
	at := clfTimeAt(l.text)
	if at < 0 {
		return notUnderstood("there is no time in brackets")
	}
	f := strings.Fields(string(l.text[:at]))
	n := len(f) - 4
	if n < 0 || !strings.HasPrefix(f[n+1], "(") || !strings.HasSuffix(f[n+1], ")") {
		return notUnderstood("there is no address of the proxy protocol in parentheses")
	}
	behind, ok := address(strings.Trim(f[n+1], "()"))
	client := f[n]
	if ok {
		client = behind
	}
	if rec.RemoteAddr, ok = clientOf(client); !ok {
		return notUnderstood("the client is %.60q", client)
	}
	rec.User = unescape(dash(f[n+3]))
	rest, err := clfTimed(l.text, at, rec)
	if err != nil {
		return err
	}
	if rest, err = clfTail(rest, rec); err == nil {
		setRequestTime(rest, rec)
	}
	return err
}

// parseHarbor reads the log of Harbor's proxy: nginx with
//
//	$remote_addr - "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent" $request_time $upstream_response_time $pipe
//
// whose line has no time: what collects the log puts one in front.
func parseHarbor(l *line, rec *Record) error {
	i := bytes.Index(l.text, []byte(` - "`))
	if i < 0 {
		return notRequest("it is not of the proxy's access log")
	}
	if l.when.IsZero() {
		return notUnderstood("there is no time before the line")
	}
	client, _, ok := clfClient(strings.Fields(string(l.text[:i+2])))
	if !ok {
		return notUnderstood("the client is %.60q", l.text[:i])
	}
	rec.RemoteAddr, rec.Time = client, l.when
	rest, err := clfTail(l.text[i+3:], rec)
	if err != nil {
		return err
	}
	setRequestTime(rest, rec)
	return nil
}

// parseHarborCore reads what Harbor's core logs of requests at level debug:
//
//	2024/06/12 09:45:01.500 [D] [server.go:2774]  |     10.0.0.7| 200 |   2.5ms|   match| GET      /v2/   r:/v2/*
//
// whose time, before "[D]", is that of the end.
func parseHarborCore(l *line, rec *Record) error {
	f := strings.Split(string(l.text), "|")
	if len(f) != 6 || !strings.Contains(f[0], "[D]") {
		return notRequest("it is not of the core's requests")
	}
	for i := range f {
		f[i] = strings.TrimSpace(f[i])
	}
	var ok bool
	if rec.RemoteAddr, ok = clientOf(f[1]); !ok {
		return notUnderstood("the client is %.60q", f[1])
	}
	if rec.Status, ok = statusOf(f[2]); !ok {
		return notUnderstood("the status is %.40q", f[2])
	}
	if rec.Time = l.when; rec.Time.IsZero() {
		return notUnderstood("there is no time before the line")
	}
	request := strings.Fields(f[5])
	if len(request) < 2 {
		return notUnderstood("the request is %.60q", f[5])
	}
	rec.Written = Unknown
	if err := setTarget(request[0], request[1], "", rec); err != nil {
		return err
	}
	if _, err := strconv.ParseFloat(f[3], 64); err == nil {
		return notUnderstood("the duration is %.40q", f[3])
	}
	if err := ended(f[3], 1, rec); err != nil {
		return err
	}
	answered(rec)
	return nil
}

// ended sets the duration of a record whose time is that of its end.
func ended(took string, unit time.Duration, rec *Record) error {
	d, ok := durationIn(took, unit)
	if !ok {
		return notUnderstood("the duration is %.40q", took)
	}
	rec.Duration, rec.Time = d, rec.Time.Add(-d)
	return nil
}

// setAnswer sets the status and the size of what was sent.
func setAnswer(status, size string, rec *Record) error {
	var ok bool
	if rec.Status, ok = statusOf(status); !ok {
		return notUnderstood("the status is %.40q", status)
	}
	if rec.Written, ok = sizeOrNone(size); !ok {
		return notUnderstood("the size is %.40q", size)
	}
	rec.Duration = Unknown
	answered(rec)
	return nil
}

// setReceived sets the size of what came with a request. Where nothing came with what
// ends an upload the content came before, and its size is unknown.
func setReceived(size string, rec *Record) error {
	if size == "-1" {
		return nil
	}
	n, ok := sizeOrNone(size)
	if !ok {
		return notUnderstood("the size of the request is %.40q", size)
	}
	if rec.Written == Unknown && n > 0 { // of an upload
		rec.Received = n
	}
	return nil
}

// setRequestTime looks for nginx's $request_time after the user agent and takes it off
// the time: seconds with three digits after the point, plain, in quotes or parentheses,
// or after the name that people give it. $gzip_ratio has two.
func setRequestTime(rest []byte, rec *Record) {
	for len(rest) > 0 {
		var field string
		field, rest = nextField(rest)
		if name, value, ok := strings.Cut(field, "="); ok {
			if !requestTimeNames[strings.ToLower(name)] {
				continue
			}
			field = value
		}
		field = strings.Trim(field, `"()[]{},;s`)
		if len(field) < 5 || field[len(field)-4] != '.' {
			continue
		}
		if seconds, ok := parseSeconds(field); ok {
			rec.Duration = seconds
			rec.Time = rec.Time.Add(-seconds)
			return
		}
	}
}

// requestTimeNames are what people call $request_time, and not that of the upstream.
var requestTimeNames = map[string]bool{"rt": true, "request_time": true, "reqtime": true, "req_time": true, "time": true,
	"t": true, "duration": true, "total": true, "request-time": true}

// clfTimeAt is where " [" stands before the time of a line, or below 0.
func clfTimeAt(line []byte) int {
	for from := 0; ; {
		i := bytes.Index(line[from:], []byte(" ["))
		if i < 0 {
			return -1
		}
		at := from + i
		if t := line[at+2:]; len(t) > 20 && t[0] >= '0' && t[0] <= '9' && (t[2] == '/' || t[4] == '-' && t[7] == '-') {
			return at
		}
		from = at + 2
	}
}

// clfHead reads the client, two names and the time, and returns what follows. What a
// collector of logs put before the client, and unwrap does not know, is left out.
func clfHead(line []byte, rec *Record) ([]byte, error) {
	at := clfTimeAt(line)
	if at < 0 {
		return nil, notUnderstood("it has no time in brackets")
	}
	client, user, ok := clfClient(strings.Fields(string(line[:at])))
	if !ok {
		return nil, notUnderstood("there is no client before the time: %.80q", line[:at])
	}
	rec.RemoteAddr, rec.User = client, unescape(dash(strings.Trim(user, `"`)))
	return clfTimed(line, at, rec)
}

// clfTimed reads the time at a place that clfTimeAt found.
func clfTimed(line []byte, at int, rec *Record) ([]byte, error) {
	rest := line[at+2:]
	end := bytes.IndexByte(rest, ']')
	if end < 0 {
		return nil, notUnderstood("the time has no end")
	}
	when, ok := parseCLFTime(rest[:end])
	if !ok {
		if when, ok = timeOf(string(rest[:end])); !ok {
			return nil, notUnderstood("the time is %.40q", rest[:end])
		}
	}
	rec.Time = when
	return rest[end+1:], nil
}

// parseCLFTime reads 12/Jun/2024:09:45:01 +0000, and leaves all else to timeOf.
func parseCLFTime(b []byte) (time.Time, bool) {
	if len(b) != len(clfTime) || b[2] != '/' || b[6] != '/' || b[11] != ':' || b[14] != ':' || b[17] != ':' || b[20] != ' ' ||
		b[21] != '+' && b[21] != '-' {
		return time.Time{}, false
	}
	month := monthOf(b[3:6])
	day, year := digits(b[0:2]), digits(b[7:11])
	hour, minute, second := digits(b[12:14]), digits(b[15:17]), digits(b[18:20])
	zone := digits(b[22:24])*3600 + digits(b[24:26])*60
	if month == 0 || year < 0 || day < 1 || day > 28 || hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 59 ||
		zone < 0 || zone > 14*3600 {
		return time.Time{}, false
	}
	if b[21] == '-' {
		zone = -zone
	}
	return time.Date(year, month, day, hour, minute, second-zone, 0, time.UTC), true
}

// monthOf is the month of three letters, or 0.
func monthOf(b []byte) time.Month {
	const months = "JanFebMarAprMayJunJulAugSepOctNovDec"
	if i := strings.Index(months, string(b)); len(b) == 3 && i >= 0 && i%3 == 0 {
		return time.Month(i/3 + 1)
	}
	return 0
}

// clfClient finds the client among the fields before the time: the third last, before the
// ident and the user; the second last, where a format has no user; else the last that
// is an address and has an ident after it, where a user has blanks. A name is a client
// only if it begins the line: before an address stands what people put there, such as
// the name of the virtual host.
func clfClient(fields []string) (client, user string, ok bool) {
	n := len(fields)
	for i := n - 3; i >= 0; i-- {
		if i < n-3 && fields[i+1] != "-" {
			continue
		}
		if client, ok := listedAddress(fields[:i+1]); ok {
			return client, strings.Join(fields[i+2:], " "), true
		}
	}
	if n >= 2 && fields[n-1] == "-" {
		if client, ok := listedAddress(fields[:n-1]); ok {
			return client, "", true
		}
	}
	if n == 2 || n == 3 {
		client, ok = clientOf(fields[0])
		if n == 3 {
			user = fields[2]
		} else if client == "" { // the name of a user alone
			ok = false
		}
	}
	return client, user, ok
}

// listedAddress is the client where the last of the fields is an address, or the end of
// a list of these.
func listedAddress(fields []string) (string, bool) {
	i := len(fields) - 1
	last := strings.Trim(fields[i], `",`)
	if _, ok := address(last); !ok {
		if _, ok = address(strings.TrimSuffix(last, "]")); !ok {
			return "", false
		}
	}
	for i > 0 && strings.HasSuffix(fields[i-1], ",") {
		i--
	}
	return clientOf(strings.Join(fields[i:], " "))
}

// clfTail reads the request, the status, the size and the two headers, which may be
// missing, and returns what follows.
func clfTail(rest []byte, rec *Record) ([]byte, error) {
	request, rest, ok := quoted(rest)
	if !ok {
		return nil, notUnderstood("the request is not in quotes")
	}
	if err := setRequest(request, rec); err != nil {
		return nil, err
	}
	status, rest := nextField(rest)
	size, rest := nextField(rest)
	if size == "" {
		return nil, notUnderstood("it has no size")
	}
	if err := setAnswer(status, size, rec); err != nil {
		return nil, err
	}
	rest = bytes.TrimLeft(rest, " ")
	if len(rest) == 0 || rest[0] != '"' {
		return rest, nil
	}
	referer, rest, ok := quoted(rest)
	if !ok {
		return nil, errCut
	}
	agent, after, ok := quoted(rest)
	if !ok && bytes.IndexByte(rest, '"') >= 0 {
		return nil, errCut
	}
	if rec.Referer = dash(referer); ok {
		rec.UserAgent, rest = dash(agent), after
	}
	return rest, nil
}

// errCut is a line that ends within a field.
var errCut = notUnderstood("it ends within a field")

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

// field is one of several that stand between spaces.
type field struct {
	text   string
	quoted bool
}

// maxFields bounds the fields of a line; no format has as many.
const maxFields = 64

// splitFields takes fields apart of which some are in quotes.
func splitFields(b []byte) []field {
	var out []field
	for len(out) < maxFields {
		if b = bytes.TrimLeft(b, " "); len(b) == 0 {
			break
		}
		var f field
		if f.text, b, f.quoted = quoted(b); !f.quoted {
			f.text, b = nextField(b)
		}
		out = append(out, f)
	}
	return out
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
