package formats

import (
	"bytes"
	"time"
)

// Line is a line of a log, without what collectors of logs put around it.
type Line struct {
	Text []byte
	// When is the time that a collector put there, or zero.
	When time.Time

	p            Pairs
	tried, keyed bool
}

// SetText sets the text, and forgets the pairs of the one before.
func (l *Line) SetText(text []byte) {
	l.Text, l.tried = text, false
}

// Pairs of a line that is a JSON object, perhaps after words that a collector put there,
// or in logfmt; nil of others.
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
		if i := bytes.IndexByte(b, '='); i > 0 && !bytes.ContainsAny(b[:i], " \"{[(") {
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
