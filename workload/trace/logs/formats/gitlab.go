package formats

import "time"

var gitlabKeys = keyed{
	is:   func(p *Pairs) bool { return p.Get("msg") == "access" && p.Has("uri", "status") },
	time: []string{"time"}, duration: []string{"duration_ms"}, unit: time.Millisecond,
	method: []string{"method"}, uri: []string{"uri"}, proto: []string{"proto"}, client: []string{"remote_ip", "remote_addr"},
	status: []string{"status"}, written: []string{"written_bytes"}, agent: []string{"user_agent"}, referer: []string{"referrer"},
	id: []string{"correlation_id"}, host: []string{"host"},
}
