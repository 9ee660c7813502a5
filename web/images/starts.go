package images

import (
	"html/template"
	"time"

	"example.org/slipway/oci/fleet"
	"example.org/slipway/oci/fleet/timeline"
)

// maxStarts is how many starts of an image are drawn.
const maxStarts = 3

// start is a start of an image on a node.
type start struct {
	// Node is the node's name, or empty if the user may not know it.
	Node  string
	Began time.Time
	Over  bool
	// Wanted counts the files that were wanted, and Waited those of them that were not there
	// yet. Last is when the last of these came. More counts files that were not reported.
	Wanted, Waited, More int
	Last                 time.Duration
	Picture              template.HTML
	Text                 []string
}

// starts returns the last starts of an image, or of an index's images. Which nodes a registry has is
// for administrators only.
func (q *request) starts(d *imageData) (out []start) {
	if q.opts.Starts == nil || !d.Kind.Image {
		return nil
	}
	manifests := []string{string(d.Manifest.Digest)}
	for i := range d.Parts {
		manifests = append(manifests, string(d.Parts[i].Digest))
	}
	for _, i := range q.opts.Starts.Starts(d.Repo, manifests, maxStarts) {
		s := newStart(i.Start, "The start of "+d.Repo)
		if q.Admin {
			s.Node = i.Node
		}
		out = append(out, s)
	}
	return out
}

// newStart counts and draws a start.
func newStart(of *fleet.Start, title string) start {
	s := start{Began: of.Began, Over: of.Over, More: of.More, Text: timeline.Text(of), Picture: template.HTML(timeline.Picture(of, title))} // all text in it is escaped
	for i := range of.Files {
		f := &of.Files[i]
		if f.Wanted == nil {
			continue
		}
		s.Wanted++
		if f.Here != nil && *f.Here > *f.Wanted {
			s.Waited++
			s.Last = max(s.Last, f.Here.Round(time.Millisecond))
		}
	}
	return s
}
