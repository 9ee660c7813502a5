package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"example.org/slipway/gear"
	"example.org/slipway/gear/export"
	"example.org/slipway/internal/durable"
	"example.org/slipway/node/gearfs"
	"example.org/slipway/node/snapshotter"
	"example.org/slipway/node/view"
)

// eager reports whether trees are unpacked, because this machine cannot mount images
// without their files.
func (c *chains) eager() bool { return c.support.Tier == view.Plain }

// unpackedAt returns where the tree of a chain is unpacked.
func (c *chains) unpackedAt(chain string) string {
	return filepath.Join(c.unpacked, strings.ReplaceAll(chain, ":", "-"))
}

// unpack makes the tree of a chain an ordinary directory, unless it already is. All files
// come from the image's own sources.
func (c *chains) unpack(ctx context.Context, rec *chainRecord, x *gear.Index) (snapshotter.Layers, error) {
	dir, nothing := c.unpackedAt(rec.Chain), filepath.Join(c.unpacked, ".nothing")
	// A read-only overlay needs at least two lower directories.
	layers := snapshotter.Layers{Lower: []string{dir, nothing}}
	if err := os.MkdirAll(nothing, 0o700); err != nil {
		return layers, err
	}
	if _, err := os.Lstat(dir); err == nil {
		return layers, nil
	}
	if x == nil {
		var err error
		if x, err = c.files.Index(rec.Chain); err != nil {
			return layers, err
		}
	}
	tmp, err := os.MkdirTemp(c.unpacked, unpackingPrefix)
	if err != nil {
		return layers, err
	}
	tree := filepath.Join(tmp, "tree")
	err = export.Tree(ctx, x, &unpackSource{c, rec}, tree, &export.Options{Lost: func(path, what string, err error) {
		c.log.Warn("an unpacked image lacks something", "image", rec.Ref, "path", path, "what", what, "err", err)
	}})
	if err == nil {
		err = syncTree(tree)
	}
	if err == nil {
		err = os.Rename(tree, dir)
	}
	if err == nil {
		err = durable.SyncDir(c.unpacked)
	}
	return layers, errors.Join(err, os.RemoveAll(tmp))
}

// unpackingPrefix begins the name of an incomplete tree.
const unpackingPrefix = ".unpacking-"

// cleanUnpacked removes trees that a crash left incomplete.
func cleanUnpacked(dir string) error {
	left, err := filepath.Glob(filepath.Join(dir, unpackingPrefix+"*"))
	for _, d := range left {
		err = errors.Join(err, os.RemoveAll(d))
	}
	return err
}

// syncTree makes a tree durable before it gets its final name.
func syncTree(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}

// unpackSource fetches files from the sources of a chain. It tries the next source if one
// fails.
type unpackSource struct {
	c   *chains
	rec *chainRecord
}

var _ gear.FileSource = (*unpackSource)(nil)

// Fetch implements [gear.FileSource].
func (s *unpackSource) Fetch(ctx context.Context, files []gear.File, deliver func(int, io.Reader) error) error {
	left := make([]int, len(files))
	for i := range left {
		left[i] = i
	}
	var failed error
	for _, ref := range s.rec.Sources {
		var ended error // set by the caller that takes the files
		done := map[int]bool{}
		err := s.fetch(ctx, ref, files, left, func(i int, content io.Reader) error {
			done[i] = true
			ended = deliver(i, content)
			return ended
		})
		if err == nil || ended != nil || ctx.Err() != nil {
			return err
		}
		failed = errors.Join(failed, fmt.Errorf("%s: %w", ref, err))
		var rest []int
		for _, i := range left {
			if !done[i] {
				rest = append(rest, i)
			}
		}
		left = rest
	}
	if failed == nil {
		failed = fs.ErrNotExist
	}
	return fmt.Errorf("no source of %s has its files: %w", s.rec.Ref, failed)
}

// fetch asks one source for the remaining files.
func (s *unpackSource) fetch(ctx context.Context, ref gearfs.SourceRef, files []gear.File, left []int, deliver func(int, io.Reader) error) error {
	src, err := s.c.regs.Dial(ref)
	if err != nil {
		return err
	}
	ask := make([]gear.File, len(left))
	for k, i := range left {
		ask[k] = files[i]
	}
	return src.Fetch(ctx, ask, func(k int, content io.Reader) error { return deliver(left[k], content) })
}
