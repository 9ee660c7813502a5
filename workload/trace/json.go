package trace

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"
)

const (
	// maxRecord bounds a record and a line of any format, in bytes. The largest of the
	// IBM traces are below 1 KiB.
	maxRecord = 1 << 20
	// readSize is how much is asked for at once, in bytes.
	readSize = 256 << 10
	// ownChunk is what is allocated for the strings of records at once, in bytes: some
	// dozens of records. Whoever keeps a string of one keeps as much.
	ownChunk = 4 << 10
)

// fields are the values of a record in the ten-field form as they are in the input.
// The byte slices are valid until the next record.
type fields struct {
	host, method, client, uri, agent, id, timestamp, digest []byte
	duration                                                time.Duration // or Unknown
	status, written                                         int64         // written: or Unknown
	// unescaped holds the strings that had escapes.
	unescaped []byte
}

// jsonDecoder reads objects of the ten-field form: in an array, in several, one per
// line or one after the other.
type jsonDecoder struct {
	r        io.Reader
	buf      []byte
	pos, end int
	err      error // of r, once all before it has been read
	f        fields
	interned *interner
	// chunk has room for strings of the records to come: one allocation for many.
	chunk strings.Builder
	// failed counts bad records since the last good one.
	failed int
}

// maxFailed is after how many bad records in a row a large one is skipped as a whole,
// and not only its beginning: looking for the end of each is work that grows with the
// square of the input's length where there is no good record at all.
const maxFailed = 16

func newJSONDecoder(r io.Reader, in *interner) *jsonDecoder {
	return &jsonDecoder{r: r, buf: make([]byte, readSize), interned: in}
}

// more reads on, and tells whether there was anything. It makes room by moving what
// has not been used yet to the front of the buffer, and a larger buffer if need be.
func (d *jsonDecoder) more() bool {
	if d.err != nil {
		return false
	}
	if d.pos > 0 {
		copy(d.buf, d.buf[d.pos:d.end])
		d.end -= d.pos
		d.pos = 0
	}
	if d.end == len(d.buf) {
		d.buf = append(d.buf, make([]byte, len(d.buf))...)
	}
	n, err := readSome(d.r, d.buf[d.end:])
	d.end += n
	d.err = err
	return n > 0
}

// readSome reads at least a byte or returns an error.
func readSome(r io.Reader, b []byte) (int, error) {
	const tries = 100
	for range tries {
		if n, err := r.Read(b); n > 0 || err != nil {
			return n, err
		}
	}
	return 0, io.ErrNoProgress
}

func (d *jsonDecoder) read(rec *Record) error {
	if err := d.begin(); err != nil {
		return err
	}
	for {
		n, res := parseFlat(d.buf[d.pos:d.end], &d.f)
		if res == parsed {
			d.pos += n
			d.failed = 0
			return d.record(rec)
		}
		if res == unusual {
			break
		}
		if d.end-d.pos > maxRecord || !d.more() {
			break
		}
	}
	return d.slow(rec)
}

// begin goes to the brace that begins the next record.
func (d *jsonDecoder) begin() error {
	garbage := 0
	for {
		for ; d.pos < d.end; d.pos++ {
			switch c := d.buf[d.pos]; c {
			case '{':
				if garbage > 0 {
					return bad(BadSyntax, "%d bytes that are no record", garbage)
				}
				return nil
			case ' ', '\t', '\r', '\n', ',', '[', ']', 0xef, 0xbb, 0xbf: // the last three: byte order mark
			default:
				garbage++
			}
		}
		if d.more() {
			continue
		}
		if garbage > 0 {
			return bad(BadSyntax, "%d bytes that are no record", garbage)
		}
		return d.err
	}
}

// slow reads a record that parseFlat did not, or says what is wrong with it.
func (d *jsonDecoder) slow(rec *Record) error {
	n := 0
	for {
		if n = objectEnd(d.buf[d.pos:d.end]); n > 0 {
			break
		}
		if d.end-d.pos > maxRecord {
			if d.failed++; d.failed > maxFailed {
				d.pos = d.end - 1
			}
			d.resync()
			return bad(BadLength, "it is longer than %d bytes or has no end", maxRecord)
		}
		if d.more() {
			continue
		}
		left := d.end - d.pos
		if !d.resync() {
			return bad(BadTruncated, "the input ends %d bytes after its beginning", left)
		}
		return bad(BadSyntax, "it has no end")
	}
	if n > maxRecord {
		d.pos += n
		return bad(BadLength, "it is longer than %d bytes", maxRecord)
	}
	err := parseAny(d.buf[d.pos:d.pos+n], &d.f)
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		if d.failed++; d.failed > maxFailed {
			d.pos += n - 1
		}
		d.resync()
		return bad(BadSyntax, "%v", err)
	}
	d.pos += n
	d.failed = 0
	if err != nil {
		return err
	}
	return d.record(rec)
}

// resync goes to what looks like the beginning of the next record: a brace and a
// quote. It tells whether there is one in what is left.
func (d *jsonDecoder) resync() bool {
	d.pos++
	for {
		i := bytes.IndexByte(d.buf[d.pos:d.end], '{')
		if i < 0 {
			d.pos = d.end
			if !d.more() {
				return false
			}
			continue
		}
		d.pos += i
		rest := bytes.TrimLeft(d.buf[d.pos+1:d.end], " \t\r\n")
		if len(rest) == 0 && d.end-d.pos < maxRecord && d.more() {
			continue
		}
		if len(rest) > 0 && rest[0] == '"' {
			return true
		}
		d.pos++
	}
}

// objectEnd returns the length of the object that b begins with, and 0 if b does not
// have all of it.
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

// parseAny is parseFlat for everything that encoding/json reads.
func parseAny(b []byte, f *fields) error {
	var w wire
	if err := json.Unmarshal(b, &w); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			return bad(BadType, "%s is a JSON %s", wrong.Field, wrong.Value)
		}
		return err
	}
	*f = fields{host: []byte(w.Host), method: []byte(w.Method), client: []byte(w.RemoteAddr), uri: []byte(w.URI),
		agent: []byte(w.UserAgent), id: []byte(w.ID), timestamp: []byte(w.Timestamp), digest: []byte(w.Digest),
		duration: Unknown, written: Unknown}
	if w.Duration != nil {
		f.duration = durationOf(*w.Duration)
	}
	if w.Status != nil {
		f.status = *w.Status
	}
	if w.Written != nil {
		f.written = *w.Written
		if f.written == Unknown {
			f.written-- // -1 in the input is a negative size, not an unknown one
		}
	}
	return nil
}

// durationOf converts seconds. What is no duration is negative but not Unknown.
func durationOf(seconds float64) time.Duration {
	const maxSeconds = 1e9 // 31 years
	if seconds < 0 || seconds > maxSeconds {
		return -2
	}
	return time.Duration(math.Round(seconds * 1e9))
}

// record makes a record of the fields.
func (d *jsonDecoder) record(rec *Record) error {
	f := &d.f
	switch {
	case len(f.timestamp) == 0:
		return bad(BadMissing, "it has no timestamp")
	case len(f.method) == 0:
		return bad(BadMissing, "it has no http.request.method")
	case len(f.uri) == 0:
		return bad(BadMissing, "it has no http.request.uri")
	case f.written < Unknown:
		return bad(BadNumber, "http.response.written is negative")
	case f.duration < Unknown:
		return bad(BadNumber, "http.request.duration is negative or above 1e9")
	case f.status < 0 || f.status > 999:
		return bad(BadNumber, "http.response.status is %d", f.status)
	}
	when, err := parseTime(f.timestamp)
	if err != nil {
		return err
	}
	own := d.own(f.uri, f.id, f.digest)
	u, i := len(f.uri), len(f.uri)+len(f.id)
	*rec = Record{Host: d.interned.get(f.host), Duration: f.duration, Method: methodName(f.method),
		RemoteAddr: d.interned.get(f.client), URI: own[:u], UserAgent: d.interned.get(f.agent), Status: int(f.status),
		Written: f.written, ID: own[u:i], Digest: own[i:], Time: when}
	return nil
}

// own returns a copy of bytes, one after the other, that stays.
func (d *jsonDecoder) own(parts ...[]byte) string {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	if d.chunk.Cap()-d.chunk.Len() < n {
		d.chunk = strings.Builder{} // strings that were cut from the old one keep it
		d.chunk.Grow(max(n, ownChunk))
	}
	from := d.chunk.Len()
	for _, p := range parts {
		d.chunk.Write(p)
	}
	return d.chunk.String()[from:]
}

// methodName is a method without an allocation for those that there are.
func methodName(b []byte) string {
	switch string(b) {
	case "GET":
		return "GET"
	case "HEAD":
		return "HEAD"
	case "PUT":
		return "PUT"
	case "POST":
		return "POST"
	}
	return string(b)
}

// parseTime reads a time as RFC 3339 has it.
func parseTime(b []byte) (time.Time, error) {
	if t, ok := parseTimeFast(b); ok {
		return t, nil
	}
	t, err := time.Parse(time.RFC3339Nano, string(b))
	if err != nil {
		return t, bad(BadTime, "%.40q is no time", b)
	}
	return t.UTC(), nil
}

// parseTimeFast reads 2017-06-20T01:28:15.962Z, with 1 to 9 digits after the point or
// without them, and leaves everything else to time.Parse.
func parseTimeFast(b []byte) (time.Time, bool) {
	if len(b) < 20 || b[4] != '-' || b[7] != '-' || b[10] != 'T' || b[13] != ':' || b[16] != ':' || b[len(b)-1] != 'Z' {
		return time.Time{}, false
	}
	year := digits(b[0:4])
	month, day := digits(b[5:7]), digits(b[8:10])
	hour, minute, second := digits(b[11:13]), digits(b[14:16]), digits(b[17:19])
	nanos := 0
	if fraction := b[19 : len(b)-1]; len(fraction) > 0 {
		if fraction[0] != '.' || len(fraction) == 1 || len(fraction) > 10 {
			return time.Time{}, false
		}
		nanos = digits(fraction[1:])
		for range 10 - len(fraction) {
			nanos *= 10
		}
	}
	// Days that not every month has are left to time.Parse.
	if year < 0 || month < 1 || month > 12 || day < 1 || day > 31 || day > 28 && (month == 2 || day == 31) ||
		hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 59 || nanos < 0 {
		return time.Time{}, false
	}
	return time.Date(year, time.Month(month), day, hour, minute, second, nanos, time.UTC), true
}

// digits is the value of at most nine decimal digits, and far below 0 if one is none.
func digits(b []byte) int {
	n := 0
	for _, c := range b {
		if c < '0' || c > '9' {
			return math.MinInt32
		}
		n = n*10 + int(c-'0')
	}
	return n
}

// interner keeps strings that come again and again, such as user agents, so that
// they are allocated once. It forgets what has the place of another: the others come
// again. Its size bounds the strings it keeps alive.
type interner struct {
	slots [internSlots]string
}

const (
	internSlots = 1 << 12
	// maxInterned bounds each string that is kept, in bytes.
	maxInterned = 1 << 10
)

func (in *interner) get(b []byte) string {
	n := len(b)
	if n < 4 || n > maxInterned {
		return string(b)
	}
	// Ends and the middle tell most apart without looking at all bytes.
	h := binary.LittleEndian.Uint32(b)*31 ^ binary.LittleEndian.Uint32(b[n-4:])*17 ^ binary.LittleEndian.Uint32(b[(n-4)/2:]) ^ uint32(n)
	slot := &in.slots[h*2654435761>>20]
	if *slot != string(b) {
		*slot = string(b)
	}
	return *slot
}

// bad makes an error of a record that is skipped.
func bad(kind Bad, format string, args ...any) error {
	return &badRecord{kind, fmt.Sprintf(format, args...)}
}
