package format

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Visible makes untrusted text fully visible, and different texts look different. It
// replaces invalid UTF-8, and characters that control a terminal or change the direction
// of text, by their numbers. In such a text, and in a text that looks like its result, it
// doubles backslashes.
func Visible(s string) string {
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
		case r == utf8.RuneError || !unicode.IsPrint(r): // RuneError also stands for invalid UTF-8
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
		s = s[n:]
	}
	return b.String()
}

// isPlain reports whether a text can be shown as it is: all of it is visible, and nothing
// in it looks like output of Visible.
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

// VisibleLines makes untrusted text of several lines fully visible. It replaces characters
// that control a terminal, or change the direction of text, by their numbers. Unlike
// Visible it leaves backslashes alone, because commands and JSON contain many of them.
func VisibleLines(s string) string {
	if !strings.ContainsFunc(s, unseen) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case !unseen(r):
			b.WriteRune(r)
		case r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// unseen reports whether a character is invisible or appears as something else.
func unseen(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsPrint(r) }
