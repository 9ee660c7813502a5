// Package tenfield reads records in the ten-field form of the IBM registry traces.
package tenfield

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"

	"example.org/slipway/workload/trace"
)

const (
	// MaxRecord bounds a record and a line of any format, in bytes. The largest of the
	// IBM traces are below 1 KiB.
	MaxRecord = 1 << 20
	// readSize is the number of bytes requested at once.
	readSize = 256 << 10
	// ownChunk is the number of bytes allocated at once for the strings of records: enough for some
	// dozens of records. Keeping a string of one record keeps the whole chunk.
	ownChunk = 4 << 10
)

// Decoder reads objects of the ten-field form: in one array, in several, one on each line, or one
// after the other.
type Decoder struct {
	r        io.Reader
	buf      []byte
	pos, end int
	err      error // the error of r, once everything before it has been read
	f        fields
	interned *Interner
	// chunk has room for strings of the records to come: one allocation for many.
	chunk strings.Builder
	// failed counts bad records since the last good one.
	failed int
}

// maxFailed is the number of consecutive bad records after which a large one is skipped as a whole,
// and not only its beginning. Otherwise, without any good record, the search for the end of each
// would take time that grows with the square of the input's length.
const maxFailed = 16

// NewDecoder returns a Decoder that keeps recurring strings in an interner.
func NewDecoder(r io.Reader, in *Interner) *Decoder {
	return &Decoder{r: r, buf: make([]byte, readSize), interned: in}
}

// more reads more input, and reports whether there was any. It makes room by moving unused input to
// the front of the buffer, and enlarges the buffer if necessary.
func (d *Decoder) more() bool {
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

// Read reads the next record. A [trace.BadRecord] does not end the input; io.EOF and all other
// errors do.
func (d *Decoder) Read(rec *trace.Record) error {
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
		if d.end-d.pos > MaxRecord || !d.more() {
			break
		}
	}
	return d.slow(rec)
}

// begin goes to the opening brace of the next record.
func (d *Decoder) begin() error {
	garbage := 0
	for {
		for ; d.pos < d.end; d.pos++ {
			switch c := d.buf[d.pos]; c {
			case '{':
				if garbage > 0 {
					return trace.BadSyntax.Errorf("%d bytes that are not a record", garbage)
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
			return trace.BadSyntax.Errorf("%d bytes that are not a record", garbage)
		}
		return d.err
	}
}

// slow reads a record that parseFlat did not read, or returns what is wrong with it.
func (d *Decoder) slow(rec *trace.Record) error {
	n := 0
	for {
		if n = objectEnd(d.buf[d.pos:d.end]); n > 0 {
			break
		}
		if d.end-d.pos > MaxRecord {
			if d.failed++; d.failed > maxFailed {
				d.pos = d.end - 1
			}
			d.resync()
			return trace.BadLength.Errorf("it is longer than %d bytes or has no end", MaxRecord)
		}
		if d.more() {
			continue
		}
		left := d.end - d.pos
		if !d.resync() {
			return trace.BadTruncated.Errorf("the input ends %d bytes after its beginning", left)
		}
		return trace.BadSyntax.Errorf("it has no end")
	}
	if n > MaxRecord {
		d.pos += n
		return trace.BadLength.Errorf("it is longer than %d bytes", MaxRecord)
	}
	err := parseAny(d.buf[d.pos:d.pos+n], &d.f)
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		if d.failed++; d.failed > maxFailed {
			d.pos += n - 1
		}
		d.resync()
		return trace.BadSyntax.Errorf("%v", err)
	}
	d.pos += n
	d.failed = 0
	if err != nil {
		return err
	}
	return d.record(rec)
}

// resync goes to what looks like the beginning of the next record: a brace and a quote. It reports
// whether there is one in the remaining input.
func (d *Decoder) resync() bool {
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
		if len(rest) == 0 && d.end-d.pos < MaxRecord && d.more() {
			continue
		}
		if len(rest) > 0 && rest[0] == '"' {
			return true
		}
		d.pos++
	}
}

// record makes a record from the fields.
func (d *Decoder) record(rec *trace.Record) error {
	f := &d.f
	switch {
	case len(f.timestamp) == 0:
		return trace.BadMissing.Errorf("it has no timestamp")
	case len(f.method) == 0:
		return trace.BadMissing.Errorf("it has no http.request.method")
	case len(f.uri) == 0:
		return trace.BadMissing.Errorf("it has no http.request.uri")
	case f.written < trace.Unknown:
		return trace.BadNumber.Errorf("http.response.written is negative")
	case f.duration < trace.Unknown:
		return trace.BadNumber.Errorf("http.request.duration is negative or above 1e9")
	case f.status < 0 || f.status > 999:
		return trace.BadNumber.Errorf("http.response.status is %d", f.status)
	}
	when, err := parseTime(f.timestamp)
	if err != nil {
		return err
	}
	own := d.own(f.uri, f.id, f.digest)
	u, i := len(f.uri), len(f.uri)+len(f.id)
	*rec = trace.Record{Host: d.interned.get(f.host), Duration: f.duration, Method: methodName(f.method),
		RemoteAddr: d.interned.get(f.client), URI: own[:u], UserAgent: d.interned.get(f.agent), Status: int(f.status),
		Written: f.written, ID: own[u:i], Digest: own[i:], Time: when}
	return nil
}

// own returns a permanent copy of the parts, joined.
func (d *Decoder) own(parts ...[]byte) string {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	if d.chunk.Cap()-d.chunk.Len() < n {
		d.chunk = strings.Builder{} // the old chunk lives as long as strings that were cut from it
		d.chunk.Grow(max(n, ownChunk))
	}
	from := d.chunk.Len()
	for _, p := range parts {
		d.chunk.Write(p)
	}
	return d.chunk.String()[from:]
}

// methodName returns a method, without an allocation for the known ones.
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
