package trace

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/url"
	"strings"
	"time"
)

// lineDecoder reads formats that have a record per line.
type lineDecoder struct {
	r *bufio.Reader
	// parse reads one line, which is not empty. The record it is given is zero.
	parse func(line []byte, rec *Record) error
	// whole says that a last line without an end is not a whole one.
	whole bool
}

func newLineDecoder(r io.Reader, parse func([]byte, *Record) error) *lineDecoder {
	return &lineDecoder{r: bufio.NewReaderSize(r, maxRecord), parse: parse}
}

func (d *lineDecoder) read(rec *Record) error {
	for {
		line, err := d.r.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = d.r.ReadSlice('\n')
			}
			return bad(BadLength, "the line is longer than %d bytes", maxRecord)
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return err // and what of the line there is may end anywhere
		}
		if err != nil && d.whole && len(line) > 0 {
			return bad(BadTruncated, "the last line has no end")
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(bytes.TrimSpace(line)) > 0 { // the last line may have no end
			*rec = Record{}
			return d.parse(line, rec)
		}
		if err != nil {
			return err
		}
	}
}

// distributionLine is what Distribution writes with log.formatter "json".
type distributionLine struct {
	Message    string `json:"msg"`
	Time       string `json:"time"`
	Host       string `json:"http.request.host"`
	Instance   string `json:"instance.id"`
	ID         string `json:"http.request.id"`
	Method     string `json:"http.request.method"`
	RemoteAddr string `json:"http.request.remoteaddr"`
	URI        string `json:"http.request.uri"`
	UserAgent  string `json:"http.request.useragent"`
	Duration   string `json:"http.response.duration"`
	Status     int64  `json:"http.response.status"`
	Written    *int64 `json:"http.response.written"`
	Digest     string `json:"vars.digest"`
}

// distributionCompleted is the message of the one line for each request that was
// answered. Errors have lines too, one for each of a request's errors and so none of
// them a request: they are counted as BadOther.
const distributionCompleted = "response completed"

// parseDistribution reads a line of Distribution's log. Its time is when the answer
// was complete.
func parseDistribution(line []byte, rec *Record) error {
	if line[0] != '{' {
		return bad(BadOther, "the line is no JSON object")
	}
	var l distributionLine
	if err := json.Unmarshal(line, &l); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			return bad(BadType, "%s is a JSON %s", wrong.Field, wrong.Value)
		}
		return bad(BadSyntax, "%v", err)
	}
	if l.Message != distributionCompleted {
		return bad(BadOther, "the message is %.60q", l.Message)
	}
	if l.Method == "" || l.URI == "" {
		return bad(BadMissing, "it has no http.request.method or http.request.uri")
	}
	end, err := time.Parse(time.RFC3339Nano, l.Time)
	if err != nil {
		return bad(BadTime, "%.40q is no time", l.Time)
	}
	*rec = Record{Host: l.Instance, Duration: Unknown, Method: l.Method, RemoteAddr: withoutPort(l.RemoteAddr), URI: l.URI,
		UserAgent: l.UserAgent, Status: int(l.Status), Written: Unknown, ID: l.ID, Time: end.UTC()}
	if rec.Host == "" {
		rec.Host = l.Host
	}
	if l.Duration != "" {
		took, err := time.ParseDuration(l.Duration)
		if err != nil || took < 0 {
			return bad(BadNumber, "http.response.duration is %.40q", l.Duration)
		}
		rec.Duration, rec.Time = took, rec.Time.Add(-took)
	}
	if l.Written != nil {
		if rec.Written = *l.Written; rec.Written < 0 {
			return bad(BadNumber, "http.response.written is negative")
		}
	}
	if l.Status < 0 || l.Status > 999 {
		return bad(BadNumber, "http.response.status is %d", l.Status)
	}
	answered(rec)
	return nil
}

// answered corrects a record of a log that has the size of the answer's body alone:
// what came with an upload is not known.
func answered(rec *Record) {
	switch rec.Method {
	case "PUT", "PATCH", "POST":
		rec.Written = Unknown
		rec.Digest = queryDigest(rec.URI)
	}
}

// queryDigest is the digest in the query of what ends an upload.
func queryDigest(uri string) string {
	_, query, ok := strings.Cut(uri, "?")
	if !ok || !strings.Contains(query, "digest=") {
		return ""
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return ""
	}
	return values.Get("digest")
}

// withoutPort is the address alone.
func withoutPort(addr string) string {
	if host, _, err := net.SplitHostPort(addr); err == nil {
		return host
	}
	return addr
}

// uriParser makes records of lines that are URIs alone: GETs at a constant rate.
type uriParser struct {
	start time.Time
	rate  float64 // per second
	n     int64
}

func (p *uriParser) parse(line []byte, rec *Record) error {
	for _, c := range line {
		if c <= ' ' || c == 0x7f {
			return bad(BadSyntax, "there is a blank in the URI")
		}
	}
	offset := time.Duration(float64(p.n) / p.rate * float64(time.Second))
	p.n++
	*rec = Record{Duration: Unknown, Method: "GET", URI: string(line), Written: Unknown, Time: p.start.Add(offset)}
	return nil
}
