package result

import (
	"encoding/csv"
	"encoding/xml"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// Text writes a report for a terminal.
func (r *Result) Text(w io.Writer) error {
	p := &printer{w: w}
	p.f("%s: %s, %s\n", r.Name, orUnknown(r.Level), orUnknown(r.Mode))
	p.f("%s\n", r.Verdict)
	for _, s := range r.Problems {
		p.f("! %s\n", s)
	}
	p.f("\n%d requests in %s: %.1f per second, %s/s\n", r.Requests, seconds(r.Seconds), r.PerSecond, megabytes(r.BytesPer))
	if r.Planned > 0 {
		p.f("planned from the trace: %d requests%s\n", r.Planned, skippedText(r.Skipped))
	}
	if r.WarmUp != nil {
		p.f("put in place before: %d blobs and %d manifests with %d requests in %s, %d failed\n",
			r.WarmUp.Blobs, r.WarmUp.Manifests, r.WarmUp.Requests, seconds(r.WarmUp.Seconds), r.WarmUp.Errors)
	}
	p.f("outcomes: %s\n", counts(r.Summary.Outcomes))
	if len(r.Summary.Sessions) > 0 {
		p.f("pulls and pushes: %s\n", counts(r.Summary.Sessions))
	}
	p.f("late by more than %s: %d; not in the trace: %d; redirects: %d, %.2f ms each\n",
		time.Duration(LateAfter)*time.Microsecond, r.Summary.Late, r.Summary.Extra, r.Redirects, r.RedirectMs)
	if p.err != nil {
		return p.err
	}
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
	p.w = tw
	p.f("\nms\tmean\tp50\tp90\tp99\tp99.9\tmax\t\n")
	for _, t := range []struct {
		name string
		Times
	}{{"latency (from the intended time)", r.Latency}, {"service (from the sending)", r.Service}, {"lag of the generator", r.Summary.Lag}, {"wait for a place", r.Summary.Wait}} {
		p.f("%s\t%s\t\n", t.name, t.Times.cells())
	}
	p.f("\nlatency in ms\tstatus\trequests\tMB\tmean\tp50\tp90\tp99\tp99.9\tmax\t\n")
	for _, g := range r.Summary.Groups {
		p.f("%s %s %s %s\t%s\t%d\t%.1f\t%s\t\n", g.Target, g.Method, g.Object, g.Size, g.Status, g.Requests, float64(g.Bytes)/1e6, g.Latency.cells())
	}
	if len(r.PerWorker) > 1 {
		p.f("\nworker\trequests\terrors\tnot sent\tMB\tlatency p50\tp99\tlag p50\tp99\tmax\t\n")
		for _, w := range r.PerWorker {
			p.f("%s\t%d\t%d\t%d\t%.1f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t\n", w.Worker, w.Requests, w.Errors, w.Unsent, float64(w.Bytes)/1e6,
				w.Latency.P50, w.Latency.P99, w.Lag.P50, w.Lag.P99, w.Lag.Max)
		}
	}
	if p.err != nil {
		return p.err
	}
	return tw.Flush()
}

// printer keeps the first error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) f(format string, args ...any) {
	if p.err != nil {
		return
	}
	// A result may be somebody else's. Control characters are removed, so that it cannot
	// control the terminal.
	text := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return unicode.ReplacementChar
		}
		return r
	}, fmt.Sprintf(format, args...))
	_, p.err = io.WriteString(p.w, text)
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

func seconds(s float64) string { return time.Duration(s * 1e9).Round(time.Millisecond).String() }

func megabytes(b float64) string { return fmt.Sprintf("%.2f MB", b/1e6) }

func (t Times) cells() string {
	var s []string
	for _, v := range t.values() {
		s = append(s, strconv.FormatFloat(v, 'f', 2, 64))
	}
	return strings.Join(s, "\t")
}

func (t Times) values() []float64 { return []float64{t.Mean, t.P50, t.P90, t.P99, t.P999, t.Max} }

// counts writes a map in the order of its names.
func counts(m map[string]int64) string {
	var s []string
	for k, v := range m {
		s = append(s, fmt.Sprintf("%s %d", k, v))
	}
	slices.Sort(s)
	if len(s) == 0 {
		return "none"
	}
	return strings.Join(s, ", ")
}

func skippedText(m map[string]int64) string {
	if len(m) == 0 {
		return ""
	}
	return "; left out: " + counts(m)
}

// CSV writes the groups of several results as a table.
func CSV(w io.Writer, results []*Result) error {
	c := csv.NewWriter(w)
	rows := [][]string{{"result", "target", "method", "object", "size", "status", "requests", "bytes",
		"latency_mean_ms", "latency_p50_ms", "latency_p90_ms", "latency_p99_ms", "latency_p999_ms", "latency_max_ms",
		"service_mean_ms", "service_p50_ms", "service_p90_ms", "service_p99_ms", "service_p999_ms", "service_max_ms"}}
	for _, r := range results {
		for _, g := range r.Summary.Groups {
			row := []string{r.Name, g.Target, g.Method, g.Object, g.Size, g.Status, strconv.FormatInt(g.Requests, 10), strconv.FormatInt(g.Bytes, 10)}
			for _, v := range append(g.Latency.values(), g.Service.values()...) {
				row = append(row, strconv.FormatFloat(v, 'f', 3, 64))
			}
			rows = append(rows, row)
		}
	}
	if err := c.WriteAll(rows); err != nil {
		return err
	}
	return c.Error()
}

// Check is a condition that a run must meet.
type Check struct {
	Name   string
	Failed bool
	// Text says what was found.
	Text string
}

// Checks returns the checks of a result: that it is valid and complete, that no content
// was wrong, and that the share of requests that failed or were not sent is at most
// maxErrors.
func (r *Result) Checks(maxErrors float64) []Check {
	bad := r.Counts.Errors() + r.Counts.Outcomes[Dropped] + r.Counts.Outcomes[Lost] + r.Counts.Outcomes[Failed]
	share := float64(bad) / float64(max(1, r.Requests))
	return []Check{
		{r.Name + ": the figures are the registry's", !r.Valid, r.Verdict},
		{r.Name + ": the run is complete", !r.Complete || r.Unwritten > 0, strings.Join(r.Problems, "; ")},
		{r.Name + ": content is right", r.Counts.Outcomes[Wrong] > 0, fmt.Sprintf("%d answers had wrong content", r.Counts.Outcomes[Wrong])},
		{r.Name + ": errors", share > maxErrors, fmt.Sprintf("%d of %d requests (%.3f %%) failed, %.3f %% may", bad, r.Requests, 100*share, 100*maxErrors)},
	}
}

// Checks returns the checks of a comparison: its gates.
func (c *Comparison) Checks() []Check {
	var out []Check
	for _, ch := range c.Changes {
		if ch.Gate != nil {
			out = append(out, Check{fmt.Sprintf("%s against %s: %s", c.Other, c.Base, ch.Metric), ch.Failed, ch.text()})
		}
	}
	return out
}

// text writes a change for people.
func (c *Change) text() string {
	percent := func(v float64) string {
		if v > 1e6 {
			return "+∞ %"
		}
		return fmt.Sprintf("%+.1f %%", 100*v)
	}
	s := fmt.Sprintf("%.4g %s [%.4g, %.4g] to %.4g %s [%.4g, %.4g]: %s [%s, %s]", c.Base.Value, c.Unit, c.Base.Low, c.Base.High,
		c.Other.Value, c.Unit, c.Other.Low, c.Other.High, percent(c.Share.Value), percent(c.Share.Low), percent(c.Share.High))
	if !c.Differs {
		s += ", which may be chance"
	}
	return s
}

// Text writes a comparison for a terminal.
func (c *Comparison) Text(w io.Writer) error {
	p := &printer{w: w}
	p.f("%s against %s, with confidence intervals from %d and %d blocks of time\n", c.Other, c.Base, c.Blocks[1], c.Blocks[0])
	for _, n := range c.Notes {
		p.f("! %s\n", n)
	}
	for _, ch := range c.Changes {
		verdict := ""
		if ch.Gate != nil {
			verdict = fmt.Sprintf("  gate %.4g %%: passed", 100**ch.Gate)
			if ch.Failed {
				verdict = fmt.Sprintf("  gate %.4g %%: FAILED", 100**ch.Gate)
			}
		}
		p.f("%-13s %s%s\n", ch.Metric, ch.text(), verdict)
	}
	return p.err
}

type junitSuite struct {
	XMLName  xml.Name    `xml:"testsuite"`
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Name    string        `xml:"name,attr"`
	Class   string        `xml:"classname,attr"`
	Failure *junitFailure `xml:"failure,omitempty"`
	Output  string        `xml:"system-out,omitempty"`
}

type junitFailure struct {
	Message string `xml:"message,attr"`
}

// JUnit writes checks in the form that build servers read.
func JUnit(w io.Writer, checks []Check) error {
	s := junitSuite{Name: "slipway trace replay", Tests: len(checks)}
	for _, c := range checks {
		tc := junitCase{Name: c.Name, Class: "replay", Output: c.Text}
		if c.Failed {
			s.Failures++
			tc.Failure, tc.Output = &junitFailure{c.Text}, ""
		}
		s.Cases = append(s.Cases, tc)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", " ")
	if err := e.Encode(s); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}
