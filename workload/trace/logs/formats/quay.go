package formats

import (
	"strings"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/logs/internal/values"
)

// parseQuay parses nginx's lines in Quay's log, which have the proxy protocol's address
// after the connection's address. Quay's other servers log the same requests, but their
// lines lack this field.
func parseQuay(l *Line, rec *trace.Record) error {
	at := clfTimeAt(l.Text)
	if at < 0 {
		return notUnderstood("there is no time in brackets")
	}
	f := strings.Fields(string(l.Text[:at]))
	n := len(f) - 4
	if n < 0 || !strings.HasPrefix(f[n+1], "(") || !strings.HasSuffix(f[n+1], ")") {
		return notUnderstood("there is no address of the proxy protocol in parentheses")
	}
	behind, ok := values.Address(strings.Trim(f[n+1], "()"))
	client := f[n]
	if ok {
		client = behind
	}
	if rec.RemoteAddr, ok = values.Client(client); !ok {
		return notUnderstood("the client is %.60q", client)
	}
	rec.User = values.Unescape(values.Dash(f[n+3]))
	rest, err := clfTimed(l.Text, at, rec)
	if err != nil {
		return err
	}
	if rest, err = clfTail(rest, rec); err == nil {
		setRequestTime(rest, rec)
	}
	return err
}
