package dedup

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"example.org/slipway/gear/rootfs"
)

// amount is a number of objects with their sizes in bytes.
type amount struct {
	objects     int64
	stored, raw int64
}

// tally has the counts of a series, of a category, or of all images.
type tally struct {
	name, category string
	// none counts all images without sharing. Its objects are the images.
	none   amount
	layers set
	files  set // contents visible in at least one image
	paths  Sizes

	// These fields cover the images whose needs are known: the number of images, the
	// bytes they hold, the bytes each of them needs, summed, and the contents they need
	// together.
	usedImages         int
	usedHold, usedNeed int64
	needed             set
	usedUnknown        int // used paths and names that are not files of the image
}

// add adds another tally. What both have in common counts once.
func (t *tally) add(u *tally) {
	t.none.objects += u.none.objects
	t.none.stored += u.none.stored
	t.none.raw += u.none.raw
	t.layers.union(u.layers)
	t.files.union(u.files)
	for i := range t.paths {
		t.paths[i].Files += u.paths[i].Files
		t.paths[i].Bytes += u.paths[i].Bytes
	}
	t.usedImages += u.usedImages
	t.usedHold += u.usedHold
	t.usedNeed += u.usedNeed
	t.needed.union(u.needed)
	t.usedUnknown += u.usedUnknown
}

// tallySeries counts the images that are not broken. It counts several series at the same
// time. The result is sorted by category and name.
func (a *analysis) tallySeries(ctx context.Context) ([]*tally, error) {
	bySeries := map[string][]image{}
	for i, img := range a.images {
		if !a.broken[i] {
			bySeries[img.series] = append(bySeries[img.series], img)
		}
	}
	used := newUsedIndex(a.opts.Used, a.table)
	tallies := make([]*tally, 0, len(bySeries))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(a.opts.Workers)
	for series, images := range bySeries {
		t := &tally{name: series, category: a.opts.Categories[series]}
		if t.category == "" {
			t.category = NoCategory
		}
		tallies = append(tallies, t)
		g.Go(func() error {
			dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
			if err != nil {
				return fmt.Errorf("set up zstd: %w", err)
			}
			defer dec.Close()
			for _, img := range images {
				if err := ctx.Err(); err != nil {
					return err
				}
				if err := a.tallyImage(t, img, dec, used); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	slices.SortFunc(tallies, func(x, y *tally) int {
		return cmp.Or(cmp.Compare(x.category, y.category), cmp.Compare(x.name, y.name))
	})
	return tallies, nil
}

// tallyImage counts one image.
func (a *analysis) tallyImage(t *tally, img image, dec *zstd.Decoder, used usedIndex) error {
	fs := newTree()
	t.none.objects++
	for _, d := range img.layers {
		l := a.byName[d.Digest]
		t.layers.add(l.id)
		t.none.stored += l.desc.Size
		t.none.raw += l.raw
		list, err := l.files.entries(dec)
		if err != nil {
			return err
		}
		fs.apply(list)
	}
	var hold int64
	fs.root.eachFile(func(id uint32) {
		size := a.table.list[id].size
		t.files.add(id)
		t.paths.add(size)
		hold += size
	})
	u, ok := used.images[img.String()]
	if !ok {
		return nil
	}
	need := used.resolve(u, fs)
	t.usedImages++
	t.usedHold += hold
	t.usedUnknown += need.unknown
	for id := range need.ids.all() {
		t.usedNeed += a.table.list[id].size
	}
	t.needed.union(need.ids)
	return nil
}

// group makes the rows of Table II.
func (a *analysis) group(t *tally) Group {
	var layers amount
	for id := range t.layers.all() {
		layers.objects++
		layers.stored += a.layers[id].desc.Size
		layers.raw += a.layers[id].raw
	}
	g := Group{Name: t.name, Category: t.category, Images: int(t.none.objects)}
	if t.category == NoCategory {
		g.Category = ""
	}
	for i, am := range []amount{t.none, layers, a.table.amount(t.files), a.table.amount(a.table.chunks(t.files))} {
		g.Rows[i] = Row{Dedup: Level(i), Objects: am.objects, StoredBytes: am.stored, RawBytes: am.raw}
	}
	for i := range g.Rows {
		g.Rows[i].SavedOfNone = saved(g.Rows[i].StoredBytes, t.none.stored)
		if Level(i) >= File {
			g.Rows[i].SavedOfLayer = saved(g.Rows[i].StoredBytes, layers.stored)
		}
	}
	return g
}

// saved returns the share of whole that part saves. If whole is 0, nothing is saved.
func saved(part, whole int64) float64 {
	if whole == 0 {
		return 0
	}
	return 1 - float64(part)/float64(whole)
}

// appendRedundancy appends what is known about the needs of a tally, if anything is
// known.
func (a *analysis) appendRedundancy(list []Redundancy, t *tally) []Redundancy {
	if t.usedImages == 0 {
		return list
	}
	distinct := a.table.amount(t.needed).raw
	return append(list, Redundancy{
		Name: t.name, Images: t.usedImages, HeldBytes: t.usedHold, NeededBytes: t.usedNeed, DistinctBytes: distinct,
		Redundant: saved(distinct, t.usedNeed),
	})
}

// usedIndex finds used files by image and by content.
type usedIndex struct {
	images map[string]Used
	// byPrefix maps the first half of a content's name to the content.
	byPrefix map[prefix]uint32
}

// need is what an image needs.
type need struct {
	ids     set
	unknown int // paths and names that are not files of the image
}

func newUsedIndex(list []Used, c *contents) usedIndex {
	x := usedIndex{images: map[string]Used{}}
	named := false
	for _, u := range list {
		x.images[u.Image] = u
		named = named || len(u.contents) > 0
	}
	if named {
		x.byPrefix = map[prefix]uint32{}
		for n, id := range c.ids {
			x.byPrefix[prefix(n[:len(prefix{})])] = id
		}
	}
	return x
}

// resolve finds the used files in an image.
func (x usedIndex) resolve(u Used, fs *tree) (n need) {
	for _, path := range u.Files {
		if f := fs.walk(path, false, true); f != nil && f.kind == rootfs.File {
			n.ids.add(f.id)
		} else {
			n.unknown++
		}
	}
	for _, p := range u.contents {
		if id, ok := x.byPrefix[p]; ok {
			n.ids.add(id)
		} else {
			n.unknown++
		}
	}
	return n
}
