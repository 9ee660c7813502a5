package command

import (
	"fmt"
	"io"
	"log"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// Progress shows the progress of long work on standard error. On a terminal it updates
// one line, which lines of the standard logger push down; elsewhere it prints a line every
// ten seconds. Its methods may be called concurrently.
type Progress struct {
	// Doing is the beginning of every line.
	Doing    string
	terminal bool
	// Every is the time between two lines.
	Every time.Duration
	// Start is when the work began.
	Start time.Time
	// logged is where the standard logger wrote before.
	logged io.Writer

	mu    sync.Mutex
	last  time.Time
	shown bool
}

// NewProgress returns the progress of work that begins now. The caller must end it.
func NewProgress(doing string) *Progress {
	return newProgress(doing, term.IsTerminal(int(os.Stderr.Fd())))
}

func newProgress(doing string, terminal bool) *Progress {
	p := &Progress{Doing: doing, terminal: terminal, Every: 10 * time.Second, Start: time.Now(), last: time.Now()}
	if p.terminal {
		p.Every = 100 * time.Millisecond
		p.logged = log.Writer()
		log.SetOutput(p)
	}
	return p
}

// Write writes a line of the log where the progress stood. It implements io.Writer.
func (p *Progress) Write(line []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	return p.logged.Write(line)
}

// clear removes the line, and has the next one shown at once. The caller holds mu.
func (p *Progress) clear() {
	if p.terminal && p.shown {
		fmt.Fprint(os.Stderr, "\r\x1b[K")
		p.shown, p.last = false, time.Time{}
	}
}

// Show prints a line if one is due.
func (p *Progress) Show(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.last) < p.Every {
		return
	}
	p.last, p.shown = time.Now(), true
	text := p.Doing + ": " + fmt.Sprintf(format, args...)
	if p.terminal {
		fmt.Fprintf(os.Stderr, "\r\x1b[K%s", text)
	} else {
		fmt.Fprintln(os.Stderr, text)
	}
}

// Share shows the progress: done out of total bytes, the rate, and the remaining time.
func (p *Progress) Share(done, total int64, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	took := time.Since(p.Start)
	if total <= 0 || done <= 0 || took <= 0 {
		p.Show("%s", text)
		return
	}
	rate := float64(done) / took.Seconds()
	left := time.Duration(float64(total-done) / rate * float64(time.Second)).Round(time.Second)
	const width = 20
	full := int(min(done, total) * width / total)
	p.Show("[%s%s] %3d %% of %s, %s/s, %s left; %s", strings.Repeat("#", full), strings.Repeat(".", width-full),
		done*100/total, Size(total), Size(int64(rate)), left, text)
}

// End clears the line.
func (p *Progress) End() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	if p.logged != nil {
		log.SetOutput(p.logged)
	}
}

// Size formats bytes for people, in powers of 1024.
func Size(n int64) string {
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
