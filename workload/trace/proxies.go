package trace

import (
	"bytes"
	"strings"
	"time"
)

// parseEnvoy reads Envoy's default access log, and that of Istio, which has three fields
// more before the sizes and five more at the end:
//
//	[START_TIME] "METHOD PATH PROTOCOL" CODE FLAGS RECEIVED SENT DURATION UPSTREAM_TIME "X-FORWARDED-FOR" "USER-AGENT" "REQUEST-ID" "AUTHORITY" "UPSTREAM"
//
// The time is the arrival.
func parseEnvoy(l *line, rec *Record) error {
	end := bytes.IndexByte(l.text, ']')
	if len(l.text) == 0 || l.text[0] != '[' || end < 0 {
		return notUnderstood("it does not begin with a time in brackets")
	}
	var ok bool
	if rec.Time, ok = timeOf(string(l.text[1:end])); !ok {
		return notUnderstood("the time is %.40q", l.text[1:end])
	}
	f := splitFields(l.text[end+1:])
	if len(f) < 12 || !f[0].quoted {
		return notUnderstood("it has %d fields after the time", len(f))
	}
	if err := setRequest(f[0].text, rec); err != nil {
		return err
	}
	remote := ""
	status := f[1].text
	f = f[3:]
	if !isDigits(f[0].text) && len(f) >= 17 { // Istio
		f, remote = f[3:], f[15].text
	}
	if len(f) < 9 || f[0].quoted || !f[4].quoted {
		return notUnderstood("its fields are not those of Envoy's default format")
	}
	if err := setAnswer(status, f[1].text, rec); err != nil {
		return err
	}
	if err := setReceived(f[0].text, rec); err != nil {
		return err
	}
	if rec.Duration, ok = durationIn(f[2].text, time.Millisecond); !ok {
		return notUnderstood("the duration is %.40q", f[2].text)
	}
	client := f[4].text
	if client == "-" || client == "" {
		client = remote
	}
	if client != "" {
		if rec.RemoteAddr, ok = clientOf(client); !ok {
			return notUnderstood("the client is %.60q", client)
		}
	}
	rec.UserAgent, rec.ID, rec.Host = dash(f[5].text), dash(f[6].text), dash(f[7].text)
	return nil
}

// albTypes are the first field of a line of an Application Load Balancer.
var albTypes = map[string]bool{"http": true, "https": true, "h2": true, "grpcs": true, "ws": true, "wss": true}

// parseALB reads the access log of an AWS Application Load Balancer. Its time is that of
// the answer, its sizes have the headers.
func parseALB(l *line, rec *Record) error {
	f := splitFields(l.text)
	if len(f) < 17 || !albTypes[f[0].text] || !f[12].quoted {
		return notUnderstood("its fields are not those of a load balancer")
	}
	var ok bool
	if rec.Time, ok = timeOf(f[1].text); !ok {
		return notUnderstood("the time is %.40q", f[1].text)
	}
	if rec.RemoteAddr, ok = clientOf(f[3].text); !ok {
		return notUnderstood("the client is %.60q", f[3].text)
	}
	if err := setRequest(strings.TrimSuffix(f[12].text, " -"), rec); err != nil {
		return err
	}
	if err := setAnswer(f[8].text, f[11].text, rec); err != nil {
		return err
	}
	var took time.Duration
	for _, part := range f[5:8] {
		d, ok := parseSeconds(part.text)
		if !ok && part.text != "-1" { // what the target did not answer
			return notUnderstood("the duration is %.40q", part.text)
		}
		if took += d; !ok {
			took = Unknown
			break
		}
	}
	if rec.Duration = took; took >= 0 {
		rec.Time = rec.Time.Add(-took)
	}
	rec.UserAgent = dash(f[13].text)
	if len(f) > 18 {
		rec.ID, rec.Host = strings.TrimPrefix(dash(f[17].text), "Root="), dash(f[18].text)
	}
	return nil
}

// parseHAProxy reads HAProxy's HTTP log without what syslog puts in front:
//
//	CLIENT:PORT [TIME] FRONTEND BACKEND/SERVER TR/TW/TC/TR/TA CODE BYTES - - ---- 1/1/1/1/0 0/0 {HEADERS} "REQUEST"
//
// The time is the arrival and in UTC; the size has the headers. The user agent is known
// where it is captured.
func parseHAProxy(l *line, rec *Record) error {
	at := clfTimeAt(l.text)
	if at < 0 {
		return notUnderstood("it has no time in brackets")
	}
	client := string(l.text[:at])
	client = client[strings.LastIndexByte(client, ' ')+1:]
	i := strings.LastIndexByte(client, ':')
	if i < 0 || !isDigits(client[i+1:]) {
		return notUnderstood("there is no client with a port before the time")
	}
	var ok bool
	if rec.RemoteAddr, ok = clientOf(client[:i]); !ok {
		return notUnderstood("the client is %.60q", client)
	}
	rest, err := clfTimed(l.text, at, rec)
	if err != nil {
		return err
	}
	f := splitFields(rest)
	if len(f) < 10 {
		return notUnderstood("it has %d fields after the time", len(f))
	}
	timers := strings.Split(f[2].text, "/")
	if len(timers) != 5 {
		return notUnderstood("the timers are %.40q", f[2].text)
	}
	request, after := "", f[10:]
	for i := range after {
		if after[i].quoted {
			request = after[i].text
			break
		}
	}
	if err := setRequest(request, rec); err != nil {
		return err
	}
	if err := setAnswer(f[3].text, strings.TrimPrefix(f[4].text, "+"), rec); err != nil {
		return err
	}
	if took := strings.TrimPrefix(timers[4], "+"); took != "-1" {
		if rec.Duration, ok = durationIn(took, time.Millisecond); !ok || !isDigits(took) {
			return notUnderstood("the timers are %.40q", f[2].text)
		}
	}
	rec.UserAgent = capturedAgent(rest)
	return nil
}

// capturedAgent is what of the captured headers looks like a user agent: NAME/VERSION.
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

// parseArtifactory reads Artifactory's request log:
//
//	TIME|TRACE|CLIENT|USER|METHOD|URL|STATUS|RECEIVED|SENT|MILLISECONDS|AGENT
//
// and that of versions before 7, TIME|MILLISECONDS|REQUEST|CLIENT|USER|METHOD|URL|PROTOCOL|STATUS|SIZE,
// where the size is that of the request for uploads and of the answer else. The time is
// the end.
func parseArtifactory(l *line, rec *Record) error {
	f := strings.Split(string(l.text), "|")
	var status, received, sent, took string
	switch {
	case len(f) >= 11:
		status, received, sent, took = f[6], f[7], f[8], f[9]
		rec.ID, rec.UserAgent = f[1], strings.Join(f[10:], "|")
		f = append(f[:1], f[2:6]...)
	case len(f) == 10 && f[2] == "REQUEST":
		status, received, sent, took = f[8], f[9], f[9], f[1]
		f = append(f[:1], f[3:7]...)
	default:
		return notUnderstood("it has %d fields", len(f))
	}
	var ok bool
	if rec.Time, ok = timeOf(f[0]); !ok {
		return notUnderstood("the time is %.40q", f[0])
	}
	if rec.RemoteAddr, ok = clientOf(f[1]); !ok {
		return notUnderstood("the client is %.60q", f[1])
	}
	rec.User = strings.TrimPrefix(dash(f[2]), "non_authenticated_user")
	if err := setTarget(f[3], f[4], "", rec); err != nil {
		return err
	}
	if sent == "-1" {
		sent = ""
	}
	if err := setAnswer(status, sent, rec); err != nil {
		return err
	}
	if sent == "" {
		rec.Written = Unknown
	}
	if rec.Method == "PUT" || rec.Method == "PATCH" || rec.Method == "POST" {
		if err := setReceived(received, rec); err != nil {
			return err
		}
	}
	if !isDigits(took) {
		return notUnderstood("the duration is %.40q", took)
	}
	return ended(took, time.Millisecond, rec)
}
