package formats

import "time"

var zotKeys = keyed{
	is:   func(p *Pairs) bool { return p.Get("message") == "HTTP API" && p.Has("clientIP", "path") },
	time: []string{"time"}, duration: []string{"latency"}, unit: time.Nanosecond,
	method: []string{"method"}, uri: []string{"path"}, client: []string{"clientIP"}, user: []string{"username"},
	status: []string{"statusCode"}, written: []string{"bodySize"}, received: []string{"headers.Content-Length"},
	agent: []string{"headers.User-Agent"},
}
