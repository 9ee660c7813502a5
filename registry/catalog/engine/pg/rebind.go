package pg

import (
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// Rebinder converts queries to the form that PostgreSQL needs. A query is written once, in
// SQL that both databases understand, with ? and ?1 for parameters. Three differences remain:
//
//   - parameters are $1, $2, …;
//   - CROSS JOIN … ON, which keeps SQLite from changing the order of a join, is a
//     plain join;
//   - a boolean parameter is 0 or 1, because the columns are numbers, and text is
//     valid UTF-8 without NUL.
type Rebinder struct{ done sync.Map }

// Query returns a query in the form that PostgreSQL needs.
func (b *Rebinder) Query(q string) string {
	if v, ok := b.done.Load(q); ok {
		return v.(string)
	}
	v, _ := b.done.LoadOrStore(q, rebind(q))
	return v.(string)
}

func rebind(q string) string {
	q = strings.ReplaceAll(q, "CROSS JOIN", "JOIN")
	var out strings.Builder
	out.Grow(len(q) + 16)
	n, quoted := 0, false
	for i := 0; i < len(q); i++ {
		c := q[i]
		if c == '\'' {
			quoted = !quoted
		}
		if c != '?' || quoted {
			out.WriteByte(c)
			continue
		}
		out.WriteByte('$')
		if i+1 < len(q) && q[i+1] >= '0' && q[i+1] <= '9' {
			continue // its number follows
		}
		n++
		out.WriteString(strconv.Itoa(n))
	}
	return out.String()
}

// Portable changes parameters in place.
func Portable(args []any) []any {
	for i, a := range args {
		switch a := a.(type) {
		case bool:
			n := int64(0)
			if a {
				n = 1
			}
			args[i] = n
		case string:
			if !isText(a) {
				args[i] = Text(a)
			}
		}
	}
	return args
}

func isText(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

// Text replaces what PostgreSQL cannot store.
func Text(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}
