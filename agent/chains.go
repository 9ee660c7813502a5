package agent

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

	"example.org/slipway/gear"
	"example.org/slipway/gearfs"
	"example.org/slipway/gearfs/cachedir"
	"example.org/slipway/gearfs/view"
	"example.org/slipway/oci"
	"example.org/slipway/snapshotter"
)

// chains make the trees of images available without their blobs: they fetch the
// indexes of layers, mount what these are together, and have the files come.
// They are the Lower of the snapshotter.
type chains struct {
	records *records
	trees   string // image files
	mounts  string // where these are mounted
	pool    string // where the pool is mounted
	files   *gearfs.Service
	cache   *cachedir.Dir
	regs    *registries
	support *view.Support
	opts    chainOptions
	log     *slog.Logger
	pulls   *pulls

	// changing is held while records are changed, from reading them on.
	changing sync.Mutex

	// ctx ends with the agent; work is what goes on behind the calls.
	ctx  context.Context
	work sync.WaitGroup
	// inUse tells whether a chain is mounted without containerd, alone or as a
	// part of another one.
	inUse func(chain string) bool

	flights singleflight.Group // by chain: preparing its tree
	mu      sync.Mutex
	mounted map[string]mountedTree // by chain
	later   map[string]*time.Timer // by chain: completion in the background
}

// mountedTree is a chain's tree as it was mounted.
type mountedTree struct {
	layers snapshotter.Layers
	root   view.Root
}

// still tells whether the tree is mounted, and nothing else in its place.
func (t *mountedTree) still() bool {
	root, mounted, err := view.RootAt(t.layers.Lower[0])
	return err == nil && mounted && root == t.root
}

// chainOptions are the choices of chains.
type chainOptions struct {
	record          bool
	background      bool
	backgroundDelay time.Duration
}

var _ snapshotter.Lower = (*chains)(nil)

// Claim implements snapshotter.Lower.
func (c *chains) Claim(ctx context.Context, l snapshotter.Layer) (bool, error) {
	ok, err := c.claim(ctx, l, true)
	c.log.Debug("layer of a pull", "image", l.ImageRef, "layer", l.Digest, "chain", l.ChainID, "claimed", ok, "err", err)
	return ok, err
}

// claim is Claim for a snapshot, or for a mount without one.
func (c *chains) claim(ctx context.Context, l snapshotter.Layer, snapshot bool) (bool, error) {
	if c.support.Tier == view.Plain || l.ImageRef == "" || l.Manifest == "" || l.Digest == "" {
		return false, nil
	}
	ref, err := parseReference(l.ImageRef)
	if err != nil {
		return false, err
	}
	reg, err := c.regs.of(ref)
	if err != nil {
		return false, err
	}
	sources := reg.refs(ref, l.Manifest)
	err = c.claimAgain(l.ChainID, sources, snapshot)
	if errors.Is(err, errNoRecord) {
		var ok bool
		if ok, err = c.claimNew(ctx, l, ref, reg, snapshot); !ok && err == nil {
			return false, nil
		}
	}
	if err != nil {
		return false, err
	}
	if len(l.Layers) == 1 { // the image is whole: its start can be prepared
		c.background(func() { c.prepare(l.ChainID, l.ImageRef) })
	}
	return true, nil
}

// claimNew fetches the index of a layer and keeps it. Without one there is no
// record.
func (c *chains) claimNew(ctx context.Context, l snapshotter.Layer, ref reference, reg *registry, snapshot bool) (bool, error) {
	var below []string
	if l.Parent != "" {
		parent, err := c.records.load(l.Parent)
		if err != nil {
			return false, err
		}
		below = parent.Layers
	}
	for _, d := range l.Layers { // those above are asked for at the same time
		c.pulls.begin(reg, ref, oci.Digest(d))
	}
	c.pulls.ahead(reg, ref, oci.Digest(l.Manifest))
	x, diffID, err := c.pulls.wait(ctx, reg, ref, oci.Digest(l.Digest))
	if err != nil || x == nil {
		return false, err
	}
	if diffID != "" && l.DiffID != "" && diffID != l.DiffID {
		return false, fmt.Errorf("registry %s gives the index of another layer for %s: %w", reg.host, l.Digest,
			&gear.MismatchError{What: "diff ID", Want: oci.Digest(l.DiffID), Got: oci.Digest(diffID)})
	}
	sources := reg.refs(ref, l.Manifest)
	c.changing.Lock()
	defer c.changing.Unlock()
	if err := c.merge(l.ChainID, sources, snapshot); !errors.Is(err, errNoRecord) {
		return err == nil, err // somebody was quicker
	}
	if l.Parent != "" { // it may have been dropped meanwhile
		if _, err := c.records.load(l.Parent); err != nil {
			return false, err
		}
	}
	rec := &chainRecord{Chain: l.ChainID, Parent: l.Parent, Digest: l.Digest, Ref: l.ImageRef, Snapshot: snapshot,
		Sources: sources, Layers: append(slices.Clone(below), l.Digest)}
	if err := c.records.create(rec, x); err != nil {
		return false, fmt.Errorf("keep the index of layer %s: %w", l.Digest, err)
	}
	return true, nil
}

// claimAgain notes who else has a chain that is known. Errors: errNoRecord.
func (c *chains) claimAgain(chain string, sources []gearfs.SourceRef, snapshot bool) error {
	c.changing.Lock()
	defer c.changing.Unlock()
	return c.merge(chain, sources, snapshot)
}

// merge is claimAgain. changing is held.
func (c *chains) merge(chain string, sources []gearfs.SourceRef, snapshot bool) error {
	rec, err := c.records.load(chain)
	if err != nil {
		return err
	}
	n := len(rec.Sources)
	for _, s := range sources {
		if !slices.Contains(rec.Sources, s) {
			rec.Sources = append(rec.Sources, s)
		}
	}
	if len(rec.Sources) == n && (rec.Snapshot || !snapshot) {
		return nil
	}
	rec.Snapshot = rec.Snapshot || snapshot
	if err := c.records.update(rec); err != nil {
		return err
	}
	if c.files.HasImage(rec.Chain) {
		return c.files.AddImage(gearfs.ImageSpec{Chain: rec.Chain, Sources: sources}, nil)
	}
	return nil
}

// background does something that the caller does not wait for.
func (c *chains) background(do func()) {
	c.work.Add(1)
	go func() {
		defer c.work.Done()
		do()
	}()
}

// prepare mounts the tree of an image that has been pulled and has the files of
// its profile fetched, so that both are there when a container starts.
func (c *chains) prepare(chain, ref string) {
	if _, err := c.Mount(c.ctx, chain); err != nil {
		if c.ctx.Err() == nil {
			c.log.Warn("the tree of an image cannot be prepared", "image", ref, "err", err)
		}
		return
	}
	if _, err := c.files.Prefetch(c.ctx, chain, nil); err != nil && c.ctx.Err() == nil {
		c.log.Warn("the profile's files of an image are not fetched", "image", ref, "err", err)
	}
}

// Mount implements snapshotter.Lower.
func (c *chains) Mount(ctx context.Context, chain string) (snapshotter.Layers, error) {
	c.mu.Lock()
	t, ok := c.mounted[chain]
	c.mu.Unlock()
	if ok && t.still() {
		return t.layers, nil
	}
	// Whoever comes first works for all, so none of them ends it.
	done := c.flights.DoChan(chain, func() (any, error) { return c.mount(c.ctx, chain) })
	select {
	case r := <-done:
		if r.Err != nil {
			return snapshotter.Layers{}, fmt.Errorf("make the tree of %s available: %w", chain, r.Err)
		}
		return r.Val.(snapshotter.Layers), nil
	case <-ctx.Done():
		return snapshotter.Layers{}, ctx.Err()
	}
}

// mount compiles and mounts the tree of a chain, as far as that is not done.
func (c *chains) mount(ctx context.Context, chain string) (snapshotter.Layers, error) {
	var none snapshotter.Layers
	rec, err := c.records.load(chain)
	if err != nil {
		return none, err
	}
	x, err := c.know(chain, rec)
	if err != nil {
		return none, err
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
	root, _, err := view.RootAt(dir)
	if err != nil {
		return none, err
	}
	l := snapshotter.Layers{Lower: []string{dir}, Data: []string{c.cache.Files(), c.pool}, Metacopy: c.support.Metacopy}
	c.mu.Lock()
	c.mounted[chain] = mountedTree{l, root}
	c.mu.Unlock()
	return l, nil
}

// know makes the file service know an image. The tree is returned if it was read
// for that.
func (c *chains) know(chain string, rec *chainRecord) (*gear.Index, error) {
	if c.files.HasImage(chain) {
		return nil, nil
	}
	line, err := c.records.line(chain)
	if err != nil {
		return nil, err
	}
	var layers []*gear.Index
	for _, r := range line {
		x, err := c.records.index(r)
		if err != nil {
			return nil, err
		}
		layers = append(layers, x)
	}
	x, err := gear.Flatten(layers...)
	if err != nil {
		return nil, fmt.Errorf("the layers do not fit together: %w", err)
	}
	spec := gearfs.ImageSpec{Chain: chain, Ref: rec.Ref, Sources: rec.Sources, Layers: rec.Layers}
	if err := c.files.AddImage(spec, x); err != nil {
		return nil, err
	}
	return x, nil
}

// compiled returns the image file of a chain, compiling it if there is none or
// if its bytes are not those it is called by.
func (c *chains) compiled(ctx context.Context, rec *chainRecord, x *gear.Index) (string, error) {
	if rec.Image != "" {
		file := filepath.Join(c.trees, rec.Image)
		err := view.Check(file)
		if err == nil {
			return file, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			c.log.Warn("an image file is made anew", "file", file, "err", err)
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

// Started implements snapshotter.Lower. The opens of these containers are
// recorded as far as they reach the pool. Whoever watches all of them opens what
// was opened himself, in the pool too: a worker that were killed while it does
// would wait for the next worker, which begins when it has ended.
func (c *chains) Started(ctx context.Context, n snapshotter.Container) error {
	n.Mount = ""
	return c.started(ctx, n)
}

// started is Started for a container whose opens are watched, if it says where
// it is mounted.
func (c *chains) started(ctx context.Context, n snapshotter.Container) error {
	if n.Running {
		return c.files.Adopt(n.Key, n.Chain)
	}
	mount := n.Mount
	if !c.opts.record {
		mount = "" // nobody asks for what it opens
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

// completeLater has the rest of an image fetched some time after the start of a
// container of it.
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
	c.files.ContainerStopped(container)
	return nil
}

// Usage implements snapshotter.Lower: the index, and the image file if there is
// one. Files are in the cache that all images share.
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

// Drop implements snapshotter.Lower. What is mounted without containerd stays.
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
// tells whether it did.
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

// drop forgets a chain. changing is held.
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
	if err := c.files.RemoveImage(chain); err != nil {
		return err
	}
	if err := c.records.remove(chain); err != nil {
		return err
	}
	if rec == nil || rec.Image == "" { // rec is nil if it was damaged
		return nil
	}
	return c.dropImage(rec.Image)
}

// dropImage unmounts and removes an image file that no chain has any more.
// Overlays above it keep what they need.
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

// close waits for what goes on.
func (c *chains) close() {
	c.mu.Lock()
	for chain, t := range c.later {
		t.Stop()
		delete(c.later, chain)
	}
	c.mu.Unlock()
	c.work.Wait()
}
