package mirror

import (
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/mirror/upstream"
)

const (
	// smallBlob is the size in bytes of the largest blob that is fetched into RAM.
	smallBlob = 1 << 20
	// heldBack is how many bytes at the end of a blob are given to nobody before the
	// digest is known to be right. A blob that is not larger is held back as a whole.
	heldBack = 64 << 10
)

// fill is a blob that is being fetched. run fetches it once. All who want the blob read
// the bytes that have already been written.
type fill struct {
	m      *Registry
	s      *source // the source whose repository was asked first
	name   string
	repo   string
	digest oci.Digest
	// continues says that there is a file of an earlier fill.
	continues bool
	began     time.Time
	settled   chan struct{} // closed when the fill is over, whether the blob was stored or not
	// ctx is the context of run. It ends with the registry, or when quit cancels it.
	ctx    context.Context
	cancel context.CancelFunc

	// The next fields are guarded by fills.mu:
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

// reader is the repository for which a fill is read.
type reader struct {
	s    *source
	name string // of the repository upstream
	repo string
}

var _ sink = (*fill)(nil)

func newFill(m *Registry, s *source, name, repo string, d oci.Digest) *fill {
	f := &fill{m: m, s: s, name: name, repo: repo, digest: d, repos: map[string]bool{repo: true}, size: -1, settled: make(chan struct{}), began: time.Now()}
	f.ctx, f.cancel = context.WithCancel(m.ctx)
	return f
}

func (f *fill) key() fillKey { return f.s.fillKey(f.digest) }

// path returns the file of a blob that is not in RAM.
func (f *fill) path() string { return f.m.fills.path(f.key()) }

// enter adds a reader. The reader later calls leave.
func (f *fill) enter() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.readers++
}

func (f *fill) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.readers--; f.readers > 0 {
		return
	}
	f.idle = f.m.now()
	switch {
	case f.ended:
		f.free()
	case !f.based && f.err == nil: // nothing has been fetched yet, so nothing is lost
		f.quit()
	}
}

// quit ends a fill that nobody reads. A reader that comes later looks again. f.mu is
// held.
func (f *fill) quit() {
	f.err = errLookAgain
	f.cancel()
	f.notify()
}

// end notes that the fill is no longer in the table, and the error if it failed.
func (f *fill) end(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err, f.ended = err, true
	if f.readers == 0 {
		f.free()
	}
	f.notify()
}

// free releases the memory of the blob. f.mu is held.
func (f *fill) free() { f.m.fills.memory.Add(-int64(cap(f.buf))) }

// abandoned reports whether the fill has been without readers for too long. f.mu is held.
func (f *fill) abandoned() bool {
	return f.readers == 0 && !f.idle.IsZero() && f.m.now().Sub(f.idle) > f.m.opts.Linger
}

// notify wakes all goroutines that wait for a change. f.mu is held.
func (f *fill) notify() {
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

// waitFor waits until ready returns true or the fill has failed. f.mu must be held;
// waitFor releases it while it waits.
func (f *fill) waitFor(ctx context.Context, ready func() bool) error {
	for !ready() {
		if f.err != nil {
			return f.err
		}
		if f.changed == nil {
			f.changed = make(chan struct{})
		}
		changed := f.changed
		f.mu.Unlock()
		err := await(ctx, changed)
		f.mu.Lock()
		if err != nil {
			return err
		}
	}
	return nil
}

// limit returns the offset up to which readers may read. f.mu is held.
func (f *fill) limit() int64 {
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
func (f *fill) wait(c *fillContent) (end int64, err error) {
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

// right reports whether the digest has been found right. The blob is then about to be
// stored.
func (f *fill) right() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.verified
}

// whole returns the blob's size. A blob that is held back as a whole has no certain size
// until it is verified, so whole waits for that.
func (f *fill) whole(ctx context.Context) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return 0, f.err
	}
	err := f.waitFor(ctx, func() bool { return f.verified || f.size > heldBack })
	return f.size, err
}

// open opens a part of the blob for a reader that has entered. The reader may be of
// another repository than the fill. Then it must not learn what the upstream says of the
// fill's repository.
func (f *fill) open(ctx context.Context, by reader, p span) (oci.Content, error) {
	size, err := f.whole(ctx)
	switch {
	case isSpoolError(err):
		return f.openPast(ctx, by, p)
	case errors.Is(err, errLookAgain): // the fill may still be in the table
		return nil, f.over(ctx)
	case err != nil:
		return nil, err
	}
	c := &fillContent{ctx: ctx, f: f, by: by, size: size}
	if c.off, c.end, err = p.in(size); err != nil {
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

// over waits until the fill is over and returns its error. It returns errLookAgain if the
// fill succeeded: the blob is then in the store.
func (f *fill) over(ctx context.Context) error {
	if err := await(ctx, f.settled); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return f.err
	}
	return errLookAgain
}

// openPast opens a part of the blob at the upstream, because the fill has nowhere to put
// the blob.
func (f *fill) openPast(ctx context.Context, by reader, p span) (oci.Content, error) {
	size, _, err := f.m.askBlob(ctx, by.s, by.name, by.repo, f.digest)
	if err != nil {
		return nil, err
	}
	if size < 0 {
		return nil, &upstream.Error{Kind: upstream.Unavailable, Upstream: by.s.Name, Err: fmt.Errorf("it does not tell the size of blob %s, for which there is no room here", f.digest)}
	}
	off, end, err := p.in(size)
	if err != nil {
		return nil, err
	}
	c := &fillContent{ctx: ctx, f: f, by: by, size: size, off: off, end: end}
	c.past = newPassage(c)
	return c, nil
}

// run fetches the blob, gives its bytes to the readers, and stores it.
func (f *fill) run() {
	defer f.cancel()
	err := f.fetch(f.ctx)
	defer close(f.settled)
	if err != nil {
		f.fail(err)
		return
	}
	f.m.metrics.observe(f.s, kindBlob, time.Since(f.began))
	f.m.event(Event{Action: ActionFetched, Upstream: f.s.Name, Repo: f.repo, Blob: true, Digest: f.digest, Bytes: f.written, Duration: time.Since(f.began)})
	repos := f.m.fills.close(f)
	left := f.store(repos)
	for _, repo := range repos {
		f.m.recent.add(contentKey{repo, string(f.digest)})
	}
	f.m.fills.remove(f, left)
	f.end(nil)
}

// fail ends a fill with an error. It keeps what was fetched for the next fill, unless
// that is known to be wrong or there is no room for it.
func (f *fill) fail(err error) {
	kind := upstream.KindOf(err)
	keep := f.written > 0 && !isSpoolError(err) && !errors.Is(err, errLookAgain) &&
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
				f.m.log.Warn("keep what was fetched of a blob", "digest", f.digest, "bytes", f.written, "err", werr)
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
	case f.m.ctx.Err() != nil:
		err = errClosed()
	case quit:
		f.m.log.Info("stop fetching a blob that nobody reads any more", "upstream", f.s.Name, "repo", f.repo, "digest", f.digest, "bytes", f.written, "size", f.size, "kept", keep)
		err = errLookAgain
	case !errors.Is(err, errLookAgain):
		f.m.refuse(f.s, kindBlob, f.repo, string(f.digest), err)
		f.m.log.Warn("fetch a blob", "upstream", f.s.Name, "repo", f.repo, "digest", f.digest, "bytes", f.written, "size", f.size, "kept", keep, "err", err)
	}
	f.m.fills.remove(f, keep) // before the readers learn of the error and come again
	f.end(err)
}

func (f *fill) removeFile() {
	if err := os.Remove(f.path()); err != nil && !errors.Is(err, os.ErrNotExist) {
		f.m.log.Warn("remove what was fetched of a blob", "digest", f.digest, "err", err)
	}
}

// maxRestarts is how many times a blob that turned out to be wrong is fetched anew, as
// long as nobody was given any of it.
const maxRestarts = 2

// fetch fetches the whole blob and checks it.
func (f *fill) fetch(ctx context.Context) error {
	for restarts := 0; ; restarts++ {
		err := f.fetchOnce(ctx)
		if upstream.KindOf(err) != upstream.Wrong || restarts == maxRestarts || !f.reset() {
			return err
		}
	}
}

func (f *fill) fetchOnce(ctx context.Context) error {
	d := &download{m: f.m, s: f.s, name: f.name, repo: f.repo, digest: f.digest, size: f.size}
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
func (f *fill) reset() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.given || !f.based {
		return false
	}
	if f.file != nil { // keep the same file, because readers may have it open
		f.file.close()
		file, err := newSpool(f.path(), f.digest, f.m.opts.KeepFree)
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
func (f *fill) resume(ctx context.Context, d *download) error {
	var desc oci.Descriptor
	err := f.m.patiently(ctx, func() (err error) {
		desc, err = f.s.Upstream.ResolveBlob(ctx, f.name, f.digest)
		return err
	})
	if err != nil {
		return err
	}
	file, n, err := resumeSpool(ctx, f.path(), f.digest, desc.Size, f.m.opts.KeepFree)
	if err != nil {
		return &sinkError{err}
	}
	f.m.log.Info("go on with a blob of an earlier run", "upstream", f.s.Name, "repo", f.repo, "digest", f.digest, "at", n, "size", desc.Size)
	d.at, d.size = n, desc.Size
	f.mu.Lock()
	defer f.mu.Unlock()
	f.file, f.size, f.written, f.based = file, desc.Size, n, true
	f.notify()
	return nil
}

// begin implements sink. It decides where the blob is put.
func (f *fill) begin(ctx context.Context, size int64) error {
	if f.based && (f.file != nil || size == int64(len(f.buf))) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.size != size { // the size was not known before
			f.size = size
			f.notify()
		}
		return nil
	}
	if size > smallBlob && !f.s.guarded {
		// The upstream has just shown that the repository has the blob, so the copy of
		// another repository may be shown. A registry that a client chose could claim to
		// have any digest, so it must send the whole blob.
		_, err := f.m.store.LinkStored(ctx, f.repo, f.digest)
		if err == nil {
			return errLookAgain
		}
		if !oci.HasCode(err, oci.CodeBlobUnknown) {
			f.m.log.Warn("look for a blob of other repositories", "digest", f.digest, "err", err)
		}
	}
	var buf []byte
	var file *spool
	if small := size >= 0 && size <= smallBlob; small && f.m.fills.memory.Add(size) <= f.m.opts.MemoryBytes {
		buf = make([]byte, size)
	} else {
		if small {
			f.m.fills.memory.Add(-size)
		}
		var err error
		if file, err = newSpool(f.path(), f.digest, f.m.opts.KeepFree); err != nil {
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
func (f *fill) space() []byte {
	if f.file != nil {
		return f.file.space()
	}
	return f.buf[f.written:]
}

// errAbandoned ends a fill that nobody reads.
var errAbandoned = errors.New("nobody reads the blob any more")

// take implements sink.
func (f *fill) take(n int) error {
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
func (f *fill) sum() (oci.Digest, error) {
	if f.file != nil {
		return f.file.finish()
	}
	h := newHash(f.digest)
	h.Write(f.buf)
	return digestOf(f.digest, h), nil
}

// store stores the blob and makes it visible in the repositories. left reports whether
// the file of the fill is still there.
func (f *fill) store(repos []string) (left bool) {
	if f.file == nil {
		f.m.gate.pass(f.m.ctx)
	}
	ctx, cancel := f.m.storing()
	defer cancel()
	var err error
	if f.file == nil {
		_, err = f.m.store.AdoptBytes(ctx, f.repo, f.digest, f.buf)
	} else {
		_, err = f.m.store.AdoptBlob(ctx, f.repo, f.digest, f.written, f.path())
	}
	if err != nil {
		f.m.log.Warn("store a blob that was fetched", "repo", f.repo, "digest", f.digest, "bytes", f.written, "err", err)
		if f.file == nil {
			return false
		}
		_, statErr := os.Stat(f.path())
		return statErr == nil // the next request for the blob tries to store it again
	}
	for _, repo := range repos {
		if repo == f.repo {
			continue
		}
		if _, err := f.m.store.LinkStored(ctx, repo, f.digest); err != nil {
			f.m.log.Warn("show a blob in a repository", "repo", repo, "digest", f.digest, "err", err)
		}
	}
	return false
}

// newHash returns the hash of a digest's algorithm.
func newHash(d oci.Digest) hash.Hash {
	if strings.HasPrefix(string(d), "sha512:") {
		return sha512.New()
	}
	return sha256.New()
}

// digestOf returns the digest of what h has hashed, in the algorithm of d.
func digestOf(d oci.Digest, h hash.Hash) oci.Digest {
	alg, _, _ := strings.Cut(string(d), ":")
	return oci.Digest(alg + ":" + hex.EncodeToString(h.Sum(nil)))
}
