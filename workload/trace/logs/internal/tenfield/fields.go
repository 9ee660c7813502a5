package tenfield

import (
	"bytes"
	"encoding/json"
	"errors"
	"time"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/logs/internal/values"
)

// fields holds the values of a record in the ten-field form as they are in the input. The byte
// slices are valid until the next record.
type fields struct {
	host, method, client, uri, agent, id, timestamp, digest []byte
	duration                                                time.Duration // or Unknown
	status, written                                         int64         // written: or Unknown
	// unescaped holds the strings that had escapes.
	unescaped []byte
}

// wire is the ten-field form with its eleventh field. What is unknown is null.
type wire struct {
	Host       string   `json:"host"`
	Duration   *float64 `json:"http.request.duration"`
	Method     string   `json:"http.request.method"`
	RemoteAddr string   `json:"http.request.remoteaddr"`
	URI        string   `json:"http.request.uri"`
	UserAgent  string   `json:"http.request.useragent"`
	Status     *int64   `json:"http.response.status"`
	Written    *int64   `json:"http.response.written"`
	ID         string   `json:"id"`
	Timestamp  string   `json:"timestamp"`
	Digest     string   `json:"digest,omitempty"`
}

// parseAny is like parseFlat, for everything that encoding/json can read.
func parseAny(b []byte, f *fields) error {
	var w wire
	if err := json.Unmarshal(b, &w); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			return trace.BadType.Errorf("%s is a JSON %s", wrong.Field, wrong.Value)
		}
		return err
	}
	*f = fields{host: []byte(w.Host), method: []byte(w.Method), client: []byte(w.RemoteAddr), uri: []byte(w.URI),
		agent: []byte(w.UserAgent), id: []byte(w.ID), timestamp: []byte(w.Timestamp), digest: []byte(w.Digest),
		duration: trace.Unknown, written: trace.Unknown}
	if w.Duration != nil {
		f.duration = values.FromSeconds(*w.Duration)
	}
	if w.Status != nil {
		f.status = *w.Status
	}
	if w.Written != nil {
		f.written = *w.Written
		if f.written == trace.Unknown {
			f.written-- // -1 in the input is a negative size, not an unknown one
		}
	}
	return nil
}

// parseTime parses a time in RFC 3339 format.
func parseTime(b []byte) (time.Time, error) {
	if t, ok := values.FastTime(b); ok {
		return t, nil
	}
	t, err := time.Parse(time.RFC3339Nano, string(b))
	if err != nil {
		return t, trace.BadTime.Errorf("%.40q is not a time", b)
	}
	return t.UTC(), nil
}

// objectEnd returns the length of the object at the start of b, or 0 if b does not hold all of it.
func objectEnd(b []byte) int {
	depth, quoted := 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{':
			depth++
		case c == '}':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return 0
}

// Begins reports whether a file begins with an array of objects, or with an object of the ten-field
// form, which may take several lines.
func Begins(head []byte) bool {
	head = bytes.TrimSpace(bytes.TrimPrefix(head, []byte("\xef\xbb\xbf")))
	if len(head) == 0 {
		return false
	}
	if head[0] == '[' {
		after := bytes.TrimLeft(head[1:], "[], \t\r\n")
		if len(after) == 0 || after[0] != '{' {
			return len(after) == 0
		}
		after = bytes.TrimLeft(after[1:], " \t\r\n")
		return len(after) == 0 || after[0] == '"' || after[0] == '}'
	}
	if head[0] != '{' {
		return false
	}
	n := objectEnd(head)
	var f fields
	return n > 0 && parseAny(head[:n], &f) == nil && len(f.method) > 0 && len(f.uri) > 0 && len(f.timestamp) > 0
}

// ParseLine reads a line that is an object of the ten-field form.
func ParseLine(text []byte, rec *trace.Record) error {
	if len(text) == 0 || text[0] != '{' {
		return trace.BadLine.Errorf("it is not a JSON object")
	}
	var f fields
	if n, res := parseFlat(text, &f); res != parsed || len(bytes.TrimSpace(text[n:])) > 0 {
		if err := parseAny(text, &f); err != nil {
			var skip *trace.BadRecord
			if errors.As(err, &skip) {
				return err
			}
			return trace.BadLine.Errorf("%v", err)
		}
	}
	d := Decoder{interned: &Interner{}, f: f}
	return d.record(rec)
}
