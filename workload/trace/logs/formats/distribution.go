package formats

import (
	"strings"
	"time"
)

// answeredLine reports whether a line is Distribution's line for an answered request. A
// line for an error is not such a line, because a request can have several errors. On a
// terminal, as containers may have one, the message stands before the names: "INFO[0012]
// response completed".
func answeredLine(p *Pairs) bool {
	const answered = "response completed"
	return p.Get("msg", "message", "@message") == answered ||
		strings.HasSuffix(p.words, "] "+answered) && p.Has("http.request.method")
}

var distributionKeys = keyed{
	is: answeredLine, time: []string{"time", "@timestamp", "timestamp"}, duration: []string{"http.response.duration"}, unit: time.Second,
	method: []string{"http.request.method"}, uri: []string{"http.request.uri"}, client: []string{"http.request.remoteaddr"},
	status: []string{"http.response.status"}, written: []string{"http.response.written"}, agent: []string{"http.request.useragent"},
	id: []string{"http.request.id"}, host: []string{"instance.id", "http.request.host"},
}
