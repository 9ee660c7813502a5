package fill

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/mirror/upstream"
	"example.org/slipway/registry/verify"
)

const (
	// smallBlob is the size in bytes of the largest blob that is fetched into RAM.
	smallBlob = 1 << 20
	// heldBack is how many bytes at the end of a blob are given to nobody before the
	// digest is known to be right. A blob that is not larger is held back as a whole.
	heldBack = 64 << 10
)

// Fill is a blob that is being fetched. run fetches it once. All who want the blob read
// the bytes that have already been written.
type Fill struct {
	fs     *Fills
	o      Origin // whose repository was asked first
	digest oci.Digest
	// continues says that there is a file of an earlier fill.
	continues bool
	began     time.Time
	settled   chan struct{} // closed when the fill is over, whether the blob was stored or not
	// ctx is the context of run. It ends with the registry, or when quit cancels it.
	ctx    context.Context
	cancel context.CancelFunc

	// The next fields are guarded by Fills.mu:
	repos  map[string]bool // the repositories whose readers are let in
	closed bool            // no further repositories are let in

	mu       sync.Mutex
	changed  chan struct{} // closed at the next change, nil while nobody waits
	size     int64         // -1: unknown
	buf      []byte        // for a blob in RAM
	file     *spool        // for any other blob
	based    bool          // buf or file is set
	written  int64
	verified bool
	// given says that a reader was given bytes before they were verified.
	given   bool
	err     error
	readers int
	idle    time.Time // when the last reader left
	ended   bool      // and no longer in the table, so that no more readers come
}

var _ sink = (*Fill)(nil)

func newFill(fs *Fills, o Origin, d oci.Digest) *Fill {
	f := &Fill{fs: fs, o: o, digest: d, repos: map[string]bool{o.Repo: true}, size: -1, settled: make(chan struct{}), began: time.Now()}
	f.ctx, f.cancel = context.WithCancel(fs.ctx)
	return f
}

func (f *Fill) key() key { return f.o.key(f.digest) }

// path returns the file of a blob that is not in RAM.
func (f *Fill) path() string { return f.fs.path(f.key()) }

// enter adds a reader. The reader later calls Leave.
func (f *Fill) enter() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.readers++
}

// Leave ends the part of a reader.
func (f *Fill) Leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.readers--; f.readers > 0 {
		return
	}
	f.idle = f.fs.opts.Clock()
	switch {
	case f.ended:
		f.free()
	case !f.based && f.err == nil: // nothing has been fetched yet, so nothing is lost
		f.quit()
	}
}

// quit ends a fill that nobody reads. A reader that comes later looks again. f.mu is
// held.
func (f *Fill) quit() {
	f.err = ErrLookAgain
	f.cancel()
	f.notify()
}

// end notes that the fill is no longer in the table, and the error if it failed.
func (f *Fill) end(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err, f.ended = err, true
	if f.readers == 0 {
		f.free()
	}
	f.notify()
}

// free releases the memory of the blob. f.mu is held.
func (f *Fill) free() { f.fs.memory.Add(-int64(cap(f.buf))) }

// abandoned reports whether the fill has been without readers for too long. f.mu is held.
func (f *Fill) abandoned() bool {
	return f.readers == 0 && !f.idle.IsZero() && f.fs.opts.Clock().Sub(f.idle) > f.fs.opts.Linger
}

// notify wakes all goroutines that wait for a change. f.mu is held.
func (f *Fill) notify() {
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

// waitFor waits until ready returns true or the fill has failed. f.mu must be held;
// waitFor releases it while it waits.
func (f *Fill) waitFor(ctx context.Context, ready func() bool) error {
	for !ready() {
		if f.err != nil {
			return f.err
		}
		if f.changed == nil {
			f.changed = make(chan struct{})
		}
		changed := f.changed
		f.mu.Unlock()
		err := upstream.Await(ctx, changed)
		f.mu.Lock()
		if err != nil {
			return err
		}
	}
	return nil
}

// limit returns the offset up to which readers may read. f.mu is held.
func (f *Fill) limit() int64 {
	switch {
	case f.verified:
		return f.written
	case f.size < 0:
		return 0
	}
	return min(f.written, f.size-heldBack)
}

// errResized ends a reader that was given a wrong size.
var errResized = &oci.Error{Code: oci.CodeUnavailable, Message: "the blob turned out to have another size than the upstream had said; ask again"}

// wait waits until there are bytes for c and returns the offset of their end.
func (f *Fill) wait(c *content) (end int64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	err = f.waitFor(c.ctx, func() bool { return f.verified || f.limit() > c.off })
	switch {
	case err != nil:
	case f.size != c.size || (f.file != nil) != (c.file != nil): // see reset
		return 0, errResized
	case !f.verified:
		f.given = true
	}
	return f.limit(), err
}

// Right reports whether the digest has been found right. The blob is then about to be
// stored.
func (f *Fill) Right() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.verified
}

// Whole returns the blob's size. A blob that is held back as a whole has no certain size
// until it is verified, so Whole waits for that.
func (f *Fill) Whole(ctx context.Context) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return 0, f.err
	}
	err := f.waitFor(ctx, func() bool { return f.verified || f.size > heldBack })
	return f.size, err
}

// Open opens a part of the blob for a reader that has entered. The reader may be of
// another repository than the fill. Then it must not learn what the upstream says of the
// fill's repository.
func (f *Fill) Open(ctx context.Context, by Origin, p Span) (oci.Content, error) {
	size, err := f.Whole(ctx)
	switch {
	case isSpoolError(err):
		return f.openPast(ctx, by, p)
	case errors.Is(err, ErrLookAgain): // the fill may still be in the table
		return nil, f.over(ctx)
	case err != nil:
		return nil, err
	}
	c := &content{ctx: ctx, f: f, by: by, size: size}
	if c.off, c.end, err = p.In(size); err != nil {
		return nil, err
	}
	f.mu.Lock()
	onDisk := f.file != nil
	f.mu.Unlock()
	if onDisk {
		err = c.openFile()
		if errors.Is(err, os.ErrNotExist) {
			err = f.over(ctx)
		}
	}
	switch {
	case isSpoolError(err):
		return f.openPast(ctx, by, p)
	case err != nil:
		return nil, err
	}
	return c, nil
}

// Digest returns the digest of the blob.
func (f *Fill) Digest() oci.Digest { return f.digest }

// For reports whether the fill was begun for a repository.
func (f *Fill) For(repo string) bool { return f.o.Repo == repo }

// Settled returns a channel that is closed when the fill is over, whether the blob was
// stored or not.
func (f *Fill) Settled() <-chan struct{} { return f.settled }

// over waits until the fill is over and returns its error. It returns ErrLookAgain if the
// fill succeeded: the blob is then in the store.
func (f *Fill) over(ctx context.Context) error {
	if err := upstream.Await(ctx, f.settled); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return f.err
	}
	return ErrLookAgain
}

// openPast opens a part of the blob at the upstream, because the fill has nowhere to put
// the blob.
func (f *Fill) openPast(ctx context.Context, by Origin, p Span) (oci.Content, error) {
	size, err := by.Host.Ask(ctx, by, f.digest)
	if err != nil {
		return nil, err
	}
	if size < 0 {
		return nil, &upstream.Error{Kind: upstream.Unavailable, Upstream: by.Upstream, Err: fmt.Errorf("it does not say the size of blob %s, for which there is no room here", f.digest)}
	}
	off, end, err := p.In(size)
	if err != nil {
		return nil, err
	}
	c := &content{ctx: ctx, f: f, by: by, size: size, off: off, end: end}
	c.past = newPassage(c)
	return c, nil
}

// run fetches the blob, gives its bytes to the readers, and stores it.
func (f *Fill) run() {
	defer f.cancel()
	err := f.fetch(f.ctx)
	defer close(f.settled)
	if err != nil {
		f.fail(err)
		return
	}
	f.o.Host.Fetched(f.o, f.digest, f.written, time.Since(f.began))
	repos := f.fs.close(f)
	left := f.store(repos)
	for _, repo := range repos {
		f.fs.opts.Stored(repo, f.digest)
	}
	f.fs.remove(f, left)
	f.end(nil)
}

// fail ends a fill with an error. It keeps what was fetched for the next fill, unless
// that is known to be wrong or there is no room for it.
func (f *Fill) fail(err error) {
	kind := upstream.KindOf(err)
	keep := f.written > 0 && !isSpoolError(err) && !errors.Is(err, ErrLookAgain) &&
		kind != upstream.Wrong && kind != upstream.NotFound && kind != upstream.Denied
	onDisk := f.continues
	switch {
	case f.file != nil:
		onDisk = true
		f.file.close()
	case f.written > 0: // the bytes are in RAM, and nothing is on disk
		if keep {
			onDisk = true
			if werr := os.WriteFile(f.path(), f.buf[:f.written], 0o600); werr != nil {
				f.fs.opts.Logger.Warn("keep what was fetched of a blob", "digest", f.digest, "bytes", f.written, "err", werr)
				keep = false
			}
		}
	case f.continues: // the fill ended before it looked at the old file
		keep = kind != upstream.NotFound && kind != upstream.Denied
	}
	if onDisk && !keep {
		f.removeFile()
	}
	f.mu.Lock()
	quit := f.err != nil
	f.mu.Unlock()
	switch {
	case f.fs.ctx.Err() != nil:
		err = ErrClosed()
	case quit:
		f.fs.opts.Logger.Info("stop fetching a blob that nobody reads any more", "upstream", f.o.Upstream, "repo", f.o.Repo, "digest", f.digest, "bytes", f.written, "size", f.size, "kept", keep)
		err = ErrLookAgain
	case !errors.Is(err, ErrLookAgain):
		f.o.Host.Failed(f.o, f.digest, err)
		f.fs.opts.Logger.Warn("fetch a blob", "upstream", f.o.Upstream, "repo", f.o.Repo, "digest", f.digest, "bytes", f.written, "size", f.size, "kept", keep, "err", err)
	}
	f.fs.remove(f, keep) // before the readers learn of the error and come again
	f.end(err)
}

func (f *Fill) removeFile() {
	if err := os.Remove(f.path()); err != nil && !errors.Is(err, os.ErrNotExist) {
		f.fs.opts.Logger.Warn("remove what was fetched of a blob", "digest", f.digest, "err", err)
	}
}

// maxRestarts is how many times a blob that turned out to be wrong is fetched anew, as
// long as nobody was given any of it.
const maxRestarts = 2

// fetch fetches the whole blob and checks it.
func (f *Fill) fetch(ctx context.Context) error {
	for restarts := 0; ; restarts++ {
		err := f.fetchOnce(ctx)
		if upstream.KindOf(err) != upstream.Wrong || restarts == maxRestarts || !f.reset() {
			return err
		}
	}
}

func (f *Fill) fetchOnce(ctx context.Context) error {
	d := &download{fs: f.fs, o: f.o, digest: f.digest, size: f.size}
	if f.continues {
		if err := f.resume(ctx, d); err != nil {
			return err
		}
	}
	if !f.based || d.at < d.size || d.size <= 0 {
		if err := d.run(ctx, f); err != nil {
			return err
		}
	}
	got, err := f.sum()
	if err != nil {
		return err
	}
	if got != f.digest {
		return d.wrongDigest(got)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return errAbandoned
	}
	f.verified, f.size = true, f.written
	f.notify()
	return nil
}

// reset empties the fill so that the blob can be fetched anew. It returns false if
// somebody was given bytes of the blob, or if there is nothing to empty. It forgets the
// size, too, because that may have been as wrong as the bytes.
func (f *Fill) reset() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.given || !f.based {
		return false
	}
	if f.file != nil { // keep the same file, because readers may have it open
		f.file.close()
		file, err := newSpool(f.path(), f.digest, f.fs.opts.KeepFree)
		if err != nil {
			return false
		}
		f.file = file
	}
	f.written, f.size, f.continues = 0, -1, false
	return true
}

// resume continues the file of an earlier fill. First the upstream must confirm that it
// has the blob and lets us have it.
func (f *Fill) resume(ctx context.Context, d *download) error {
	var desc oci.Descriptor
	err := upstream.Patiently(ctx, f.fs.opts.Patience, func() (err error) {
		desc, err = f.o.Registry.ResolveBlob(ctx, f.o.Name, f.digest)
		return err
	})
	if err != nil {
		return err
	}
	file, n, err := resumeSpool(ctx, f.path(), f.digest, desc.Size, f.fs.opts.KeepFree)
	if err != nil {
		return &sinkError{err}
	}
	f.fs.opts.Logger.Info("go on with a blob of an earlier run", "upstream", f.o.Upstream, "repo", f.o.Repo, "digest", f.digest, "at", n, "size", desc.Size)
	d.at, d.size = n, desc.Size
	f.mu.Lock()
	defer f.mu.Unlock()
	f.file, f.size, f.written, f.based = file, desc.Size, n, true
	f.notify()
	return nil
}

// begin implements sink. It decides where the blob is put.
func (f *Fill) begin(ctx context.Context, size int64) error {
	if f.based && (f.file != nil || size == int64(len(f.buf))) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.size != size { // the size was not known before
			f.size = size
			f.notify()
		}
		return nil
	}
	if size > smallBlob && !f.o.Guarded {
		// The upstream has just shown that the repository has the blob, so the copy of
		// another repository may be shown. A registry that a client chose could claim to
		// have any digest, so it must send the whole blob.
		_, err := f.fs.opts.Store.LinkStored(ctx, f.o.Repo, f.digest)
		if err == nil {
			return ErrLookAgain
		}
		if !oci.HasCode(err, oci.CodeBlobUnknown) {
			f.fs.opts.Logger.Warn("look for a blob of other repositories", "digest", f.digest, "err", err)
		}
	}
	var buf []byte
	var file *spool
	if small := size >= 0 && size <= smallBlob; small && f.fs.memory.Add(size) <= f.fs.opts.MemoryBytes {
		buf = make([]byte, size)
	} else {
		if small {
			f.fs.memory.Add(-size)
		}
		var err error
		if file, err = newSpool(f.path(), f.digest, f.fs.opts.KeepFree); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.free() // a buffer of the wrong size, from before a reset
	f.size, f.buf, f.file, f.based = size, buf, file, true
	f.notify()
	return nil
}

// space implements sink.
func (f *Fill) space() []byte {
	if f.file != nil {
		return f.file.space()
	}
	return f.buf[f.written:]
}

// errAbandoned ends a fill that nobody reads.
var errAbandoned = errors.New("nobody reads the blob any more")

// take implements sink.
func (f *Fill) take(n int) error {
	if f.file != nil {
		if err := f.file.take(n); err != nil {
			return err
		}
	}
	if f.written == 0 {
		// Let the readers that wait for the first bytes run first. Otherwise fetching and
		// hashing the following bytes would keep two processors busy.
		defer runtime.Gosched()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.written += int64(n)
	f.notify()
	if f.abandoned() {
		f.quit()
		return errAbandoned
	}
	return nil
}

// sum returns the digest of the bytes that were fetched.
func (f *Fill) sum() (oci.Digest, error) {
	if f.file != nil {
		return f.file.finish()
	}
	h := verify.NewHash(f.digest)
	h.Write(f.buf)
	return verify.Sum(f.digest, h), nil
}

// store stores the blob and makes it visible in the repositories. left reports whether
// the file of the fill is still there.
func (f *Fill) store(repos []string) (left bool) {
	if f.file == nil {
		f.fs.opts.Gather(f.fs.ctx)
	}
	ctx, cancel := f.fs.storing()
	defer cancel()
	var err error
	if f.file == nil {
		_, err = f.fs.opts.Store.AdoptBytes(ctx, f.o.Repo, f.digest, f.buf)
	} else {
		_, err = f.fs.opts.Store.AdoptBlob(ctx, f.o.Repo, f.digest, f.written, f.path())
	}
	if err != nil {
		f.fs.opts.Logger.Warn("store a blob that was fetched", "repo", f.o.Repo, "digest", f.digest, "bytes", f.written, "err", err)
		if f.file == nil {
			return false
		}
		_, statErr := os.Stat(f.path())
		return statErr == nil // the next request for the blob tries to store it again
	}
	for _, repo := range repos {
		if repo == f.o.Repo {
			continue
		}
		if _, err := f.fs.opts.Store.LinkStored(ctx, repo, f.digest); err != nil {
			f.fs.opts.Logger.Warn("show a blob in a repository", "repo", repo, "digest", f.digest, "err", err)
		}
	}
	return false
}
