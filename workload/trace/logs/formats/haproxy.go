package formats

import (
	"bytes"
	"strings"
	"time"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/logs/internal/values"
)

// parseHAProxy reads HAProxy's HTTP log without what syslog puts in front:
//
//	CLIENT:PORT [TIME] FRONTEND BACKEND/SERVER TR/TW/TC/TR/TA CODE BYTES - - ---- 1/1/1/1/0 0/0 {HEADERS} "REQUEST"
//
// The time is the arrival and in UTC; the size has the headers. The user agent is known
// where it is captured.
func parseHAProxy(l *Line, rec *trace.Record) error {
	at := clfTimeAt(l.Text)
	if at < 0 {
		return notUnderstood("it has no time in brackets")
	}
	client := string(l.Text[:at])
	client = client[strings.LastIndexByte(client, ' ')+1:]
	var ok bool
	if rec.RemoteAddr, ok = values.ClientPort(client); !ok {
		return notUnderstood("there is no client with a port before the time: %.60q", client)
	}
	rest, err := clfTimed(l.Text, at, rec)
	if err != nil {
		return err
	}
	f := values.Fields(rest)
	if len(f) < 10 {
		return notUnderstood("it has %d fields after the time", len(f))
	}
	timers := strings.Split(f[2].Text, "/")
	if len(timers) != 5 {
		return notUnderstood("the timers are %.40q", f[2].Text)
	}
	request, after := "", f[10:]
	for i := range after {
		if after[i].Quoted {
			request = after[i].Text
			break
		}
	}
	if err := setRequest(request, rec); err != nil {
		return err
	}
	if err := setAnswer(f[3].Text, strings.TrimPrefix(f[4].Text, "+"), rec); err != nil {
		return err
	}
	if took := strings.TrimPrefix(timers[4], "+"); took != "-1" {
		if rec.Duration, ok = values.Duration(took, time.Millisecond); !ok || !values.IsDigits(took) {
			return notUnderstood("the timers are %.40q", f[2].Text)
		}
	}
	rec.UserAgent = capturedAgent(rest)
	return nil
}

// capturedAgent returns the part of the captured headers that looks like a user agent:
// NAME/VERSION.
func capturedAgent(rest []byte) string {
	from, end := bytes.IndexByte(rest, '{'), bytes.Index(rest, []byte(`} `))
	if from < 0 || end < from {
		return ""
	}
	for _, header := range strings.Split(string(rest[from+1:end]), "|") {
		if name, _, ok := strings.Cut(header, "/"); ok && isToken(name) {
			return header
		}
	}
	return ""
}
