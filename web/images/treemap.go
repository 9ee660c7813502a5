package images

import (
	"fmt"
	"html/template"
	"strings"

	"example.org/slipway/web/format"
)

// part is a part of a treemap: its name, its bytes, and how many of these are opened.
type part struct {
	name          string
	bytes, opened int64
}

// rect is a rectangle in a treemap.
type rect struct{ x, y, w, h float64 }

// These constants are the size of a treemap in its own units.
const (
	treemapWidth  = 960
	treemapHeight = 220
)

// treemap draws the entries of a directory by size, the largest first. It returns "" if
// there is little to see. The table shows all of it, too.
func treemap(t *fileTree, p *profile, places []int32) template.HTML {
	var parts []part
	for k, i := range places {
		s := t.sum(i)
		if s.Bytes == 0 {
			break
		}
		opened := p.between(int(i), int(t.end[i])).Bytes
		if len(parts) > treemapParts {
			parts[treemapParts].bytes += s.Bytes
			parts[treemapParts].opened += opened
			continue
		}
		_, name := cutName(t.x.Entries[i].Path)
		name = format.Visible(name)
		if len(parts) == treemapParts && k+1 < len(places) && t.sum(places[k+1]).Bytes > 0 {
			name = "everything else"
		}
		parts = append(parts, part{name, s.Bytes, opened})
	}
	if len(parts) < 2 {
		return ""
	}
	return drawTreemap(parts)
}

// drawTreemap draws parts, the largest first.
func drawTreemap(parts []part) template.HTML {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="treemap" viewBox="0 0 %d %d" role="img" aria-label="What lies here by size; the table below has the figures.">`, treemapWidth, treemapHeight)
	for k, r := range squarify(parts, rect{0, 0, treemapWidth, treemapHeight}) {
		p := parts[k]
		name, size := template.HTMLEscapeString(p.name), format.Bytes(p.bytes)
		fmt.Fprintf(&b, `<g><title>%s, %s</title><rect class="part" x="%.1f" y="%.1f" width="%.1f" height="%.1f"/>`, name, size, r.x+1, r.y+1, max(0, r.w-2), max(0, r.h-2))
		if p.opened > 0 {
			h := max(0, r.h-2) * format.Share(p.opened, p.bytes)
			fmt.Fprintf(&b, `<rect class="opened" x="%.1f" y="%.1f" width="%.1f" height="%.1f"/>`, r.x+1, r.y+1+max(0, r.h-2)-h, max(0, r.w-2), h)
		}
		if room := int((r.w - 16) / 9); room >= 3 && r.h > 24 {
			fmt.Fprintf(&b, `<text x="%.1f" y="%.1f">%s</text>`, r.x+8, r.y+20, template.HTMLEscapeString(clipText(p.name, room)))
			if r.h > 44 && len(size) <= room {
				fmt.Fprintf(&b, `<text class="size" x="%.1f" y="%.1f">%s</text>`, r.x+8, r.y+38, size)
			}
		}
		b.WriteString(`</g>`)
	}
	b.WriteString(`</svg>`)
	return template.HTML(b.String()) // all text in it is escaped
}

// clipText cuts a text to n characters.
func clipText(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}

// squarify gives each part an area in proportion to its bytes. The largest part comes
// first. The parts lie in rows and are as square as possible (Bruls, Huizing, van Wijk:
// Squarified Treemaps).
func squarify(parts []part, in rect) []rect {
	out := make([]rect, 0, len(parts))
	for at := 0; at < len(parts); {
		rest := 0.0 // summed anew each time, because subtracting from a large sum is inexact
		for _, p := range parts[at:] {
			rest += float64(p.bytes)
		}
		area, side := in.w*in.h, min(in.w, in.h)
		n, sum, worst := 0, 0.0, 0.0
		for at+n < len(parts) {
			s := sum + float64(parts[at+n].bytes)
			thick := s / rest * area / side
			longest, least := float64(parts[at].bytes)/s*side, float64(parts[at+n].bytes)/s*side
			w := max(longest/thick, thick/least)
			if n > 0 && w > worst {
				break
			}
			n, sum, worst = n+1, s, w
		}
		thick := sum / rest * area / side
		pos := 0.0
		for _, p := range parts[at : at+n] {
			long := float64(p.bytes) / sum * side
			if in.w >= in.h {
				out = append(out, rect{in.x, in.y + pos, thick, long})
			} else {
				out = append(out, rect{in.x + pos, in.y, long, thick})
			}
			pos += long
		}
		if in.w >= in.h {
			in.x, in.w = in.x+thick, in.w-thick
		} else {
			in.y, in.h = in.y+thick, in.h-thick
		}
		in.w, in.h = max(in.w, 1e-6), max(in.h, 1e-6)
		at += n
	}
	return out
}
