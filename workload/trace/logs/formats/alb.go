package formats

import (
	"strings"
	"time"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/logs/internal/values"
)

// albTypes are the values of the first field in a line of an Application Load Balancer.
var albTypes = map[string]bool{"http": true, "https": true, "h2": true, "grpcs": true, "ws": true, "wss": true}

// parseALB parses the access log of an AWS Application Load Balancer. The time is the
// time of the answer, and the sizes include the headers.
func parseALB(l *Line, rec *trace.Record) error {
	f := values.Fields(l.Text)
	if len(f) < 17 || !albTypes[f[0].Text] || !f[12].Quoted {
		return notUnderstood("its fields are not those of a load balancer")
	}
	var ok bool
	if rec.Time, ok = values.Time(f[1].Text); !ok {
		return notUnderstood("the time is %.40q", f[1].Text)
	}
	if rec.RemoteAddr, ok = values.ClientPort(f[3].Text); !ok {
		return notUnderstood("the client is %.60q", f[3].Text)
	}
	if err := setRequest(strings.TrimSuffix(f[12].Text, " -"), rec); err != nil {
		return err
	}
	if err := setAnswer(f[8].Text, f[11].Text, rec); err != nil {
		return err
	}
	var took time.Duration
	for _, part := range f[5:8] {
		d, ok := values.Seconds(part.Text)
		if !ok && part.Text != "-1" { // -1: the target did not answer
			return notUnderstood("the duration is %.40q", part.Text)
		}
		if took += d; !ok {
			took = trace.Unknown
			break
		}
	}
	if rec.Duration = took; took >= 0 {
		rec.Time = rec.Time.Add(-took)
	}
	rec.UserAgent = values.Dash(f[13].Text)
	if len(f) > 18 {
		rec.ID, rec.Host = strings.TrimPrefix(values.Dash(f[17].Text), "Root="), values.Dash(f[18].Text)
	}
	return nil
}
