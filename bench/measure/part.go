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
	// Title returns a heading. About returns what was done.
	Title() string
	About() string
	// Head returns a Markdown list that says how, when and on what the part was measured.
	Head() string
	Targets() []Target
	// Write writes the tables and the text.
	Write(w *strings.Builder)
	Pictures() []Picture
}

// Measured returns the parts that were measured. Each part is a pointer, which is nil if nothing
// was measured.
func Measured(parts ...Part) []Part {
	return slices.DeleteFunc(parts, func(p Part) bool { return reflect.ValueOf(p).IsNil() })
}

// CheckParts prints whether each target is met and reports whether none is missed.
func CheckParts(w io.Writer, parts []Part) bool {
	var targets []Target
	for _, p := range parts {
		targets = append(targets, p.Targets()...)
	}
	return Check(w, targets)
}

// Report returns the Markdown of a document: the verdict on the targets, and the parts.
// The pictures are in the directory img beside the document.
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

// Pictures returns the pictures of all parts.
func Pictures(parts []Part) []Picture {
	var out []Picture
	for _, p := range parts {
		out = append(out, p.Pictures()...)
	}
	return out
}
