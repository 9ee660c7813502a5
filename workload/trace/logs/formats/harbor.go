package formats

import (
	"bytes"
	"strconv"
	"strings"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/logs/internal/values"
)

// parseHarbor reads the log of Harbor's proxy, which is nginx with
//
//	$remote_addr - "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent" $request_time $upstream_response_time $pipe
//
// Its line has no time: the collector of the log puts one in front.
func parseHarbor(l *Line, rec *trace.Record) error {
	i := bytes.Index(l.Text, []byte(` - "`))
	if i < 0 {
		return notRequest("it is not of the proxy's access log")
	}
	if l.When.IsZero() {
		return notUnderstood("there is no time before the line")
	}
	client, _, ok := clfClient(strings.Fields(string(l.Text[:i+2])))
	if !ok {
		return notUnderstood("the client is %.60q", l.Text[:i])
	}
	rec.RemoteAddr, rec.Time = client, l.When
	rest, err := clfTail(l.Text[i+3:], rec)
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
// The time, before "[D]", is the end of the request.
func parseHarborCore(l *Line, rec *trace.Record) error {
	f := strings.Split(string(l.Text), "|")
	if len(f) != 6 || !strings.Contains(f[0], "[D]") {
		return notRequest("it is not of the core's requests")
	}
	for i := range f {
		f[i] = strings.TrimSpace(f[i])
	}
	var ok bool
	if rec.RemoteAddr, ok = values.Client(f[1]); !ok {
		return notUnderstood("the client is %.60q", f[1])
	}
	if rec.Status, ok = values.Status(f[2]); !ok {
		return notUnderstood("the status is %.40q", f[2])
	}
	if rec.Time = l.When; rec.Time.IsZero() {
		return notUnderstood("there is no time before the line")
	}
	request := strings.Fields(f[5])
	if len(request) < 2 {
		return notUnderstood("the request is %.60q", f[5])
	}
	rec.Written = trace.Unknown
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
