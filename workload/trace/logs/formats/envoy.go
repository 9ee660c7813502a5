package formats

import (
	"bytes"
	"time"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/logs/internal/values"
)

// parseEnvoy reads Envoy's default access log, and Istio's, which has more fields at the
// end. Depending on its version, Istio's log has none, one, two or three more fields
// before the sizes.
//
//	[START_TIME] "METHOD PATH PROTOCOL" CODE FLAGS RECEIVED SENT DURATION UPSTREAM_TIME "X-FORWARDED-FOR" "USER-AGENT" "REQUEST-ID" "AUTHORITY" "UPSTREAM"
//
// The time is the arrival.
func parseEnvoy(l *Line, rec *trace.Record) error {
	end := bytes.IndexByte(l.Text, ']')
	if len(l.Text) == 0 || l.Text[0] != '[' || end < 0 {
		return notUnderstood("it does not begin with a time in brackets")
	}
	var ok bool
	if rec.Time, ok = values.Time(string(l.Text[1:end])); !ok {
		return notUnderstood("the time is %.40q", l.Text[1:end])
	}
	f := values.Fields(l.Text[end+1:])
	if len(f) < 12 || !f[0].Quoted {
		return notUnderstood("it has %d fields after the time", len(f))
	}
	if err := setRequest(f[0].Text, rec); err != nil {
		return err
	}
	status := f[1].Text
	f = envoySizes(f[3:])
	if f == nil {
		return notUnderstood("its fields are not those of Envoy's default format")
	}
	if err := setAnswer(status, f[1].Text, rec); err != nil {
		return err
	}
	if err := setReceived(f[0].Text, rec); err != nil {
		return err
	}
	if rec.Duration, ok = values.Duration(f[2].Text, time.Millisecond); !ok {
		return notUnderstood("the duration is %.40q", f[2].Text)
	}
	const downstream = 12 // the client's field in Istio's log, after the cluster and two addresses of Istio
	client := f[4].Text
	if (client == "-" || client == "") && len(f) > downstream {
		client = f[downstream].Text
	}
	if client != "" {
		if rec.RemoteAddr, ok = values.Client(client); !ok {
			return notUnderstood("the client is %.60q", client)
		}
	}
	rec.UserAgent, rec.ID, rec.Host = values.Dash(f[5].Text), values.Dash(f[6].Text), values.Dash(f[7].Text)
	return nil
}

// envoySizes returns the fields from the received bytes on: two sizes, a duration,
// another duration that may be missing, and then the quoted fields. Istio's additional
// fields before them are not numbers.
func envoySizes(f []values.Field) []values.Field {
	const details = 3
	for i := 0; i <= details && len(f)-i >= 9; i++ {
		g := f[i:]
		if plainNumber(g[0]) && plainNumber(g[1]) && plainNumber(g[2]) && !g[3].Quoted && g[4].Quoted {
			return g
		}
	}
	return nil
}

// plainNumber reports whether a field is a number without quotes.
func plainNumber(f values.Field) bool { return !f.Quoted && values.IsDigits(f.Text) }

var envoyKeys = keyed{
	is: func(p *Pairs) bool {
		return p.Has("method", "response_code") && p.Get("path", "x-envoy-origin-path", "x_envoy_original_path") != ""
	},
	time: []string{"start_time", "@timestamp", "timestamp"}, arrival: true, duration: []string{"duration"}, unit: time.Millisecond,
	method: []string{"method"}, uri: []string{"x-envoy-origin-path", "x_envoy_original_path", "path"}, proto: []string{"protocol"},
	client: []string{"x_forwarded_for", "x-forwarded-for", "downstream_remote_address"}, status: []string{"response_code"},
	written: []string{"bytes_sent"}, received: []string{"bytes_received"}, agent: []string{"user_agent", "user-agent"},
	id: []string{"request_id", "x-request-id"}, host: []string{"authority", ":authority"},
}
