package formats

import (
	"strings"
	"time"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/logs/internal/values"
)

// parseNginx is like parseCLF, for nginx, whose time is the end of the answer. Without a
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

// parseTimedNginx is like parseNginx, for lines that have a $request_time. A line without one
// may be of Apache, which writes the time of the arrival.
func parseTimedNginx(l *Line, rec *trace.Record) error {
	err := parseNginx(l, rec)
	if err == nil && rec.Duration < 0 {
		return notUnderstood("it has no $request_time")
	}
	return err
}

// setRequestTime looks for nginx's $request_time after the user agent and subtracts it
// from the time. It has seconds with three digits after the point, and stands plain, in
// quotes or parentheses, or after a name that the administrator chose. $gzip_ratio has
// two digits.
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

// requestTimeNames are names that people give to $request_time; names for the time of the
// upstream are not among them.
var requestTimeNames = map[string]bool{"rt": true, "request_time": true, "reqtime": true, "req_time": true, "time": true,
	"t": true, "duration": true, "total": true, "request-time": true}

// nginxKeys are the names that people give to nginx's variables in log_format with
// escape=json: first the names of the variables themselves. Capitals, "_" and "-" do not
// matter.
var nginxKeys = keyed{
	loose: true,
	is: func(p *Pairs) bool {
		return (p.Has("request") || p.Get("requestmethod", "method", "verb", "httpmethod") != "" &&
			p.Get("requesturi", "uri", "path", "url", "requestpath", "requesturl") != "") &&
			p.Get("status", "statuscode", "responsestatus", "httpstatus", "response") != ""
	},
	time: []string{"timeiso8601", "timelocal", "msec", "@timestamp", "timestamp", "time", "ts", "date", "datetime", "accesstime",
		"localtime", "logtime", "requesttimestamp"},
	duration: []string{"requesttime", "duration", "responsetime", "reqtime"}, unit: time.Second,
	request: []string{"request"}, method: []string{"requestmethod", "method", "verb", "httpmethod"},
	uri:   []string{"requesturi", "uri", "path", "url", "requestpath", "requesturl"},
	query: []string{"args", "querystring", "requestquery", "query"}, proto: []string{"serverprotocol", "requestproto", "protocol", "proto"},
	client: []string{"remoteaddr", "clientip", "remoteip", "client", "clientaddr", "clientaddress", "remoteaddress", "remotehost",
		"realipremoteaddr", "httpxrealip", "xrealip", "realip", "httpxforwardedfor", "xforwardedfor", "forwardedfor", "sourceip", "srcip", "ip"},
	status:   []string{"status", "statuscode", "responsestatus", "httpstatus", "response"},
	written:  []string{"bodybytessent", "bytessent", "bytes", "size", "responselength", "responsesize", "bodysize"},
	received: []string{"contentlength", "httpcontentlength"},
	agent:    []string{"httpuseragent", "useragent", "agent"},
	referer:  []string{"httpreferer", "httpreferrer", "referer", "referrer"}, user: []string{"remoteuser", "user"},
	id: []string{"requestid", "reqid", "httpxrequestid", "xrequestid"}, host: []string{"host", "httphost", "vhost", "servername"},
}
