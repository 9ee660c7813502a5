// Package starts knows which files containers of an image open first. It keeps what nodes
// reported about starts of the image, and infers the rest: from other images of the
// repository, from the program that the image starts, and from what images with the same
// contents opened.
//
// Packages profile and predict have the rules. This package has the data that they work
// on, and decides who may learn from whom: a repository learns nothing about a file that
// it may not read.
package starts

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/gearfacts"
)

// Source reads images and their files. All methods may run concurrently.
type Source interface {
	// Look returns the index of a layer that a repository shows. Errors: BLOB_UNKNOWN,
	// gear.ErrNotConverted, *gear.PendingError.
	Look(ctx context.Context, repo string, d oci.Digest) (*gear.Index, error)
	// Visible reports which files a repository may read. If wait is set, it waits for
	// files that are being stored.
	Visible(ctx context.Context, repo string, names []gear.Name, wait bool) ([]bool, error)
	// OpenBlob opens a blob at an offset, whichever repository shows it.
	OpenBlob(ctx context.Context, d oci.Digest, off int64) (body io.ReadCloser, size int64, err error)
	// OpenFile opens a file, whichever repository may read it.
	OpenFile(ctx context.Context, name gear.Name) (File, error)
}

// File is an open file.
type File interface {
	Size() int64
	// Content returns all of the file, which is smaller than gear.LargeFile.
	Content(ctx context.Context) ([]byte, error)
	WriteRange(ctx context.Context, w io.Writer, off, n int64) (int64, error)
}

// Options are the options of New.
type Options struct {
	Logger *slog.Logger
	Clock  func() time.Time
	// Owner returns the owner of a repository.
	Owner func(repo string) string
	// Writable returns an error while no reports are taken.
	Writable func() error
}

// Book has what is known about starts. All methods may run concurrently.
type Book struct {
	cat   *catalog.Catalog
	facts gearfacts.Layers
	src   Source
	opts  Options
	log   *slog.Logger

	// predicted has what was inferred. predicting bounds how many inferences run, and is
	// acquired before ballots.mu.
	predicted  predictions
	predicting chan struct{}
	ballots    ballots

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup
	mu     sync.Mutex
	closed bool
}

// New returns a book of what the catalogue has. It reads nothing. The caller must close
// it.
func New(cat *catalog.Catalog, src Source, o Options) *Book {
	b := &Book{cat: cat, facts: gearfacts.NewLayers(cat.DB), src: src, opts: o, log: o.Logger, predicting: make(chan struct{}, predictAtOnce)}
	b.ctx, b.cancel = context.WithCancel(context.Background()) // learning outlives the report
	return b
}

// Close ends the learning and waits for it. The catalogue and the files must stay open
// until it returns.
func (b *Book) Close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.cancel()
	b.work.Wait()
}

// begin runs work that Close waits for, unless the book is closed.
func (b *Book) begin(work func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.work.Go(work)
	}
}
