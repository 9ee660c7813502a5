package formats

import (
	"strings"
	"time"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/logs/internal/values"
)

// parseArtifactory reads Artifactory's request log:
//
//	TIME|TRACE|CLIENT|USER|METHOD|URL|STATUS|RECEIVED|SENT|MILLISECONDS|AGENT
//
// It also reads the log of versions before 7,
// TIME|MILLISECONDS|REQUEST|CLIENT|USER|METHOD|URL|PROTOCOL|STATUS|SIZE. There the size
// is the size of the request for uploads, and of the answer otherwise. The time is the
// end.
func parseArtifactory(l *Line, rec *trace.Record) error {
	f := strings.Split(string(l.Text), "|")
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
	if rec.Time, ok = values.Time(f[0]); !ok {
		return notUnderstood("the time is %.40q", f[0])
	}
	if rec.RemoteAddr, ok = values.Client(f[1]); !ok {
		return notUnderstood("the client is %.60q", f[1])
	}
	rec.User = strings.TrimPrefix(values.Dash(f[2]), "non_authenticated_user")
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
		rec.Written = trace.Unknown
	}
	if rec.Method == "PUT" || rec.Method == "PATCH" || rec.Method == "POST" {
		if err := setReceived(received, rec); err != nil {
			return err
		}
	}
	if !values.IsDigits(took) {
		return notUnderstood("the duration is %.40q", took)
	}
	return ended(took, time.Millisecond, rec)
}
