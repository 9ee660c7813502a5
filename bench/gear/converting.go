package gear

import (
	"context"
	"fmt"
	"strings"
	"time"

	"example.org/slipway/integration/bench/measure"
)

// Convert says how long images take from the beginning of a push until all their indexes are there.
type Convert struct {
	Run    Run            `json:"run"`
	Images []ConvertImage `json:"images"`
}

// ConvertImage is one image, pushed to a new server in each round.
type ConvertImage struct {
	Image string `json:"image"`
	// Bytes is the size of its layers as they are pushed.
	Bytes   int64     `json:"bytes"`
	Seconds []float64 `json:"sec"`
}

// runConvert pushes the last image of each series.
func runConvert(b *bench, ctx context.Context) error {
	began := time.Now()
	out := &Convert{}
	for i, im := range b.images {
		if i+1 < len(b.images) && b.images[i+1].Series == im.Series {
			continue
		}
		a := After{}
		for range b.Run.Rounds {
			if err := b.after(ctx, im, &a); err != nil {
				return err
			}
		}
		c := ConvertImage{Image: im.String(), Bytes: im.Bytes()}
		for k := range a.Push {
			c.Seconds = append(c.Seconds, a.Push[k]+a.Index[k])
		}
		b.Logf("%s, %s MB: %s s", c.Image, measure.Megabytes(c.Bytes), measure.SpreadOf(c.Seconds))
		out.Images = append(out.Images, c)
	}
	out.Run = b.since(began)
	b.results.Convert = out
	return nil
}

// Title implements [measure.Part].
func (c *Convert) Title() string { return "Conversion of images" }

// About implements [measure.Part].
func (c *Convert) About() string {
	return "The last image of each series is pushed to a new server. The clock runs from the beginning of the push until the client has all indexes."
}

// Head implements [measure.Part].
func (c *Convert) Head() string { return c.Run.Head() }

// Targets implements [measure.Part]: nothing is promised.
func (c *Convert) Targets() []measure.Target { return nil }

// Pictures implements [measure.Part].
func (c *Convert) Pictures() []measure.Picture { return nil }

// Write implements [measure.Part].
func (c *Convert) Write(w *strings.Builder) {
	var rows [][]string
	for _, im := range c.Images {
		s := measure.SpreadOf(im.Seconds)
		rows = append(rows, []string{im.Image, measure.Megabytes(im.Bytes), s.String(), fmt.Sprint(measure.Figure(float64(im.Bytes) / 1e6 / s.Median))})
	}
	measure.Table(w, 1, []string{"image", "MB", "s", "MB/s"}, rows)
}
