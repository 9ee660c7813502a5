package images

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"example.org/slipway/agent/registries"
	"example.org/slipway/config"
	"example.org/slipway/gear"
	"example.org/slipway/node/cachedir"
	"example.org/slipway/node/gearfs"
	"example.org/slipway/node/snapshotter"
	"example.org/slipway/node/view"
)

// chains makes the trees of images available without their blobs. It fetches the indexes
// of layers, mounts the trees that they form, and fetches the files.
type chains struct {
	records *records
	trees   string // image files
	mounts  string // where image files are mounted
	pool    string // where the pool is mounted
	// unpacked is the directory of trees that cannot be mounted lazily.
	unpacked string
	files    *gearfs.Service
	cache    *cachedir.Dir
	regs     *registries.Set
	support  *view.Support
	opts     chainOptions
	log      *slog.Logger
	indexes  *registries.Indexes
	volumes  *volumes // nil if none are configured

	// changing is held while records are changed, including the read before.
	changing sync.Mutex

	// ctx ends with the agent. work counts background work.
	ctx  context.Context
	work sync.WaitGroup
	// inUse reports whether a chain is mounted without containerd, alone or as part of
	// another chain.
	inUse func(chain string) bool

	flights singleflight.Group // by chain: the preparation of its tree
	mu      sync.Mutex
	mounted map[string]mountedTree // by chain
	tower   tower                  // of the pull in progress
	later   map[string]*time.Timer // by chain: completion in the background
}

// mountedTree is the tree of a chain as it was mounted.
type mountedTree struct {
	layers snapshotter.Layers
	root   view.Root
}

// still reports whether the tree is mounted and nothing else is in its place.
func (t *mountedTree) still() bool {
	root, mounted, err := view.RootAt(t.layers.Lower[0])
	return err == nil && mounted && root == t.root
}

// chainOptions are the options of chains.
type chainOptions struct {
	record          bool
	background      bool
	backgroundDelay time.Duration
}

// smallRoom is the most bytes of disk that the records of an image and the directories of
// a container take, apart from what roomFor counts.
const smallRoom = 1 << 20

// roomFor returns how many bytes of disk are enough for any one file that is kept of a
// tree: its index, the table of its files, or its image file.
func roomFor(x *gear.Index) int64 {
	n := int64(smallRoom)
	for i := range x.Entries {
		e := &x.Entries[i]
		n += 512 + int64(len(e.Path)+len(e.Link))
		for _, a := range e.Xattrs {
			n += int64(len(a.Name) + len(a.Value))
		}
	}
	for i := range x.Files {
		n += 64 + int64(len(x.Files[i].Chunks)*len(gear.Name{}))
	}
	return n
}

// prepare mounts the tree of a pulled image and fetches the files of its profile, so that
// both are ready when a container starts.
func (c *chains) prepare(chain, ref string) {
	if _, err := c.Mount(c.ctx, chain); err != nil {
		if c.ctx.Err() == nil {
			c.log.Warn("the tree of an image cannot be prepared", "image", ref, "err", err)
		}
		return
	}
	if !c.files.HasImage(chain) || c.eager() {
		return // it is a volume, or everything is on the node
	}
	if _, err := c.files.Prefetch(c.ctx, chain, nil); err != nil && c.ctx.Err() == nil {
		c.log.Warn("the profile's files of an image are not fetched", "image", ref, "err", err)
	}
}

// Mount implements snapshotter.Lower.
func (c *chains) Mount(ctx context.Context, chain string) (snapshotter.Layers, error) {
	c.cache.Room(smallRoom)
	c.mu.Lock()
	t, ok := c.mounted[chain]
	c.mu.Unlock()
	if ok && t.still() {
		return t.layers, nil
	}
	return c.once(ctx, chain, chain, func() (snapshotter.Layers, error) { return c.mount(c.ctx, chain) })
}

// once makes a tree available for all callers with the same key. The first caller works for
// all, so no caller may cancel the work.
func (c *chains) once(ctx context.Context, key, chain string, do func() (snapshotter.Layers, error)) (snapshotter.Layers, error) {
	select {
	case r := <-c.flights.DoChan(key, func() (any, error) { return do() }):
		if r.Err != nil {
			return snapshotter.Layers{}, fmt.Errorf("make the tree of %s available: %w", chain, r.Err)
		}
		return r.Val.(snapshotter.Layers), nil
	case <-ctx.Done():
		return snapshotter.Layers{}, ctx.Err()
	}
}

// mount compiles and mounts the tree of a chain, unless that is already done.
func (c *chains) mount(ctx context.Context, chain string) (snapshotter.Layers, error) {
	var none snapshotter.Layers
	rec, err := c.sound(chain)
	if err != nil {
		return none, err
	}
	l, err := c.mountBy(ctx, rec, rec.way())
	if err != nil {
		return none, err
	}
	root, _, err := view.RootAt(l.Lower[0])
	if err != nil {
		return none, err
	}
	c.mu.Lock()
	c.mounted[chain] = mountedTree{l, root}
	c.mu.Unlock()
	return l, nil
}

// mountWay is like Mount, in a way that may differ from the chain's own; "" is the chain's own
// way.
func (c *chains) mountWay(ctx context.Context, chain, way string) (snapshotter.Layers, error) {
	rec, err := c.sound(chain)
	if err != nil {
		return snapshotter.Layers{}, err
	}
	if way == "" || way == rec.way() {
		return c.Mount(ctx, chain)
	}
	return c.once(ctx, way+" "+chain, chain, func() (snapshotter.Layers, error) { return c.mountBy(c.ctx, rec, way) })
}

// mountBy mounts the tree of a chain in one way.
func (c *chains) mountBy(ctx context.Context, rec *chainRecord, way string) (snapshotter.Layers, error) {
	if way == config.WayGear {
		return c.mountGear(ctx, rec)
	}
	if !rec.Volume.usable() {
		return snapshotter.Layers{}, fmt.Errorf("chain %s is not a volume", rec.Chain)
	}
	dir, err := c.volumes.local(ctx, rec.Volume)
	return snapshotter.Layers{Lower: []string{dir}}, err
}

// mountGear mounts the tree of a chain with the help of its indexes.
func (c *chains) mountGear(ctx context.Context, rec *chainRecord) (snapshotter.Layers, error) {
	var none snapshotter.Layers
	if err := c.fill(ctx, rec.Chain); err != nil {
		return none, err
	}
	x, err := c.know(rec.Chain, rec)
	if err != nil {
		return none, err
	}
	if c.eager() {
		return c.unpack(ctx, rec, x)
	}
	file, err := c.compiled(ctx, rec, x)
	if err != nil {
		return none, err
	}
	dir := filepath.Join(c.mounts, strings.TrimSuffix(filepath.Base(file), view.Suffix))
	m, there, err := view.Mounted(dir)
	if err != nil {
		return none, err
	}
	if !there || m.Type != "erofs" {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return none, err
		}
		if err := view.MountImage(file, dir, c.support.Image()); err != nil {
			return none, err
		}
	}
	data, err := c.files.Data(rec.Chain, c.pool)
	if err != nil {
		return none, err
	}
	return snapshotter.Layers{Lower: []string{dir}, Data: data, Metacopy: c.support.Metacopy}, nil
}

// know registers an image with the file service. It returns the tree if it had to read
// it.
func (c *chains) know(chain string, rec *chainRecord) (*gear.Index, error) {
	if c.files.HasImage(chain) {
		return nil, nil
	}
	x, err := c.flat(chain)
	if err != nil {
		return nil, err
	}
	c.cache.Room(roomFor(x))
	spec := gearfs.ImageSpec{Chain: chain, Ref: rec.Ref, Domain: rec.Domain, Sources: rec.Sources, Layers: rec.Layers}
	if err := c.files.AddImage(spec, x); err != nil {
		return nil, err
	}
	return x, nil
}

// compiled returns the image file of a chain. It compiles the file if there is none or if
// its bytes do not match its name.
func (c *chains) compiled(ctx context.Context, rec *chainRecord, x *gear.Index) (string, error) {
	if rec.Image != "" {
		file := filepath.Join(c.trees, rec.Image)
		err := view.Check(file)
		if err == nil {
			return file, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			c.log.Warn("an image file is made again", "file", file, "err", err)
			if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return "", err
			}
		}
	}
	if x == nil {
		var err error
		if x, err = c.files.Index(rec.Chain); err != nil {
			return "", err
		}
	}
	c.cache.Room(roomFor(x))
	file, err := view.Compile(ctx, x, c.trees)
	if err != nil {
		return "", err
	}
	c.changing.Lock()
	defer c.changing.Unlock()
	if rec, err = c.records.load(rec.Chain); err != nil { // it may have changed meanwhile
		return "", err
	}
	rec.Image = filepath.Base(file)
	return file, c.records.update(rec)
}

// Started implements snapshotter.Lower.
func (c *chains) Started(ctx context.Context, n snapshotter.Container) error {
	way := ""
	if rec, err := c.records.load(n.Chain); err == nil {
		way = rec.way()
	}
	return c.startedBy(ctx, n, way)
}

// startedBy is like Started, for a container whose tree is mounted in the given way.
func (c *chains) startedBy(ctx context.Context, n snapshotter.Container, way string) error {
	if way == config.WayVolume && c.volumes != nil {
		c.volumes.started(n.Key, n.Chain)
		return nil
	}
	if n.Running || c.eager() {
		return c.files.Adopt(n.Key, n.Chain)
	}
	mount := n.Mount
	if !c.opts.record {
		mount = "" // nobody needs to know what it opens
	}
	if err := c.files.ContainerStarted(n.Key, n.Chain, mount); err != nil {
		return err
	}
	if c.opts.background {
		c.completeLater(n.Chain)
	}
	_, err := c.files.Prefetch(ctx, n.Chain, nil)
	return err
}

// adopt registers a mount that an earlier agent made.
func (c *chains) adopt(r *mountRecord) error {
	return c.startedBy(c.ctx, snapshotter.Container{Key: r.key(), Chain: r.Chain, Mount: r.Dir, Running: true}, r.Way)
}

// completeLater fetches the rest of an image some time after the start of one of its
// containers.
func (c *chains) completeLater(chain string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.later[chain] != nil || c.ctx.Err() != nil {
		return
	}
	c.later[chain] = time.AfterFunc(c.opts.backgroundDelay, func() {
		c.mu.Lock()
		delete(c.later, chain)
		c.mu.Unlock()
		if err := c.files.Background(chain, true); err != nil && !errors.Is(err, gearfs.ErrUnknown) && c.ctx.Err() == nil {
			c.log.Warn("an image is not completed in the background", "chain", chain, "err", err)
		}
	})
}

// Stopped implements snapshotter.Lower.
func (c *chains) Stopped(_ context.Context, container string) error {
	c.volumes.stopped(container)
	c.files.ContainerStopped(container)
	return nil
}

// Usage implements snapshotter.Lower. It counts the index, and the image file if there is
// one. Files are not counted, because they are in the cache that all images share.
func (c *chains) Usage(_ context.Context, chain string) (size, inodes int64, err error) {
	rec, err := c.records.load(chain)
	if err != nil {
		return 0, 0, err
	}
	dir, err := c.records.path(chain)
	if err != nil {
		return 0, 0, err
	}
	names := []string{filepath.Join(dir, "index"), filepath.Join(dir, "record.json")}
	if rec.Image != "" {
		names = append(names, filepath.Join(c.trees, rec.Image))
	}
	for _, name := range names {
		if st, err := os.Stat(name); err == nil {
			size += st.Size()
			inodes++
		}
	}
	return size, inodes, nil
}

// Drop implements snapshotter.Lower. It keeps what is mounted without containerd.
func (c *chains) Drop(_ context.Context, chain string) error {
	c.changing.Lock()
	defer c.changing.Unlock()
	rec, err := c.records.load(chain)
	if err == nil && rec.Snapshot && c.inUse(chain) {
		rec.Snapshot = false
		return c.records.update(rec)
	}
	return c.drop(chain)
}

// dropUnless forgets a chain unless a snapshot or something else needs it, and
// reports whether it did.
func (c *chains) dropUnless(chain string, needed func() bool) (bool, error) {
	c.changing.Lock()
	defer c.changing.Unlock()
	all, err := c.records.all(func(string, error) {})
	if err != nil {
		return false, err
	}
	if needed() || slices.ContainsFunc(all, func(r *chainRecord) bool { return r.Parent == chain || r.Chain == chain && r.Snapshot }) {
		return false, nil
	}
	return true, c.drop(chain)
}

// drop forgets a chain. The caller holds changing.
func (c *chains) drop(chain string) error {
	rec, err := c.records.load(chain)
	if errors.Is(err, errNoRecord) {
		return c.records.remove(chain)
	}
	c.mu.Lock()
	delete(c.mounted, chain)
	if t := c.later[chain]; t != nil {
		t.Stop()
		delete(c.later, chain)
	}
	c.mu.Unlock()
	if rec != nil && rec.Volume != nil && rec.Volume.Own {
		if err := c.volumes.remove(c.ctx, rec.Volume); err != nil {
			return err
		}
	}
	if err := c.files.RemoveImage(chain); err != nil {
		return err
	}
	if err := c.records.remove(chain); err != nil {
		return err
	}
	if rec != nil { // it is nil if it was damaged
		c.volumes.release(rec.Volume)
	}
	if err := os.RemoveAll(c.unpackedAt(chain)); err != nil {
		return err
	}
	if rec == nil || rec.Image == "" {
		return nil
	}
	return c.dropImage(rec.Image)
}

// dropImage unmounts and removes an image file that no chain uses any more. Overlays
// above it keep what they need.
func (c *chains) dropImage(image string) error {
	others, err := c.records.all(func(string, error) {})
	if err != nil {
		return err
	}
	if slices.ContainsFunc(others, func(r *chainRecord) bool { return r.Image == image }) {
		return nil
	}
	dir := filepath.Join(c.mounts, strings.TrimSuffix(image, view.Suffix))
	if _, err := view.Unmount(dir); err != nil {
		return err
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Remove(filepath.Join(c.trees, image)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// close cancels the planned completions and waits for background work.
func (c *chains) close() {
	c.mu.Lock()
	for chain, t := range c.later {
		t.Stop()
		delete(c.later, chain)
	}
	c.mu.Unlock()
	c.work.Wait()
}
