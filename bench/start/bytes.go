package start

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/internal/corpus"
)

// Bytes is the outcome of the scenario: the bytes that come over the wire until the task
// is done, for each version of a series.
type Bytes struct {
	Run      Run       `json:"run"`
	Versions []Version `json:"versions"`
}

// Version is one image of a series, started after all versions before it.
type Version struct {
	Series  string `json:"series"`
	Version string `json:"version"`
	// Plain is the size of all layers of the image with manifest and configuration. New is the size
	// of the layers that no earlier version had.
	Plain int64 `json:"plain"`
	New   int64 `json:"new"`
	// Warm and Empty are the bytes that came over the link with the agent. Warm is for a
	// node that has what earlier versions left, and Empty is for an empty node. 0 means
	// not measured.
	Warm  int64 `json:"warm"`
	Empty int64 `json:"empty"`
}

// runBytes starts all versions of the chosen series, oldest first. It starts each on one common
// node and on an empty one.
func runBytes(b *bench, ctx context.Context) error {
	began := time.Now()
	s := slipway(b.Binary, agentSettings{}) // a start does not include the rest of the image
	if b.system(slipwayName) == nil {
		b.Logf("nothing to measure without the agent: bytes of plain pulls are known")
		return nil
	}
	if err := b.net.shape(ctx, 0); err != nil {
		return err
	}
	out := &Bytes{}
	b.results.Bytes = out
	defer func() { out.Run = b.since(began) }()
	var errs []error
	for _, chosen := range b.images {
		var versions []*corpus.Image
		for _, im := range b.all {
			if im.Series == chosen.Series {
				versions = append(versions, im)
			}
		}
		if err := b.push(ctx, versions); err != nil {
			return err
		}
		if err := b.seriesBytes(ctx, s, versions, out); err != nil {
			errs = append(errs, fmt.Errorf("series %s: %w", chosen.Series, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

func (b *bench) seriesBytes(ctx context.Context, s *system, versions []*corpus.Image, out *Bytes) (err error) {
	warm, err := startNode(ctx, b.NewDir(), s, b.hosts())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, warm.stop()) }()
	seen := map[string]bool{}
	for i, im := range versions {
		v := Version{Series: im.Series, Version: im.Version}
		meta := int64(len(im.Manifest)) + im.Config.Size
		v.Plain, v.New = meta, meta
		for _, l := range im.Layers {
			v.Plain += l.Size
			if !seen[l.Digest] {
				seen[l.Digest] = true
				v.New += l.Size
			}
		}
		if v.Warm, err = b.bytesOf(ctx, warm, im, fmt.Sprintf("warm%d", i)); err != nil {
			return fmt.Errorf("%s: %w\n%s", im, err, warm.logs())
		}
		if v.Empty, err = b.bytesOnEmpty(ctx, s, im); err != nil {
			return err
		}
		b.Logf("%s: %.1f MB plain, %.1f MB new layers; agent %.2f MB warm, %.2f MB empty", im,
			float64(v.Plain)/1e6, float64(v.New)/1e6, float64(v.Warm)/1e6, float64(v.Empty)/1e6)
		out.Versions = append(out.Versions, v)
	}
	return nil
}

func (b *bench) bytesOnEmpty(ctx context.Context, s *system, im *corpus.Image) (n int64, err error) {
	empty, err := startNode(ctx, b.NewDir(), s, b.hosts())
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, empty.stop()) }()
	if n, err = b.bytesOf(ctx, empty, im, "empty"); err != nil {
		err = fmt.Errorf("%s: %w\n%s", im, err, empty.logs())
	}
	return n, err
}

// bytesOf returns the bytes that a pull and the first task bring over the link.
func (b *bench) bytesOf(ctx context.Context, n *node, im *corpus.Image, id string) (int64, error) {
	task, err := taskOf(im, firstTask)
	if err != nil {
		return 0, err
	}
	before, err := b.net.received()
	if err != nil {
		return 0, err
	}
	image := ref(b.registry.host(0), im, n.system)
	if err := n.pull(ctx, image); err != nil {
		return 0, err
	}
	run := n.tasks()
	var after int64
	var readErr error
	run.Done = func() { after, readErr = b.net.received() }
	if _, err := run.Run(ctx, image, id, task); err != nil {
		return 0, err
	}
	return after - before, readErr
}

// shares returns the mean shares of the plain pull, for a series or for all images.
func (by *Bytes) shares(series string) (warm, warmOfNew, empty float64, n int) {
	var plain, fresh, w, e float64
	for _, v := range by.Versions {
		if series == "" || v.Series == series {
			plain, fresh, w, e = plain+float64(v.Plain), fresh+float64(v.New), w+float64(v.Warm), e+float64(v.Empty)
			n++
		}
	}
	return w / plain, w / fresh, e / plain, n
}

// means returns the averages of the series' shares.
func (by *Bytes) means() (warm, warmOfNew, empty float64) {
	list := by.series()
	for _, s := range list {
		w, o, e, _ := by.shares(s)
		warm, warmOfNew, empty = warm+w/float64(len(list)), warmOfNew+o/float64(len(list)), empty+e/float64(len(list))
	}
	return warm, warmOfNew, empty
}

func (by *Bytes) series() (out []string) {
	for _, v := range by.Versions {
		if len(out) == 0 || out[len(out)-1] != v.Series {
			out = append(out, v.Series)
		}
	}
	return out
}

func (by *Bytes) write(w *strings.Builder) {
	w.WriteString("Bytes over the link from nothing to the end of the first task, all versions of a series one after the other, with headers, indexes and requests' answers. " +
		"Plain: all layers of each image, compressed. Warm: the node has kept what earlier versions needed.\n\n")
	percent := func(f float64) string { return measure.Figure(100 * f) }
	var rows [][]string
	for _, s := range by.series() {
		warm, ofNew, empty, n := by.shares(s)
		rows = append(rows, []string{s, fmt.Sprint(n), percent(warm), percent(empty), percent(ofNew)})
	}
	warm, ofNew, empty := by.means()
	rows = append(rows, []string{"mean of the series", fmt.Sprint(len(by.Versions)), percent(warm), percent(empty), percent(ofNew)})
	measure.Table(w, 1, []string{"series", "images", "warm, % of plain", "empty, % of plain", "warm, % of layers that are new to the node"}, rows)
}

// These are the largest shares of the plain pull's bytes that may come over the wire.
// Gear's own shares are 16.2 and 29.1 %.
const (
	mostWarm  = 0.16
	mostEmpty = 0.29
)

func (v *verdict) bytes(by *Bytes) {
	if by == nil || len(by.Versions) == 0 {
		v.open("bytes")
		return
	}
	warm, _, empty := by.means()
	v.target("share of a plain pull's bytes, warm cache", warm, mostWarm, false)
	v.target("share of a plain pull's bytes, empty cache", empty, mostEmpty, false)
}
