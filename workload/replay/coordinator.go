package replay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"example.org/slipway/workload/replay/content"
	"example.org/slipway/workload/replay/plan"
	"example.org/slipway/workload/replay/result"
	"example.org/slipway/workload/replay/send"
)

// coordinator deals tasks to workers and collects their samples.
type coordinator struct {
	peers []*peer
	// roundRobin says that tasks are dealt to the workers in turn, and not by the hash of their client.
	roundRobin bool
	heartbeat  time.Duration

	readers sync.WaitGroup
	closing chan struct{}

	mu      sync.Mutex
	changed sync.Cond // signalled when a field below changes, or when time has passed
	manner  manner    // of the phase under way
	start   time.Time
	left    int          // tasks handed out and not answered, orphans included
	telling int          // lost workers whose samples are on their way to collect
	orphans []*plan.Task // tasks of lost workers that had not been begun
	lost    []string     // names of lost workers and why
	turn    uint64
}

// manner is how a phase is run.
type manner struct {
	// closed is how many tasks run at once on each worker in a closed loop, regardless of
	// their times; 0 is an open loop.
	closed int
	// from is the run's time at which a closed loop begins; an open loop begins at the time of
	// its first task.
	from time.Duration
	// again says that tasks of a lost worker may be repeated, because their times do not
	// matter.
	again bool
	// collect is called with all samples, by several goroutines.
	collect func([]result.Sample)
}

const (
	// maxQueued is how many tasks a worker has that it has not begun.
	maxQueued = 8192
	// ahead is how far before its time a task is sent to its worker.
	ahead = 15 * time.Second
	// barrier is how long before its beginning the test is announced.
	barrier = 300 * time.Millisecond
	// maxChunk is the size in bytes at which a chunk is sent.
	maxChunk = 256 << 10
	// pingEvery is how often workers are pinged.
	pingEvery = time.Second
)

// errNoWorkers ends a run.
var errNoWorkers = errors.New("all workers are lost")

// newCoordinator meets the workers at the other ends of conns. close closes conns.
func newCoordinator(conns []net.Conn, names []string, secret string, base config, heartbeat time.Duration) (*coordinator, error) {
	c := &coordinator{closing: make(chan struct{}), heartbeat: heartbeat}
	c.changed.L = &c.mu
	for i, conn := range conns {
		p := &peer{name: names[i], index: uint8(i), link: newLink(conn), alive: true, tasks: map[int64]*handed{}}
		mine := base
		mine.Worker = p.index
		if err := p.meet(secret, &mine); err != nil {
			return nil, fmt.Errorf("worker %s: %w", p.name, err)
		}
		c.peers = append(c.peers, p)
	}
	for _, p := range c.peers {
		c.readers.Go(func() { c.listen(p) })
	}
	c.readers.Go(c.tick)
	return c, nil
}

// close says goodbye to the workers and waits for what the coordinator has begun.
func (c *coordinator) close() {
	close(c.closing)
	for _, p := range c.peers {
		_ = p.link.send(frameBye, nil) // a worker that is gone needs none
	}
	for _, p := range c.peers {
		_ = p.link.conn.Close()
	}
	c.readers.Wait()
}

// tick pings the workers, and wakes goroutines that wait for time to pass.
func (c *coordinator) tick() {
	wake := time.NewTicker(50 * time.Millisecond)
	defer wake.Stop()
	pinged := time.Now()
	for {
		select {
		case <-c.closing:
			return
		case <-wake.C:
			c.changed.Broadcast()
		}
		if time.Since(pinged) < pingEvery {
			continue
		}
		pinged = time.Now()
		for _, p := range c.live() {
			// In the background: a worker that takes nothing must not hold up the others.
			c.readers.Go(func() {
				if err := p.ping(); err != nil {
					c.lose(p, err)
				}
			})
		}
	}
}

func (c *coordinator) live() []*peer {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*peer
	for _, p := range c.peers {
		if p.alive {
			out = append(out, p)
		}
	}
	return out
}

// listen takes what a worker sends.
func (c *coordinator) listen(p *peer) {
	for {
		t, b, err := p.link.receive(c.heartbeat)
		if err == nil {
			err = c.frame(p, t, b)
		}
		if err != nil {
			c.lose(p, err)
			return
		}
	}
}

func (c *coordinator) frame(p *peer, t frameType, b []byte) error {
	switch t {
	case framePong:
		if len(b) != 16 {
			return errors.New("malformed pong")
		}
		trip, offset := clock(b, time.Now())
		c.mu.Lock()
		defer c.mu.Unlock()
		if trip < 2*p.trip+time.Millisecond { // others say little about the clock
			p.last = offset
		}
		return nil
	case frameDone:
		c.mu.Lock()
		defer c.mu.Unlock()
		p.working = false
		c.changed.Broadcast()
		return nil
	case frameSamples:
		begun, samples, err := decodeSamples(b)
		if err != nil {
			return err
		}
		return c.answered(p, begun, samples)
	}
	return fmt.Errorf("the worker sent the unknown frame %d", t)
}

// answered notes what a worker has done.
func (c *coordinator) answered(p *peer, begun int64, samples []result.Sample) error {
	c.mu.Lock()
	collect := c.manner.collect
	switch {
	case !p.alive:
		c.mu.Unlock()
		return nil
	case collect == nil:
		c.mu.Unlock()
		return errors.New("the worker sent samples before it had tasks")
	}
	p.begun = max(p.begun, begun)
	for i := range samples {
		h, mine := p.tasks[samples[i].Task]
		switch {
		case mine && samples[i].Last:
			delete(p.tasks, samples[i].Task)
			c.left--
		case mine:
			h.done = append(h.done, samples[i].Step)
		}
	}
	c.changed.Broadcast()
	c.mu.Unlock()
	if len(samples) > 0 {
		collect(samples)
	}
	return nil
}

// lose gives a worker up. Its requests under way are counted as lost, and the rest of its
// tasks goes to the others.
func (c *coordinator) lose(p *peer, cause error) {
	select {
	case <-c.closing:
		return
	default:
	}
	c.mu.Lock()
	if !p.alive {
		c.mu.Unlock()
		return
	}
	p.alive, p.working = false, false
	_ = p.link.conn.Close()
	c.lost = append(c.lost, fmt.Sprintf("worker %s was lost: %v", p.name, cause))
	now := time.Since(c.start)
	var gone []result.Sample
	for _, h := range p.tasks {
		closed := c.manner.closed > 0
		if !c.manner.again && (h.order < p.begun || !closed && h.task.At <= now) {
			intended := h.task.At
			if closed {
				intended = now
			}
			for _, s := range send.Unsent(h.task, result.Lost, intended.Microseconds(), now.Microseconds(), 0, h.done) {
				s.Worker = p.index
				gone = append(gone, s)
			}
			c.left--
		} else {
			c.orphans = append(c.orphans, h.task)
		}
	}
	p.tasks = nil
	collect := c.manner.collect
	c.telling++ // the phase must not end before the samples are collected
	c.changed.Broadcast()
	c.mu.Unlock()
	if len(gone) > 0 {
		collect(gone)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.telling--
	c.changed.Broadcast()
}

// phase runs the tasks that generate makes.
func (c *coordinator) phase(ctx context.Context, m manner, generate func(hand func(*plan.Task) error) error) error {
	stop := context.AfterFunc(ctx, c.changed.Broadcast)
	defer stop()
	begun := false
	err := generate(func(t *plan.Task) error {
		if !begun {
			begun = true
			if err := c.begin(m, t.At); err != nil {
				return err
			}
		}
		return c.hand(ctx, t)
	})
	if err != nil || !begun {
		return err
	}
	if err := c.settle(ctx); err != nil {
		return err
	}
	for _, p := range c.live() {
		if err := p.link.send(frameEnd, nil); err != nil {
			c.lose(p, err)
		}
	}
	return c.wait(ctx, func() bool {
		return c.telling == 0 && !slices.ContainsFunc(c.peers, func(p *peer) bool { return p.working })
	})
}

// begin announces the phase: all workers begin at the same time, at which the first
// task is due.
func (c *coordinator) begin(m manner, first time.Duration) error {
	if m.closed > 0 {
		first = m.from
	}
	start := time.Now().Add(-first)
	if !m.again {
		start = start.Add(barrier)
	}
	c.mu.Lock()
	c.manner, c.start = m, start
	for _, p := range c.peers {
		p.sent, p.begun, p.working = 0, 0, p.alive
	}
	c.mu.Unlock()
	for _, p := range c.live() {
		if err := p.link.sendJSON(frameBegin, phase{Start: start.Add(p.offset).UnixNano(), Closed: m.closed}); err != nil {
			c.lose(p, err)
		}
	}
	if len(c.live()) == 0 {
		return errNoWorkers
	}
	return nil
}

// hand gives a task to its worker when it is time.
func (c *coordinator) hand(ctx context.Context, t *plan.Task) error {
	due := func() bool { return c.manner.closed > 0 || t.At < time.Since(c.start)+ahead }
	c.mu.Lock()
	c.left++
	early := !due()
	c.mu.Unlock()
	if early {
		if err := c.wait(ctx, due); err != nil {
			return err
		}
	}
	return c.give(ctx, t)
}

// give puts a task into the chunk of a worker that is present and has room.
func (c *coordinator) give(ctx context.Context, t *plan.Task) error {
	for {
		p := c.choose(t)
		if p == nil {
			return errNoWorkers
		}
		c.mu.Lock()
		full := p.sent-p.begun >= maxQueued
		if p.alive && !full {
			p.tasks[t.ID] = &handed{task: t, order: p.sent}
			p.sent++
			c.mu.Unlock()
			p.chunk = plan.AppendTask(p.chunk, t)
			if len(p.chunk) >= maxChunk {
				c.flush(p)
			}
			return nil
		}
		c.mu.Unlock()
		if err := c.wait(ctx, func() bool { return !p.alive || p.sent-p.begun < maxQueued }); err != nil {
			return err
		}
	}
}

// choose picks the worker of a task: by rendezvous hashing, so that the clients of a
// lost worker are spread and all others stay where they are.
func (c *coordinator) choose(t *plan.Task) *peer {
	live := c.live()
	if len(live) == 0 {
		return nil
	}
	if c.roundRobin {
		c.turn++
		return live[c.turn%uint64(len(live))]
	}
	var best *peer
	var most int
	for _, p := range live {
		if w := content.Pick(t.Client^content.Key(fmt.Sprint("worker ", p.index)), 1<<30); best == nil || w > most {
			best, most = p, w
		}
	}
	return best
}

// flush sends a worker its chunk.
func (c *coordinator) flush(p *peer) {
	if len(p.chunk) == 0 {
		return
	}
	chunk := p.chunk
	p.chunk = nil
	c.mu.Lock()
	alive := p.alive
	c.mu.Unlock()
	if !alive {
		return // its tasks are orphans by now
	}
	if err := p.link.send(frameTasks, chunk); err != nil {
		c.lose(p, err)
	}
}

// wait sends the tasks that are in chunks and waits until ready, which is called with mu
// held. Tasks of workers that are lost meanwhile go to other workers.
func (c *coordinator) wait(ctx context.Context, ready func() bool) error {
	for {
		for _, p := range c.peers {
			c.flush(p)
		}
		c.mu.Lock()
		for !ready() && len(c.orphans) == 0 && ctx.Err() == nil {
			c.changed.Wait()
		}
		orphans := c.orphans
		c.orphans = nil
		c.mu.Unlock()
		if err := ctx.Err(); err != nil {
			return err
		}
		if len(orphans) == 0 {
			return nil
		}
		for _, t := range orphans {
			if err := c.give(ctx, t); err != nil {
				return err
			}
		}
	}
}

// settle waits until all tasks have been answered.
func (c *coordinator) settle(ctx context.Context) error {
	return c.wait(ctx, func() bool { return c.left == 0 })
}
