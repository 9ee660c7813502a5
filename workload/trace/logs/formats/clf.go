package formats

import (
	"bytes"
	"strings"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/logs/internal/values"
)

// parseCLF reads a line of Common or Combined Log Format whose time is the request's
// arrival, as Apache and Slipway write it. What follows is ignored.
func parseCLF(l *Line, rec *trace.Record) error {
	rest, err := clfHead(l.Text, rec)
	if err == nil {
		_, err = clfTail(rest, rec)
	}
	return err
}

// clfTimeAt returns the position of the " [" before the time of a line, or a negative number.
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

// clfHead reads the client, two names and the time, and returns the rest. It leaves out what a log
// collector put in front of the client and unwrap does not know.
func clfHead(line []byte, rec *trace.Record) ([]byte, error) {
	at := clfTimeAt(line)
	if at < 0 {
		return nil, notUnderstood("it has no time in brackets")
	}
	client, user, ok := clfClient(strings.Fields(string(line[:at])))
	if !ok {
		return nil, notUnderstood("there is no client before the time: %.80q", line[:at])
	}
	rec.RemoteAddr, rec.User = client, values.Unescape(values.Dash(strings.Trim(user, `"`)))
	return clfTimed(line, at, rec)
}

// clfTimed reads the time at a position that clfTimeAt found.
func clfTimed(line []byte, at int, rec *trace.Record) ([]byte, error) {
	rest := line[at+2:]
	end := bytes.IndexByte(rest, ']')
	if end < 0 {
		return nil, notUnderstood("the time has no end")
	}
	when, ok := values.CLFTime(rest[:end])
	if !ok {
		if when, ok = values.Time(string(rest[:end])); !ok {
			return nil, notUnderstood("the time is %.40q", rest[:end])
		}
	}
	rec.Time = when
	return rest[end+1:], nil
}

// clfClient finds the client among the fields before the time. It is the third last, before the
// ident and the user, or the second last if a format has no user. Otherwise, if a user has blanks,
// it is the last field that is an address with an ident after it. A name is a client only if it
// begins the line: people put other things in front of an address, such as the name of the virtual
// host.
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
		client, ok = values.Client(fields[0])
		if n == 3 {
			user = fields[2]
		} else if client == "" { // the name of a user alone
			ok = false
		}
	}
	return client, user, ok
}

// listedAddress returns the client if the last of the fields is an address, or the end of a list of
// addresses.
func listedAddress(fields []string) (string, bool) {
	i := len(fields) - 1
	last := strings.Trim(fields[i], `",`)
	if _, ok := values.Address(last); !ok {
		if _, ok = values.Address(strings.TrimSuffix(last, "]")); !ok {
			return "", false
		}
	}
	for i > 0 && strings.HasSuffix(fields[i-1], ",") {
		i--
	}
	return values.Client(strings.Join(fields[i:], " "))
}

// clfTail reads the request, the status, the size and the two headers, which may be missing, and
// returns the rest.
func clfTail(rest []byte, rec *trace.Record) ([]byte, error) {
	request, rest, ok := values.Quoted(rest)
	if !ok {
		return nil, notUnderstood("the request is not in quotes")
	}
	if err := setRequest(request, rec); err != nil {
		return nil, err
	}
	status, rest := values.NextField(rest)
	size, rest := values.NextField(rest)
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
	referer, rest, ok := values.Quoted(rest)
	if !ok {
		return nil, errCut
	}
	agent, after, ok := values.Quoted(rest)
	if !ok && bytes.IndexByte(rest, '"') >= 0 {
		return nil, errCut
	}
	if rec.Referer = values.Dash(referer); ok {
		rec.UserAgent, rest = values.Dash(agent), after
	}
	return rest, nil
}

// errCut is the error for a line that ends within a field.
var errCut = notUnderstood("it ends within a field")
