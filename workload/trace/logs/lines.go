package logs

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"
	"time"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/logs/formats"
	"example.org/slipway/workload/trace/logs/internal/tenfield"
	"example.org/slipway/workload/trace/logs/internal/values"
)

// lineDecoder reads formats that have one record on each line. It detects the format unless it gets
// one.
type lineDecoder struct {
	r *bufio.Reader
	// parse holds the parsers for a line; the first one that can parse it counts. It is empty while
	// the format is not known.
	parse []formats.Parser
	// uris starts reading lines that hold only URIs.
	uris func() (func(line []byte, rec *trace.Record) error, error)
	// now provides the year for times without one.
	now time.Time
	// whole says that a last line without an end is incomplete.
	whole bool

	l        line
	pieces   [2][]byte // the beginnings of lines that arrive in pieces, by stream
	previous []byte    // the last line that was read
	// found says that the line which showed the format has not been read yet.
	found bool
	// before holds the lines from before the format was known: their number, and the first one.
	before int
	first  []error
}

const (
	// maxUnknown is the number of lines without a known format after which a file is given up.
	maxUnknown = 10_000
	// lookAhead is the number of lines after the first with a format that are searched for a format
	// that comes earlier in the table.
	lookAhead = 200
)

// newLineDecoder returns a decoder of a format. If the name is empty, it detects the format.
func newLineDecoder(r text, format trace.Format, now time.Time) *lineDecoder {
	d := &lineDecoder{r: r.Reader, now: now}
	if format != "" {
		d.parse = formats.Parsers(format)
	}
	return d
}

func (d *lineDecoder) Read(rec *trace.Record) error {
	for {
		if d.parse != nil && d.before > 0 {
			return d.skipBefore()
		}
		atEnd := false
		if !d.found {
			err := d.next()
			if atEnd = errors.Is(err, io.EOF); err != nil && !(atEnd && len(d.l.Text) > 0) {
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
			err = withExample(trace.BadTruncated.Errorf("the last line has no end"), d.l.Text)
		case err == nil && atEnd && d.sizeEnds(rec):
			rec.Written = trace.Unknown // the last digits of the size may be missing
		case err == nil && d.previous == nil && d.cutFirst(rec.RemoteAddr):
			err = withExample(trace.BadTruncated.Errorf("the first line has no beginning"), d.l.Text)
		}
		d.previous = append(d.previous[:0], d.l.Text...)
		return err
	}
}

// next reads the next non-empty line, without what is around it. The error of the last line, which
// may have no end, is io.EOF.
func (d *lineDecoder) next() error {
	for {
		d.l.Text = nil
		raw, err := d.r.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = d.r.ReadSlice('\n')
			}
			return trace.BadLength.Errorf("the line is longer than %d bytes", tenfield.MaxRecord)
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return err // the partial line may end anywhere
		}
		if err != nil && d.whole && len(raw) > 0 {
			return trace.BadTruncated.Errorf("the last line has no end")
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
		if len(*pieces) <= tenfield.MaxRecord {
			*pieces = append(*pieces, d.l.Text...)
		}
		return false
	}
	if len(*pieces) > 0 {
		d.l.SetText(append(*pieces, d.l.Text...))
		*pieces = nil
	}
	return len(d.l.Text) > 0
}

// line parses the record of a line.
func (d *lineDecoder) line(rec *trace.Record) error {
	var err error
	if len(d.l.Text) > tenfield.MaxRecord {
		err = trace.BadLength.Errorf("the line is longer than %d bytes", tenfield.MaxRecord)
	}
	for i := range d.parse {
		*rec = trace.Record{}
		e := d.parse[i].Parse(&d.l.Line, rec)
		if e == nil && len(d.l.Text) <= tenfield.MaxRecord {
			return nil
		}
		if err == nil || d.parse[i].Object == (d.l.Text[0] == '{') {
			err = e
		}
	}
	return withExample(err, d.l.Text)
}

// find detects the format from the line and the lines after it in memory. It holds back lines
// without a known format. They are skipped as lines if a later line has a format; otherwise the
// file is skipped as a whole.
func (d *lineDecoder) find() error {
	best := formats.Rank(&d.l.Line)
	uri := best < 0 && d.uris != nil && isURI(d.l.Text)
	if best < 0 && !uri {
		if len(d.first) < firstPlaces {
			d.first = append(d.first, withExample(trace.BadOther.Errorf("it is of no format that is known"), d.l.Text))
		}
		if d.before++; d.before >= maxUnknown {
			return d.ended(io.EOF)
		}
		return nil
	}
	text, when, dated := bytes.Clone(d.l.Text), d.l.When, d.l.dated
	best = d.lookAhead(best)
	d.l, d.found = line{Line: formats.Line{Text: text, When: when}, dated: dated}, true
	if best < 0 {
		return d.readURIs(d.uris)
	}
	d.parse = formats.Parsers(formats.At(best))
	return nil
}

// detect reads lines until one has a known format, and returns that, or "" if none has.
func (d *lineDecoder) detect() trace.Format {
	for d.parse == nil {
		err := d.next()
		if errors.As(err, new(*trace.BadRecord)) {
			continue
		}
		if err != nil && !(errors.Is(err, io.EOF) && len(d.l.Text) > 0) || d.find() != nil {
			return ""
		}
	}
	return d.parse[0].Name
}

// lookAhead looks at a line and the lines after it in memory. Of their formats, it
// returns the rank of the one that comes first in the table.
func (d *lineDecoder) lookAhead(best int) int {
	d.linesAhead(func(l *line) bool {
		if rank := formats.Rank(&l.Line); rank >= 0 && (best < 0 || rank < best) {
			best = rank
		}
		return best != 0
	})
	return best
}

// linesAhead calls fn for the lines in memory after this one, as long as fn wants more.
func (d *lineDecoder) linesAhead(fn func(*line) bool) {
	ahead, _ := d.r.Peek(d.r.Buffered())
	var l line
	for n := 0; n < lookAhead && len(ahead) > 0; n++ {
		var raw []byte
		raw, ahead, _ = bytes.Cut(ahead, []byte("\n"))
		if l.unwrap(bytes.TrimSpace(raw), d.now); len(l.Text) > 0 && !fn(&l) {
			return
		}
	}
}

// cutFirst reports whether the client of a file's first line is the rest of another line's client,
// because the beginning of the file was cut.
func (d *lineDecoder) cutFirst(client string) bool {
	if client == "" || d.l.Text[0] == '{' {
		return false
	}
	cut := false
	d.linesAhead(func(l *line) bool {
		var rec trace.Record
		for i := range d.parse {
			if rec = (trace.Record{}); d.parse[i].Parse(&l.Line, &rec) == nil {
				break
			}
		}
		if rec.RemoteAddr == client { // so the client of the first line is whole
			cut = false
			return false
		}
		cut = cut || strings.HasSuffix(rec.RemoteAddr, client)
		return true
	})
	return cut
}

// readURIs reads lines that hold only URIs.
func (d *lineDecoder) readURIs(begin func() (func(line []byte, rec *trace.Record) error, error)) error {
	parse, err := begin()
	d.parse = []formats.Parser{{Name: formats.URIs, Parse: func(l *formats.Line, rec *trace.Record) error { return parse(l.Text, rec) }}}
	return err
}

// skipBefore returns the error for the next line from before the format was known.
func (d *lineDecoder) skipBefore() error {
	d.before--
	err := d.first[0]
	if len(d.first) > 1 {
		d.first = d.first[1:]
	}
	return err
}

// unknownError says that no line of a file had a known format.
type unknownError struct{ example error }

func (e *unknownError) Error() string {
	return "its format is not known: " + e.example.Error() + "; name it with --format, see docs/trace.md"
}

// ended returns the error for the end of the lines.
func (d *lineDecoder) ended(err error) error {
	if errors.Is(err, io.EOF) && d.parse == nil && d.before > 0 {
		d.before = 0
		return &unknownError{d.first[0]}
	}
	return err
}

// cut reports whether the last line, which has no end, has fewer fields or
// quotes than the line before it.
func (d *lineDecoder) cut() bool {
	was, is := d.previous, d.l.Text
	return len(was) > 0 && (bytes.Count(is, []byte(`"`)) < bytes.Count(was, []byte(`"`)) ||
		len(values.Fields(is)) < len(values.Fields(was)) || was[len(was)-1] == '"' && is[len(is)-1] != '"')
}

// sizeEnds reports whether the size of a record is the last thing on its line.
func (d *lineDecoder) sizeEnds(rec *trace.Record) bool {
	if last := d.l.Text[len(d.l.Text)-1]; last < '0' || last > '9' {
		return false
	}
	longer := formats.Line{Text: append(bytes.Clone(d.l.Text), '0'), When: d.l.When}
	for i := range d.parse {
		var other trace.Record
		if d.parse[i].Parse(&longer, &other) == nil {
			return other.Written != rec.Written
		}
	}
	return false
}

// withExample adds the skipped line to an error.
func withExample(err error, text []byte) error {
	var skip *trace.BadRecord
	if !errors.As(err, &skip) {
		return err
	}
	const most = 160
	shown := string(text[:min(len(text), most)])
	if strings.IndexFunc(shown, func(r rune) bool { return r < ' ' || r > '~' }) >= 0 {
		shown = strconv.Quote(shown)
	}
	return &trace.BadRecord{Kind: skip.Kind, Why: skip.Why + ": " + shown}
}
