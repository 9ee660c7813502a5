package chart

import (
	"encoding/xml"
	"math"
	"strconv"
)

// escape writes text so that it can neither end an element nor contain invalid
// characters.
func (c *canvas) escape(s string) {
	_ = xml.EscapeText(&c.Builder, []byte(s)) // a strings.Builder takes everything
}

// finite reports whether a value can be drawn.
func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) && math.Abs(v) < 1e300 }

// scale maps values to pixels. Its ends are its first and last tick.
type scale struct {
	axis      Axis
	ticks     []float64
	low, high float64
	from, to  float64 // pixels
	// zero reserves a place for 0 at the beginning of a logarithmic axis, which otherwise
	// has none, with a gap before the rest.
	zero bool
}

// zeroPart is the part of an axis that lies between 0 and its logarithmic part.
const zeroPart = 0.07

// newScale returns a scale that holds all values. About fit ticks have room.
func newScale(a Axis, values []float64, fit int) scale {
	s := scale{axis: a}
	least, most := math.Inf(1), math.Inf(-1)
	for _, v := range values {
		if finite(v) && (!a.Log || v > 0) {
			least, most = min(least, v), max(most, v)
		}
		s.zero = s.zero || a.Log && v <= 0
	}
	if a.Full {
		most = 1
		if least = min(least, 0.1); !a.Log { // a logarithmic axis cannot reach 0
			least = 0
		}
	}
	if least > most { // there are no values
		least, most = 0, 1
		if a.Log {
			least = 0.1
		}
	}
	fit = max(fit, 2)
	if a.Log {
		s.logTicks(least, most, fit)
	} else {
		s.linearTicks(least, most, fit)
	}
	if s.zero {
		s.ticks = append([]float64{0}, s.ticks...)
	}
	return s
}

// linearTicks makes an axis that holds 0 and has round numbers at its ends.
func (s *scale) linearTicks(least, most float64, fit int) {
	least, most = min(least, 0), max(most, 0)
	if most-least < 1e-300 { // steps would be too small for numbers
		most = 1
	}
	step := tickStep(most-least, fit)
	// The steps are multiplied, because adding them up would add up their error.
	for i := math.Floor(least / step); len(s.ticks) < 64; i++ {
		s.ticks = append(s.ticks, i*step)
		if i*step >= most*(1-1e-9) && len(s.ticks) > 1 {
			break
		}
	}
	s.low, s.high = s.ticks[0], s.ticks[len(s.ticks)-1]
}

// tickStep returns the distance between ticks: a power of ten, or two or five times one.
func tickStep(span float64, fit int) float64 {
	step := math.Pow(10, math.Floor(math.Log10(span/float64(fit))))
	for _, f := range []float64{1, 2, 5} {
		if span/(f*step) <= float64(fit) {
			return f * step
		}
	}
	return 10 * step
}

// logTicks makes an axis from one power of ten to another. If the values lie close
// together, its ends are 1, 2 or 5 times a power of ten.
func (s *scale) logTicks(least, most float64, fit int) {
	from, to := math.Floor(math.Log10(least)+1e-9), math.Ceil(math.Log10(most)-1e-9)
	if to <= from {
		to = from + 1
	}
	s.low, s.high = math.Pow(10, from), math.Pow(10, to)
	if to-from <= 2 && 3*(to-from)+1 <= float64(fit) {
		for e := from; e < to; e++ {
			for _, f := range []float64{1, 2, 5} {
				s.ticks = append(s.ticks, f*math.Pow(10, e))
			}
		}
		s.ticks = append(s.ticks, s.high)
		for len(s.ticks) > 2 && s.ticks[1] <= least {
			s.ticks = s.ticks[1:]
		}
		for len(s.ticks) > 2 && s.ticks[len(s.ticks)-2] >= most {
			s.ticks = s.ticks[:len(s.ticks)-1]
		}
		s.low, s.high = s.ticks[0], s.ticks[len(s.ticks)-1]
		return
	}
	step := max(1, math.Ceil((to-from)/float64(fit)))
	for e := from; e <= to; e += step {
		s.ticks = append(s.ticks, math.Pow(10, e))
	}
}

// at returns the position of a value in pixels. A value beyond the axis lies at its end.
func (s *scale) at(v float64) float64 {
	from := s.from
	if s.zero {
		if v <= 0 {
			return from
		}
		from += (s.to - s.from) * zeroPart
	}
	v = min(max(v, s.low), s.high)
	low, high := s.low, s.high
	if s.axis.Log {
		v, low, high = math.Log(v), math.Log(low), math.Log(high)
	}
	return from + (s.to-from)*(v-low)/(high-low)
}

// labels returns the ticks as text.
func (s *scale) labels() []string {
	out := make([]string, len(s.ticks))
	for i, t := range s.ticks {
		out[i] = Format(t, s.axis.Unit)
	}
	return out
}

// Format writes a value with its unit and at most four significant digits.
func Format(v float64, u Unit) string {
	switch {
	case math.IsNaN(v):
		return "–"
	case math.IsInf(v, 0):
		return "∞"
	}
	switch u {
	case Bytes:
		return prefixed(v, 1, []string{" B", " kB", " MB", " GB", " TB", " PB"})
	case Seconds:
		if a := math.Abs(v); a == 0 || a >= 1 {
			return digits(v) + " s"
		}
		return prefixed(v*1e6, 1, []string{" µs", " ms"})
	case Share:
		return digits(100*v) + " %"
	}
	return digits(v)
}

// prefixed writes v with the largest prefix with which v is at least the number least.
func prefixed(v, least float64, units []string) string {
	i := 0
	for i < len(units)-1 && math.Abs(v) >= 999.95*least {
		v, i = v/1000, i+1
	}
	return digits(v) + units[i]
}

// digits writes a number with at most four significant digits. Whole numbers keep all
// digits, with commas between the thousands.
func digits(v float64) string {
	a := math.Abs(v)
	switch {
	case a >= 1e15 || a > 0 && a < 1e-4:
		return strconv.FormatFloat(v, 'g', 3, 64)
	case a >= 999.95:
		return group(strconv.FormatFloat(math.Round(v), 'f', 0, 64))
	}
	s := strconv.FormatFloat(v, 'g', 4, 64)
	if f, err := strconv.ParseFloat(s, 64); err == nil {
		s = strconv.FormatFloat(f, 'f', -1, 64)
	}
	return s
}

// group puts commas between the thousands of a whole number.
func group(s string) string {
	sign := ""
	if s != "" && s[0] == '-' {
		sign, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}
