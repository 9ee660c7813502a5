package peers

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/node/gearfs"
)

// source gets the files of an image from other nodes and from its registry.
type source struct {
	gearfs.Source // the registry

	s *swarm
}

var _ gearfs.Steerer = (*source)(nil)

const (
	// askPieces is how many pieces one request to a node asks for, and ownBytes how many
	// bytes this node fetches from the registry at a time.
	askPieces, ownBytes = 2048, 8 << 20
	// tellEvery is how often the scheduler is told of the bytes that have come.
	tellEvery = 50 * time.Millisecond
)

// Reconnect implements gearfs.Reconnector.
func (o *source) Reconnect() {
	if r, ok := o.Source.(gearfs.Reconnector); ok {
		r.Reconnect()
	}
}

// Steers implements gearfs.Steerer. Bytes come over many connections while there are other
// nodes, and this package itself replaces those that are slow.
func (o *source) Steers() bool { return len(o.s.members(time.Now())) > 0 }

// progress tells the scheduler of bytes that several goroutines receive. Only one goroutine
// calls tell.
type progress struct {
	n    atomic.Int64
	told int64
	came func(int)
}

func newProgress(ctx context.Context) *progress {
	p := &progress{}
	r := gear.Arriving(ctx, readerFunc(func(b []byte) (int, error) { return len(b), nil }))
	p.came = func(n int) {
		for buf := [4096]byte{}; n > 0; n -= min(n, len(buf)) {
			_, _ = r.Read(buf[:min(n, len(buf))])
		}
	}
	return p
}

func (p *progress) moved(n int) { p.n.Add(int64(n)) }

func (p *progress) tell() {
	if n := p.n.Load(); n > p.told {
		p.came(int(n - p.told))
		p.told = n
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// result is a piece that has come, or nil bytes for one that has not.
type result struct {
	i int
	b []byte
}

// joinBytes is how much of a request to the registry must be left to end it when other nodes
// become known.
const joinBytes = 1 << 20

// errJoined ends a request to the registry whose rest comes from other nodes, too.
var errJoined = errors.New("other nodes are known now")

// course is how files that the scheduler asks for are fetched.
type course struct {
	*plan
	alone bool // there are no other nodes
	leads bool // this node gets what its containers open from the registry
}

// course returns the course of a request. pieces returns what the request is for, and bytes is its
// size. It is 0 if some of it are large files. What a profile names of those comes from its owners:
// a node passes a large file on only when it has all of it, so the last nodes of a tree would wait
// for too long.
func (o *source) course(ctx context.Context, bytes int64, pieces func() []piece) (c course) {
	o.s.front.begun()
	opened, predicted := false, false
	if o.s.starting(time.Now()) {
		opened, predicted = gearfs.Wanted(ctx)
	}
	predicted = predicted && bytes > 0 && o.s.front.spend(bytes)
	if opened {
		o.s.front.open(pieces())
	}
	o.s.await(ctx, o.s.first)
	o.s.followLeader()
	if m, _ := o.s.leader(time.Now()); m != nil && predicted {
		// Nodes that know few others ask the leader itself, which cannot send much to many.
		o.s.await(ctx, o.s.settled)
	}
	now := time.Now()
	c.plan = o.s.plan(now)
	c.alone, c.leads = len(c.members) == 0, (opened || predicted) && o.s.leads(c.plan, now)
	if c.leads {
		c.plan = &plan{self: c.self}
	} else if predicted {
		m, _ := o.s.leader(now)
		c.led = m != nil
	}
	return c
}

// Fetch implements [gear.FileSource].
func (o *source) Fetch(ctx context.Context, files []gear.File, deliver func(int, io.Reader) error) error {
	at, size := make([]int, len(files)), int64(0)
	for i := range at {
		at[i] = i
		size += files[i].Size
	}
	if slices.ContainsFunc(files, func(f gear.File) bool { return f.Size >= gear.LargeFile }) {
		size = 0
	}
	c := o.course(ctx, size, func() (out []piece) {
		for i := range files {
			out = append(out, piecesOf(&files[i])...)
		}
		return out
	})
	if c.alone {
		left, err := o.alone(ctx, files, at, !c.leads, deliver)
		if len(left) == 0 || !errors.Is(err, errJoined) {
			return err
		}
		c.plan, at = o.s.plan(time.Now()), left
	}
	left, err := o.together(ctx, c.plan, files, at, deliver)
	if err != nil || len(left) == 0 {
		return err
	}
	_, err = o.alone(ctx, files, left, false, deliver)
	return err
}

// together fetches the files at some positions with other nodes. It returns the positions of
// those that nobody gave.
func (o *source) together(ctx context.Context, p *plan, files []gear.File, at []int, deliver func(int, io.Reader) error) (left []int, err error) {
	var list []want
	var small, large []int
	for _, i := range at {
		switch f := &files[i]; {
		case f.Size == 0:
			if err := deliver(i, bytes.NewReader(nil)); err != nil {
				return nil, err
			}
		case f.Size >= gear.LargeFile:
			large = append(large, i)
		default:
			list, small = append(list, want{piece{f.Name, whole}, f}), append(small, i)
		}
	}
	if left, err = o.small(ctx, p, list, small, deliver); err != nil {
		return left, err
	}
	for _, i := range large {
		r, err := o.Range(ctx, files[i], 0, files[i].Size, false)
		if err != nil {
			return left, err
		}
		err = deliver(i, r)
		_ = r.Close() // an error of what was read is one of deliver
		if err != nil {
			return left, err
		}
	}
	return left, nil
}

// alone fetches the files at some positions from the registry. If join is true, it ends with
// errJoined when other nodes become known. It returns the positions of the files that were not
// delivered.
func (o *source) alone(ctx context.Context, files []gear.File, at []int, join bool, deliver func(int, io.Reader) error) (left []int, err error) {
	part := make([]gear.File, len(at))
	rest := int64(0)
	for k, i := range at {
		part[k] = files[i]
		rest += files[i].Size
	}
	var list []want
	from := make([]int, len(part)+1) // the first claim of each file
	for k := range part {
		for _, p := range piecesOf(&part[k]) {
			list = append(list, want{p, &part[k]})
		}
		from[k+1] = len(list)
	}
	claims := o.s.direct(list)
	came, joined := make([]bool, len(part)), false
	err = o.Source.Fetch(ctx, part, func(k int, r io.Reader) error {
		if k < 0 || k >= len(part) {
			return deliver(-1, r) // which refuses it
		}
		if err := deliver(at[k], r); err != nil {
			return err
		}
		came[k] = true
		rest -= part[k].Size
		o.s.x.count.fromRegistry.Add(part[k].Size)
		o.s.settle(nil, claims[from[k]:from[k+1]]...)
		if join && rest >= joinBytes && len(o.s.members(time.Now())) > 0 {
			joined = true
			return errJoined
		}
		return nil
	})
	if joined {
		err = errJoined
	}
	o.s.settle(cmp.Or(err, errNoSource), claims...)
	for k, i := range at {
		if !came[k] {
			left = append(left, i)
		}
	}
	return left, err
}

// small delivers files without chunks, in the order in which they come. It returns the
// positions of those that nobody gave.
func (o *source) small(ctx context.Context, p *plan, list []want, at []int, deliver func(int, io.Reader) error) (left []int, err error) {
	outer := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pr := newProgress(ctx)
	results := make(chan result)
	go func() {
		defer close(results)
		o.s.gather(ctx, p, list, pr.moved, func(i int, b []byte) error {
			select {
			case results <- result{i, b}:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	for {
		select {
		case r, ok := <-results:
			if !ok {
				return left, cmp.Or(err, context.Cause(outer))
			}
			pr.tell()
			switch {
			case err != nil:
			case r.b == nil:
				left = append(left, at[r.i])
			default:
				if err = deliver(at[r.i], bytes.NewReader(r.b)); err != nil {
					cancel()
				}
			}
		case <-tick.C:
			if err == nil {
				pr.tell()
			}
		}
	}
}

// gather gets pieces from their owners. It calls got with each piece, or with nil for one
// that nobody gave; calls may overlap. moved is told of the bytes that come. It returns when
// got was called for all pieces, or got or ctx ended it.
func (s *swarm) gather(ctx context.Context, p *plan, list []want, moved func(int), got func(i int, b []byte) error) {
	var here, rest []int
	for i := range list {
		if s.coming(list[i]) || p.led {
			here = append(here, i)
		} else {
			rest = append(rest, i)
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() { s.spread(ctx, p, true, list, rest, moved, got) })
	wg.Go(func() {
		var left []int
		s.fromHere(ctx, list, here, led, moved, func(i int, b []byte) error {
			if b == nil {
				left = append(left, i)
				return nil
			}
			return got(i, b)
		})
		if len(left) > 0 && ctx.Err() == nil {
			s.spread(ctx, p, true, list, left, moved, got)
		}
	})
	wg.Wait()
}

// coming reports whether a piece is here for other nodes, or comes because the leader opened it.
func (s *swarm) coming(w want) bool {
	if s.front.used(w.piece) || s.x.hot.get(s.at, w.piece) != nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claims[w.piece] != nil
}

// spread is gather for the pieces at some positions. If again is true, what an owner does not
// give is asked of the next owner once, before the registry. Many nodes ask this one for the
// same pieces, if their owner has failed.
func (s *swarm) spread(ctx context.Context, p *plan, again bool, list []want, part []int, moved func(int), got func(int, []byte) error) {
	by := map[*member][]int{}
	for _, i := range part {
		m := p.owner(list[i].piece)
		by[m] = append(by[m], i)
	}
	var wg sync.WaitGroup
	for m, part := range by {
		wg.Go(func() {
			if m != nil {
				part = s.fromOwner(ctx, m, list, part, moved, got)
			}
			if m != nil && again && len(part) > 0 && ctx.Err() == nil {
				s.spread(ctx, s.without(m, time.Now()), false, list, part, moved, got)
				return
			}
			s.fromHere(ctx, list, part, mine, moved, got)
		})
	}
	wg.Wait()
}

// fromOwner asks a node for the pieces at some positions of a list. It returns the positions
// of those that the node did not give.
func (s *swarm) fromOwner(ctx context.Context, m *member, list []want, part []int, moved func(int), got func(int, []byte) error) (left []int) {
	starved := false
	for len(part) > 0 {
		now := part[:min(len(part), askPieces)]
		wants := make([]want, len(now))
		for k, i := range now {
			wants[k] = list[i]
		}
		n := 0
		err := s.ask(ctx, hop{m, owned}, wants, moved, func(k int, b []byte, _ *frame) error {
			if n++; b == nil {
				left = append(left, now[k])
				return nil
			}
			return got(now[k], b)
		})
		switch {
		case err == nil:
			part = part[len(now):]
		case errors.Is(err, errStarved) && !starved:
			starved = true // another connection may do better
			part = part[n:]
		default:
			return append(left, part[min(n, len(part)):]...)
		}
	}
	return left
}

// fromHere gets the pieces at some positions of a list by claims of this node. how says who is
// asked for those that have no claim yet.
func (s *swarm) fromHere(ctx context.Context, list []want, part []int, how order, moved func(int), got func(int, []byte) error) {
	var before []int
	var claims []*claim
	flush := func() bool {
		for k, c := range claims {
			b, err := c.wait(ctx)
			if ctx.Err() != nil {
				return false
			}
			if err != nil {
				b = nil
			}
			moved(len(b))
			if got(before[k], b) != nil {
				return false
			}
		}
		return true
	}
	for len(part) > 0 && ctx.Err() == nil {
		n, bytes := 0, 0
		for n < len(part) && bytes < ownBytes {
			size, _, _ := list[part[n]].of(list[part[n]].f)
			bytes += size
			n++
		}
		wants := make([]want, n)
		for k, i := range part[:n] {
			wants[k] = list[i]
		}
		next := s.claimAll(wants, how, false) // before the last ones have come
		if !flush() {
			return
		}
		before, claims = part[:n], next
		part = part[n:]
	}
	flush()
}

// Range implements gearfs.Source.
func (o *source) Range(ctx context.Context, f gear.File, off, n int64, checked bool) (io.ReadCloser, error) {
	end := off + n
	if checked || f.Size < gear.LargeFile || off < 0 || n <= 0 || end > f.Size || off%gear.ChunkSize != 0 || end%gear.ChunkSize != 0 && end != f.Size ||
		len(f.Chunks) != gear.ChunkCount(f.Size) {
		return o.Source.Range(ctx, f, off, n, checked)
	}
	c := o.course(ctx, 0, func() []piece {
		return piecesOf(&f)[off/gear.ChunkSize:][:gear.ChunkCount(n)]
	})
	if c.alone {
		return o.rangeAlone(ctx, f, off, n, !c.leads)
	}
	return o.rangeTogether(ctx, c.plan, f, off, n)
}

// rangeTogether reads chunks of a large file with other nodes.
func (o *source) rangeTogether(ctx context.Context, p *plan, f gear.File, off, n int64) (io.ReadCloser, error) {
	r := &rangeReader{o: o, f: &f, off: off, end: off + n, pr: newProgress(ctx)}
	r.ctx, r.cancel = context.WithCancel(ctx)
	first := off / gear.ChunkSize
	list := make([]want, gear.ChunkCount(n))
	r.slots = make([]slot, len(list))
	for i := range list {
		list[i] = want{piece{f.Name, int32(first) + int32(i)}, r.f}
		r.slots[i].done = make(chan struct{})
	}
	r.work.Go(func() {
		o.s.gather(r.ctx, p, list, r.pr.moved, func(i int, b []byte) error {
			r.slots[i].b = b
			close(r.slots[i].done)
			return nil
		})
	})
	// The scheduler takes the time until Range returns for the time to the first byte.
	if _, err := r.next(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// rangeAlone reads chunks from the registry, if join is true until other nodes become known.
func (o *source) rangeAlone(ctx context.Context, f gear.File, off, n int64, join bool) (io.ReadCloser, error) {
	r := &directReader{ctx: ctx, o: o, f: &f, off: off, end: off + n, joins: join}
	list := make([]want, gear.ChunkCount(n))
	for i := range list {
		list[i] = want{piece{f.Name, int32(off/gear.ChunkSize) + int32(i)}, &f}
	}
	r.claims = o.s.direct(list)
	var err error
	if r.ReadCloser, err = o.Source.Range(ctx, f, off, n, false); err != nil {
		o.s.settle(err, r.claims...)
		return nil, err
	}
	return r, nil
}

// directReader reads chunks that the reader puts into the cache of files.
type directReader struct {
	io.ReadCloser
	ctx      context.Context
	o        *source
	f        *gear.File
	off, end int64
	claims   []*claim
	read     int64 // of the chunk at off
	joins    bool  // the rest may come from other nodes, too
	joined   bool  // it does
}

// Read implements io.Reader. A chunk that was read is in the cache when the next one is
// asked for.
func (r *directReader) Read(p []byte) (int, error) {
	if r.read == gear.ChunkSize && len(r.claims) > 0 {
		r.o.s.settle(nil, r.claims[0])
		r.claims, r.off, r.read = r.claims[1:], r.off+gear.ChunkSize, 0
		if r.joins && r.end-r.off >= joinBytes && len(r.o.s.members(time.Now())) > 0 {
			if err := r.join(); err != nil {
				return 0, err
			}
		}
	}
	if r.joined {
		return r.ReadCloser.Read(p)
	}
	n, err := r.ReadCloser.Read(p[:min(int64(len(p)), gear.ChunkSize-r.read)])
	r.read += int64(n)
	r.o.s.x.count.fromRegistry.Add(int64(n))
	return n, err
}

// join gets the rest from other nodes, too.
func (r *directReader) join() error {
	r.o.s.settle(errJoined, r.claims...) // or the rest would wait for them
	r.claims, r.joined = nil, true
	rest, err := r.o.rangeTogether(r.ctx, r.o.s.plan(time.Now()), *r.f, r.off, r.end-r.off)
	if err != nil {
		return err
	}
	_ = r.ReadCloser.Close() // nobody needs what it has not sent
	r.ReadCloser = rest
	return nil
}

// Close implements io.Closer.
func (r *directReader) Close() error {
	// The last chunk is in the cache if it was read. If it is not there, whoever waits for it
	// asks the registry.
	r.o.s.settle(nil, r.claims...)
	return r.ReadCloser.Close()
}

// slot is a chunk that may not have come yet.
type slot struct {
	done chan struct{}
	b    []byte // nil if nobody gave it
}

// rangeReader reads chunks that come in any order.
type rangeReader struct {
	o        *source
	f        *gear.File
	off, end int64
	ctx      context.Context
	cancel   context.CancelFunc
	work     sync.WaitGroup
	pr       *progress

	slots []slot
	at    int // the next slot to read
	buf   []byte
	rest  io.ReadCloser // from the registry, after a chunk that nobody gave
}

// Read implements io.Reader.
func (r *rangeReader) Read(p []byte) (int, error) {
	for len(r.buf) == 0 {
		if r.rest != nil {
			return r.rest.Read(p)
		}
		if r.at == len(r.slots) {
			return 0, io.EOF
		}
		b, err := r.next()
		if err != nil {
			return 0, err
		}
		if b == nil {
			if r.rest, err = r.o.Source.Range(r.ctx, *r.f, r.off, r.end-r.off, false); err != nil {
				return 0, err
			}
			continue
		}
		r.buf = b
		r.at++
		r.off += int64(len(b))
	}
	n := copy(p, r.buf)
	r.buf = r.buf[n:]
	return n, nil
}

// next waits for the next chunk.
func (r *rangeReader) next() ([]byte, error) {
	defer r.pr.tell()
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	for {
		select {
		case <-r.slots[r.at].done:
			return r.slots[r.at].b, nil
		case <-tick.C:
			r.pr.tell()
		case <-r.ctx.Done():
			return nil, context.Cause(r.ctx)
		}
	}
}

// Close implements io.Closer.
func (r *rangeReader) Close() error {
	r.cancel()
	r.work.Wait()
	if r.rest != nil {
		return r.rest.Close()
	}
	return nil
}
