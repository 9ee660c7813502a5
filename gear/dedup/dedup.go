// Package dedup tells how much room a set of images takes under four ways of
// sharing: none (each image by itself), layers (as a registry does), files (as
// Gear does) and chunks of 128 KiB.
//
// A [Set] collects images from OCI image layouts and registries; [Analyse]
// reads each of their layers once and makes a [Report], which writes itself as
// a table, as CSV files and as charts.
//
// What is counted:
//   - none and layer: the layers' blobs as they are stored; uncompressed, the
//     tar archives in them. Configurations and manifests are not counted.
//   - file: the distinct contents of the regular files that are visible in at
//     least one image, each compressed singly, or as it is where compression
//     does not make it smaller.
//   - chunk: the same contents cut every [ChunkSize] bytes, the distinct chunks
//     compressed singly. A file up to that size is one chunk.
//
// Directories, links and metadata (Gear's index) are not counted in either. A
// hard link is a path like any other.
package dedup

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"example.org/slipway/oci"
)

// ChunkSize is the size in bytes that files are cut into: Gear, Table II.
const ChunkSize = 128 << 10

// Options of an analysis. The zero value works.
type Options struct {
	// Workers is how many layers are read at once; default: one for each core.
	// Each needs about 100 MB (measured with 2).
	Workers int
	// Level of zstd, 1 to 22; default 3.
	Level int
	// TempDir is where files of more than 16 MiB lie while they are looked at,
	// one for each worker; default: the system's.
	TempDir string
	// Categories is the category of each series that has one.
	Categories map[string]string
	// Used is what the images need, for [Report.Redundancy].
	Used []Used
	// Progress is told how far the work is. Calls do not overlap.
	Progress func(Progress)
}

// Progress is how far an analysis is.
type Progress struct {
	// Bytes of stored layers read, and to read.
	Bytes, TotalBytes int64
	// Layers read, and to read.
	Layers, TotalLayers int
}

// Analyse reads the layers of a set and reports on them. An image whose layers
// cannot all be read is left out and a [Problem] of the report; an error is
// returned only when there is nothing to report: ctx ended, no image is left,
// or the temporary directory cannot be used.
func Analyse(ctx context.Context, s *Set, o *Options) (*Report, error) {
	var opts Options
	if o != nil {
		opts = *o
	}
	if opts.Workers <= 0 {
		opts.Workers = runtime.GOMAXPROCS(0)
	}
	if opts.Level == 0 {
		opts.Level = 3
	}
	if len(s.images) == 0 {
		return nil, noImages(s.problems)
	}
	a := &analysis{opts: opts, images: s.images, table: newContents()}
	a.problems = append(a.problems, s.problems...)
	a.collectLayers()
	if err := a.scanLayers(ctx); err != nil {
		return nil, err
	}
	series, err := a.tallySeries(ctx)
	if err != nil {
		return nil, err
	}
	if len(series) == 0 {
		return nil, noImages(a.problems)
	}
	rep := a.report(series)
	rep.Skipped = s.skipped
	return rep, nil
}

// noImages says that there is nothing to analyse, and why where that is known.
func noImages(problems []Problem) error {
	if len(problems) == 0 {
		return errors.New("no images found")
	}
	return fmt.Errorf("no image is left: %s, and %d problems in all", problems[0], len(problems))
}

// analysis is a run of Analyse.
type analysis struct {
	opts   Options
	images []image
	table  *contents
	layers []*layer // in order of first appearance
	byName map[oci.Digest]*layer

	mu       sync.Mutex
	problems []Problem
	broken   map[int]bool // images to leave out, by their place in images

	progressMu sync.Mutex
	progress   Progress
}

// layer is a distinct layer.
type layer struct {
	id   uint32
	desc oci.Descriptor
	// places are where it can be read, with the images that have it there.
	places []layerPlace
	// raw is the size in bytes of its tar archive, and files what is in it;
	// set once it is read.
	raw   int64
	files recording
}

// layerPlace is one store of a layer.
type layerPlace struct {
	place  place
	images []int
}

// collectLayers makes the list of distinct layers.
func (a *analysis) collectLayers() {
	a.byName, a.broken = map[oci.Digest]*layer{}, map[int]bool{}
	for i, img := range a.images {
		for _, d := range img.layers {
			l := a.byName[d.Digest]
			if l == nil {
				l = &layer{id: uint32(len(a.layers)), desc: d}
				a.byName[d.Digest] = l
				a.layers = append(a.layers, l)
				a.progress.TotalBytes += d.Size
			}
			l.addPlace(img.place, i)
		}
	}
	a.progress.TotalLayers = len(a.layers)
}

func (l *layer) addPlace(p place, img int) {
	for i := range l.places {
		if l.places[i].place == p {
			l.places[i].images = append(l.places[i].images, img)
			return
		}
	}
	l.places = append(l.places, layerPlace{p, []int{img}})
}

// scanLayers reads all layers, the largest first so that the workers end
// together.
func (a *analysis) scanLayers(ctx context.Context) error {
	queue := slices.Clone(a.layers)
	slices.SortStableFunc(queue, func(x, y *layer) int { return int(min(max(y.desc.Size-x.desc.Size, -1), 1)) })
	next := make(chan *layer)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(next)
		for _, l := range queue {
			select {
			case next <- l:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	for range min(a.opts.Workers, len(queue)) {
		g.Go(func() error {
			sc, err := newScanner(a.table, a.opts.Level, a.opts.TempDir, a.count)
			if err != nil {
				return err
			}
			defer sc.close()
			for l := range next {
				if err := a.scanLayer(ctx, sc, l); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// scanLayer reads a layer from the first of its places that has it whole; in
// the others it only looks whether it is there. The error is one that ends the
// analysis.
func (a *analysis) scanLayer(ctx context.Context, sc *scanner, l *layer) error {
	read, found := int64(0), false
	for _, p := range l.places {
		var err error
		if found {
			err = p.place.look(l.desc)
		} else {
			var n int64
			n, err = sc.scan(ctx, p.place, l)
			read, found = read+n, err == nil
		}
		var own *scannerError
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &own):
			return own.err
		default:
			a.fail(p, l, err)
		}
	}
	a.count(l.desc.Size-read, 1) // a layer read in part or twice counts once
	return nil
}

// fail leaves out the images that have a layer at a place where it is damaged.
func (a *analysis) fail(p layerPlace, l *layer, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	problem := Problem{Where: p.place.String(), Digest: l.desc.Digest, Err: err.Error()}
	for _, i := range p.images {
		a.broken[i] = true
		if name := a.images[i].String(); !slices.Contains(problem.Images, name) {
			problem.Images = append(problem.Images, name)
		}
	}
	a.problems = append(a.problems, problem)
}

// count adds to the progress and shows it.
func (a *analysis) count(bytes int64, layers int) {
	a.progressMu.Lock()
	defer a.progressMu.Unlock()
	a.progress.Bytes += bytes
	a.progress.Layers += layers
	if a.opts.Progress != nil {
		a.opts.Progress(a.progress)
	}
}

// report sums the series up.
func (a *analysis) report(series []*tally) *Report {
	rep := &Report{Level: a.opts.Level, Images: len(a.images) - len(a.broken)}
	all := &tally{name: "all"}
	categories := map[string]*tally{}
	for _, t := range series {
		all.add(t)
		rep.Series = append(rep.Series, a.group(t))
		rep.Redundancy = a.appendRedundancy(rep.Redundancy, t)
		rep.UsedUnknown += t.usedUnknown
		if len(a.opts.Categories) == 0 {
			continue
		}
		c := categories[t.category]
		if c == nil {
			c = &tally{name: t.category}
			categories[t.category] = c
		}
		c.add(t)
	}
	for _, c := range categories {
		rep.Categories = append(rep.Categories, a.group(c))
	}
	slices.SortFunc(rep.Categories, func(x, y Group) int { return strings.Compare(x.Name, y.Name) })
	rep.All = a.group(all)
	if len(rep.Redundancy) > 1 {
		rep.Redundancy = a.appendRedundancy(rep.Redundancy, all)
	}
	rep.Paths = all.paths
	for id := range all.files.all() {
		rep.Unique.add(a.table.list[id].size)
	}
	rep.UsedImages = all.usedImages
	rep.Problems = a.problems
	slices.SortFunc(rep.Problems, func(x, y Problem) int {
		return strings.Compare(x.String(), y.String())
	})
	left := map[string]bool{}
	for _, p := range rep.Problems {
		for _, i := range p.Images {
			left[i] = true
		}
	}
	rep.LeftOut = len(left)
	return rep
}
