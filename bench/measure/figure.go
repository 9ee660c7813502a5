package measure

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Spread is the median of some figures, with the least and the greatest.
type Spread struct {
	N                int
	Median, Min, Max float64
}

// SpreadOf returns the spread of the finite figures. If there are none, its N is 0.
func SpreadOf(figures []float64) Spread {
	v := slices.DeleteFunc(slices.Clone(figures), func(f float64) bool { return math.IsNaN(f) || math.IsInf(f, 0) })
	n := len(v)
	if n == 0 {
		return Spread{}
	}
	slices.Sort(v)
	return Spread{n, (v[(n-1)/2] + v[n/2]) / 2, v[0], v[n-1]}
}

// String formats the spread as "median (min to max)".
func (s Spread) String() string {
	switch s.N {
	case 0:
		return "-"
	case 1:
		return Figure(s.Median)
	}
	return fmt.Sprintf("%s (%s to %s)", Figure(s.Median), Figure(s.Min), Figure(s.Max))
}

// Figure formats a number with three significant digits and no exponent.
func Figure(f float64) string {
	if f == 0 || math.IsNaN(f) || math.IsInf(f, 0) {
		return strconv.FormatFloat(f, 'f', -1, 64)
	}
	digits := 2 - int(math.Floor(math.Log10(math.Abs(f))))
	return strconv.FormatFloat(f, 'f', max(0, digits), 64)
}

// Marks are the lines that enclose the generated part of a document.
type Marks struct{ Begin, End string }

// Replace puts a text between the two marks of a document.
func (m Marks) Replace(doc, text string) (string, error) {
	head, rest, ok := strings.Cut(doc, m.Begin)
	_, tail, ok2 := strings.Cut(rest, m.End)
	if !ok || !ok2 {
		return "", errors.New("the document lacks the marks between which results are written")
	}
	return head + m.Begin + "\n\n" + strings.TrimSpace(text) + "\n\n" + m.End + tail, nil
}
