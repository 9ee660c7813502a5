package cider

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/internal/corpus"
	"example.org/slipway/integration/internal/ctrnode"
	"example.org/slipway/integration/internal/treecmp"
)

// Equality says for each image whether its volumes hold the same tree as a plain pull.
type Equality struct {
	Run    measure.Run   `json:"run"`
	Images []EqualityOne `json:"images"`
}

// EqualityOne is the result for one image.
type EqualityOne struct {
	Image string `json:"image"`
	Bytes int64  `json:"bytes"` // compressed, of all layers
	// BuildSec is the time from the push until both file systems were built, including the
	// conversion of the image's layers for Gear.
	BuildSec float64 `json:"build_sec"`
	// Ext4Used and EROFSUsed are the bytes that the volumes store.
	Ext4Used  int64 `json:"ext4_used"`
	EROFSUsed int64 `json:"erofs_used"`
	// Differences counts the differences found, by what was compared: the file system that is
	// mounted once for all containers, and a clone.
	Differences map[string]int `json:"differences"`
	First       string         `json:"first,omitempty"`
	Failure     string         `json:"failure,omitempty"`
}

func runEquality(b *bench, ctx context.Context) error {
	began := time.Now()
	images := b.all
	if b.o.images != "" || b.o.Quick {
		var err error
		if images, err = b.chosen(nil); err != nil {
			return err
		}
	}
	out := &Equality{}
	b.results.Equality = out
	defer func() { out.Run = b.Since(began); out.Run.Rounds = 1 }()
	var errs []error
	for _, im := range images {
		one := EqualityOne{Image: im.String(), Bytes: im.Bytes(), Differences: map[string]int{}}
		if err := b.equality(ctx, im, &one); err != nil {
			one.Failure = err.Error()
			errs = append(errs, fmt.Errorf("%s: %w", im, err))
		}
		out.Images = append(out.Images, one)
		b.Logf("%-24s built in %.1f s; differences %v %s", im, one.BuildSec, one.Differences, one.First)
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// equality compares the trees of one image.
func (b *bench) equality(ctx context.Context, im *corpus.Image, out *EqualityOne) (err error) {
	began := time.Now()
	if err := b.ready(ctx, []*corpus.Image{im}); err != nil {
		return err
	}
	out.BuildSec = time.Since(began).Seconds()
	st := b.built[im.String()]
	for i := range st.Records {
		for _, l := range st.Records[i].Layers {
			if st.Records[i].FS == "ext4" {
				out.Ext4Used += l.Used
			} else {
				out.EROFSUsed += l.Used
			}
		}
	}
	chain, err := im.ChainID()
	if err != nil {
		return err
	}
	plain, err := b.pulled(ctx, im, ctrnode.Plain)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, plain.Stop()) }()
	for _, way := range []string{ctrnode.VolumeLocal, ctrnode.VolumeNetwork} {
		if err := b.compare(ctx, im, chain, plain, way, out); err != nil {
			return fmt.Errorf("in the way %s: %w", way, err)
		}
	}
	return nil
}

// pulled returns a new node that has pulled an image.
func (b *bench) pulled(ctx context.Context, im *corpus.Image, way string) (*ctrnode.Node, error) {
	i := 0
	if way != ctrnode.Plain {
		i = 1
	}
	n, err := b.node(ctx, way, i)
	if err != nil {
		return nil, err
	}
	err = n.Pull(ctx, ref(b.registry, im))
	if err == nil {
		err = (&Deployment{Way: way}).asWanted(ctx, b, im, []*ctrnode.Node{n})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w\n%s", err, n.Logs()), n.Stop())
	}
	return n, nil
}

func (b *bench) compare(ctx context.Context, im *corpus.Image, chain string, plain *ctrnode.Node, way string, out *EqualityOne) (err error) {
	n, err := b.pulled(ctx, im, way)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Stop()) }()
	writable := way == ctrnode.VolumeNetwork
	return plain.Shown(ctx, chain, writable, func(want string) error {
		return n.Shown(ctx, chain, writable, func(got string) error {
			lines, err := treecmp.Compare(want, got, &treecmp.Options{Ignore: func(path, aspect string) bool {
				return path == "lost+found" || path == "." && aspect == "mtime"
			}})
			out.Differences[way] = len(lines)
			if len(lines) > 0 {
				out.First = lines[0]
			}
			return err
		})
	})
}

// Title returns the heading.
func (e *Equality) Title() string { return "Equality" }

// Head says how the part was measured.
func (e *Equality) Head() string { return e.Run.Head() }

// About says what was done.
func (e *Equality) About() string {
	return "Each image is pushed, built as a chain of ext4 clones and as one EROFS volume, and pulled by three nodes: plainly, with volumes in local mode and in network mode. What a container would see is compared with the overlay of the plain pull: names, contents, links, owners, modes, times, devices, extended attributes. Two things are left out: the time of the root directory, which is the time of unpacking if no layer describes it, and ext4's own `lost+found`."
}

// Targets returns the target that there are no differences.
func (e *Equality) Targets() []measure.Target {
	var n, failed int
	for _, im := range e.Images {
		for _, d := range im.Differences {
			n += d
		}
		if im.Failure != "" {
			failed++
		}
	}
	return []measure.Target{
		{Scenario: "equality", What: fmt.Sprintf("differences in %d images", len(e.Images)), Figure: float64(n), Missing: len(e.Images) == 0},
		{Scenario: "equality", What: "images that could not be compared", Figure: float64(failed), Missing: len(e.Images) == 0},
	}
}

// Write writes the table.
func (e *Equality) Write(w *strings.Builder) {
	var rows [][]string
	for _, im := range e.Images {
		row := []string{im.Image, measure.Megabytes(im.Bytes), measure.Megabytes(im.Ext4Used), measure.Megabytes(im.EROFSUsed), measure.Figure(im.BuildSec)}
		for _, way := range []string{ctrnode.VolumeLocal, ctrnode.VolumeNetwork} {
			if im.Failure != "" {
				row = append(row, "-")
				continue
			}
			row = append(row, fmt.Sprint(im.Differences[way]))
		}
		rows = append(rows, row)
	}
	measure.Table(w, 1, []string{"image", "layers MB", "ext4 MB", "EROFS MB", "built s", "differences, local", "differences, network"}, rows)
	for _, im := range e.Images {
		if text := im.First + im.Failure; text != "" {
			fmt.Fprintf(w, "\n%s: %s\n", im.Image, measure.FirstLine(text))
		}
	}
}

// Pictures returns no pictures.
func (e *Equality) Pictures() []measure.Picture { return nil }
