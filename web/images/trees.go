package images

import (
	"container/list"
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/web/format"
)

const (
	// maxTreeEntries is how many entries an image's layers may have together, and also
	// its tree. The files of larger images are not shown.
	maxTreeEntries = 1_200_000
	// maxTreeBytes is how many bytes of memory the layers may take together. A million
	// entries with names of usual length take some 300 MB, and the tree takes about as
	// much again.
	maxTreeBytes = 512 << 20
	// maxTreeLayers is how many layers an image may have. It is more than runtimes can
	// stack.
	maxTreeLayers = gearfacts.MaxShareLayers
	// treesBytes is how many bytes of trees are kept. The last tree is kept in any case.
	treesBytes = 128 << 20
	// makePatience is how long a request for a tree waits while another tree is made.
	makePatience = 2 * time.Second
	// walkers is how many pages walk trees at once. Comparing two trees of a million
	// entries takes a second and some 200 MB.
	walkers = 2
	// maxCounts is how many images may wait for a count of what they share, including the
	// image that is being counted.
	maxCounts = 16
)

// trees holds the file trees that were shown last, and the places for work on trees.
type trees struct {
	// making is taken while a tree is built. Only one tree is built at a time, so that
	// memory is bounded. A request for the same tree waits and gets it.
	making   chan struct{}
	patience time.Duration
	// walking is taken by pages that read all of a tree. counting is taken while what an
	// image shares is counted. waiting is taken by all who count or wait to count.
	walking, counting, waiting chan struct{}

	mu    sync.Mutex
	byKey map[string]*list.Element // elements hold *fileTree
	order *list.List               // the most recently used first
	bytes int64
}

func newTrees() *trees {
	return &trees{making: make(chan struct{}, 1), patience: makePatience, walking: make(chan struct{}, walkers), counting: make(chan struct{}, 1),
		waiting: make(chan struct{}, maxCounts), byKey: map[string]*list.Element{}, order: list.New()}
}

// take waits for one of the places. done gives it back.
func take(ctx context.Context, places chan struct{}) (done func(), err error) {
	select {
	case places <- struct{}{}:
		return func() { <-places }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (t *trees) get(key string) *fileTree {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.byKey[key]
	if e == nil {
		return nil
	}
	t.order.MoveToFront(e)
	return e.Value.(*fileTree)
}

func (t *trees) put(f *fileTree) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byKey[f.key] != nil {
		return
	}
	t.byKey[f.key] = t.order.PushFront(f)
	t.bytes += f.cost
	t.shrink()
}

// grew records that a tree takes the given bytes more, or less, than before.
func (t *trees) grew(f *fileTree, bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f.cost += bytes
	if e := t.byKey[f.key]; e != nil && e.Value.(*fileTree) == f {
		t.bytes += bytes
		t.shrink()
	}
}

// shrink drops trees, the least recently used first.
func (t *trees) shrink() {
	for t.bytes > treesBytes && t.order.Len() > 1 {
		old := t.order.Remove(t.order.Back()).(*fileTree)
		delete(t.byKey, old.key)
		t.bytes -= old.cost
	}
}

// noFiles says why the files of an image cannot be shown, and what the user can do.
type noFiles struct {
	Title, Text, Command string
}

func (e *noFiles) Error() string { return e.Title + ": " + e.Text }

// treeOf returns the files of an image. It returns *noFiles if there are none to show.
func (p *Pages) treeOf(ctx context.Context, repo string, img *image) (*fileTree, error) {
	layers, err := img.gearLayers()
	if err != nil {
		return nil, err
	}
	for i, d := range layers { // also for a cached tree: the right to see it may have ended
		if err := p.opts.Files.MayLook(ctx, repo, d); err != nil {
			return nil, p.whyNoFiles(repo, &img.Layers[i], err)
		}
	}
	key := treeKey(layers)
	if t := p.trees.get(key); t != nil {
		return t, nil
	}
	patience, end := context.WithTimeout(ctx, p.trees.patience)
	done, err := take(patience, p.trees.making)
	end()
	switch {
	case ctx.Err() != nil && err != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, &noFiles{Title: "Not read yet", Text: "Another image is being read. Load this page again in a moment."}
	}
	defer done()
	if t := p.trees.get(key); t != nil {
		return t, nil
	}
	indexes, err := p.indexesOf(ctx, repo, img)
	if err != nil {
		return nil, err
	}
	t, err := newFileTree(key, indexes)
	switch {
	case errors.Is(err, gear.ErrTooLarge):
		return nil, &noFiles{Title: "Too many files", Text: "The files of this image are more than this page shows: " + format.Visible(err.Error()) + "."}
	case errors.Is(err, gear.ErrConflict):
		return nil, &noFiles{Title: "The layers contradict each other", Text: format.Visible(err.Error())}
	case err != nil:
		return nil, err
	}
	t.layers = layers
	p.trees.put(t)
	return t, nil
}

// indexesOf reads the indexes of an image's layers. A layer that occurs several times
// gets the same index each time. It returns *noFiles if an index is missing.
func (p *Pages) indexesOf(ctx context.Context, repo string, img *image) ([]*gear.Index, error) {
	read := map[oci.Digest]*gear.Index{}
	var out []*gear.Index
	var entries int
	var bytes int64
	for i := range img.Layers {
		l := &img.Layers[i]
		x := read[l.Digest]
		if x == nil {
			var err error
			if x, err = p.opts.Files.Look(ctx, repo, l.Digest); err != nil {
				return nil, p.whyNoFiles(repo, l, err)
			}
			read[l.Digest] = x
			tables, texts := indexBytes(x)
			bytes += tables + texts
		}
		if entries += len(x.Entries); entries > maxTreeEntries || bytes > maxTreeBytes {
			return nil, &noFiles{Title: "Too many files", Text: "The layers of this image have more than " + format.Count(maxTreeEntries) + " files, directories and links together, or take more than " + format.Bytes(maxTreeBytes) + " of memory with their names and attributes, which is more than this page shows."}
		}
		out = append(out, x)
	}
	return out, nil
}

func treeKey(layers []oci.Digest) string {
	var b strings.Builder
	for _, d := range layers {
		b.WriteString(string(d))
		b.WriteByte(' ')
	}
	return b.String()
}

// whyNoFiles explains in words why a layer's index is missing.
func (p *Pages) whyNoFiles(repo string, l *oci.Descriptor, err error) error {
	const again = "slipway convert --all --again --config CONFIG"
	short := format.ShortDigest(string(l.Digest))
	var pending *gear.PendingError
	switch {
	case errors.Is(err, gear.ErrNotConverted) && !p.opts.Files.Converts(repo):
		return &noFiles{"Not converted", "Conversion to Gear is off for this repository (gear.convert or gear.rules of the configuration), so the files of layer " + short + " are not known. Whoever runs the registry can convert all layers:", "slipway convert --all --config CONFIG"}
	case errors.Is(err, gear.ErrNotConverted):
		return &noFiles{"Not converted", "Layer " + short + " was stored before conversion to Gear was on, or while it was off. Whoever runs the registry can convert all layers:", "slipway convert --all --config CONFIG"}
	case errors.As(err, &pending) && pending.RetryAfter == 0:
		return &noFiles{"The conversion failed", "Layer " + short + " could not be converted to Gear: " + format.Visible(pending.Reason) + ". Clients pull the image as it was pushed. To have it tried again:", again}
	case errors.As(err, &pending) && pending.Reason != "":
		return &noFiles{"Not converted yet", "Layer " + short + " is tried again soon; the last attempt came to: " + format.Visible(pending.Reason) + ".", ""}
	case errors.As(err, &pending):
		return &noFiles{"Not converted yet", "Layer " + short + " is being converted to Gear, or waits for it. Load this page again in a moment.", ""}
	case errors.Is(err, gear.ErrTooLarge) || errors.Is(err, gear.ErrVersion) || errors.Is(err, gear.ErrInvalid):
		return &noFiles{"The index cannot be read", "The index of layer " + short + " is larger than gear.max_entries of the configuration allows by now, of another version of this program, or damaged: " + format.Visible(err.Error()) + ". To have it made again:", again}
	case oci.HasCode(err, oci.CodeBlobUnknown) && len(l.URLs) > 0:
		return &noFiles{"Not all of it is here", "Layer " + short + " is not here: the image names another place where clients fetch it.", ""}
	case oci.HasCode(err, oci.CodeBlobUnknown):
		return &noFiles{"Not all of it is here", "Layer " + short + " is not here. In a mirror it comes with the first pull.", ""}
	}
	return err
}
