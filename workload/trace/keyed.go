package trace

import (
	"bytes"
	"strings"
	"time"
)

// keyed says where a format whose lines are names with values has what a record wants.
// Of several names the first that a line has counts.
type keyed struct {
	// is reports whether a line tells of a request that was answered.
	is func(*pairs) bool
	// time is that of the end, or of the arrival.
	time    []string
	arrival bool
	// duration is a number of units, or has its unit.
	duration []string
	unit     time.Duration
	// request is a request line; where a format has none, it has its parts.
	request, method, uri, query, proto []string
	client                             []string
	status, written, received          []string
	agent, referer, user, id, host     []string
}

// answeredLine reports whether a line is that of Distribution for a request that was answered.
// Errors have lines too, one for each of a request's errors and so none of them a
// request.
func answeredLine(p *pairs) bool { return p.get("msg", "message", "@message") == "response completed" }

var distributionKeys = keyed{
	is: answeredLine, time: []string{"time", "@timestamp", "timestamp"}, duration: []string{"http.response.duration"}, unit: time.Second,
	method: []string{"http.request.method"}, uri: []string{"http.request.uri"}, client: []string{"http.request.remoteaddr"},
	status: []string{"http.response.status"}, written: []string{"http.response.written"}, agent: []string{"http.request.useragent"},
	id: []string{"http.request.id"}, host: []string{"instance.id", "http.request.host"},
}

var gitlabKeys = keyed{
	is:   func(p *pairs) bool { return p.get("msg") == "access" && p.has("uri", "status") },
	time: []string{"time"}, duration: []string{"duration_ms"}, unit: time.Millisecond,
	method: []string{"method"}, uri: []string{"uri"}, proto: []string{"proto"}, client: []string{"remote_ip", "remote_addr"},
	status: []string{"status"}, written: []string{"written_bytes"}, agent: []string{"user_agent"}, referer: []string{"referrer"},
	id: []string{"correlation_id"}, host: []string{"host"},
}

var zotKeys = keyed{
	is:   func(p *pairs) bool { return p.get("message") == "HTTP API" && p.has("clientIP", "path") },
	time: []string{"time"}, duration: []string{"latency"}, unit: time.Nanosecond,
	method: []string{"method"}, uri: []string{"path"}, client: []string{"clientIP"}, user: []string{"username"},
	status: []string{"statusCode"}, written: []string{"bodySize"}, received: []string{"headers.Content-Length"},
	agent: []string{"headers.User-Agent"},
}

var traefikKeys = keyed{
	is:   func(p *pairs) bool { return p.has("RequestMethod", "RequestPath") },
	time: []string{"StartUTC", "StartLocal", "time"}, arrival: true, duration: []string{"Duration"}, unit: time.Nanosecond,
	method: []string{"RequestMethod"}, uri: []string{"RequestPath"}, proto: []string{"RequestProtocol"},
	client: []string{"ClientHost", "ClientAddr"}, user: []string{"ClientUsername"}, status: []string{"DownstreamStatus", "OriginStatus"},
	written: []string{"DownstreamContentSize", "OriginContentSize"}, received: []string{"RequestContentSize"},
	agent: []string{"request_User-Agent"}, referer: []string{"request_Referer"}, host: []string{"RequestHost"},
	id: []string{"request_X-Request-Id"},
}

var caddyKeys = keyed{
	is:   func(p *pairs) bool { return p.has("request.method", "request.uri", "status") },
	time: []string{"ts", "time"}, duration: []string{"duration"}, unit: time.Second,
	method: []string{"request.method"}, uri: []string{"request.uri"}, proto: []string{"request.proto"},
	client: []string{"request.client_ip", "request.remote_ip", "request.remote_addr"}, user: []string{"user_id"},
	status: []string{"status"}, written: []string{"size"}, received: []string{"bytes_read"},
	agent: []string{"request.headers.User-Agent"}, referer: []string{"request.headers.Referer"}, host: []string{"request.host"},
	id: []string{"uuid"},
}

var envoyKeys = keyed{
	is: func(p *pairs) bool {
		return p.has("method", "response_code") && p.get("path", "x-envoy-origin-path", "x_envoy_original_path") != ""
	},
	time: []string{"start_time"}, arrival: true, duration: []string{"duration"}, unit: time.Millisecond,
	method: []string{"method"}, uri: []string{"x-envoy-origin-path", "x_envoy_original_path", "path"}, proto: []string{"protocol"},
	client: []string{"x_forwarded_for", "x-forwarded-for", "downstream_remote_address"}, status: []string{"response_code"},
	written: []string{"bytes_sent"}, received: []string{"bytes_received"}, agent: []string{"user_agent", "user-agent"},
	id: []string{"request_id", "x-request-id"}, host: []string{"authority", ":authority"},
}

// nginxKeys are the names that people give to nginx's variables in log_format with
// escape=json: first those of the variables themselves.
var nginxKeys = keyed{
	is: func(p *pairs) bool {
		return (p.has("request") || p.get("request_method", "method", "verb") != "" && p.get("request_uri", "uri", "path", "url") != "") &&
			p.get("status", "status_code", "response_status", "response") != ""
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

// parse reads a line.
func (k *keyed) parse(l *line, rec *Record) error {
	p := l.pairs()
	if p == nil {
		return notUnderstood("it is no JSON object")
	}
	if !k.is(p) {
		return notRequest("it is of something else: %.60q", p.get("msg", "message", "level"))
	}
	request := p.get(k.request...)
	if request == "" {
		uri := p.get(k.uri...)
		if query := p.get(k.query...); query != "" && query != "-" && !strings.Contains(uri, "?") {
			uri += "?" + query
		}
		if err := setTarget(p.get(k.method...), uri, p.get(k.proto...), rec); err != nil {
			return err
		}
	} else if err := setRequest(request, rec); err != nil {
		return err
	}
	var ok bool
	if client := k.clientOf(p); client != "" {
		if rec.RemoteAddr, ok = clientOf(client); !ok {
			return notUnderstood("the client is %.60q", client)
		}
	}
	rec.Time = l.when
	if when := p.get(k.time...); when != "" {
		if rec.Time, ok = timeOf(when); !ok {
			return notUnderstood("the time is %.40q", when)
		}
	} else if rec.Time.IsZero() {
		return notUnderstood("it has no time")
	}
	if err := k.answer(p, rec); err != nil {
		return err
	}
	rec.UserAgent, rec.Referer, rec.User = dash(p.get(k.agent...)), dash(p.get(k.referer...)), dash(p.get(k.user...))
	rec.ID, rec.Host = dash(p.get(k.id...)), dash(p.get(k.host...))
	return nil
}

// clientOf is the field that names the client: the first that is not "-".
func (k *keyed) clientOf(p *pairs) string {
	for _, name := range k.client {
		if v := p.get(name); v != "" && v != "-" {
			return v
		}
	}
	return ""
}

// answer reads the status, the sizes and the duration.
func (k *keyed) answer(p *pairs, rec *Record) error {
	status, written := p.get(k.status...), p.get(k.written...)
	if status == "" {
		status = "0"
	}
	if err := setAnswer(status, written, rec); err != nil {
		return err
	}
	if written == "" {
		rec.Written = Unknown
	}
	if err := setReceived(p.get(k.received...), rec); err != nil {
		return err
	}
	took := p.get(k.duration...)
	if took == "" || took == "-" {
		return nil
	}
	d, ok := durationIn(took, k.unit)
	if !ok {
		return notUnderstood("the duration is %.40q", took)
	}
	if rec.Duration = d; !k.arrival {
		rec.Time = rec.Time.Add(-d)
	}
	return nil
}

// pairs of a line that is a JSON object, perhaps after words that a collector put there,
// or in logfmt; nil of others.
func (l *line) pairs() *pairs {
	if !l.tried {
		l.tried = true
		l.keyed = l.parsePairs()
	}
	if l.keyed {
		return &l.p
	}
	return nil
}

func (l *line) parsePairs() bool {
	b := l.text
	if len(b) > 0 && b[0] != '{' {
		if i := bytes.IndexByte(b, '='); i > 0 && !bytes.ContainsAny(b[:i], " \"{[(") {
			return l.p.parseLogfmt(b)
		}
		i := bytes.Index(b, []byte(`{"`))
		if i <= 0 || b[i-1] != ' ' && b[i-1] != '\t' || b[len(b)-1] != '}' || bytes.IndexByte(b[:i], '"') >= 0 {
			return false
		}
		b = b[i:]
	}
	return l.p.parseObject(b)
}
