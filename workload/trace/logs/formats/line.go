package formats

import (
	"bytes"
	"time"
)

// Line is a line of a log, without what log collectors put around it.
type Line struct {
	Text []byte
	// When is the time that a collector added, or zero.
	When time.Time

	p            Pairs
	tried, keyed bool
}

// SetText sets the text, and drops the pairs of the previous one.
func (l *Line) SetText(text []byte) {
	l.Text, l.tried = text, false
}

// Pairs returns the fields of a line that is a JSON object or in logfmt, perhaps after words that a
// collector added. It returns nil for other lines.
func (l *Line) Pairs() *Pairs {
	if !l.tried {
		l.tried = true
		l.keyed = l.parsePairs()
	}
	if l.keyed {
		return &l.p
	}
	return nil
}

func (l *Line) parsePairs() bool {
	b := l.Text
	if len(b) > 0 && b[0] != '{' {
		if i := bytes.IndexByte(b, '='); i > 0 && !bytes.ContainsAny(b[:i], `"{`) {
			return l.p.parseLogfmt(b)
		}
		i := bytes.Index(b, []byte(`{"`))
		if i <= 0 || b[i-1] != ' ' && b[i-1] != '\t' || b[len(b)-1] != '}' || bytes.IndexByte(b[:i], '"') >= 0 {
			return false
		}
		b = b[i:]
	}
	return l.p.parseObject(b)
}
