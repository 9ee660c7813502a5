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
	"example.org/slipway/node/gearfs/flow"
	"example.org/slipway/node/gearfs/pace"
	"example.org/slipway/node/poolfs"
)

const (
	// streamWhole is the size in bytes up to which an opened large file is fetched as a
	// whole, in a stream. Programs read most of such a file, and each range costs a round
	// trip.
	streamWhole = 16 << 20
	// maxAhead is the longest read-ahead in chunks.
	maxAhead = 32
	// maxReread bounds how often a read fetches chunks again if they are given up as soon as
	// they come, because the disk is full.
	maxReread = 8
	// nearStream is the distance in chunks up to which a reader waits for a stream that
	// will bring its chunk.
	nearStream = 8
)

// errComplete says that the whole file is in the cache.
var errComplete = fs.ErrExist

// errOtherChunks says that the file is in use with the chunks of an image that is no
// longer believed.
var errOtherChunks = errors.New("the file is in use with other chunks")

func isNotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// large is a large file whose chunks are being fetched. All who have the file open share
// it.
type large struct {
	c   *scheduler
	img *image
	f   gear.File
	p   *cachedir.Partial
	// refs counts all users of p. readers counts the users that have the file open, and
	// wanted counts the users that complete it. The scheduler's mu guards them.
	refs, readers, wanted int

	// mu guards all fields below.
	mu sync.Mutex
	// changed is closed and replaced whenever waiters should look again.
	changed chan struct{}
	// coming holds the chunks that a job is fetching.
	coming map[int]*rangeJob
	// failed holds the errors of chunks whose job failed, until an error is returned to a
	// reader.
	failed map[int]error
	stream int   // the next chunk of a running stream, -1 for none
	ending bool  // the whole file is being hashed
	err    error // why the last failed job failed
	// disowned is the reason why nobody may read the file any more, or nil.
	disowned error
	// moved changes when bytes arrive that no earlier try brought.
	moved atomic.Int64
	// tight is set once the disk had no room for the whole file.
	tight atomic.Bool
	// waiting is the number of readers that wait for chunks.
	waiting atomic.Int32
}

// acquire returns a large file's chunks. release gives them back. Errors: errComplete;
// errOtherChunks; ErrUnknown if no image describes the file like this any more.
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

// drop is like release, for a caller that holds mu.
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

// streaming notes which chunk a stream brings next. -1 means that the stream has ended.
func (lf *large) streaming(next int) {
	lf.mu.Lock()
	defer lf.mu.Unlock()
	lf.stream = next
	lf.notify()
}

// put stores a chunk. If somebody reads the file and the disk is full, put gives up other
// chunks of the file to make room.
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

// fail ends a job that no source can do or that nobody wants. The scheduler's mu is held.
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

// want creates jobs for missing chunks that are not being fetched, and for further
// missing chunks among the ahead chunks from the first one on. If a job for these chunks
// has failed, want returns its error.
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
		// The chunk may have arrived since the caller looked.
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

// queue passes jobs to the scheduler. It raises the priority of waiting jobs that have a
// lower one.
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

// rangeRequest is a request for the chunks of a job.
type rangeRequest struct {
	*guard
	c    *scheduler
	j    *rangeJob
	src  *source
	flow flow.Flow
	slow bool // a part continues over another connection; guarded by the scheduler's mu
	// arrived counts the bytes of the chunk under way.
	arrived atomic.Int64
	pace    *pace.Pace // nil: it need not spare the processors, or cannot measure them
}

// Awaited implements flow.Request.
func (r *rangeRequest) Awaited() bool { return r.j.prio != inBackground && r.src.reconnects() }

// Left implements flow.Request.
func (r *rangeRequest) Left() flow.Left {
	_, n := r.j.span()
	lost := min(r.arrived.Load(), gear.ChunkSize)
	return flow.Left{All: max(int64(n)*gear.ChunkSize-lost, 0), Lost: lost, Urgent: r.j.prio == onDemand}
}

// GiveUp implements flow.Request. The scheduler's mu is held.
func (r *rangeRequest) GiveUp() {
	r.c.givesUp(r.src, r.flow.Rescues)
	r.giveUp(errSlow)
}

// Divide implements flow.Request: another job gets the last chunks. The request keeps the
// chunk that is arriving. The scheduler's mu is held.
func (r *rangeRequest) Divide(keep int64) bool {
	if !r.c.roomToMove() {
		return false
	}
	rest := r.j.cut(1 + int((keep+r.arrived.Load())/gear.ChunkSize))
	if rest == nil {
		return false
	}
	p := rest.prio
	r.c.ranges[p] = append([]*rangeJob{rest}, r.c.ranges[p]...)
	rest.lf.refs++
	r.c.divided(p, &r.slow)
	r.c.reconnect(r.src)
	return true
}

// span returns which chunks are left of a job.
func (j *rangeJob) span() (first, n int) {
	j.lf.mu.Lock()
	defer j.lf.mu.Unlock()
	return j.first, j.n
}

// cut shortens a job to n chunks, and returns a job for the others. It returns nil if there
// are no others.
func (j *rangeJob) cut(n int) *rangeJob {
	j.lf.mu.Lock()
	defer j.lf.mu.Unlock()
	if n >= j.n {
		return nil
	}
	rest := &rangeJob{lf: j.lf, first: j.first + n, n: j.n - n, prio: j.prio, checked: j.checked, rescues: j.rescues + 1}
	rest.tries = tries{slices.Clone(j.tries.faults), j.tries.err}
	for i := rest.first; i < rest.first+rest.n; i++ {
		if j.lf.coming[i] == j {
			j.lf.coming[i] = rest
		}
	}
	j.n = n
	return rest
}

// stored takes the first chunk off a job.
func (j *rangeJob) stored() {
	j.lf.mu.Lock()
	defer j.lf.mu.Unlock()
	if j.lf.coming[j.first] == j {
		delete(j.lf.coming, j.first)
	}
	j.first++
	j.n--
	j.best = 0
}

// runRange fetches chunks.
func (c *scheduler) runRange(j *rangeJob, src *source) {
	ctx, g, end := guarded(c.s.ctx, c.s.opts.Stall)
	defer end()
	began := time.Now()
	r := &rangeRequest{guard: g, c: c, j: j, src: src}
	c.mu.Lock()
	r.flow.Link, r.flow.Request, r.flow.Rescues = c.link(src.ref.Registry), r, j.rescues
	c.flows.Begin(&r.flow, began)
	c.mu.Unlock()
	c.wake()
	if j.prio == inBackground {
		runtime.LockOSThread() // r.pace belongs to a thread
		defer runtime.UnlockOSThread()
		r.pace = pace.New()
		defer r.pace.Close()
	}
	got, brought, err := r.read(withPriority(ctx, j.prio))
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	c.s.fetchedRange(j.lf, got, j.prio)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended(j.prio, &r.flow, r.slow)
	src.bytes += got
	if !r.slow && !errors.Is(err, errSlow) {
		rtt, took := r.flow.Took(time.Now())
		r.flow.Link.Observe(rtt, got, took)
	}
	if brought > 0 {
		src.delivered(began)
	}
	if _, n := j.span(); n == 0 || c.s.ctx.Err() != nil {
		c.drop(j.lf)
		return
	}
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	if errors.Is(err, errSlow) {
		j.rescues++
		c.ranges[j.prio] = append([]*rangeJob{j}, c.ranges[j.prio]...)
		return
	}
	j.checked = j.checked || errors.Is(err, gear.ErrContent)
	c.fault(&j.tries, src, brought > 0 || len(j.tries.faults) > 0, err)
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

// came notes that bytes of the chunk under way arrived. 0 says that an answer begins.
func (r *rangeRequest) came(n int) {
	r.moved()
	r.flow.Came(n, time.Now())
	if n == 0 {
		r.arrived.Store(0)
	}
	r.reached(r.arrived.Add(int64(n)))
}

// reached notes how many bytes of the chunk under way have come.
func (r *rangeRequest) reached(n int64) {
	lf := r.j.lf
	lf.mu.Lock()
	defer lf.mu.Unlock()
	if int(n) > r.j.best {
		r.j.best = int(n)
		lf.moved.Add(1)
	}
}

// read reads the chunks of the job. The job gets shorter with each chunk, and may be cut
// meanwhile. read returns how many bytes and chunks came.
func (r *rangeRequest) read(ctx context.Context) (got int64, brought int, err error) {
	from, err := r.c.dialled(r.src)
	if err != nil {
		return 0, 0, err
	}
	lf := r.j.lf
	at, n := r.j.span()
	off := int64(at) * gear.ChunkSize
	body, err := from.Range(gear.WithArrival(ctx, r.came), lf.f, off, min(int64(at+n)*gear.ChunkSize, lf.f.Size)-off, r.j.checked)
	if err != nil {
		return 0, 0, err
	}
	defer body.Close()
	r.flow.Answered(time.Now())
	buf := make([]byte, gear.ChunkSize)
	for ; n > 0; at, n = r.j.span() {
		chunk := buf[:gear.ChunkLen(lf.f.Size, at)]
		m, err := r.fill(body, chunk)
		got += int64(m)
		if err != nil {
			return got, brought, fmt.Errorf("chunk %d of file %x: %w", at, lf.f.Name, err)
		}
		r.flow.Local(true)
		if err := lf.put(at, chunk, r.j.prio); err != nil {
			return got, brought, ofCache(err)
		}
		brought++
		r.j.stored()
		r.arrived.Store(0)
		lf.c.s.tryComplete(lf)
		if _, n := r.j.span(); r.j.prio == inBackground && n > 0 {
			if err := r.c.spare(ctx, r.guard, lf, r.pace, len(chunk)); err != nil {
				return got, brought, err
			}
		}
		r.flow.Local(false)
	}
	return got, brought, nil
}

// fill reads a chunk.
func (r *rangeRequest) fill(body io.Reader, chunk []byte) (n int, err error) {
	for n < len(chunk) {
		m, err := body.Read(chunk[n:])
		n += m
		if m > 0 {
			r.moved()
		}
		r.reached(int64(n))
		if err != nil && n < len(chunk) {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return n, err
		}
	}
	return n, nil
}

// tryComplete publishes a large file if all its chunks are there.
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

// partialContent is an open large file.
type partialContent struct {
	s  *Service
	lf *large

	mu     sync.Mutex
	closed bool
	// next is the offset where a sequential reader would continue. ahead is how many
	// chunks are fetched for it in advance.
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
		// The next window is requested before the reader gets there.
		end := (off/gear.ChunkSize + 1) * gear.ChunkSize
		if missing := pc.lf.p.Missing(end, int64(ahead/2)*gear.ChunkSize); len(missing) > 0 {
			_ = pc.lf.want(missing, ahead, onDemand) // a reader of the chunk asks again
		}
	}
	// After a start, the last chunk to become good may be one that a read has just
	// verified.
	pc.s.tryComplete(pc.lf)
	return n, err
}

// advance notes a read. ahead is how many chunks to fetch from there on if the read
// misses. It doubles in each chunk for a reader that continues where it was, and is one
// for a reader that jumps. entered reports whether the read is the first one in its
// chunk.
func (pc *partialContent) advance(off, n int64) (ahead int, entered bool) {
	pc.mu.Lock()
	defer pc.mu.Unlock()
	// The kernel's own readahead reorders reads slightly.
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
