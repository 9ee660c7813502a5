package load

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"example.org/slipway/internal/report"
)

// Preview describes what a run would do.
type Preview struct {
	Target   string `json:"target"`
	Upstream string `json:"upstream,omitempty"`
	// Images is the number of images, and Bytes is their size. Push says that images
	// which the registry lacks are pushed.
	Images int   `json:"images"`
	Bytes  int64 `json:"bytes"`
	Push   bool  `json:"push"`
	// Pullers is the largest number of pullers. Each pulls the images of one pattern.
	Pullers  int              `json:"pullers"`
	Patterns []PreviewPattern `json:"patterns"`
	Ramp     Ramp             `json:"ramp"`
	Prune    Prune            `json:"prune,omitempty"`
	// Seconds is how long the run would take, or 0 if that is not known.
	Seconds float64 `json:"seconds"`
}

// PreviewPattern is a pattern and what it selects.
type PreviewPattern struct {
	Pattern string `json:"pattern"`
	Images  int    `json:"images"`
	// First is the name of the first image that the pattern selects.
	First string `json:"first"`
}

// DryRun returns what Run would do. It changes nothing in a registry. If images are to be
// listed, it lists them.
func DryRun(ctx context.Context, o *Options) (*Preview, error) {
	r, end, err := begin(o)
	if err != nil {
		return nil, err
	}
	defer end()
	p := &Preview{Target: r.target.Name, Push: r.o.Source == PushedSet, Ramp: r.o.Ramp, Prune: r.o.Prune}
	if r.upstream != r.target {
		p.Upstream = r.upstream.Name
	}
	if err := r.choose(ctx); err != nil {
		return nil, err
	}
	for _, m := range r.images {
		p.Images++
		p.Bytes += m.Bytes()
	}
	for i, set := range r.sets {
		p.Patterns = append(p.Patterns, PreviewPattern{Pattern: r.patterns[i], Images: len(set), First: set[0].Name()})
	}
	p.Pullers, p.Seconds = r.o.Pullers, r.length().Seconds()
	return p, nil
}

// WriteText writes the preview as text.
func (p *Preview) WriteText(w io.Writer) error {
	at := p.Target
	if p.Upstream != "" {
		at = p.Upstream
	}
	verb := "are at"
	if p.Push {
		verb = "would be pushed, as far as they are not there, to"
	}
	long := "until more pullers bring nothing"
	if p.Seconds > 0 {
		long = "for " + time.Duration(p.Seconds*float64(time.Second)).String()
	}
	if _, err := fmt.Fprintf(w, "%d images of %s %s %s\n", p.Images, report.Bytes(float64(p.Bytes)), verb, at); err != nil {
		return err
	}
	prune := ""
	if p.Prune != NoPrune {
		prune = ", which prunes after each pass (" + string(p.Prune) + ")"
	}
	if _, err := fmt.Fprintf(w, "up to %d pullers (%s) would pull from %s%s, %s\n", p.Pullers, p.Ramp, p.Target, prune, long); err != nil {
		return err
	}
	for _, s := range p.Patterns {
		if _, err := fmt.Fprintf(w, "pattern %q: %d images, such as %s\n", s.Pattern, s.Images, s.First); err != nil {
			return err
		}
	}
	return nil
}

// WriteJSON writes the preview as JSON.
func (p *Preview) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(p)
}
