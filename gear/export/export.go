// Package export writes the tree of an image to a directory.
package export

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"example.org/slipway/gear"
)

// Options adjust an export.
type Options struct {
	// Parallel is the number of concurrent fetches; default 4, which is enough to hide a round trip
	// and to keep the disk and two cores busy.
	Parallel int
	// Progress, if set, is called with the state after every file and once at the end. Calls do not
	// overlap.
	Progress func(Progress)
	// Lost, if set, is called for each owner, mode, attribute or device that the file
	// system or the privileges of the process do not allow, and for what [gear.Mountable]
	// leaves out or changes. The export then continues without it. If Lost is nil, such a
	// loss is an error, because the tree would differ from the image. Calls do not
	// overlap.
	Lost func(path, what string, err error)
}

// Progress says how far an export has come. Files and Bytes count regular files as they are
// written, each path once. Fetched counts the bytes requested from the source.
type Progress struct {
	Files, TotalFiles int
	Bytes, TotalBytes int64
	Fetched, ToFetch  int64
}

const (
	// A batch is the set of contents that one Fetch requests. These limits keep all
	// fetches busy until the end, while an image of 2 GB still needs only some thirty
	// round trips.
	batchBytes = 64 << 20
	batchFiles = 4096

	defaultParallel = 4
)

// Tree writes the tree of a flattened index, which has no whiteouts, into dir. It creates
// dir, or dir must be empty. Content, modes, owners, times, extended attributes, hard
// links and devices are as in the index. Content is verified, and fetched once however
// many paths hold it. Long runs of zeros become holes. Directories that are needed but
// not described are as in [Flatten]. A root that is not described is left as it is.
//
// No name in the index leads out of dir, whatever symbolic links the tree holds. If the
// export fails, dir is left incomplete, for inspection only. Devices, foreign owners and
// attributes outside "user." need root.
func Tree(ctx context.Context, x *gear.Index, src gear.FileSource, dir string, opts *Options) error {
	if opts == nil {
		opts = &Options{}
	}
	p, err := planExport(x)
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("export: %w", err)
	}
	root, err := openTree(dir)
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	defer root.close()
	if err := root.takeEmpty(); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	w := &exporter{plan: p, src: src, opts: opts, dir: dir}
	w.progress.TotalFiles = p.files
	w.progress.TotalBytes, w.progress.ToFetch = p.bytes, p.toFetch
	if err := w.run(ctx, root); err != nil {
		return fmt.Errorf("export to %s is incomplete: %w", dir, err)
	}
	return nil
}

// exporter is an export in progress.
type exporter struct {
	plan *exportPlan
	src  gear.FileSource
	opts *Options
	dir  string

	mu       sync.Mutex // guards progress, and calls of Progress and Lost
	progress Progress
}

// run first makes directories, so that every entry has a parent. Then it makes everything
// that has content or is a node, and then the hard links to these. It sets the
// directories' modes and times last: making entries would change the times, and the modes
// might forbid it.
func (w *exporter) run(ctx context.Context, root *tree) error {
	for _, d := range w.plan.dirs {
		if err := w.makeDir(ctx, root, d.Path); err != nil {
			return err
		}
	}
	if err := w.fill(ctx); err != nil {
		return err
	}
	for _, l := range w.plan.links {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := root.link(l.Link, l.Path); err != nil {
			return err
		}
	}
	for _, d := range slices.Backward(w.plan.dirs) {
		if err := w.finishDir(ctx, root, d); err != nil {
			return err
		}
	}
	w.report(func(*Progress) {})
	return nil
}

// fill makes everything but directories and hard links.
func (w *exporter) fill(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	parallel := w.opts.Parallel
	if parallel <= 0 {
		parallel = defaultParallel
	}
	batches := make(chan []content)
	g.Go(func() error {
		defer close(batches)
		for _, b := range w.plan.batches() {
			select {
			case batches <- b:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	for range parallel {
		g.Go(func() error {
			return w.onTree(func(t *tree) error {
				buf := make([]byte, copyBuffer)
				for b := range batches {
					if err := w.fetch(ctx, t, b, buf); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
	g.Go(func() error {
		return w.onTree(func(t *tree) error {
			for _, e := range w.plan.nodes {
				if err := ctx.Err(); err != nil {
					return err
				}
				if err := w.makeNode(t, e); err != nil {
					return err
				}
			}
			return nil
		})
	})
	return g.Wait()
}

// onTree calls f with its own view of the tree, because goroutines cannot share views.
func (w *exporter) onTree(f func(*tree) error) error {
	t, err := openTree(w.dir)
	if err != nil {
		return err
	}
	defer t.close()
	return f(t)
}

// fetch fetches one batch and writes it.
func (w *exporter) fetch(ctx context.Context, t *tree, batch []content, buf []byte) error {
	files := make([]gear.File, len(batch))
	for i, c := range batch {
		files[i] = *c.file
	}
	done := make([]bool, len(batch))
	left := len(batch)
	err := w.src.Fetch(ctx, files, func(i int, r io.Reader) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if i < 0 || i >= len(batch) || done[i] {
			return fmt.Errorf("source delivers file %d of %d, which is not wanted", i, len(batch))
		}
		done[i] = true
		left--
		return w.writeContent(ctx, t, batch[i], r, buf)
	})
	if err != nil {
		return fmt.Errorf("fetch contents: %w", err)
	}
	if left > 0 {
		for i := range batch {
			if !done[i] {
				return fmt.Errorf("fetch contents: source left out %d of %d files, the first is %x for %q",
					left, len(batch), batch[i].file.Name, batch[i].entries[0].Path)
			}
		}
	}
	return nil
}

// report changes the progress and reports it.
func (w *exporter) report(change func(*Progress)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(&w.progress)
	if w.opts.Progress != nil {
		w.opts.Progress(w.progress)
	}
}

// lose handles a property that an entry could not get. It returns nil if the caller of
// Tree accepts the loss.
func (w *exporter) lose(e *gear.Entry, what string, err error) error {
	if err == nil {
		return nil
	}
	forbidden := errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES)
	if w.opts.Lost != nil && (forbidden || errors.Is(err, unix.ENOTSUP) || errors.Is(err, errNotHeld)) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.opts.Lost(e.Path, what, err)
		return nil
	}
	if forbidden && unix.Geteuid() != 0 {
		return fmt.Errorf("%s of %q: %w (an export in full needs root)", what, e.Path, err)
	}
	return fmt.Errorf("%s of %q: %w", what, e.Path, err)
}
