package measure

import (
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
)

// Part is the outcome of a scenario, as a document shows it.
type Part interface {
	// Title is a heading, About what was done.
	Title() string
	About() string
	// Head is a list of Markdown that says how, when and on what it was measured.
	Head() string
	Targets() []Target
	// Write writes tables and text.
	Write(w *strings.Builder)
	Pictures() []Picture
}

// Measured returns those parts that are there: each is a pointer, nil where nothing was
// measured.
func Measured(parts ...Part) []Part {
	return slices.DeleteFunc(parts, func(p Part) bool { return reflect.ValueOf(p).IsNil() })
}

// CheckParts prints whether each target is met and returns whether none is missed.
func CheckParts(w io.Writer, parts []Part) bool {
	var targets []Target
	for _, p := range parts {
		targets = append(targets, p.Targets()...)
	}
	return Check(w, targets)
}

// Report is the Markdown of a document: the verdict on the targets, and the parts.
// Pictures are in the directory img beside the document.
func Report(verdict string, parts []Part) string {
	var w strings.Builder
	fmt.Fprintf(&w, "### Targets\n\n```text\n%s```\n", verdict)
	for _, p := range parts {
		fmt.Fprintf(&w, "\n### %s\n\n%s\n\n%s\n\n", p.Title(), p.About(), p.Head())
		for _, pic := range p.Pictures() {
			fmt.Fprintf(&w, "![%s](img/%s)\n\n", pic.Chart.Title, pic.File)
		}
		p.Write(&w)
	}
	return w.String()
}

// Pictures are those of all parts.
func Pictures(parts []Part) []Picture {
	var out []Picture
	for _, p := range parts {
		out = append(out, p.Pictures()...)
	}
	return out
}
