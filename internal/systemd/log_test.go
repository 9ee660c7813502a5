package systemd_test

import (
	"bytes"
	"io"
	"log/slog"
	"strings"
	"testing"

	"example.org/slipway/internal/systemd"
)

func TestHandler(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(systemd.NewHandler(&out, func(w io.Writer) slog.Handler {
		return slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelInfo})
	}))
	log = log.With("a", 1).WithGroup("g")
	log.Debug("unseen")
	log.Info("one\ntwo", "b", 2)
	log.Warn("three")
	log.Error("four")
	var got []string
	for line := range strings.Lines(out.String()) {
		prefix, rest, _ := strings.Cut(line, "time=")
		_, rest, _ = strings.Cut(rest, " ")
		got = append(got, prefix+strings.TrimSpace(rest))
	}
	want := []string{`<6>level=INFO msg="one\ntwo" a=1 g.b=2`, `<4>level=WARN msg=three a=1`, `<3>level=ERROR msg=four a=1`}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
