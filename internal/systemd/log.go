package systemd

import (
	"context"
	"io"
	"log/slog"
	"strings"
)

// These prefixes give the journal the priority of a line; see sd-daemon(3).
const (
	errPrefix     = "<3>"
	warningPrefix = "<4>"
	infoPrefix    = "<6>"
	debugPrefix   = "<7>"
)

// Failure returns the text that a process prints, and does not log, to say why it fails.
// For the journal, it marks each line as an error.
func Failure(text string) string {
	if !ToJournal() {
		return text
	}
	return errPrefix + strings.ReplaceAll(text, "\n", "\n"+errPrefix)
}

// handler has one handler per level. They differ in the prefix of their lines.
type handler struct{ debug, info, warning, err slog.Handler }

var _ slog.Handler = (*handler)(nil)

// NewHandler returns a handler that writes one line for each record, with the prefixes of
// the journal. It writes through the handlers that base returns, and calls base once for
// each level.
func NewHandler(w io.Writer, base func(io.Writer) slog.Handler) slog.Handler {
	with := func(prefix string) slog.Handler { return base(&prefixed{w, prefix}) }
	return &handler{with(debugPrefix), with(infoPrefix), with(warningPrefix), with(errPrefix)}
}

// of returns the handler of a level.
func (h *handler) of(level slog.Level) slog.Handler {
	switch {
	case level >= slog.LevelError:
		return h.err
	case level >= slog.LevelWarn:
		return h.warning
	case level >= slog.LevelInfo:
		return h.info
	}
	return h.debug
}

// Enabled implements slog.Handler.
func (h *handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.of(level).Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	return h.of(r.Level).Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return h.each(func(s slog.Handler) slog.Handler { return s.WithAttrs(attrs) })
}

// WithGroup implements slog.Handler.
func (h *handler) WithGroup(name string) slog.Handler {
	return h.each(func(s slog.Handler) slog.Handler { return s.WithGroup(name) })
}

func (h *handler) each(do func(slog.Handler) slog.Handler) slog.Handler {
	return &handler{do(h.debug), do(h.info), do(h.warning), do(h.err)}
}

// prefixed writes each line in one write, because several handlers share the file below.
type prefixed struct {
	w      io.Writer
	prefix string
}

func (p *prefixed) Write(line []byte) (int, error) {
	n, err := p.w.Write(append([]byte(p.prefix), line...))
	return max(n-len(p.prefix), 0), err
}
