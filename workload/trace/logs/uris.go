package logs

import (
	"bytes"
	"time"

	"example.org/slipway/workload/trace"
)

// uriParser makes records from lines that hold only URIs: GETs at a constant rate.
type uriParser struct {
	start time.Time
	rate  float64 // per second
	n     int64
}

func (p *uriParser) parse(line []byte, rec *trace.Record) error {
	for _, c := range line {
		if c <= ' ' || c == 0x7f {
			return trace.BadLine.Errorf("there is a blank in the URI")
		}
	}
	offset := time.Duration(float64(p.n) / p.rate * float64(time.Second))
	p.n++
	*rec = trace.Record{Duration: trace.Unknown, Method: "GET", URI: string(line), Written: trace.Unknown, Time: p.start.Add(offset)}
	return nil
}

// isURI reports whether a line is a URI of the protocol and nothing else.
func isURI(b []byte) bool {
	uri := bytes.TrimPrefix(b, []byte("/"))
	return (string(uri) == "v2" || bytes.HasPrefix(uri, []byte("v2/"))) && !bytes.ContainsAny(uri, " \t\"\\{}<>|")
}
