package values

import (
	"bytes"
	"strconv"
	"strings"
)

// Field is one of several fields that spaces separate.
type Field struct {
	Text   string
	Quoted bool
}

// maxFields bounds the fields of a line; no format has this many.
const maxFields = 64

// Fields splits fields, some of which may be in quotes.
func Fields(b []byte) []Field {
	var out []Field
	for len(out) < maxFields {
		if b = bytes.TrimLeft(b, " "); len(b) == 0 {
			break
		}
		var f Field
		if f.Text, b, f.Quoted = Quoted(b); !f.Quoted {
			f.Text, b = NextField(b)
		}
		out = append(out, f)
	}
	return out
}

// NextField cuts at the next space.
func NextField(b []byte) (field string, rest []byte) {
	b = bytes.TrimLeft(b, " ")
	i := bytes.IndexByte(b, ' ')
	if i < 0 {
		return string(b), nil
	}
	return string(b[:i]), b[i+1:]
}

// Quoted reads a string in quotes, in which quotes are escaped.
func Quoted(b []byte) (s string, rest []byte, ok bool) {
	b = bytes.TrimLeft(b, " ")
	if len(b) == 0 || b[0] != '"' {
		return "", b, false
	}
	for i := 1; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return Unescape(string(b[1:i])), b[i+1:], true
		}
	}
	return "", b, false
}

// Unescape undoes \xNN, \" and \\, as Apache and nginx escape.
func Unescape(s string) string {
	if strings.IndexByte(s, '\\') < 0 {
		return s
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			out = append(out, s[i])
			continue
		}
		if s[i+1] == 'x' && i+3 < len(s) {
			if c, err := strconv.ParseUint(s[i+2:i+4], 16, 8); err == nil {
				out = append(out, byte(c))
				i += 3
				continue
			}
		}
		i++
		out = append(out, s[i])
	}
	return string(out)
}

// Dash turns "-", which logs write for an absent value, into "".
func Dash(s string) string {
	if s == "-" {
		return ""
	}
	return s
}
