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
	// smallBlob is the largest blob in bytes that is fetched into RAM.
	smallBlob = 1 << 20
	// heldBack is how many bytes at the end of a blob nobody is given before the
	// digest is known to be right. A smaller blob is given as a whole.
	heldBack = 64 << 10
)

// fill is a blob on its way in. It is fetched once, by run, and read by everybody
// who wants it behind the place where it is being written.
type fill struct {
	m      *Registry
	s      *source // whose repository asked first
	name   string
	repo   string
	digest oci.Digest
	// continues says that there is a file of an earlier fill.
	continues bool
	began     time.Time
	settled   chan struct{} // closed when the fill is over, and the blob stored or not
	// ctx is what run works in; it ends with the registry, and when quit cancels it.
	ctx    context.Context
	cancel context.CancelFunc

	// Guarded by fills.mu:
	repos  map[string]bool // whose readers are let in
	closed bool            // to further ones

	mu       sync.Mutex
	changed  chan struct{} // closed at the next change, nil while nobody waits
	size     int64         // -1: unknown
	buf      []byte        // of a blob in RAM
	file     *spool        // of another one
	based    bool          // either of the two is there
	written  int64
	verified bool
	// given says that somebody was given bytes that were not verified then.
	given   bool
	err     error
	readers int
	idle    time.Time // since when nobody reads
	ended   bool      // and out of the table, so that no reader comes any more
}

// reader is the repository that a fill is read for.
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

// path is the file of a blob that is not in RAM.
func (f *fill) path() string { return f.m.fills.path(f.key()) }

// enter adds a reader, which leaves with leave.
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
	case !f.based && f.err == nil: // nothing has come that would be lost
		f.quit()
	}
}

// quit ends a fill that nobody reads. Whoever comes yet looks again. f.mu is held.
func (f *fill) quit() {
	f.err = errLookAgain
	f.cancel()
	f.notify()
}

// end notes that the fill is out of the table, and why if it failed.
func (f *fill) end(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err, f.ended = err, true
	if f.readers == 0 {
		f.free()
	}
	f.notify()
}

// free gives the memory of the blob back. f.mu is held.
func (f *fill) free() { f.m.fills.memory.Add(-int64(cap(f.buf))) }

// abandoned reports whether nobody has been reading for too long. f.mu is held.
func (f *fill) abandoned() bool {
	return f.readers == 0 && !f.idle.IsZero() && f.m.now().Sub(f.idle) > f.m.opts.Linger
}

// notify wakes all who wait. f.mu is held.
func (f *fill) notify() {
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

// waitFor waits until ready says so, or the fill has failed. f.mu is held, and is
// on return.
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

// limit is up to where readers may read. f.mu is held.
func (f *fill) limit() int64 {
	switch {
	case f.verified:
		return f.written
	case f.size < 0:
		return 0
	}
	return min(f.written, f.size-heldBack)
}

// errResized ends a reader that was told a size which was wrong.
var errResized = &oci.Error{Code: oci.CodeUnavailable, Message: "the blob turned out to have another size than the upstream had said; ask again"}

// wait waits until there are bytes for c and returns where they end.
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

// right reports whether the digest was found right, so that the blob is about to be
// stored.
func (f *fill) right() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.verified
}

// whole returns the blob's size. That of a blob of which nothing is given out
// before it is checked is not certain until then, either.
func (f *fill) whole(ctx context.Context) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return 0, f.err
	}
	err := f.waitFor(ctx, func() bool { return f.verified || f.size > heldBack })
	return f.size, err
}

// open returns a part of the blob for a reader that has entered. Where it is of
// another repository than the fill, what the upstream says of that one must not be
// told it.
func (f *fill) open(ctx context.Context, by reader, p span) (oci.Content, error) {
	size, err := f.whole(ctx)
	switch {
	case isSpoolError(err):
		return f.openPast(ctx, by, p)
	case errors.Is(err, errLookAgain): // it is still in the table, perhaps
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

// over waits until the fill is over and returns what became of it. errLookAgain: the
// blob is in the store.
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

// openPast opens a part of the blob at the upstream, because the fill has nowhere
// to put it.
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

// run fetches the blob, gives it to the readers and has it stored.
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

// fail ends a fill. What was fetched stays for the next, unless it is known to be
// wrong or there is no room for it.
func (f *fill) fail(err error) {
	kind := upstream.KindOf(err)
	keep := f.written > 0 && !isSpoolError(err) && !errors.Is(err, errLookAgain) &&
		kind != upstream.Wrong && kind != upstream.NotFound && kind != upstream.Denied
	onDisk := f.continues
	switch {
	case f.file != nil:
		onDisk = true
		f.file.close()
	case f.written > 0: // in RAM, and nothing on disk
		if keep {
			onDisk = true
			if werr := os.WriteFile(f.path(), f.buf[:f.written], 0o600); werr != nil {
				f.m.log.Warn("keep what was fetched of a blob", "digest", f.digest, "bytes", f.written, "err", werr)
				keep = false
			}
		}
	case f.continues: // nothing was looked at
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
	f.m.fills.remove(f, keep) // before anybody hears of it and comes again
	f.end(err)
}

func (f *fill) removeFile() {
	if err := os.Remove(f.path()); err != nil && !errors.Is(err, os.ErrNotExist) {
		f.m.log.Warn("remove what was fetched of a blob", "digest", f.digest, "err", err)
	}
}

// maxRestarts is how often a blob is fetched anew that turned out to be wrong,
// while nobody was given any of it.
const maxRestarts = 2

// fetch brings the whole blob in and checks it.
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

// reset begins anew with what has a place already, if nobody has seen any of it. The
// size may have been as wrong as the rest.
func (f *fill) reset() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.given || !f.based {
		return false
	}
	if f.file != nil { // the same file, because readers may have it open
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

// resume goes on with the file of an earlier fill, once the upstream has said that
// the blob is there, and for us.
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

// begin implements sink: it decides where the blob is put.
func (f *fill) begin(ctx context.Context, size int64) error {
	if f.based && (f.file != nil || size == int64(len(f.buf))) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.size != size { // it was not known
			f.size = size
			f.notify()
		}
		return nil
	}
	if size > smallBlob && !f.s.guarded {
		// The upstream has just shown that the repository has it. One that whoever asks
		// chose could say so of any digest, and must send all of it.
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
	f.free() // of the wrong size, before reset
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
		// Who waits for the first bytes goes first: the bytes behind them and their digest
		// would keep two processors busy.
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

// sum returns the digest of what was fetched.
func (f *fill) sum() (oci.Digest, error) {
	if f.file != nil {
		return f.file.finish()
	}
	h := newHash(f.digest)
	h.Write(f.buf)
	return digestOf(f.digest, h), nil
}

// store has the blob stored, and shown in the repositories. left reports whether the
// file is still there.
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
		return statErr == nil // storing it is tried again when it is asked for
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

// digestOf returns the digest that h has, in the algorithm of d.
func digestOf(d oci.Digest, h hash.Hash) oci.Digest {
	alg, _, _ := strings.Cut(string(d), ":")
	return oci.Digest(alg + ":" + hex.EncodeToString(h.Sum(nil)))
}
