package command

import (
	"io"
	"log"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"
)

// TestProgressAndLog checks what a terminal shows of a progress and of log lines that come
// meanwhile: each log line begins at the left, and the progress is in the line below.
func TestProgressAndLog(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	before, logged := os.Stderr, log.Writer()
	os.Stderr = w
	log.SetOutput(w)
	defer func() { os.Stderr = before; log.SetOutput(logged) }()
	p := newProgress("copying", true)
	p.Every, p.last = time.Hour, time.Time{}
	for _, step := range []string{"one", "two", "three"} {
		p.Show("%s", step)
		if step != "two" {
			slog.Default().Info("image is copied", "ref", step)
		}
	}
	p.End()
	slog.Info("afterwards")
	w.Close()
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	// What a terminal shows of it: "\r\x1b[K" empties the line.
	var screen []string
	line := ""
	for rest := string(text); rest != ""; {
		switch {
		case strings.HasPrefix(rest, "\r\x1b[K"):
			line, rest = "", rest[len("\r\x1b[K"):]
		case rest[0] == '\n':
			screen, line, rest = append(screen, line), "", rest[1:]
		default:
			line, rest = line+rest[:1], rest[1:]
		}
	}
	var logs []string
	for _, l := range screen {
		_, message, _ := strings.Cut(l, "INFO ")
		if l[:4] < "2000" || l[:4] > "2999" || strings.Contains(l, "copying: ") {
			t.Errorf("a line of the log is %q", l)
		}
		logs = append(logs, message)
	}
	if got, want := strings.Join(logs, ", "), "image is copied ref=one, image is copied ref=three, afterwards"; got != want || line != "" {
		t.Errorf("the terminal shows %q and %q, want %q", got, line, want)
	}
	if got := strings.Count(string(text), "copying: "); got != 2 {
		t.Errorf("the progress was shown %d times, want at the beginning and after a line of the log:\n%q", got, text)
	}
}
