package load

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"example.org/slipway/internal/report"
)

// View shows a run while it is under way. On a terminal it updates a few lines in place.
// Otherwise it writes a line for each tally. It is not safe for concurrent use.
type View struct {
	w        io.Writer
	terminal bool
	width    int
	lines    int // lines that are on the terminal now
	phase    string
	counted  bool // whether the amount of work in the phase was shown
	shown    time.Time
	tallies  int
	now      func() time.Time
}

// NewView returns a view that writes to w. width is the width of the terminal in letters,
// or 0 if w is not a terminal.
func NewView(w io.Writer, width int) *View {
	return &View{w: w, terminal: width > 0, width: max(width, 20), now: time.Now}
}

// Show shows how far the run is. It ignores errors of writing.
func (v *View) Show(s Status) {
	if s.Phase != "running" {
		v.prepare(s)
		return
	}
	if !v.terminal {
		if len(s.Tallies) > v.tallies {
			v.tallies = len(s.Tallies)
			v.line("%8s  %3d pullers  %s", s.Elapsed.Round(100*time.Millisecond), s.Tally.Pullers, rates(&s))
		}
		return
	}
	left := ""
	if s.Length > 0 {
		left = fmt.Sprintf(", %s left", max(0, s.Length-s.Elapsed).Round(time.Second))
	}
	v.draw([]string{
		fmt.Sprintf("%d pullers, %s%s", s.Tally.Pullers, s.Elapsed.Round(time.Second), left),
		rates(&s),
		sparks(s.Tallies, v.width-1),
		fmt.Sprintf("%d images in all, %d failed%s", s.Images, s.Failed, lastStep(s.Steps)),
	})
}

// prepare shows a phase before the run. It shows it seldom, because such a phase is
// mostly short.
func (v *View) prepare(s Status) {
	every := 5 * time.Second
	if v.terminal {
		every = 100 * time.Millisecond
	}
	fresh := s.Phase != v.phase || s.Total > 0 && !v.counted
	if !fresh && v.now().Sub(v.shown) < every {
		return
	}
	v.phase, v.shown, v.counted = s.Phase, v.now(), s.Total > 0
	text := s.Phase
	if s.Total > 0 {
		text = fmt.Sprintf("%s: %d of %d", s.Phase, s.Done, s.Total)
	}
	if s.Idle >= idleAfter {
		text += fmt.Sprintf(", nothing for %s", s.Idle.Round(time.Second))
	}
	if v.terminal {
		v.draw([]string{text})
		return
	}
	v.line("%s", text)
}

// idleAfter is how long nothing must have been done before the view says so.
const idleAfter = 3 * time.Second

// idle returns a text that says for how long nothing has succeeded or failed.
func idle(s *Status) string {
	var seconds float64
	for _, t := range slices.Backward(s.Tallies) {
		if t.Rate > 0 || t.Failed > 0 || t.Bytes > 0 {
			break
		}
		seconds += t.Seconds
	}
	if d := time.Duration(seconds * float64(time.Second)); d >= idleAfter {
		return fmt.Sprintf("  nothing for %s", d.Round(time.Second))
	}
	return ""
}

// rates returns the figures of the last tally as text.
func rates(s *Status) string {
	p50, p99 := "-", "-"
	if s.Image.Max > 0 { // no image came in during this step yet
		p50, p99 = msText(s.Image.P50), msText(s.Image.P99)
	}
	return fmt.Sprintf("%8s/s  %9s/s  p50 %s  p99 %s  %d failed%s", rateText(s.Tally.Rate), report.Bytes(float64(s.Tally.Bytes)/max(s.Tally.Seconds, 1e-9)), p50, p99, s.Tally.Failed, idle(s))
}

// lastStep returns the result of the step before the present one.
func lastStep(steps []Step) string {
	if len(steps) == 0 {
		return ""
	}
	s := steps[len(steps)-1]
	return fmt.Sprintf("; last step: %s/s with %d pullers, driver %.0f %% of the processors", rateText(s.OperationsRate), s.Pullers, 100*s.ClientShare)
}

// sparks draws the latest rates as a line of bars.
func sparks(tallies []Tally, width int) string {
	if len(tallies) > width {
		tallies = tallies[len(tallies)-width:]
	}
	most := 0.0
	for _, t := range tallies {
		most = max(most, t.Rate)
	}
	bars := []rune("▁▂▃▄▅▆▇█")
	var b strings.Builder
	for _, t := range tallies {
		i := 0
		if most > 0 {
			i = int(t.Rate / most * float64(len(bars)-1))
		}
		b.WriteRune(bars[min(max(i, 0), len(bars)-1)])
	}
	return b.String()
}

// draw replaces the lines on the terminal.
func (v *View) draw(lines []string) {
	var b strings.Builder
	v.erase(&b)
	for _, l := range lines {
		if r := []rune(l); len(r) >= v.width {
			l = string(r[:v.width-1])
		}
		b.WriteString(l + "\n")
	}
	v.lines = len(lines)
	_, _ = io.WriteString(v.w, b.String())
}

func (v *View) erase(b *strings.Builder) {
	if v.lines > 0 {
		fmt.Fprintf(b, "\x1b[%dA\x1b[J", v.lines)
	}
	v.lines = 0
}

func (v *View) line(format string, args ...any) {
	_, _ = fmt.Fprintf(v.w, format+"\n", args...)
}

// End removes the lines from the terminal.
func (v *View) End() {
	if !v.terminal {
		return
	}
	var b strings.Builder
	v.erase(&b)
	_, _ = io.WriteString(v.w, b.String())
}
