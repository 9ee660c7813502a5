package proc

import (
	"strings"
	"testing"
)

// TestExcerpt checks that a log excerpt holds the end of the log, preceded by earlier errors.
func TestExcerpt(t *testing.T) {
	const fine = "time=1 level=INFO msg=fine\n"
	filler := strings.Repeat(fine, 20)
	end := filler[len(filler)-4*len(fine):]
	for name, tt := range map[string]struct{ log, want string }{
		"short":              {fine, fine},
		"nothing went wrong": {filler, "[...]\n" + end},
		"text":               {"time=1 level=ERROR msg=bad\n" + filler, "time=1 level=ERROR msg=bad\n[...]\n" + end},
		"JSON":               {`{"level":"warn","msg":"odd"}` + "\n" + filler, `{"level":"warn","msg":"odd"}` + "\n[...]\n" + end},
		"containerd's":       {"time=\"1\" level=warning msg=odd\n" + filler, "time=\"1\" level=warning msg=odd\n[...]\n" + end},
		"a word":             {"level=INFO msg=\"no error\"\n" + filler, "[...]\n" + end},
		"in the end":         {filler + "level=ERROR msg=bad\n", "[...]\n" + fine + fine + fine + "level=ERROR msg=bad\n"},
		"too much":           {strings.Repeat("level=ERROR msg=bad\n", 20) + filler, strings.Repeat("level=ERROR msg=bad\n", 5) + "[...]\n" + end},
	} {
		if got := excerpt([]byte(tt.log), 4*len(fine)+3); got != tt.want {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}
