package web

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// showName writes somebody's text so that all of it is seen, and no two look the same:
// what is no UTF-8, steers a terminal or turns the direction of text is written as its
// number. In such a text, and in one that looks as if it were one, a backslash is double.
func showName(s string) string {
	if isPlain(s) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\\':
			b.WriteString(`\\`)
		case r > 0xffff && !unicode.IsPrint(r):
			fmt.Fprintf(&b, `\U%08x`, r)
		case r == utf8.RuneError || !unicode.IsPrint(r): // the former also stands for what is no UTF-8
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
		s = s[n:]
	}
	return b.String()
}

// isPlain reports whether a text is shown as it is: all of it is seen, and nothing of it
// looks like what showName writes.
func isPlain(s string) bool {
	escape := false
	for _, r := range s {
		if r == utf8.RuneError || !unicode.IsPrint(r) || escape && strings.ContainsRune(`ntxuU\`, r) {
			return false
		}
		escape = r == '\\'
	}
	return true
}
