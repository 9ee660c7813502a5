package formats

import (
	"strings"
	"time"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/logs/internal/values"
)

// parseNginx is parseCLF for nginx, whose time is that of the answer's end. Without a
// $request_time the duration is unknown.
func parseNginx(l *Line, rec *trace.Record) error {
	rest, err := clfHead(l.Text, rec)
	if err != nil {
		return err
	}
	if rest, err = clfTail(rest, rec); err == nil {
		setRequestTime(rest, rec)
	}
	return err
}

// parseTimedNginx is parseNginx for lines that have a $request_time. A line without one may
// be of Apache, which writes the time of the arrival.
func parseTimedNginx(l *Line, rec *trace.Record) error {
	err := parseNginx(l, rec)
	if err == nil && rec.Duration < 0 {
		return notUnderstood("it has no $request_time")
	}
	return err
}

// setRequestTime looks for nginx's $request_time after the user agent and takes it off
// the time: seconds with three digits after the point, plain, in quotes or parentheses,
// or after the name that people give it. $gzip_ratio has two.
func setRequestTime(rest []byte, rec *trace.Record) {
	for len(rest) > 0 {
		var field string
		field, rest = values.NextField(rest)
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
		if seconds, ok := values.Seconds(field); ok {
			rec.Duration = seconds
			rec.Time = rec.Time.Add(-seconds)
			return
		}
	}
}

// requestTimeNames are what people call $request_time, and not that of the upstream.
var requestTimeNames = map[string]bool{"rt": true, "request_time": true, "reqtime": true, "req_time": true, "time": true,
	"t": true, "duration": true, "total": true, "request-time": true}

// nginxKeys are the names that people give to nginx's variables in log_format with
// escape=json: first those of the variables themselves.
var nginxKeys = keyed{
	is: func(p *Pairs) bool {
		return (p.Has("request") || p.Get("request_method", "method", "verb") != "" && p.Get("request_uri", "uri", "path", "url") != "") &&
			p.Get("status", "status_code", "response_status", "response") != ""
	},
	time:     []string{"time_iso8601", "time_local", "msec", "@timestamp", "timestamp", "time", "ts", "date", "datetime"},
	duration: []string{"request_time", "duration", "response_time", "requesttime"}, unit: time.Second,
	request: []string{"request"}, method: []string{"request_method", "method", "verb"},
	uri: []string{"request_uri", "uri", "path", "url"}, query: []string{"args", "query_string", "request_query", "query"},
	proto: []string{"server_protocol", "request_proto", "protocol", "proto"},
	client: []string{"remote_addr", "client_ip", "clientip", "remote_ip", "client", "realip_remote_addr", "http_x_real_ip",
		"http_x_forwarded_for", "x_forwarded_for", "forwarded_for", "ip"},
	status:   []string{"status", "status_code", "response_status", "response"},
	written:  []string{"body_bytes_sent", "bytes_sent", "bytes", "size", "response_length"},
	received: []string{"content_length", "http_content_length"},
	agent:    []string{"http_user_agent", "user_agent", "useragent", "agent"},
	referer:  []string{"http_referer", "http_referrer", "referer", "referrer"}, user: []string{"remote_user", "user"},
	id: []string{"request_id", "req_id", "http_x_request_id", "x_request_id"}, host: []string{"host", "http_host", "vhost", "server_name"},
}
