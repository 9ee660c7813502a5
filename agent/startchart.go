package agent

import (
	"fmt"
	"html"
	"strings"
	"time"

	"example.org/slipway/node/gearfs/starts"
)

const (
	// textRows and pictureRows bound how many files a chart has. It shows the files with
	// the earliest events.
	textRows, pictureRows = 60, 400
	// chartCells is how many characters a line of the text chart has for the time axis.
	chartCells = 48
	// chartPath is how many characters of the end of a path are shown.
	chartPath = 48
)

// ends returns the time of the last event of a start.
func ends(s *starts.Start) time.Duration {
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

// told returns the files of a start that had an event, no more than the number most, and
// how many more there are.
func told(s *starts.Start, most int) (files []*starts.File, more int) {
	for i := range s.Files {
		f := &s.Files[i]
		if f.Wanted == nil && f.Asked == nil && f.Here == nil {
			continue
		}
		if len(files) == most {
			more++
			continue
		}
		files = append(files, f)
	}
	return files, more
}

// tail returns the end of a path.
func tail(p string) string {
	r := []rune(strings.ToValidUTF8(p, "?"))
	if len(r) <= chartPath {
		return string(r)
	}
	return "…" + string(r[len(r)-chartPath+1:])
}

// textChart draws a start as text with one line for each file. a is when the file was
// requested; dashes follow until h, when it had arrived; w is when it was wanted; = shows that
// somebody waited.
func textChart(s *starts.Start) []string {
	files, more := told(s, textRows)
	if len(files) == 0 {
		return nil
	}
	last := ends(s)
	cell := func(d time.Duration) int { return int(min(d*chartCells/last, chartCells-1)) }
	out := []string{fmt.Sprintf("%-*s %-8s |%-*s| %v (a asked for, h here, w wanted, = waited for)", chartPath, "file", "because", chartCells, "0 s", last.Round(time.Millisecond))}
	for _, f := range files {
		line := []byte(strings.Repeat(" ", chartCells))
		fill := func(from, to *time.Duration, c byte) {
			for i := cell(max(*from, 0)); i <= cell(max(*to, 0)); i++ {
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
				line[cell(max(*m.at, 0))] = m.c
			}
		}
		out = append(out, fmt.Sprintf("%-*s %-8s |%s|", chartPath, tail(f.Path), f.From, line))
	}
	if more > 0 {
		out = append(out, fmt.Sprintf("and %d more files", more))
	}
	return out
}

// svgChart draws a start as a picture that needs no other file.
func svgChart(s *starts.Start, title string) string {
	const left, width, row, top = 340, 560, 12, 44
	files, _ := told(s, pictureRows)
	last := ends(s)
	x := func(d time.Duration) float64 { return left + float64(max(d, 0))/float64(last)*width }
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="9">`, left+width+20, top+row*len(files)+10)
	fmt.Fprintf(&b, `<title>%s</title><rect width="100%%" height="100%%" fill="#fff"/><text x="10" y="16" font-size="12">%s</text>`, html.EscapeString(title), html.EscapeString(title))
	b.WriteString(`<text x="10" y="32" fill="#555">grey: on its way; red: waited for; blue dot: wanted; label: why it was predicted</text>`)
	for i := range 5 {
		at := last * time.Duration(i) / 4
		fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="#ddd"/><text x="%.1f" y="%d" fill="#555" text-anchor="middle">%v</text>`,
			x(at), x(at), top-6, top+row*len(files), x(at), top-8, at.Round(time.Millisecond))
	}
	for i, f := range files {
		y := top + row*i
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%s</text><text x="10" y="%d" fill="#555">%s</text>`, left-6, y+9, html.EscapeString(tail(f.Path)), y+9, f.From)
		if f.Asked != nil && f.Here != nil {
			fmt.Fprintf(&b, `<rect x="%.1f" y="%d" width="%.1f" height="6" fill="#aaa"/>`, x(*f.Asked), y+3, max(x(*f.Here)-x(*f.Asked), 1))
		}
		if f.Wanted != nil && f.Here != nil && *f.Here > *f.Wanted {
			fmt.Fprintf(&b, `<rect x="%.1f" y="%d" width="%.1f" height="6" fill="#d33"/>`, x(*f.Wanted), y+3, max(x(*f.Here)-x(*f.Wanted), 1))
		}
		if f.Wanted != nil {
			fmt.Fprintf(&b, `<circle cx="%.1f" cy="%d" r="2.5" fill="#06c"/>`, x(*f.Wanted), y+6)
		}
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// explainStart describes the last start of an image, and how good its prediction was.
func explainStart(s *starts.Start, say func(format string, args ...any)) {
	from := map[string]int{}
	for i := range s.Files {
		if f := s.Files[i].From; f != "" {
			from[f]++
		}
	}
	var parts []string
	for _, o := range []string{"own", "series", "closure", "vote", "sibling"} {
		if from[o] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", from[o], o))
		}
	}
	if len(parts) == 0 {
		parts = []string{"none"}
	}
	say("Files that the last start expected: %s.", strings.Join(parts, ", "))
	if s.Donor != "" {
		say("They were inherited from %s, the likest image of the repository.", s.Donor)
	}
	q := &s.Quality
	switch {
	case !s.Over:
		say("The start is under way: %d of the %d files were wanted so far.", q.Hit, q.Predicted)
	case !s.Watched:
		say("Not all opens of that start could be seen, so it is not known how good the prediction was; %d files were missing in it.", q.Missed)
	default:
		say("Of the %d files of %d bytes %d of %d bytes were wanted, a precision of %.0f %%; %d files of %d bytes were wanted besides; %d bytes came in vain.",
			q.Predicted, q.PredictedBytes, q.Hit, q.HitBytes, 100*q.Precision(), q.Missed, q.MissedBytes, q.WastedBytes)
	}
}
