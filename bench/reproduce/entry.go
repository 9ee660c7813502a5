package reproduce

import (
	"fmt"
	"math"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/internal/chart"
)

// Paper is one of the four works.
type Paper struct {
	ID, Title, Link string
	// Left says which tables and figures have no entry, and why.
	Left string
}

// Entry is a table or a figure of a paper.
type Entry struct {
	Paper string
	Name  string // "Figure 17"
	Title string
	// Did says what the paper did, and Differs what is different here.
	Did, Differs string
	// Source says where the published values are from.
	Source string
	// Part is the name of the part that measures it.
	Part   string
	Claims []Claim
	// Curves are published curves, or published points if Points is set. X and Y are the axes of
	// all curves.
	Curves []Curve
	X, Y   chart.Axis
	// Read finds the values in the raw figures. It returns nil if they were not measured.
	Read func(*Raw) *Finding
}

// ID names the entry in links and file names.
func (e *Entry) ID() string { return slug(e.Paper + " " + e.Name) }

// Claim is a published value.
type Claim struct {
	Name string
	Unit chart.Unit
	// The value lies between Low and High. The two are equal for a single value, and infinite on
	// a side that is not given.
	Low, High float64
	Sense     Sense
	// Within is how far a value may lie outside Low and High and still count as reproduced, as a
	// share of the nearer one. 0 means [usualTolerance].
	Within float64
	// Total says that only a trace of full length can be compared.
	Total bool
}

// usualTolerance is a tenth of the published value.
const usualTolerance = 0.1

// Sense says which values are better than the published one.
type Sense uint8

// These are the senses.
const (
	// Like is for values that describe something: there is no better.
	Like Sense = iota
	// More and Less are for values of which more, or less, is better.
	More
	Less
)

// Curve is a line or some points.
type Curve struct {
	Name   string
	Points []chart.Point
	// Single draws the points alone. Step draws a cumulative distribution.
	Single, Step bool
}

// Finding is what was measured for an entry.
type Finding struct {
	Run *measure.Run
	// Values are the values of the claims, by name.
	Values map[string]measure.Spread
	Curves []Curve
}

// Verdict compares what was measured with what was published.
type Verdict uint8

// These are the verdicts.
const (
	NotRun Verdict = iota
	Reproduced
	Better
	Worse
)

func (v Verdict) String() string { return [...]string{"not run", "reproduced", "better", "worse"}[v] }

// rule states how verdicts are computed.
const rule = "A value is *reproduced* if it lies within the published bounds, or outside them by at most the tolerance: a tenth of the " +
	"nearer bound, unless the row says otherwise. Otherwise it is *better* if it lies on the side that is better for users, and " +
	"*worse* if not. A value that only describes a workload has no better side. The verdict of an entry is *worse* if a value is, " +
	"otherwise *better* if a value is, otherwise *reproduced*. An entry without any measured value is *not run*."

// Verdict judges a value by the rule.
func (c *Claim) Verdict(v measure.Spread) Verdict {
	if v.N == 0 {
		return NotRun
	}
	got, tolerance := v.Median, c.Within
	if tolerance == 0 {
		tolerance = usualTolerance
	}
	below, above := c.Low-tolerance*math.Abs(c.Low), c.High+tolerance*math.Abs(c.High)
	switch {
	case !(got < below) && !(got > above):
		return Reproduced
	case got > above && c.Sense == More, got < below && c.Sense == Less:
		return Better
	}
	return Worse
}

// Published returns the published value as text.
func (c *Claim) Published() string {
	text := func(f float64) string { return chart.Format(f, c.Unit) }
	switch {
	case c.Low == c.High:
		return text(c.Low)
	case math.IsInf(c.Low, -1):
		return "at most " + text(c.High)
	case math.IsInf(c.High, 1):
		return "at least " + text(c.Low)
	}
	return text(c.Low) + " to " + text(c.High)
}

// bound returns the published value for a picture: the bound that is finite and lower.
func (c *Claim) bound() float64 {
	if math.IsInf(c.Low, -1) {
		return c.High
	}
	return c.Low
}

// spread formats a measured value.
func (c *Claim) spread(v measure.Spread) string {
	text := func(f float64) string { return chart.Format(f, c.Unit) }
	if v.N < 2 {
		return text(v.Median)
	}
	return fmt.Sprintf("%s (%s to %s)", text(v.Median), text(v.Min), text(v.Max))
}

// judged is an entry with what was measured.
type judged struct {
	*Entry
	found    *Finding
	verdicts []Verdict // of the claims
	verdict  Verdict
}

// judge compares an entry with what was found, which is nil if nothing was measured.
func (e *Entry) judge(found *Finding) *judged {
	j := &judged{Entry: e, found: found, verdicts: make([]Verdict, len(e.Claims))}
	for i := range e.Claims {
		if j.found != nil {
			j.verdicts[i] = e.Claims[i].Verdict(j.found.Values[e.Claims[i].Name])
		}
		switch v := j.verdicts[i]; {
		case v == NotRun || j.verdict == Worse:
		case v == Worse, v == Better, j.verdict == NotRun:
			j.verdict = v
		}
	}
	return j
}

// count returns how many claims have the verdict.
func (j *judged) count(v Verdict) (n int) {
	for _, w := range j.verdicts {
		if w == v {
			n++
		}
	}
	return n
}

// one returns the spread of a single value.
func one(v float64) measure.Spread { return measure.SpreadOf([]float64{v}) }

// exactly makes a claim of a single value.
func exactly(name string, u chart.Unit, v float64, s Sense) Claim {
	return Claim{Name: name, Unit: u, Low: v, High: v, Sense: s}
}

// atLeast and atMost make claims of a bound.
func atLeast(name string, u chart.Unit, v float64, s Sense) Claim {
	return Claim{Name: name, Unit: u, Low: v, High: math.Inf(1), Sense: s}
}

func atMost(name string, u chart.Unit, v float64, s Sense) Claim {
	return Claim{Name: name, Unit: u, Low: math.Inf(-1), High: v, Sense: s}
}
