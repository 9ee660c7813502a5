package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// progress shows how far long work has come, on standard error: in place on a
// terminal, a line every ten seconds elsewhere.
type progress struct {
	doing    string
	terminal bool
	every    time.Duration
	start    time.Time
	last     time.Time
	shown    bool
}

func newProgress(doing string) *progress {
	p := &progress{doing: doing, terminal: term.IsTerminal(int(os.Stderr.Fd())), every: 10 * time.Second, start: time.Now(), last: time.Now()}
	if p.terminal {
		p.every = 100 * time.Millisecond
	}
	return p
}

// show prints a line if it is time for one.
func (p *progress) show(format string, args ...any) {
	if time.Since(p.last) < p.every {
		return
	}
	p.last, p.shown = time.Now(), true
	text := p.doing + ": " + fmt.Sprintf(format, args...)
	if p.terminal {
		fmt.Fprintf(os.Stderr, "\r\x1b[K%s", text)
	} else {
		fmt.Fprintln(os.Stderr, text)
	}
}

// share shows done of total bytes with the rate and the time that is left.
func (p *progress) share(done, total int64, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	took := time.Since(p.start)
	if total <= 0 || done <= 0 || took <= 0 {
		p.show("%s", text)
		return
	}
	rate := float64(done) / took.Seconds()
	left := time.Duration(float64(total-done) / rate * float64(time.Second)).Round(time.Second)
	const width = 20
	full := int(min(done, total) * width / total)
	p.show("[%s%s] %3d %% of %s, %s/s, %s left; %s", strings.Repeat("#", full), strings.Repeat(".", width-full),
		done*100/total, size(total), size(int64(rate)), left, text)
}

// end clears the line.
func (p *progress) end() {
	if p.terminal && p.shown {
		fmt.Fprint(os.Stderr, "\r\x1b[K")
	}
}

// size writes bytes for people, in powers of 1024.
func size(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	f, i := float64(n)/unit, 0
	for f >= unit && i < 4 {
		f /= unit
		i++
	}
	return fmt.Sprintf("%.1f %ciB", f, "KMGTP"[i])
}
