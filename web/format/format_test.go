package format_test

import (
	"html"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"example.org/slipway/web/format"
)

func TestFormats(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 12: "12", 123: "123", 1234: "1\u202f234", 1234567: "1\u202f234\u202f567", -5: "-5"} {
		if got := format.Count(n); got != want {
			t.Errorf("format.Count(%d) = %q, want %q", n, got, want)
		}
	}
	for d, want := range map[time.Duration]string{-1: "0 s", 5 * time.Millisecond: "5 ms", 90 * time.Second: "1 min 30 s", 25 * time.Hour: "25 h 0 min", 72 * time.Hour: "3 days"} {
		if got := format.Took(d); got != want {
			t.Errorf("format.Took(%v) = %q, want %q", d, got, want)
		}
	}
	for v, want := range map[float64]string{0: "0 %", 1: "100 %", 0.5: "50 %", 0.012: "1.2 %", 0.9999: "100.0 %"} {
		if got := format.Percent(v); got != want {
			t.Errorf("format.Percent(%v) = %q, want %q", v, got, want)
		}
	}
}

// TestSome checks the singular, and that integers of each kind are taken.
func TestSome(t *testing.T) {
	for _, c := range []struct {
		n    any
		want string
	}{{0, "0 tags"}, {1, "1 tag"}, {int64(1), "1 tag"}, {int64(1234), "1\u202f234 tags"}} {
		if got := format.Some(c.n, "tag", "tags"); got != c.want {
			t.Errorf("format.Some(%v) = %q, want %q", c.n, got, c.want)
		}
	}
}

func TestShortReference(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0123456789abcdef", 4)
	for ref, want := range map[string]string{"": "", "1.0.0": "1.0.0", digest: "sha256:0123456789ab", "1.0.0@" + digest: "1.0.0@sha256:0123456789ab",
		"@": "@", "sha256:": "sha256:", "a-tag-that-is-longer-than-a-short-digest": "a-tag-that-is-longer-than-a-short-digest"} {
		if got := format.ShortReference(ref); got != want {
			t.Errorf("format.ShortReference(%q) = %q, want %q", ref, got, want)
		}
	}
}

// FuzzBreaks checks that a name with breaks shows the name, and that nothing in it is markup.
func FuzzBreaks(f *testing.F) {
	f.Add("many/repository-000")
	f.Add("<script>a.b</script>&lt;wbr>")
	f.Fuzz(func(t *testing.T, s string) {
		got := strings.ReplaceAll(string(format.Breaks(s)), "<wbr>", "")
		if strings.ContainsAny(got, "<>\"'") {
			t.Errorf("%q becomes markup: %s", s, got)
		}
		if want := strings.ReplaceAll(s, "\x00", "\uFFFD"); html.UnescapeString(got) != want {
			t.Errorf("%q is shown as %q", s, html.UnescapeString(got))
		}
	})
}

// TestVisible checks that two different names never look the same.
func TestVisible(t *testing.T) {
	seen := map[string]string{}
	for _, s := range []string{"a\n", `a\n`, `a\\n`, `a\x0a`, "a\\\n", "\xff", `\xff`, "\uFFFD", `\ufffd`, "\xef\xbf", "\u202e", `\u202e`, "\U000E0001", `\U000e0001`, "\u0e00" + "01", `C:\dir`, `C:\\dir`, `\`, `\\`} {
		got := format.Visible(s)
		if before, ok := seen[got]; ok {
			t.Errorf("%q and %q are both shown as %s", before, s, got)
		}
		seen[got] = s
	}
	if got := format.Visible(`C:\dir`); got != `C:\dir` {
		t.Errorf("a backslash that misleads nobody is shown as %s", got)
	}
}

// TestVisibleLines checks that text of several lines keeps its lines and backslashes.
func TestVisibleLines(t *testing.T) {
	for text, want := range map[string]string{"a\r\x1b[0m\n": `a\u000d\u001b[0m` + "\n", "\U000e0041": `\U000e0041`, "plain \\n\t": "plain \\n\t"} {
		if got := format.VisibleLines(text); got != want {
			t.Errorf("%q is shown as %q, want %q", text, got, want)
		}
	}
}

// FuzzVisible checks that every name is shown as plain, visible text.
func FuzzVisible(f *testing.F) {
	f.Add("a<script>alert(1)\n\u202egpj.exe\xff")
	f.Add("plain")
	f.Add("\uFFFD")
	f.Add("\U000E0001")
	f.Add(`a\x0a`)
	f.Fuzz(func(t *testing.T, s string) {
		for _, r := range format.Visible(s) {
			if r == utf8.RuneError || !unicode.IsPrint(r) {
				t.Errorf("%q is shown as %q", s, format.Visible(s))
			}
		}
	})
}
