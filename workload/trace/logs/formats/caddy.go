package formats

import "time"

var caddyKeys = keyed{
	is:   func(p *Pairs) bool { return p.Has("request.method", "request.uri", "status") },
	time: []string{"ts", "time"}, duration: []string{"duration", "latency"}, unit: time.Second,
	method: []string{"request.method"}, uri: []string{"request.uri"}, proto: []string{"request.proto"},
	client: []string{"request.client_ip", "request.remote_ip", "request.remote_addr"}, user: []string{"user_id"},
	status: []string{"status"}, written: []string{"size"}, received: []string{"bytes_read"},
	agent: []string{"request.headers.User-Agent"}, referer: []string{"request.headers.Referer"}, host: []string{"request.host"},
	id: []string{"uuid"},
}
