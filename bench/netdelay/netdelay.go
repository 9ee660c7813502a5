// Package netdelay forwards TCP connections as if the way to their target took longer. It
// serves machines whose kernel has no netem.
//
// It delays every piece of data by half of the round trip in each direction, counted from
// the time at which the piece arrived. Consecutive pieces keep their distance in time, so
// the bandwidth stays the same, and connections do not wait for each other. The handshake
// is delayed too. The kernel accepts a connection at once, so what a client sends within
// a connection's first round trip is treated as sent at the end of that round trip.
//
// The package does not imitate TCP's own reaction to a long way, such as the growth of
// its window at the start. All transfers are therefore faster than on a real network.
package netdelay

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// pieceBytes is the maximum size of one read.
	pieceBytes = 32 << 10
	// heldFrom is how many bytes a connection has brought before it may be the one that is held. So
	// it is not one that is hardly used.
	heldFrom = 256 << 10
	// queueBytes is the maximum in flight in one direction of a connection: 30 ms at 4 Gbit/s, more
	// than any limited link needs.
	queueBytes = 16 << 20
)

// Proxy forwards the connections of one listener.
type Proxy struct {
	// Target is the address that connections are forwarded to.
	Target string
	// RTT is the time added to a round trip.
	RTT time.Duration
	// Held, if it is above 0, is the rate in bytes a second to which one connection is held: the
	// first that has brought some hundred kilobytes to its client, from then on.
	Held int64

	chosen atomic.Bool // whether that connection was found
}

// holder slows down the connection that is held.
type holder struct {
	p     *Proxy
	count int64 // bytes so far
	mine  bool
}

// passed waits after n bytes as long as they take at the rate.
func (h *holder) passed(n int) {
	if h.p.Held <= 0 {
		return
	}
	if h.count += int64(n); !h.mine && h.count >= heldFrom {
		h.mine = h.p.chosen.CompareAndSwap(false, true)
	}
	if h.mine {
		time.Sleep(time.Duration(float64(n) / float64(h.p.Held) * float64(time.Second)))
	}
}

// Serve forwards connections until the context ends or the listener fails. It
// closes the listener and returns when all connections have ended.
func (p *Proxy) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		conn, err := l.Accept()
		if err != nil {
			cancel()
			if errors.Is(err, net.ErrClosed) {
				return nil
			}
			return err
		}
		wg.Go(func() { p.forward(ctx, conn, time.Now()) })
	}
}

// forward serves one connection, which was accepted at the given time.
func (p *Proxy) forward(ctx context.Context, near net.Conn, accepted time.Time) {
	defer near.Close()
	var d net.Dialer
	far, err := d.DialContext(ctx, "tcp", p.Target)
	if err != nil {
		return // the client sees that its connection is closed
	}
	defer far.Close()
	stop := context.AfterFunc(ctx, func() {
		near.Close()
		far.Close()
	})
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { pipe(far, near, p.RTT/2, accepted.Add(p.RTT), func(int) {}) })
	wg.Go(func() { pipe(near, far, p.RTT/2, time.Time{}, (&holder{p: p}).passed) })
	wg.Wait()
}

// piece is some data and the time when it may be passed on.
type piece struct {
	data []byte
	due  time.Time
}

// pipe passes on what comes from src, with a delay. Data that comes before opened counts as having
// come at that time. The end of src is passed on in its turn. If dst fails, pipe stops reading src.
// It calls passed with the size of each piece after it was passed on.
func pipe(dst, src net.Conn, delay time.Duration, opened time.Time, passed func(n int)) {
	queue := make(chan piece, queueBytes/pieceBytes)
	gone := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(gone)
		deliver(dst, queue, passed)
	})
	defer wg.Wait()
	defer close(queue)
	for {
		b := make([]byte, pieceBytes)
		n, err := src.Read(b)
		came := time.Now()
		if came.Before(opened) {
			came = opened
		}
		if n > 0 {
			select {
			case queue <- piece{b[:n], came.Add(delay)}:
			case <-gone:
				return
			}
		}
		if err != nil {
			if err == io.EOF {
				select {
				case queue <- piece{nil, came.Add(delay)}:
				case <-gone:
				}
				return
			}
			dst.Close()
			return
		}
	}
}

// deliver writes pieces when they are due, and passes on the end of the data.
func deliver(dst net.Conn, queue <-chan piece, passed func(n int)) {
	for p := range queue {
		time.Sleep(time.Until(p.due))
		if p.data == nil {
			if c, ok := dst.(*net.TCPConn); ok {
				_ = c.CloseWrite() // fails if the other side has gone, which ends the pipe there
			}
			return
		}
		if _, err := dst.Write(p.data); err != nil {
			return
		}
		passed(len(p.data))
	}
}
