// Package dedup reports how much space a set of images takes with four ways of sharing:
// none (each image by itself), layers (as a registry does), files (as Gear does) and
// chunks of 128 KiB.
//
// A [Set] collects images from OCI image layouts and registries. [Analyse] reads each of
// their layers once and makes a [Report]. A Report can be written as a table, as CSV files
// and as charts.
//
// The levels count the following:
//   - none and layer: the layers' blobs as they are stored. Their uncompressed size is the
//     size of the tar archives in them. Configurations and manifests are not counted.
//   - file: the distinct contents of the regular files that are visible in at least one
//     image. Each is compressed singly, or stored uncompressed if compression does not
//     make it smaller.
//   - chunk: the same contents cut every [ChunkSize] bytes. The distinct chunks are
//     compressed singly. A file up to that size is one chunk.
//
// No level counts directories, links and metadata (Gear's index). A hard link is a path
// like any other.
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

// ChunkSize is the size in bytes of the chunks that files are cut into, as in Table II of
// the Gear paper.
const ChunkSize = 128 << 10

// Options are the options of an analysis. The zero value works.
type Options struct {
	// Workers is how many layers are read at the same time; default: one for each core.
	// Each worker needs about 100 MB (measured with 2).
	Workers int
	// Level is the compression level of zstd, 1 to 22; default 3.
	Level int
	// TempDir is the directory for files of more than 16 MiB while they are examined, one
	// file for each worker; default: the system's directory for temporary files.
	TempDir string
	// Categories maps each series that has a category to it.
	Categories map[string]string
	// Used says what the images need, for [Report.Redundancy].
	Used []Used
	// Progress, when set, is called as the work proceeds. Calls do not overlap.
	Progress func(Progress)
}

// Progress says how far an analysis is.
type Progress struct {
	// Bytes is how many bytes of stored layers have been read, and TotalBytes how many
	// are to be read.
	Bytes, TotalBytes int64
	// Layers is how many layers have been read, and TotalLayers how many are to be read.
	Layers, TotalLayers int
}

// Analyse reads the layers of a set and reports on them. An image is left out if one of
// its layers cannot be read; the report then has a [Problem] for it. Analyse returns an
// error only if there is nothing to report: ctx ended, no image is left, or the temporary
// directory cannot be used.
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

// noImages returns an error which says that there is nothing to analyse, and why if that
// is known.
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
	broken   map[int]bool // images to leave out, by their index in images

	progressMu sync.Mutex
	progress   Progress
}

// layer is a distinct layer.
type layer struct {
	id   uint32
	desc oci.Descriptor
	// places says where the layer can be read, and which images have it there.
	places []layerPlace
	// raw is the size in bytes of the layer's tar archive, and files has the files in it.
	// Both are set once the layer is read.
	raw   int64
	files recording
}

// layerPlace is a place that has a layer, and the images that have it there.
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

// scanLayers reads all layers. It begins with the largest, so that the workers finish at
// about the same time.
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

// scanLayer reads a layer from the first of its places that has it whole. In the other
// places it only checks whether the layer is there. An error ends the analysis.
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
	a.count(l.desc.Size-read, 1) // a layer counts once, even if it was read in part or twice
	return nil
}

// fail leaves out the images that have a layer at a place where the layer is damaged.
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

// count adds to the progress and reports it.
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
