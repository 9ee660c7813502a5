package gearfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/node/cachedir"
	"example.org/slipway/node/poolfs"
)

const (
	// streamWhole is up to which size in bytes a large file that is opened comes as
	// a whole, in a stream: programs read most of it, and a range costs a round trip.
	streamWhole = 16 << 20
	// maxAhead is the longest read-ahead in chunks.
	maxAhead = 32
	// maxReread is how often chunks are fetched again for a read that were given up
	// when they had just come, since the disk is full.
	maxReread = 8
	// nearStream is how many chunks behind a stream's place are waited for.
	nearStream = 8
)

// errComplete: the whole file is in the cache.
var errComplete = fs.ErrExist

// errOtherChunks: the file is in use as an image describes it that is not believed.
var errOtherChunks = errors.New("the file is in use with other chunks")

func isNotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// large is a large file of which chunks are being fetched, one for all who have
// it open.
type large struct {
	c   *scheduler
	img *image
	f   gear.File
	p   *cachedir.Partial
	// refs count all who use p, readers those of them who have the file open, wanted
	// those who complete it. Guarded by the scheduler's mu.
	refs, readers, wanted int

	// mu guards all below.
	mu sync.Mutex
	// changed is closed and made anew whenever waiters should look again.
	changed chan struct{}
	// coming are the chunks that a job is for.
	coming map[int]*rangeJob
	// failed are chunks whose job failed, until somebody was told.
	failed map[int]error
	stream int   // the next chunk of a stream under way, -1 for none
	ending bool  // the whole is being hashed
	err    error // why a job failed last
	// disowned is why nobody may read from it any more.
	disowned error
	// moved changes when bytes come that had not come in an earlier try.
	moved atomic.Int64
	// tight is set once the disk had no room for all of it.
	tight atomic.Bool
	// waiting is how many readers wait for chunks.
	waiting atomic.Int32
}

// acquire returns a large file's chunks; release gives them back. Errors:
// errComplete, errOtherChunks; ErrUnknown if no image says so of the file any more.
func (c *scheduler) acquire(img *image, f gear.File) (*large, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	lf := c.large[img.key(f.Name)]
	if lf == nil {
		if !c.s.stands(img, f) {
			return nil, fmt.Errorf("file %x: %w", f.Name, ErrUnknown)
		}
		p, err := img.view.Partial(f)
		if err != nil {
			return nil, err
		}
		lf = &large{c: c, img: img, f: f, p: p, changed: make(chan struct{}), coming: map[int]*rangeJob{}, failed: map[int]error{}, stream: -1}
		c.large[img.key(f.Name)] = lf
	}
	if lf.f.Size != f.Size || !slices.Equal(lf.f.Chunks, f.Chunks) {
		return nil, errOtherChunks
	}
	lf.refs++
	return lf, nil
}

func (c *scheduler) release(lf *large) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(lf)
}

// drop is release while mu is held.
func (c *scheduler) drop(lf *large) {
	if lf.refs--; lf.refs > 0 {
		return
	}
	if key := lf.img.key(lf.f.Name); c.large[key] == lf {
		delete(c.large, key)
	}
	lf.p.Close()
}

// notify makes waiters look again. mu is held.
func (lf *large) notify() {
	close(lf.changed)
	lf.changed = make(chan struct{})
}

// streaming notes which chunk a stream brings next, -1 when it ends.
func (lf *large) streaming(next int) {
	lf.mu.Lock()
	defer lf.mu.Unlock()
	lf.stream = next
	lf.notify()
}

// put stores a chunk. If somebody reads the file and the disk is full, other chunks of
// it make room.
func (lf *large) put(i int, b []byte, prio priority) error {
	err := lf.p.PutChunk(i, b)
	for prio == onDemand && errors.Is(err, cachedir.ErrFull) {
		lf.tight.Store(true)
		if ok, other := lf.p.GiveUp(i); !ok {
			err = errors.Join(err, other)
			break
		}
		err = lf.p.PutChunk(i, b)
	}
	lf.mu.Lock()
	defer lf.mu.Unlock()
	lf.notify()
	return err
}

// fail ends a job that no source can do, or nobody wants. The scheduler's mu is
// held.
func (lf *large) fail(j *rangeJob, err error) {
	defer lf.c.drop(lf)
	lf.mu.Lock()
	defer lf.mu.Unlock()
	for i := j.first; i < j.first+j.n; i++ {
		if lf.coming[i] == j {
			delete(lf.coming, i)
			lf.failed[i] = err
		}
	}
	lf.notify()
}

// want makes jobs for chunks that are missing and do not come yet, together with
// those missing among the ahead chunks from the first one, and returns the error
// of a job for them that failed.
func (lf *large) want(missing []int, ahead int, prio priority) error {
	first, last := missing[0], missing[len(missing)-1]
	if end := min(first+ahead, len(lf.f.Chunks)) - 1; end > last {
		missing = append(missing, lf.p.Missing(int64(last+1)*gear.ChunkSize, int64(end-last)*gear.ChunkSize)...)
	}
	var jobs, under []*rangeJob
	lf.mu.Lock()
	for _, i := range missing {
		if err := lf.failed[i]; err != nil {
			delete(lf.failed, i)
			if i <= last {
				lf.mu.Unlock()
				lf.queue(jobs, under, prio)
				return err
			}
			continue
		}
		if j := lf.coming[i]; j != nil {
			if i <= last && !slices.Contains(under, j) {
				under = append(under, j)
			}
			continue
		}
		// It may have come since the caller looked.
		if lf.p.Has(i) || lf.stream >= 0 && i >= lf.stream && i < lf.stream+nearStream {
			continue
		}
		j := &rangeJob{lf: lf, first: i, prio: prio}
		if len(jobs) > 0 && jobs[len(jobs)-1].first+jobs[len(jobs)-1].n == i {
			j = jobs[len(jobs)-1]
		} else {
			jobs = append(jobs, j)
		}
		lf.coming[i] = j
		j.n++
	}
	lf.mu.Unlock()
	lf.queue(jobs, under, prio)
	return nil
}

// queue gives jobs to the scheduler, and puts those forward that wait for less.
func (lf *large) queue(jobs, under []*rangeJob, prio priority) {
	if len(jobs)+len(under) == 0 {
		return
	}
	c := lf.c
	c.mu.Lock()
	c.ranges[prio] = append(c.ranges[prio], jobs...)
	lf.refs += len(jobs)
	for _, j := range under {
		if i := slices.Index(c.ranges[j.prio], j); i >= 0 && prio < j.prio {
			c.ranges[j.prio] = slices.Delete(c.ranges[j.prio], i, i+1)
			j.prio = prio
			c.ranges[prio] = append(c.ranges[prio], j)
		}
	}
	c.mu.Unlock()
	c.wake()
}

// runRange fetches chunks.
func (c *scheduler) runRange(j *rangeJob, src *source) {
	ctx, g, end := guarded(c.s.ctx, c.s.opts.Stall)
	defer end()
	began, was := time.Now(), j.n
	var p *pace
	if j.prio == inBackground {
		runtime.LockOSThread() // p is of a thread
		defer runtime.UnlockOSThread()
		p = newPace()
		defer p.close()
	}
	first, got, err := c.readRange(ctx, g, j, src, p)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	c.s.fetchedRange(j.lf, got, j.prio)
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running[j.prio]--
	c.wake()
	src.bytes += got
	if !first.IsZero() {
		c.observe(src.ref.Registry, first.Sub(began), got, now.Sub(first))
	}
	if j.n < was {
		src.delivered(began)
	}
	if j.n == 0 || c.s.ctx.Err() != nil {
		c.drop(j.lf)
		return
	}
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	j.checked = j.checked || errors.Is(err, gear.ErrContent)
	c.fault(&j.tries, src, j.n < was || len(j.tries.faults) > 0, err)
	j.lf.mu.Lock()
	j.lf.err = err
	j.lf.mu.Unlock()
	var local *localError
	if errors.As(err, &local) {
		j.lf.fail(j, local.err)
		return
	}
	c.ranges[j.prio] = append(c.ranges[j.prio], j)
}

// readRange reads the chunks of a job, which becomes shorter with each, and
// returns when the first byte came and how many did.
func (c *scheduler) readRange(ctx context.Context, g *guard, j *rangeJob, src *source, p *pace) (first time.Time, got int64, err error) {
	from, err := c.dialled(src)
	if err != nil {
		return first, 0, err
	}
	lf := j.lf
	off := int64(j.first) * gear.ChunkSize
	n := min(int64(j.first+j.n)*gear.ChunkSize, lf.f.Size) - off
	arrived := 0 // of the chunk that is being read
	came := func(n int) {
		g.moved()
		if n == 0 {
			arrived = 0
		}
		if arrived += n; arrived > j.best {
			j.best = arrived
			lf.moved.Add(1)
		}
	}
	r, err := from.Range(gear.WithArrival(ctx, came), lf.f, off, n, j.checked)
	if err != nil {
		return first, 0, err
	}
	defer r.Close()
	// The source has answered; a chunk is decoded, so its bytes come at once.
	first = time.Now()
	buf := make([]byte, gear.ChunkSize)
	for j.n > 0 {
		chunk := buf[:gear.ChunkLen(lf.f.Size, j.first)]
		for fill := 0; fill < len(chunk); {
			m, err := r.Read(chunk[fill:])
			fill += m
			got += int64(m)
			if m > 0 {
				g.moved()
			}
			if fill > j.best {
				j.best = fill
				lf.moved.Add(1)
			}
			if err != nil && fill < len(chunk) {
				if errors.Is(err, io.EOF) {
					err = io.ErrUnexpectedEOF
				}
				return first, got, fmt.Errorf("chunk %d of file %x: %w", j.first, lf.f.Name, err)
			}
		}
		if err := lf.put(j.first, chunk, j.prio); err != nil {
			return first, got, ofCache(err)
		}
		lf.mu.Lock()
		delete(lf.coming, j.first)
		lf.mu.Unlock()
		j.first++
		j.n--
		j.best, arrived = 0, 0
		lf.c.s.tryComplete(lf)
		if j.prio == inBackground && j.n > 0 {
			if err := c.spare(ctx, g, lf, p, len(chunk)); err != nil {
				return first, got, err
			}
		}
	}
	return first, got, nil
}

// tryComplete publishes a large file whose chunks are all there.
func (s *Service) tryComplete(lf *large) {
	if lf.p.Left() > 0 {
		return
	}
	lf.mu.Lock()
	ending := lf.ending
	lf.ending = true
	lf.mu.Unlock()
	if ending {
		return
	}
	s.sched.mu.Lock()
	lf.refs++
	s.sched.mu.Unlock()
	s.goWork(func() {
		defer s.sched.release(lf)
		if err := lf.p.Complete(s.ctx); err != nil && s.ctx.Err() == nil {
			s.log.Error("a large file cannot be completed", "image", lf.img.name(), "err", err)
		}
	})
}

// partialContent is a large file that somebody has open.
type partialContent struct {
	s  *Service
	lf *large

	mu     sync.Mutex
	closed bool
	// next is where a sequential reader would go on, ahead how many chunks are
	// fetched for it.
	next  int64
	ahead int
}

// ReadAt implements poolfs.Content.
func (pc *partialContent) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	ahead, entered := pc.advance(off, int64(len(p)))
	if pc.lf.tight.Load() {
		ahead = 1
	}
	n, err := pc.lf.p.ReadAt(p, off)
	for try := 0; try < maxReread && errors.Is(err, cachedir.ErrMissing); try++ {
		if err := pc.s.awaitChunks(ctx, pc.lf, off, int64(len(p)), ahead); err != nil {
			pc.lf.img.st.errors.Add(1)
			return 0, fmt.Errorf("read for image %s: %w", pc.lf.img.name(), hideNotExist(err))
		}
		n, err = pc.lf.p.ReadAt(p, off)
	}
	if entered && ahead > 1 {
		// The next window is asked for before the reader is there.
		end := (off/gear.ChunkSize + 1) * gear.ChunkSize
		if missing := pc.lf.p.Missing(end, int64(ahead/2)*gear.ChunkSize); len(missing) > 0 {
			_ = pc.lf.want(missing, ahead, onDemand) // whoever reads it asks again
		}
	}
	// After a start the last chunk to be good may be one that is compared by a read.
	pc.s.tryComplete(pc.lf)
	return n, err
}

// advance notes a read. It returns how many chunks to fetch from there on if it
// misses: twice as many in each chunk for a reader that goes on where it was, one
// for one that jumps; and whether the read is the first of its chunk.
func (pc *partialContent) advance(off, n int64) (ahead int, entered bool) {
	pc.mu.Lock()
	defer pc.mu.Unlock()
	// The kernel's own read-ahead reorders a little.
	sequential := pc.next > 0 && off <= pc.next+gear.ChunkSize && off+gear.ChunkSize >= pc.next
	end := off + n
	entered = pc.next == 0 || !sequential || (end-1)/gear.ChunkSize > (pc.next-1)/gear.ChunkSize
	switch {
	case !sequential:
		pc.ahead = 1
	case entered:
		pc.ahead = min(2*pc.ahead, maxAhead)
	}
	if !sequential || end > pc.next {
		pc.next = end
	}
	return pc.ahead, entered
}

// awaitChunks waits until n bytes from off are there.
func (s *Service) awaitChunks(ctx context.Context, lf *large, off, n int64, ahead int) error {
	s.sched.urgent.Add(1)
	defer s.sched.calm()
	lf.waiting.Add(1)
	defer lf.waiting.Add(-1)
	began := time.Now()
	defer func() { s.stalled(lf.img, time.Since(began)) }()
	tick := time.NewTicker(min(time.Second, s.opts.Bound/4))
	defer tick.Stop()
	last, seen := began, lf.moved.Load()
	for {
		lf.mu.Lock()
		changed, disowned := lf.changed, lf.disowned
		lf.mu.Unlock()
		if disowned != nil {
			return disowned
		}
		missing := lf.p.Missing(off, n)
		if len(missing) == 0 {
			return nil
		}
		if err := lf.want(missing, ahead, onDemand); err != nil {
			return fmt.Errorf("file %x: %w", lf.f.Name, err)
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.ctx.Done():
			return ErrClosed
		}
		if moved := lf.moved.Load(); moved != seen {
			last, seen = time.Now(), moved
			poolfs.Progress(ctx)
		}
		if time.Since(last) <= s.opts.Bound {
			continue
		}
		lf.mu.Lock()
		err := lf.err
		lf.mu.Unlock()
		if err == nil {
			return fmt.Errorf("file %x: %w", lf.f.Name, ErrTimeout)
		}
		return fmt.Errorf("file %x: %w: %w", lf.f.Name, ErrTimeout, err)
	}
}
