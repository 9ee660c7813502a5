package trace

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// lineDecoder reads formats that have a record per line. It detects the format unless it
// is given one.
type lineDecoder struct {
	r *bufio.Reader
	// parse are the ways to read a line, of which the first that can counts; none while
	// the format is not known.
	parse []lineFormat
	// uris begins to read lines that are URIs alone.
	uris func() (func(line []byte, rec *Record) error, error)
	// now tells the year of times that have none.
	now time.Time
	// whole says that a last line without an end is not a whole one.
	whole bool

	l        line
	pieces   [2][]byte // of lines that came in pieces, by stream
	previous []byte    // the last line that was read
	// found says that the line which showed the format is still to be read.
	found bool
	// before are lines from before the format was known: their number, and the first.
	before int
	first  []error
}

const (
	// maxUnknown is after how many lines of no format a file is given up.
	maxUnknown = 10_000
	// lookAhead is how many lines after the first with a format are looked at, for one
	// that comes first in lineFormats.
	lookAhead = 200
)

// newLineDecoder reads a format; it detects the format if the name is empty.
func newLineDecoder(r text, format Format, now time.Time) *lineDecoder {
	d := &lineDecoder{r: r.Reader, now: now}
	if format != "" {
		d.parse = readers(format)
	}
	return d
}

func (d *lineDecoder) read(rec *Record) error {
	for {
		if d.parse != nil && d.before > 0 {
			return d.skipBefore()
		}
		atEnd := false
		if !d.found {
			err := d.next()
			if atEnd = errors.Is(err, io.EOF); err != nil && !(atEnd && len(d.l.text) > 0) {
				return d.ended(err)
			}
		}
		if d.parse == nil {
			if err := d.find(); err != nil {
				return err
			}
			continue
		}
		d.found = false
		err := d.line(rec)
		switch {
		case err == nil && atEnd && d.cut():
			err = withExample(bad(BadTruncated, "the last line has no end"), d.l.text)
		case err == nil && atEnd && d.sizeEnds(rec):
			rec.Written = Unknown // of whose digits some may be missing
		case err == nil && d.previous == nil && d.cutFirst(rec.RemoteAddr):
			err = withExample(bad(BadTruncated, "the first line has no beginning"), d.l.text)
		}
		d.previous = append(d.previous[:0], d.l.text...)
		return err
	}
}

// next reads a line that is not empty, without what is around it. The error of the last
// one, which may have no end, is io.EOF.
func (d *lineDecoder) next() error {
	for {
		d.l.text = nil
		raw, err := d.r.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = d.r.ReadSlice('\n')
			}
			return bad(BadLength, "the line is longer than %d bytes", maxRecord)
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return err // and what of the line there is may end anywhere
		}
		if err != nil && d.whole && len(raw) > 0 {
			return bad(BadTruncated, "the last line has no end")
		}
		if raw = bytes.TrimRight(raw, "\r\n"); len(bytes.TrimSpace(raw)) > 0 {
			d.l.unwrap(raw, d.now)
			if d.assemble() {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
}

// assemble joins a line that came in pieces, and reports whether there is a line.
func (d *lineDecoder) assemble() bool {
	pieces := &d.pieces[d.l.stream]
	if d.l.part {
		if len(*pieces) <= maxRecord {
			*pieces = append(*pieces, d.l.text...)
		}
		return false
	}
	if len(*pieces) > 0 {
		d.l.text = append(*pieces, d.l.text...)
		*pieces, d.l.tried = nil, false
	}
	return len(d.l.text) > 0
}

// line reads the record of a line.
func (d *lineDecoder) line(rec *Record) error {
	var err error
	if len(d.l.text) > maxRecord {
		err = bad(BadLength, "the line is longer than %d bytes", maxRecord)
	}
	for i := range d.parse {
		*rec = Record{}
		e := d.parse[i].parse(&d.l, rec)
		if e == nil && len(d.l.text) <= maxRecord {
			return nil
		}
		if err == nil || d.parse[i].object == (d.l.text[0] == '{') {
			err = e
		}
	}
	return withExample(err, d.l.text)
}

// find detects the format from the line and the lines in memory after it. It holds back
// lines of no format: they are skipped as lines if a later line has a format, else the
// file is skipped as a whole.
func (d *lineDecoder) find() error {
	best := rankOf(&d.l)
	uri := best < 0 && d.uris != nil && isURI(d.l.text)
	if best < 0 && !uri {
		if len(d.first) < firstPlaces {
			d.first = append(d.first, withExample(notRequest("it is of no format that is known"), d.l.text))
		}
		if d.before++; d.before >= maxUnknown {
			return d.ended(io.EOF)
		}
		return nil
	}
	text, when, dated := bytes.Clone(d.l.text), d.l.when, d.l.dated
	best = d.lookAhead(best)
	d.l, d.found = line{text: text, when: when, dated: dated}, true
	if best < 0 {
		return d.readURIs(d.uris)
	}
	d.parse = readers(lineFormats[best].name)
	return nil
}

// lookAhead returns the rank of the format that comes first in lineFormats, of that of a
// line and those of the lines in memory after it.
func (d *lineDecoder) lookAhead(best int) int {
	d.linesAhead(func(l *line) bool {
		if rank := rankOf(l); rank >= 0 && (best < 0 || rank < best) {
			best = rank
		}
		return best != 0
	})
	return best
}

// linesAhead calls fn for the lines in memory after this one, as long as it wants more.
func (d *lineDecoder) linesAhead(fn func(*line) bool) {
	ahead, _ := d.r.Peek(d.r.Buffered())
	var l line
	for n := 0; n < lookAhead && len(ahead) > 0; n++ {
		var raw []byte
		raw, ahead, _ = bytes.Cut(ahead, []byte("\n"))
		if l.unwrap(bytes.TrimSpace(raw), d.now); len(l.text) > 0 && !fn(&l) {
			return
		}
	}
}

// cutFirst reports whether the client of a file's first line is what was left of that of
// another line, when the beginning of the file was cut.
func (d *lineDecoder) cutFirst(client string) bool {
	if client == "" || d.l.text[0] == '{' {
		return false
	}
	cut := false
	d.linesAhead(func(l *line) bool {
		var rec Record
		for i := range d.parse {
			if rec = (Record{}); d.parse[i].parse(l, &rec) == nil {
				break
			}
		}
		if rec.RemoteAddr == client { // which is one
			cut = false
			return false
		}
		cut = cut || strings.HasSuffix(rec.RemoteAddr, client)
		return true
	})
	return cut
}

// readURIs reads lines that are URIs alone.
func (d *lineDecoder) readURIs(begin func() (func(line []byte, rec *Record) error, error)) error {
	parse, err := begin()
	d.parse = []lineFormat{{name: FormatURIs, parse: func(l *line, rec *Record) error { return parse(l.text, rec) }}}
	return err
}

// skipBefore is the error of the next line from before the format was known.
func (d *lineDecoder) skipBefore() error {
	d.before--
	err := d.first[0]
	if len(d.first) > 1 {
		d.first = d.first[1:]
	}
	return err
}

// unknownError is that no line of a file was of a format.
type unknownError struct{ example error }

func (e *unknownError) Error() string {
	return "its format is not known: " + e.example.Error() + "; name it with --format, see docs/trace.md"
}

// ended is the error where there is no line any more.
func (d *lineDecoder) ended(err error) error {
	if errors.Is(err, io.EOF) && d.parse == nil && d.before > 0 {
		d.before = 0
		return &unknownError{d.first[0]}
	}
	return err
}

// cut reports whether the last line, which has no end, has less than the line before it.
func (d *lineDecoder) cut() bool {
	was, is := d.previous, d.l.text
	return len(was) > 0 && (bytes.Count(is, []byte(`"`)) < bytes.Count(was, []byte(`"`)) ||
		len(splitFields(is)) < len(splitFields(was)) || was[len(was)-1] == '"' && is[len(is)-1] != '"')
}

// sizeEnds reports whether the size of a record is the last that its line has.
func (d *lineDecoder) sizeEnds(rec *Record) bool {
	if last := d.l.text[len(d.l.text)-1]; last < '0' || last > '9' {
		return false
	}
	longer := line{text: append(bytes.Clone(d.l.text), '0'), when: d.l.when, dated: d.l.dated}
	for i := range d.parse {
		var other Record
		if d.parse[i].parse(&longer, &other) == nil {
			return other.Written != rec.Written
		}
	}
	return false
}

// notUnderstood is the error of a line that cannot be of the format.
func notUnderstood(format string, args ...any) error {
	return bad(BadLine, format, args...)
}

// notRequest is the error of a line that tells of something else.
func notRequest(format string, args ...any) error {
	return bad(BadOther, format, args...)
}

// withExample shows the line in the error of one that is skipped.
func withExample(err error, text []byte) error {
	var skip *badRecord
	if !errors.As(err, &skip) {
		return err
	}
	const most = 160
	shown := string(text[:min(len(text), most)])
	if strings.IndexFunc(shown, func(r rune) bool { return r < ' ' || r > '~' }) >= 0 {
		shown = strconv.Quote(shown)
	}
	return &badRecord{skip.kind, skip.why + ": " + shown}
}

// parseTraceLine reads a line that is an object of the ten-field form.
func parseTraceLine(l *line, rec *Record) error {
	if len(l.text) == 0 || l.text[0] != '{' {
		return notUnderstood("it is no JSON object")
	}
	var f fields
	if n, res := parseFlat(l.text, &f); res != parsed || len(bytes.TrimSpace(l.text[n:])) > 0 {
		if err := parseAny(l.text, &f); err != nil {
			var skip *badRecord
			if errors.As(err, &skip) {
				return err
			}
			return notUnderstood("%v", err)
		}
	}
	d := jsonDecoder{interned: &interner{}, f: f}
	return d.record(rec)
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

// uriParser makes records of lines that are URIs alone: GETs at a constant rate.
type uriParser struct {
	start time.Time
	rate  float64 // per second
	n     int64
}

func (p *uriParser) parse(line []byte, rec *Record) error {
	for _, c := range line {
		if c <= ' ' || c == 0x7f {
			return notUnderstood("there is a blank in the URI")
		}
	}
	offset := time.Duration(float64(p.n) / p.rate * float64(time.Second))
	p.n++
	*rec = Record{Duration: Unknown, Method: "GET", URI: string(line), Written: Unknown, Time: p.start.Add(offset)}
	return nil
}
