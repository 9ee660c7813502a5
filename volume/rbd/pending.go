package rbd

import (
	"slices"
	"sync"
)

const (
	// chunkSize is how many bytes are collected before they are sent. A volume holds at
	// most mostChunks chunks: 32 MiB.
	chunkSize  = 4 << 20
	mostChunks = 8
)

// pending collects small writes and sends them as few large ones, several at a time. Its
// content is lost with the process, so it is for volumes that are being built, and not
// for volumes in use. Its methods may run concurrently.
type pending struct {
	// send writes to the volume; it may run concurrently.
	send func(p []byte, off int64) error

	mu     sync.Mutex
	change *sync.Cond // a chunk has been sent
	chunks map[int64]*chunk
	order  []*chunk // the chunks that are not being sent, oldest first
	free   [][]byte
	err    error // the first error of send; anything sent after it would leave a hole
}

// chunk is the part of a volume from base on.
type chunk struct {
	base    int64
	data    []byte
	parts   []span // what was written to it, in order, not touching each other
	sending bool
}

// span is a part of a chunk.
type span struct{ from, to int64 }

func newPending(send func([]byte, int64) error) *pending {
	p := &pending{send: send, chunks: map[int64]*chunk{}}
	p.change = sync.NewCond(&p.mu)
	return p
}

// write takes a copy of b. It may return the error of an earlier write.
func (p *pending) write(b []byte, off int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(b) > 0 && p.err == nil {
		base := off &^ (chunkSize - 1)
		n := min(int64(len(b)), base+chunkSize-off)
		c := p.chunk(base)
		copy(c.data[off-base:], b[:n])
		c.add(span{off - base, off - base + n})
		if c.parts[0] == (span{0, chunkSize}) {
			p.start(c)
		}
		b, off = b[n:], off+n
	}
	return p.err
}

// chunk returns the chunk at base, which is not being sent. The caller holds p.mu, which
// may be released meanwhile.
func (p *pending) chunk(base int64) *chunk {
	for {
		c := p.chunks[base]
		switch {
		case c != nil && !c.sending:
			return c
		case c == nil && len(p.chunks) < mostChunks:
			c = &chunk{base: base, data: p.buffer()}
			p.chunks[base], p.order = c, append(p.order, c)
			return c
		case c == nil && len(p.order) > 0:
			p.start(p.order[0])
		}
		p.change.Wait()
	}
}

func (p *pending) buffer() []byte {
	if n := len(p.free); n > 0 {
		b := p.free[n-1]
		p.free = p.free[:n-1]
		return b
	}
	return make([]byte, chunkSize)
}

// start sends a chunk that is not being sent. The caller holds p.mu.
func (p *pending) start(c *chunk) {
	c.sending = true
	p.order = slices.DeleteFunc(p.order, func(o *chunk) bool { return o == c })
	go func() {
		var err error
		for _, s := range c.parts {
			if err = p.send(c.data[s.from:s.to], c.base+s.from); err != nil {
				break
			}
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.err == nil {
			p.err = err
		}
		if err == nil {
			p.free = append(p.free, c.data) // otherwise a call that was given up may still read it
		}
		delete(p.chunks, c.base)
		p.change.Broadcast()
	}()
}

// settle returns when everything written to a stretch has been sent.
func (p *pending) settle(off, n int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	inside := func(c *chunk) bool { return c.base < off+n && off < c.base+chunkSize }
	for {
		busy := false
		for _, c := range p.chunks {
			if !inside(c) {
				continue
			}
			busy = true
			if !c.sending {
				p.start(c)
			}
		}
		if !busy {
			return p.err
		}
		p.change.Wait()
	}
}

// add adds a part and merges it with the parts that it overlaps or touches.
func (c *chunk) add(s span) {
	// The first part that ends at or after the start of s, and the first that begins
	// after its end.
	i, _ := slices.BinarySearchFunc(c.parts, s.from, func(o span, from int64) int { return int(o.to - from) })
	j := i
	for j < len(c.parts) && c.parts[j].from <= s.to {
		s.from, s.to = min(s.from, c.parts[j].from), max(s.to, c.parts[j].to)
		j++
	}
	c.parts = slices.Replace(c.parts, i, j, s)
}
