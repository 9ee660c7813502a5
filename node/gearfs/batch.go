package gearfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/node/cachedir"
	"example.org/slipway/node/gearfs/flow"
	"example.org/slipway/node/gearfs/pace"
)

// batch is one request to a source for many files.
type batch struct {
	c       *scheduler
	src     *source
	prio    priority
	flights []*flight
	bytes   int64
	alone   bool
	flow    *flow.Flow
	slow    bool // a part continues over another connection; guarded by the scheduler's mu

	// The fields up to pace belong to run's goroutine. Others read delivered and at, so
	// they change only while mu is held.
	delivered []bool
	at        int // index of the flight whose content is being delivered, -1 for none
	got       int64
	paused    bool
	began     time.Time
	guard     *guard
	pace      *pace.Pace // nil: it need not spare the processors, or cannot measure them

	// mu guards what is known about arriving bytes. Another goroutine calls came, too. It
	// is locked after the scheduler's mu.
	mu sync.Mutex
	// end is the index of the first flight that the request no longer has to deliver. It
	// changes only while the scheduler's mu is held, too.
	end     int
	through int    // all flights before this index are delivered
	raw     int64  // bytes that arrived since the last delivery in the same answer
	lf      *large // the large file that is being delivered, if any
}

// localError is a failure of this node. No source is to blame for it.
type localError struct{ err error }

func (e *localError) Error() string { return e.err.Error() }
func (e *localError) Unwrap() error { return e.err }

// guard ends a request if its source sends nothing.
type guard struct {
	d      time.Duration
	giveUp context.CancelCauseFunc // ends the request for another reason

	mu   sync.Mutex
	t    *time.Timer
	held bool
}

// guarded returns a context that ends when there is no progress for d.
func guarded(parent context.Context, d time.Duration) (context.Context, *guard, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	g := &guard{d: d, giveUp: cancel}
	g.t = time.AfterFunc(d, func() { cancel(errStalled) })
	return ctx, g, func() {
		g.t.Stop()
		cancel(nil)
	}
}

// moved restarts the clock, because bytes arrived.
func (g *guard) moved() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.held {
		g.t.Reset(g.d)
	}
}

// hold stops the clock until resume, because no bytes are expected.
func (g *guard) hold() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held = true
	g.t.Stop()
}

func (g *guard) resume() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held = false
	g.t.Reset(g.d)
}

// run makes the request, and puts the undelivered flights back in the queue.
func (b *batch) run() {
	ctx, g, end := guarded(b.c.s.ctx, b.c.s.opts.Stall)
	defer end()
	b.guard, b.at, b.began = g, -1, time.Now()
	b.delivered = make([]bool, len(b.flights))
	b.c.mu.Lock()
	b.c.flows.Begin(b.flow, b.began)
	b.c.mu.Unlock()
	b.c.wake()
	if !b.wanted() {
		runtime.LockOSThread() // b.pace belongs to a thread
		defer runtime.UnlockOSThread()
		b.pace = pace.New()
		defer b.pace.Close()
	}
	ctx = withPriority(ctx, b.prio)
	src, err := b.c.dialled(b.src)
	if err == nil {
		files := make([]gear.File, len(b.flights))
		for i, fl := range b.flights {
			files[i] = fl.f
		}
		err = src.Fetch(gear.WithArrival(ctx, b.came), files, func(i int, r io.Reader) error { return b.deliver(ctx, i, r) })
	}
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	b.finish(err)
}

// deliver stores one file.
func (b *batch) deliver(ctx context.Context, i int, r io.Reader) error {
	if i < 0 || i >= len(b.flights) || b.delivered[i] {
		return fmt.Errorf("the source delivers file %d of %d, or twice", i, len(b.flights))
	}
	b.flow.Answered(time.Now()) // for a source that does not tell what arrives
	b.mu.Lock()
	mine := i < b.end
	if mine {
		b.at = i
	}
	b.mu.Unlock()
	if !mine {
		return errHandedOver
	}
	b.flow.Local(true)
	defer b.flow.Local(false)
	if err := b.yield(ctx); err != nil {
		return err
	}
	fl := b.flights[i]
	in := &meter{b: b, ctx: ctx, r: r}
	if fl.f.Size >= gear.LargeFile {
		if err := b.storeLarge(fl, in); err != nil {
			return err
		}
	} else {
		if err := store(b.c.s.cache, fl.img.view, fl.f, in); err != nil {
			return err
		}
		b.c.mu.Lock()
		b.c.finish(fl, nil)
		b.c.mu.Unlock()
	}
	b.mu.Lock()
	b.delivered[i] = true
	b.at = -1
	b.raw = 0
	for b.through < len(b.delivered) && b.delivered[b.through] {
		b.through++
	}
	over := b.through >= b.end && b.end < len(b.flights)
	b.mu.Unlock()
	b.c.s.fetched(fl, b.prio)
	if over {
		return errHandedOver
	}
	return nil
}

// errHandedOver ends a request after its last files were handed over to another one.
var errHandedOver = errors.New("another request brings the rest")

// awaited is like wanted, for a caller that holds the scheduler's mu.
func (b *batch) awaited() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, fl := range b.flights[:b.end] {
		if b.delivered[i] {
			continue
		}
		if lf := b.c.large[fl.img.key(fl.f.Name)]; fl.awaited() || lf != nil && lf.waiting.Load() > 0 {
			return true
		}
	}
	return false
}

// Awaited implements flow.Request.
func (b *batch) Awaited() bool {
	return b.prio != inBackground && b.src.reconnects() && b.awaited()
}

// Left implements flow.Request. The scheduler's mu is held.
func (b *batch) Left() (l flow.Left) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, fl := range b.flights[:b.end] {
		if !b.delivered[i] {
			l.All += fl.f.Size
		}
	}
	l.Lost = min(b.raw, l.All)
	if b.lf != nil { // its chunks are kept
		l.All, l.Lost = max(l.All-b.raw, 0), gear.ChunkSize/2
	}
	l.Urgent = b.prio == onDemand
	return l
}

// GiveUp implements flow.Request. The scheduler's mu is held.
func (b *batch) GiveUp() {
	b.c.givesUp(b.src, b.flow.Rescues)
	b.guard.giveUp(errSlow)
}

// Divide implements flow.Request: it puts the last flights back in the queue. The request
// keeps the file that is arriving. The scheduler's mu is held.
func (b *batch) Divide(keep int64) bool {
	if !b.c.roomToMove() {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	first := max(b.through, b.at) + 1
	kept := int64(0)
	for i := b.through; i < b.end && (i < first || kept < keep); i++ {
		if first = max(first, i+1); !b.delivered[i] {
			kept += b.flights[i].f.Size
		}
	}
	var rest []*flight
	for i := min(first, b.end); i < b.end; i++ {
		if !b.delivered[i] {
			b.flights[i].rescues++
			rest = append(rest, b.flights[i])
		}
	}
	if len(rest) == 0 {
		return false
	}
	b.end = first
	b.c.requeue(rest)
	b.c.divided(b.prio, &b.slow)
	b.c.reconnect(b.src)
	return true
}

// came notes that n bytes arrived. They may be a part of the next delivery.
func (b *batch) came(n int) {
	b.guard.moved()
	b.flow.Came(n, time.Now())
	b.mu.Lock()
	defer b.mu.Unlock()
	if n == 0 {
		b.raw = 0
	}
	b.raw += int64(n)
	left := b.flights[min(b.through, b.end):b.end]
	if len(left) == 0 || b.raw <= left[0].arrived {
		return
	}
	left[0].arrived = b.raw
	for _, fl := range left {
		fl.moved.Add(1)
	}
	if b.lf != nil {
		b.lf.moved.Add(1)
	}
}

// reading notes which large file is being delivered. nil means none.
func (b *batch) reading(lf *large) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lf = lf
}

// copyBuffers are for reading contents.
var copyBuffers = sync.Pool{New: func() any { return new([limitPiece]byte) }}

// store reads a content into the cache and shows it in a view. Errors of the cache are
// *localError.
func store(cache *cachedir.Dir, view *cachedir.View, f gear.File, r io.Reader) error {
	var err error
	if cache.Has(f.Name) { // the view still needs the received bytes as a proof
		if err = judge(f, io.LimitReader(r, f.Size+1)); errors.Is(err, ErrConflict) {
			err = fmt.Errorf("%w: %w", gear.ErrContent, err)
		}
	} else {
		err = write(cache, f, r)
	}
	if err != nil {
		return err
	}
	if err := view.Show(f.Name); err != nil && !isNotExist(err) { // whoever misses the file fetches it again
		return &localError{err}
	}
	return nil
}

// write reads a content into the cache.
func write(cache *cachedir.Dir, f gear.File, r io.Reader) error {
	w, err := cache.Create(f)
	if err != nil {
		return &localError{err}
	}
	defer w.Cancel()
	buf := copyBuffers.Get().(*[limitPiece]byte)
	defer copyBuffers.Put(buf)
	for {
		n, rerr := r.Read(buf[:])
		if _, err := w.Write(buf[:n]); err != nil {
			return ofCache(err)
		}
		if errors.Is(rerr, io.EOF) {
			return ofCache(w.Commit())
		}
		if rerr != nil {
			return fmt.Errorf("read file %x: %w", f.Name, rerr)
		}
	}
}

// ofCache marks an error as one of the cache, unless it is about the bytes that were
// sent.
func ofCache(err error) error {
	if err == nil || errors.Is(err, gear.ErrContent) {
		return err
	}
	return &localError{err}
}

// storeLarge reads a large file into its chunks. Readers see each chunk as it comes.
func (b *batch) storeLarge(fl *flight, r *meter) error {
	lf, err := b.c.acquire(fl.img, fl.f)
	if errors.Is(err, errComplete) {
		b.c.mu.Lock()
		b.c.finish(fl, nil)
		b.c.mu.Unlock()
		return nil // the source skips the rest
	}
	if err != nil {
		return &localError{err}
	}
	defer b.c.release(lf)
	r.lf = lf
	b.reading(lf)
	defer b.reading(nil)
	lf.streaming(0)
	defer lf.streaming(-1)
	buf := make([]byte, gear.ChunkSize)
	for i := range fl.f.Chunks {
		if err := b.breathe(r.ctx); err != nil {
			return err
		}
		chunk := buf[:gear.ChunkLen(fl.f.Size, i)]
		if _, err := io.ReadFull(r, chunk); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				err = io.ErrUnexpectedEOF
			}
			return fmt.Errorf("read chunk %d of file %x: %w", i, fl.f.Name, err)
		}
		if err := lf.put(i, chunk, b.prio); err != nil {
			return ofCache(err)
		}
		lf.streaming(i + 1)
	}
	if n, _ := r.Read(buf[:1]); n > 0 {
		return fmt.Errorf("file %x has more than %d bytes: %w", fl.f.Name, fl.f.Size, gear.ErrContent)
	}
	// Hashing the whole file takes a while. The request continues meanwhile.
	if lf, err = b.c.acquire(fl.img, fl.f); err != nil && !errors.Is(err, errComplete) {
		return &localError{err}
	}
	b.c.s.goWork(func() {
		var err error
		if lf != nil {
			err = lf.p.Complete(b.c.s.ctx)
			b.c.release(lf)
		}
		b.c.mu.Lock()
		defer b.c.mu.Unlock()
		b.c.finish(fl, err)
	})
	return nil
}

// yield pauses a background request before its next file if somebody waits for another
// file. It does not pause if somebody waits for one of its own files, or if no other
// stream could fetch the awaited file.
func (b *batch) yield(ctx context.Context) error {
	if b.prio == inBackground && b.c.s.opts.Streams >= 2 {
		if err := b.pause(ctx, func() bool { return b.c.urgent.Load() > 0 || time.Now().Before(b.c.restsAt()) }); err != nil {
			return err
		}
	}
	return b.breathe(ctx)
}

// breathe leaves the processors to other users that want them, unless somebody waits for
// the request or for its end. A request for the rest of an image that is fetched eagerly does
// not rest either while somebody waits for any other file: a container that waits does not
// compute, and may want one of its files next.
func (b *batch) breathe(ctx context.Context) error {
	now := time.Now()
	until, looked := now.Add(b.pace.Due()), now
	return b.pause(ctx, func() bool {
		if b.prio == fromProfile && b.c.urgent.Load() > 0 {
			return false
		}
		now := time.Now()
		if now.Sub(looked) >= crowdedEvery {
			looked = now
			return now.Before(until) && !b.c.crowded()
		}
		return now.Before(until)
	})
}

// pause waits while must returns true and nobody waits for a file of the request.
func (b *batch) pause(ctx context.Context, must func() bool) error {
	for must() && !b.wanted() {
		b.paused = true
		b.guard.hold()
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(yieldEvery):
		}
	}
	b.guard.resume()
	return nil
}

// yieldEvery is how often a paused request checks whether it may continue. crowdedEvery
// is how often it searches the queues, which may be long.
const (
	yieldEvery   = 5 * time.Millisecond
	crowdedEvery = 50 * time.Millisecond
)

// wanted reports whether somebody waits for a file of the request.
func (b *batch) wanted() bool {
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	return b.awaited()
}

// meter counts the arriving bytes and slows down the background.
type meter struct {
	b   *batch
	ctx context.Context
	r   io.Reader
	n   int64
	lf  *large // the large file whose readers wait for it, or nil
}

// Read implements io.Reader.
func (m *meter) Read(p []byte) (int, error) {
	b := m.b
	b.flow.Local(false)
	n, err := m.r.Read(p[:min(len(p), limitPiece)])
	b.flow.Local(true)
	if n == 0 {
		return n, err
	}
	b.got += int64(n)
	b.guard.moved()
	m.n += int64(n)
	if fl := b.flights[b.at]; m.n > fl.best {
		fl.best = m.n
		fl.moved.Add(1)
		if m.lf != nil {
			m.lf.moved.Add(1)
		}
	}
	for _, fl := range b.flights[b.at+1:] {
		fl.moved.Add(1)
	}
	if b.prio == inBackground && b.c.s.opts.BackgroundRate > 0 && !b.wanted() {
		b.paused = true
		b.guard.hold()
		if werr := b.c.s.limit.WaitN(m.ctx, n); werr != nil {
			return n, werr
		}
		b.guard.resume()
	}
	return n, err
}

// finish accounts for the request and requeues the flights that it did not deliver.
func (b *batch) finish(err error) {
	c := b.c
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended(b.prio, b.flow, b.slow)
	var left []*flight
	files := 0
	for i, fl := range b.flights[:b.end] {
		if b.delivered[i] {
			files++
		} else {
			left = append(left, fl)
		}
	}
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("%s delivered %d of %d files: %w", b.src.ref, files, len(b.flights), io.ErrUnexpectedEOF)
	}
	b.src.files += int64(files)
	b.src.bytes += b.got
	got := b.got
	if b.paused || b.slow || errors.Is(err, errSlow) {
		got = 0
	}
	rtt, took := b.flow.Took(time.Now())
	b.flow.Link.Observe(rtt, got, took)
	if files > 0 {
		b.src.delivered(b.began)
	}
	if len(left) == 0 || c.s.ctx.Err() != nil {
		return
	}
	culprit := left[0]
	if b.at >= 0 {
		culprit = b.flights[b.at]
	}
	c.requeue(left)
	switch {
	case errors.Is(err, errHandedOver):
		return
	case errors.Is(err, errSlow):
		for _, fl := range left {
			fl.rescues++
		}
		return
	}
	c.fault(&culprit.tries, b.src, files > 0 || b.alone, err)
	var local *localError
	if errors.As(err, &local) {
		c.finish(culprit, fmt.Errorf("file %x: %w", culprit.f.Name, local.err))
	}
}

// fault notes that a source failed with a file or range. spare says that the file or
// range itself may be at fault, because the request brought other files or only retried
// this one. mu is held.
func (c *scheduler) fault(t *tries, src *source, spare bool, err error) {
	var local *localError
	if errors.As(err, &local) {
		t.err = err
		return
	}
	now := time.Now()
	err = fmt.Errorf("%s: %w", src.ref, err)
	t.blame(src, now, c.s.opts.RetryWait, err)
	src.err = err
	if !spare && !aboutFile(err) {
		src.failed(now, err)
	}
	c.s.log.Warn("a source failed", "source", src.ref.String(), "failures", src.failures, "lies", src.lies, "err", err)
}

// aboutFile reports whether an error concerns only one file.
func aboutFile(err error) bool { return errors.Is(err, gear.ErrContent) || isNotExist(err) }
