package recipes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/gear/filestore"
	"example.org/slipway/gear/rebuild"
	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/storage"
)

// flight is one rebuild of a layer. All readers of the layer share it.
type flight struct {
	s      *Store
	l      gearfacts.LayerRecipe
	file   *os.File // without a name
	ctx    context.Context
	cancel context.CancelFunc

	refs  int         // guarded by s.mu
	idle  time.Time   // since when nobody reads it, if refs is 0; guarded by s.mu
	timer *time.Timer // set until the flight is forgotten; guarded by s.mu

	mu      sync.Mutex
	n       int64 // number of bytes that may be read from the beginning
	done    bool  // all bytes are there, and the digest was right
	err     error
	changed chan struct{} // closed when one of these fields has changed
}

// acquire returns the rebuild of a layer, and begins one if there is none. The caller
// releases it.
func (s *Store) acquire(l *gearfacts.LayerRecipe) (*flight, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errors.New("the object store is closed")
	}
	f := s.flights[l.Digest]
	if f != nil {
		if f.refs == 0 {
			f.unkeep()
			s.inUse += f.l.Size
		}
		f.refs++
		return f, nil
	}
	file, err := nameless(s.opts.TempDir)
	if err != nil {
		return nil, failure(spooling, err)
	}
	f = &flight{s: s, l: *l, file: file, refs: 1, changed: make(chan struct{})}
	f.ctx, f.cancel = context.WithCancel(s.stop)
	s.flights[l.Digest] = f
	s.inUse += l.Size
	s.makeRoom()
	s.wg.Go(f.run)
	return f, nil
}

// makeRoom forgets layers that nobody reads, those first that were read last the longest
// time ago, until all layers together fit. s.mu is held.
func (s *Store) makeRoom() {
	for s.kept > 0 && s.kept+s.inUse > s.opts.KeepBytes {
		var oldest *flight
		for _, f := range s.flights {
			if f.refs == 0 && (oldest == nil || f.idle.Before(oldest.idle)) {
				oldest = f
			}
		}
		oldest.unkeep()
		oldest.forget()
	}
}

// unkeep ends the time for which the flight is kept without readers. s.mu is held.
func (f *flight) unkeep() {
	f.timer.Stop()
	f.s.kept -= f.l.Size
}

// spooling is what fails with an error of the file of a flight.
const spooling = "keep a rebuilt layer in a temporary file"

// nameless creates a file that has no name and disappears when it is closed.
func nameless(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, "slipway-layer-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// release ends the use of a flight. A flight that nobody waits for is ended, and its
// result is kept for a while.
func (f *flight) release() {
	s := f.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.refs--; f.refs > 0 {
		return
	}
	s.inUse -= f.l.Size
	_, done, err := f.state()
	if !done || err != nil || s.closed || s.kept+s.inUse+f.l.Size > s.opts.KeepBytes {
		f.forget()
		return
	}
	s.kept += f.l.Size
	f.idle = time.Now()
	f.timer = time.AfterFunc(s.opts.KeepFor, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if f.refs == 0 && s.flights[f.l.Digest] == f {
			f.unkeep()
			f.forget()
		}
	})
}

// forget drops a flight that nobody uses. s.mu is held.
func (f *flight) forget() {
	if f.s.flights[f.l.Digest] == f {
		delete(f.s.flights, f.l.Digest)
	}
	f.cancel()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.done || f.err != nil { // otherwise run closes it
		f.file.Close()
	}
}

// forgetAll drops the kept results. It is called when nothing is rebuilt any more.
func (s *Store) forgetAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.flights {
		if f.refs == 0 {
			f.unkeep()
			f.forget()
		}
	}
}

// run rebuilds the layer.
func (f *flight) run() {
	defer f.cancel()
	began := time.Now()
	err := f.rebuild()
	f.s.metrics.rebuilt(f.l.Size, time.Since(began), err)
	f.s.mu.Lock()
	if err != nil && f.s.flights[f.l.Digest] == f {
		delete(f.s.flights, f.l.Digest) // the next reader tries again
	}
	if err == nil {
		f.s.counts.of[f.l.Digest]++
	}
	unused := f.refs == 0
	f.mu.Lock()
	f.done, f.err = err == nil, err
	if unused {
		f.file.Close()
	}
	f.wake()
	f.mu.Unlock()
	f.s.mu.Unlock()
	if err != nil && f.ctx.Err() == nil {
		f.s.log.Error("a dropped layer cannot be rebuilt", "layer", f.l.Digest, "err", err)
	}
}

func (f *flight) rebuild() error {
	select {
	case f.s.slots <- struct{}{}:
		defer func() { <-f.s.slots }()
	case <-f.ctx.Done():
		return f.ctx.Err()
	}
	err := rebuildLayer(f.ctx, f.s.files, &f.l, f, f.s.opts.Workers)
	switch {
	case err == nil:
		return nil
	case f.ctx.Err() != nil:
		return f.ctx.Err()
	case isLoss(err):
		return fmt.Errorf("rebuild layer %s: %v: %w", f.l.Digest, err, objstore.ErrCorrupt)
	}
	return failure("rebuild layer "+string(f.l.Digest), err)
}

// isLoss reports whether an error of a rebuild says that contents of the layer are missing,
// or have other bytes than they should. Any other error says nothing about the layer: the
// catalogue did not answer, say, or a pack may not be read, or its medium did not give it
// back this time.
func isLoss(err error) bool {
	if objstore.IsBusy(err) {
		return false
	}
	var corrupt *filestore.CorruptError
	return errors.As(err, &corrupt) || slices.ContainsFunc([]error{rebuild.ErrDamaged, filestore.ErrLost, filestore.ErrNotFound,
		gear.ErrContent, gear.ErrFormat, objstore.ErrNotExist, objstore.ErrCorrupt}, func(e error) bool { return errors.Is(err, e) })
}

// failure is an error that says nothing about a layer, whatever the system calls it. Without
// it, a reader would take "permission denied" for a damaged object, and clients would be
// told that there is no such layer.
func failure(doing string, err error) error {
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return &objstore.BusyError{Err: fmt.Errorf("%s: %w", doing, err)}
}

// Write takes the next bytes of the layer.
func (f *flight) Write(p []byte) (int, error) {
	n, err := f.file.WriteAt(p, f.n) // nobody else changes n
	if err != nil {
		err = failure(spooling, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n += int64(n)
	f.wake()
	return n, err
}

// wake informs the waiting readers that something has changed. mu is held.
func (f *flight) wake() {
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *flight) state() (n int64, done bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.n, f.done, f.err
}

// await waits until bytes behind off are there. If whole is set, it waits until the whole
// layer is there and verified. It returns how far the layer may be read.
func (f *flight) await(ctx context.Context, off int64, whole bool) (int64, error) {
	for {
		f.mu.Lock()
		n, done, err, changed := f.n, f.done, f.err, f.changed
		f.mu.Unlock()
		switch {
		case done || err == nil && !whole && n > off:
			return n, nil
		case err != nil:
			return 0, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// open opens a range of a dropped layer. It returns when the first byte of the range is
// there.
func (s *Store) open(ctx context.Context, key string, l *gearfacts.LayerRecipe, off, n int64) (objstore.Object, error) {
	if off < 0 {
		return nil, fmt.Errorf("offset %d is negative", off)
	}
	off = min(off, l.Size)
	if n < 0 || n > l.Size-off {
		n = l.Size - off
	}
	f, err := s.acquire(l)
	if err != nil {
		return nil, err
	}
	o := &object{f: f, ctx: ctx, info: infoOf(key, l), at: off, end: off + n, whole: off > 0 || n < l.Size}
	if n > 0 {
		if _, err := f.await(ctx, off, o.whole); err != nil {
			return nil, errors.Join(err, o.Close())
		}
	}
	return o, nil
}

// Rebuilt returns a layer that was rebuilt from its recipe and verified, whatever the
// state of its object is.
func (s *Store) Rebuilt(ctx context.Context, l *gearfacts.LayerRecipe) (objstore.Object, error) {
	f, err := s.acquire(l)
	if err != nil {
		return nil, err
	}
	o := &object{f: f, ctx: ctx, info: infoOf(storage.BlobKey(l.Digest), l), end: l.Size, whole: true}
	if _, err := f.await(ctx, 0, true); err != nil {
		return nil, errors.Join(err, o.Close())
	}
	return o, nil
}

// Recipe returns what is known about the recipe of a layer. Errors: catalog.ErrNotFound if
// it has none.
func (s *Store) Recipe(ctx context.Context, d oci.Digest) (gearfacts.LayerRecipe, error) {
	l, err := gearfacts.NewRecipes(s.cat.DB).LayerRecipe(ctx, d)
	if err == nil && l.State == gearfacts.RecipeRefused {
		err = catalog.ErrNotFound
	}
	return l, err
}

// object is a range of a layer that is being rebuilt.
type object struct {
	f    *flight
	ctx  context.Context // as of Get
	info objstore.Info
	at   int64
	end  int64
	// whole says that the layer must be verified before any byte is returned, because a
	// reader of a range could not notice that it is wrong.
	whole  bool
	closed bool
}

// Info implements objstore.Object.
func (o *object) Info() objstore.Info { return o.info }

// Read implements io.Reader.
func (o *object) Read(p []byte) (int, error) {
	if o.at >= o.end {
		return 0, io.EOF
	}
	n, err := o.f.await(o.ctx, o.at, o.whole)
	if err != nil {
		return 0, err
	}
	k, err := o.f.file.ReadAt(p[:min(int64(len(p)), min(n, o.end)-o.at)], o.at)
	o.at += int64(k)
	if err == io.EOF && o.at < o.end {
		err = nil
	}
	if err != nil && err != io.EOF {
		err = failure(spooling, err)
	}
	return k, err
}

// WriteTo implements io.WriterTo.
func (o *object) WriteTo(w io.Writer) (int64, error) {
	return io.Copy(w, struct{ io.Reader }{o})
}

// Close implements io.Closer.
func (o *object) Close() error {
	if !o.closed {
		o.closed = true
		o.f.release()
	}
	return nil
}

// places reads a dropped layer at arbitrary offsets.
type places struct {
	f    *flight
	once sync.Once
}

// ReadAt implements io.ReaderAt.
func (p *places) ReadAt(b []byte, off int64) (int, error) {
	if _, err := p.f.await(p.f.s.stop, off, true); err != nil {
		return 0, err
	}
	n, err := p.f.file.ReadAt(b, off)
	if err != nil && err != io.EOF {
		err = failure(spooling, err)
	}
	return n, err
}

// Close implements io.Closer.
func (p *places) Close() error {
	p.once.Do(p.f.release)
	return nil
}
