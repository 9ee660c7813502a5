package agent_test

import (
	"context"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/integration/internal/slipway"
)

// distance is a way to a server that takes as long for each round trip. It notes all of them:
// handshakes of connections, and everything that a client sends and waits for, whatever it means.
type distance struct {
	addr, to string
	rtt      atomic.Int64 // nanoseconds
	mu       sync.Mutex
	all      []exchange
}

// away starts a way to a server.
func away(t testing.TB, to string, rtt time.Duration) *distance {
	t.Helper()
	d := &distance{addr: slipway.FreeAddr(t), to: to}
	d.rtt.Store(int64(rtt))
	l, err := net.Listen("tcp", d.addr)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() { d.forward(ctx, c) })
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = l.Close()
		work.Wait()
	})
	return d
}

// forward serves a connection. What the client sends arrives one round trip later, and what it sends
// at once waits for the handshake, too.
func (d *distance) forward(ctx context.Context, near net.Conn) {
	defer near.Close()
	rtt := time.Duration(d.rtt.Load())
	open := time.Now().Add(rtt)
	d.note(exchange{"connect", time.Now(), open})
	far, err := net.Dial("tcp", d.to)
	if err != nil {
		return
	}
	defer far.Close()
	defer context.AfterFunc(ctx, func() { _, _ = near.Close(), far.Close() })()
	var asked, last atomic.Pointer[exchange] // what the client waits for, and what it has sent last
	var work sync.WaitGroup
	defer work.Wait()
	type piece struct {
		b   []byte
		due time.Time
	}
	way := make(chan piece, 1024)
	work.Go(func() {
		defer far.Close()
		for p := range way {
			time.Sleep(time.Until(p.due))
			if _, err := far.Write(p.b); err != nil {
				near.Close()
			}
		}
	})
	work.Go(func() {
		defer close(way)
		for {
			b := make([]byte, 64<<10)
			n, err := near.Read(b)
			if n == 0 && err != nil {
				return
			}
			at := time.Now()
			if at.Before(open) {
				at = open
			}
			e := &exchange{what: firstLine(b[:n]), begin: at}
			last.Store(e)
			asked.CompareAndSwap(nil, e)
			way <- piece{b[:n], at.Add(rtt)}
		}
	})
	b := make([]byte, 64<<10)
	for {
		n, err := far.Read(b)
		if n > 0 {
			// An answer to what was sent comes after a round trip at the earliest. What comes
			// before belongs to an earlier request.
			if e := asked.Load(); e != nil && time.Since(e.begin) >= rtt {
				d.note(exchange{e.what, e.begin, time.Now()})
				asked.Store(nil)
				if now := last.Load(); now != e { // sent meanwhile, over the same connection
					asked.Store(now)
				}
			}
			if _, err := near.Write(b[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func firstLine(b []byte) string {
	if i := slices.Index(b, '\r'); i >= 0 && i < 200 && b[0] >= 'A' && b[0] <= 'Z' {
		return string(b[:i])
	}
	return "(encrypted)"
}

func (d *distance) note(e exchange) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = append(d.all, e)
}

// taken returns the round trips until now, and forgets them.
func (d *distance) taken() []exchange {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := d.all
	d.all = nil
	return all
}

// answered returns how many round trips there were until now that were not for a connection.
func (d *distance) answered() (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range d.all {
		if e.what != "connect" {
			n++
		}
	}
	return n
}
