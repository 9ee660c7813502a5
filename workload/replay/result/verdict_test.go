package result_test

import (
	"math"
	"strings"
	"testing"

	"example.org/slipway/workload/replay/result"
)

// TestRatesAgree checks that a comparison states the same rates as the reports, also for
// runs that end within a second, and for blocks that do not divide them.
func TestRatesAgree(t *testing.T) {
	a, b := draw(20, 2100, 21, 5), draw(21, 2100, 21, 5)
	for i := range b { // one run takes 21 s, the other 20.1 s
		for _, v := range []*int64{&b[i].Intended, &b[i].Sent, &b[i].First, &b[i].End} {
			*v = *v * 201 / 210
		}
	}
	x, y := loaded(t, "x", a), loaded(t, "y", b)
	for _, block := range []int64{1, 2, 5} {
		c := result.Compare(x, y, result.CompareOptions{BlockSeconds: block, Resamples: 50})
		for _, ch := range c.Changes {
			if ch.Metric == "rate" && (!near(ch.Base.Value, x.PerSecond) || !near(ch.Other.Value, y.PerSecond)) {
				t.Errorf("blocks of %d s: rates %.3f and %.3f, the reports have %.3f and %.3f", block, ch.Base.Value, ch.Other.Value, x.PerSecond, y.PerSecond)
			}
		}
	}
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*math.Abs(b) }

func TestVerdictOnErrors(t *testing.T) {
	all := draw(22, 1000, 10, 5)
	if r := loaded(t, "some", all); !strings.Contains(r.Verdict, "%) failed") {
		t.Errorf("verdict %q does not say that requests failed", r.Verdict)
	}
	for i := range all {
		all[i].Outcome = result.Broken
	}
	if r := loaded(t, "none", all); r.Valid {
		t.Errorf("verdict %q where no request succeeded", r.Verdict)
	}
}

// TestTextSpeaksNotToTheTerminal prints names from a result that somebody else made. They
// must not reach the terminal as control sequences.
func TestTextSpeaksNotToTheTerminal(t *testing.T) {
	r := loaded(t, "r", draw(23, 100, 10, 5))
	r.Name, r.Problems = "\x1b]0;owned\a", []string{"\x1b[2J\u009b31m"}
	r.Summary.Groups[0].Target = "\r\x1b[31m"
	c := result.Compare(r, r, result.CompareOptions{Resamples: 10})
	var text strings.Builder
	for _, err := range []error{r.Text(&text), c.Text(&text)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if strings.ContainsAny(text.String(), "\x1b\a\r\u009b") {
		t.Errorf("control characters in %q", text.String())
	}
}

func TestComparisonTellsWhatDiffers(t *testing.T) {
	a, b := loaded(t, "a", draw(24, 500, 30, 5)), loaded(t, "b", draw(25, 500, 30, 5))
	b.Complete, b.Planned, b.Valid, a.Valid = false, 7, true, true
	notes := strings.Join(result.Compare(a, b, result.CompareOptions{Resamples: 10}).Notes, "\n")
	for _, want := range []string{"b was ended early", "not made in the same way"} {
		if !strings.Contains(notes, want) {
			t.Errorf("notes %q, want one that %s", notes, want)
		}
	}
}
