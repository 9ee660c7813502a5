// Package timeline draws the start of a container from a lazy image: when each file was wanted,
// requested and there, and why it was expected. It draws a text of a bounded width and a picture.
//
// A start comes from any client that may pull, so nothing in it is trusted: paths are escaped, and
// times outside of the start are drawn at its edge. What a start has is bounded by package fleet.
package timeline

import (
	"fmt"
	"html"
	"strings"
	"time"
	"unicode"

	"example.org/slipway/oci/fleet"
)

const (
	// cells is how many characters a line of the text has for the time axis.
	cells = 48
	// pathCells is how many characters of the end of a path are shown, and fromCells is how
	// many characters of the reason.
	pathCells, fromCells = 48, 8
	// Width is how many characters a line of the text has, but for the first line and for the one
	// that counts more files.
	Width = pathCells + 1 + fromCells + 2 + cells + 1
)

// ends returns the time of the last event of a start.
func ends(s *fleet.Start) time.Duration {
	last := time.Millisecond
	for i := range s.Files {
		for _, d := range []*time.Duration{s.Files[i].Wanted, s.Files[i].Asked, s.Files[i].Here} {
			if d != nil {
				last = max(last, *d)
			}
		}
	}
	return last
}

// shown returns the end of a text, in which every character can be seen.
func shown(s string, most int) string {
	r := []rune(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?")))
	if len(r) <= most {
		return string(r)
	}
	return "…" + string(r[len(r)-most+1:])
}

// Text draws a start as lines of text, one for each file, or returns nil if no file had an event. a
// is when the file was requested; dashes follow until h, when it had arrived; w is when it was
// wanted; = shows that somebody waited.
func Text(s *fleet.Start) []string {
	if len(s.Files) == 0 {
		return nil
	}
	last := ends(s)
	cell := func(d time.Duration) int { return int(min(max(d, 0)*cells/last, cells-1)) }
	out := []string{fmt.Sprintf("%-*s %-*s |%-*s| %v (a asked for, h here, w wanted, = waited for)", pathCells, "file", fromCells, "because", cells, "0 s", last.Round(time.Millisecond))}
	for i := range s.Files {
		f := &s.Files[i]
		line := []byte(strings.Repeat(" ", cells))
		fill := func(from, to *time.Duration, c byte) {
			for i := cell(*from); i <= cell(*to); i++ {
				line[i] = c
			}
		}
		if f.Asked != nil && f.Here != nil {
			fill(f.Asked, f.Here, '-')
		}
		if f.Wanted != nil && f.Here != nil && *f.Here > *f.Wanted {
			fill(f.Wanted, f.Here, '=')
		}
		for _, m := range []struct {
			at *time.Duration
			c  byte
		}{{f.Asked, 'a'}, {f.Here, 'h'}, {f.Wanted, 'w'}} {
			if m.at != nil {
				line[cell(*m.at)] = m.c
			}
		}
		out = append(out, fmt.Sprintf("%-*s %-*s |%s|", pathCells, shown(f.Path, pathCells), fromCells, shown(f.From, fromCells), line))
	}
	switch {
	case s.More == 1:
		out = append(out, "and 1 more file")
	case s.More > 1:
		out = append(out, fmt.Sprintf("and %d more files", s.More))
	}
	return out
}

// These are lengths in units of the picture.
const (
	left, axis, row, top = 340, 560, 14, 50
)

// alone is the style of a picture that is not part of a page.
const alone = `<style>svg{font-family:sans-serif}.paper{fill:#fff}text{fill:#1d262b}.soft{fill:#56636b}.grid{stroke:#d9dedf}.way{fill:#9aa6ad}.wait{fill:#a4262c}.want{fill:#0f5a70}</style>`

// Document draws a start as a picture in a file of its own.
func Document(s *fleet.Start, title string) string {
	return draw(s, title, `<svg xmlns="http://www.w3.org/2000/svg" `, alone+`<rect class="paper" width="100%" height="100%"/>`) + "\n"
}

// Picture draws a start as a picture in a page, whose style sheet gives it its colours.
func Picture(s *fleet.Start, title string) string { return draw(s, title, `<svg class="start" `, "") }

// draw draws a start. It begins with tag, and what style says.
func draw(s *fleet.Start, title, tag, style string) string {
	last := ends(s)
	x := func(d time.Duration) float64 { return left + float64(min(max(d, 0), last))/float64(last)*axis }
	var b strings.Builder
	bottom := top + row*len(s.Files)
	name := html.EscapeString(shown(title, 200))
	fmt.Fprintf(&b, `%srole="img" aria-label="%s" viewBox="0 0 %d %d" font-size="11">%s<title>%s</title>`, tag, name, left+axis+30, bottom+24, style, name)
	fmt.Fprintf(&b, `<text x="10" y="16" font-size="13">%s</text>`, name)
	for i := range 5 {
		at := last * time.Duration(i) / 4
		fmt.Fprintf(&b, `<line class="grid" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/><text class="soft" x="%.1f" y="%d" text-anchor="middle">%v</text>`,
			x(at), x(at), top-4, bottom, x(at), top-8, at.Round(time.Millisecond))
	}
	for i := range s.Files {
		f, y := &s.Files[i], top+row*i
		b.WriteString(`<g>`)
		fmt.Fprintf(&b, `<title>%s</title>`, html.EscapeString(says(f)))
		fmt.Fprintf(&b, `<text class="soft" x="10" y="%d">%s</text><text x="%d" y="%d" text-anchor="end">%s</text>`,
			y+11, html.EscapeString(shown(f.From, fromCells)), left-6, y+11, html.EscapeString(shown(f.Path, pathCells-6)))
		bar := func(class string, from, to *time.Duration) {
			if from != nil && to != nil && *to > *from {
				fmt.Fprintf(&b, `<rect class="%s" x="%.1f" y="%d" width="%.1f" height="7"/>`, class, x(*from), y+4, max(x(*to)-x(*from), 1))
			}
		}
		bar("way", f.Asked, f.Here)
		bar("wait", f.Wanted, f.Here)
		if f.Wanted != nil {
			fmt.Fprintf(&b, `<circle class="want" cx="%.1f" cy="%.1f" r="3"/>`, x(*f.Wanted), float64(y)+7.5)
		}
		b.WriteString(`</g>`)
	}
	legend := bottom + 17
	fmt.Fprintf(&b, `<rect class="way" x="%d" y="%d" width="20" height="7"/><text x="%d" y="%d">on its way</text>`, left, legend-7, left+26, legend)
	fmt.Fprintf(&b, `<rect class="wait" x="%d" y="%d" width="20" height="7"/><text x="%d" y="%d">waited for</text>`, left+110, legend-7, left+136, legend)
	fmt.Fprintf(&b, `<circle class="want" cx="%d" cy="%.1f" r="3"/><text x="%d" y="%d">wanted</text>`, left+226, float64(legend)-3.5, left+236, legend)
	fmt.Fprintf(&b, `<text class="soft" x="10" y="%d">why it was expected</text></svg>`, legend)
	return b.String()
}

// says describes a file in a sentence.
func says(f *fleet.StartFile) string {
	out := shown(f.Path, fleet.MaxStartPath)
	if f.From != "" {
		out += ", expected: " + shown(f.From, fromCells)
	}
	for _, e := range []struct {
		what string
		at   *time.Duration
	}{{"asked for", f.Asked}, {"here", f.Here}, {"wanted", f.Wanted}} {
		if e.at != nil {
			out += fmt.Sprintf(", %s at %v", e.what, e.at.Round(100*time.Microsecond))
		}
	}
	return out
}
