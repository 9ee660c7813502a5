package formats

import (
	"strings"
	"time"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/logs/internal/values"
)

// parseTraefikCLF reads Traefik's access log in its format "common": Combined Log Format
// with the number of the request, router, server and duration. The time is the arrival.
func parseTraefikCLF(l *Line, rec *trace.Record) error {
	rest, err := clfHead(l.Text, rec)
	if err != nil {
		return err
	}
	if rest, err = clfTail(rest, rec); err != nil {
		return err
	}
	f := values.Fields(rest)
	if len(f) != 4 || !values.IsDigits(f[0].Text) || !traefikName(f[1]) || !traefikName(f[2]) {
		return notUnderstood("there is no router and no server after the user agent")
	}
	took, ok := values.Duration(f[3].Text, time.Second)
	if !ok || !strings.HasSuffix(f[3].Text, "ms") {
		return notUnderstood("the duration is %.40q", f[3].Text)
	}
	rec.Duration = took
	return nil
}

// traefikName reports whether a field is the name of a router or a server. Some versions write "-"
// without quotes if there is none.
func traefikName(f values.Field) bool { return f.Quoted || f.Text == "-" }

var traefikKeys = keyed{
	is:   func(p *Pairs) bool { return p.Has("RequestMethod", "RequestPath") },
	time: []string{"StartUTC", "StartLocal", "time"}, arrival: true, duration: []string{"Duration"}, unit: time.Nanosecond,
	method: []string{"RequestMethod"}, uri: []string{"RequestPath"}, proto: []string{"RequestProtocol"},
	client: []string{"ClientHost", "ClientAddr"}, user: []string{"ClientUsername"}, status: []string{"DownstreamStatus", "OriginStatus"},
	written: []string{"DownstreamContentSize", "OriginContentSize"}, received: []string{"RequestContentSize"},
	agent: []string{"request_User-Agent"}, referer: []string{"request_Referer"}, host: []string{"RequestHost"},
	id: []string{"request_X-Request-Id"},
}
