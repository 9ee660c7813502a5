package gear

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"example.org/slipway/integration/bench/measure"
)

// Speed says how fast layers are converted, compared with the limit: the same libraries doing the
// work that every conversion must do.
type Speed struct {
	Run    Run          `json:"run"`
	Layers []LayerSpeed `json:"layers"`
}

// LayerSpeed is one layer.
type LayerSpeed struct {
	Layer        string          `json:"layer"`
	Image        string          `json:"image"` // the first image that has it
	Compressed   int64           `json:"compressed"`
	Uncompressed int64           `json:"uncompressed"`
	NewBytes     int64           `json:"new_bytes"`
	Files        int             `json:"files"`
	Limit        []measure.Times `json:"limit"`   // one core
	One          []measure.Times `json:"convert"` // one core
	Two          []measure.Times `json:"convert_two_cores"`
}

const (
	// speedLayers is the number of layers that are converted: the largest ones below speedLargest
	// bytes.
	speedLayers  = 10
	speedLargest = 300 << 20
)

func runSpeed(b *bench, ctx context.Context) error {
	began := time.Now()
	layers := distinct(b.images)
	layers = slices.DeleteFunc(layers, func(s source) bool { return s.Size > speedLargest })
	slices.SortStableFunc(layers, func(a, b source) int { return cmp.Compare(b.Size, a.Size) })
	most := speedLayers
	if b.Run.Quick {
		most = 3
	}
	out := &Speed{}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for i, src := range layers[:min(most, len(layers))] {
		l, err := b.layerSpeed(ctx, src)
		if err != nil {
			return fmt.Errorf("layer %s of %s: %w", src.Digest, src.im, err)
		}
		one, two := l.ratios()
		b.Logf("layer %d, %s MB of %s: %s of the limit on one core, %s on two", i+1, measure.Megabytes(l.Compressed), l.Image,
			measure.SpreadOf(one), measure.SpreadOf(two))
		out.Layers = append(out.Layers, *l)
	}
	out.Run = b.since(began)
	b.results.Speed = out
	return nil
}

// layerSpeed measures a layer: the limit, and the conversion on one core and on two. The order is
// reversed from round to round.
func (b *bench) layerSpeed(ctx context.Context, src source) (*LayerSpeed, error) {
	l := &LayerSpeed{Layer: src.Digest, Image: src.im.String(), Compressed: src.Size}
	first, err := firstLook(src.path()) // this also brings the layer into the page cache
	if err != nil {
		return nil, err
	}
	l.Uncompressed, l.NewBytes, l.Files = first.uncompressed, first.newBytes, len(first.isNew)
	convert := func(cores int) func() (measure.Times, error) {
		return func() (measure.Times, error) {
			c, err := newConverter(ctx, b.NewDir(), cores, src)
			if err != nil {
				return measure.Times{}, err
			}
			t, err := measure.Timed(cores, func() error { return c.convert(ctx, first) })
			return t, errors.Join(err, c.close())
		}
	}
	type step struct {
		to *[]measure.Times
		do func() (measure.Times, error)
	}
	steps := []step{
		{&l.Limit, func() (measure.Times, error) {
			return measure.Timed(1, func() error { return limit(src.path(), first) })
		}},
		{&l.One, convert(1)}, {&l.Two, convert(2)},
	}
	for range b.Run.Rounds {
		for _, s := range steps {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			t, err := s.do()
			if err != nil {
				return nil, err
			}
			*s.to = append(*s.to, t)
		}
		slices.Reverse(steps)
	}
	return l, nil
}

// ratios returns the rates of the conversion divided by the rates of the limit, by round.
func (l *LayerSpeed) ratios() (one, two []float64) {
	for i := range l.Limit {
		one = append(one, l.Limit[i].Wall/l.One[i].Wall)
		two = append(two, l.Limit[i].Wall/l.Two[i].Wall)
	}
	return one, two
}

// Head implements [measure.Part].
func (s *Speed) Head() string { return s.Run.Head() }

// Title implements [measure.Part].
func (s *Speed) Title() string { return "Speed of conversion" }

// About implements [measure.Part].
func (s *Speed) About() string {
	return "Each layer is converted into an empty store, with everything that a server does: an index, packs on the disk and rows in the catalogue are made durable. " +
		"The limit uses the same libraries in the same process on one core, and writes nothing: it gunzips, computes the SHA-256 of the tar and of the contents, and compresses new contents with zstd at the level of fresh packs. " +
		"Both are measured in turn, by the clock. The target is checked against the median over layers of each layer's median ratio."
}

// medians returns the layers' medians of the two ratios.
func (s *Speed) medians() (one, two []float64) {
	for i := range s.Layers {
		a, b := s.Layers[i].ratios()
		one, two = append(one, measure.SpreadOf(a).Median), append(two, measure.SpreadOf(b).Median)
	}
	return one, two
}

// Targets implements [measure.Part].
func (s *Speed) Targets() []measure.Target {
	one, two := s.medians()
	return []measure.Target{
		measure.TargetOf("speed", "conversion / limit, one core", 0.8, true, one),
		measure.TargetOf("speed", "conversion on two cores / limit on one", 1.7, true, two),
	}
}

// Write implements [measure.Part].
func (s *Speed) Write(w *strings.Builder) {
	var rows [][]string
	for i := range s.Layers {
		l := &s.Layers[i]
		rate := func(list []measure.Times) string {
			var v []float64
			for _, t := range list {
				v = append(v, float64(l.Uncompressed)/1e6/t.Wall)
			}
			return measure.SpreadOf(v).String()
		}
		cpu := func(list []measure.Times) string {
			var v []float64
			for _, t := range list {
				v = append(v, t.CPU)
			}
			return measure.Figure(measure.SpreadOf(v).Median)
		}
		one, two := l.ratios()
		rows = append(rows, []string{l.Image, measure.Megabytes(l.Compressed), measure.Megabytes(l.Uncompressed), measure.Megabytes(l.NewBytes), fmt.Sprint(l.Files),
			rate(l.Limit), rate(l.One), rate(l.Two), measure.SpreadOf(one).String(), measure.SpreadOf(two).String(), cpu(l.Limit), cpu(l.One), cpu(l.Two)})
	}
	measure.Table(w, 1, []string{"a layer of", "MB", "unpacked MB", "new MB", "files", "limit MB/s", "converted MB/s", "on two cores MB/s",
		"ratio", "ratio, two cores", "CPU s: limit", "converted", "on two cores"}, rows)
	w.WriteString("\nMB/s are unpacked bytes by the clock.\n")
}

// Pictures implements [measure.Part].
func (s *Speed) Pictures() []measure.Picture {
	c := measure.Chart{Title: "Conversion: MB/s of unpacked layer, all layers"}
	for _, x := range []struct {
		name string
		of   func(*LayerSpeed) []measure.Times
	}{
		{"limit, one core", func(l *LayerSpeed) []measure.Times { return l.Limit }},
		{"converted, one core", func(l *LayerSpeed) []measure.Times { return l.One }},
		{"converted, two cores", func(l *LayerSpeed) []measure.Times { return l.Two }},
	} {
		var v []float64
		for i := range s.Layers {
			for _, t := range x.of(&s.Layers[i]) {
				v = append(v, float64(s.Layers[i].Uncompressed)/1e6/t.Wall)
			}
		}
		c.Series = append(c.Series, measure.Series{Name: x.name, Points: []measure.Spread{measure.SpreadOf(v)}})
	}
	return []measure.Picture{{File: "bench-gear-speed.svg", Chart: c}}
}

// tempDir makes a directory below another.
func tempDir(dir, name string) (string, error) {
	path := filepath.Join(dir, name)
	return path, os.MkdirAll(path, 0o700)
}
