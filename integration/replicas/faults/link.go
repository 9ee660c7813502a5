// Package faults stands between the parts of a cluster and breaks the traffic. Its links can fall
// silent, as if packets were dropped. Its object store can be slow, busy, cut off or lost.
package faults

import (
	"context"
	"net"
	"sync"
	"testing"
)

// LinkState is what a link does.
type LinkState int

// These are the states of a link.
const (
	// Passing passes everything on.
	Passing LinkState = iota
	// Silent passes nothing on and ends nothing, like a partition that drops packets. The near
	// side's kernel makes connections, but nobody answers them. What was sent arrives when the link
	// passes again.
	Silent
	// Broken resets all connections, and resets new ones at once.
	Broken
)

// Link forwards TCP connections to a target.
type Link struct {
	// Addr is where it listens, host:port.
	Addr string

	target string
	ln     net.Listener
	done   context.Context
	wg     sync.WaitGroup

	mu      sync.Mutex
	state   LinkState
	changed chan struct{} // closed at the next change of state
	conns   map[*net.TCPConn]bool
}

// NewLink returns a link to a target that listens on host. It passes everything on, and lasts until
// the end of the test.
func NewLink(t testing.TB, host, target string) *Link {
	t.Helper()
	ln, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	done, cancel := context.WithCancel(context.Background())
	l := &Link{Addr: ln.Addr().String(), target: target, ln: ln, done: done, changed: make(chan struct{}), conns: map[*net.TCPConn]bool{}}
	l.wg.Go(l.accept)
	t.Cleanup(func() {
		cancel()
		ln.Close()
		l.Set(Broken)
		l.wg.Wait()
	})
	return l
}

// Set changes what the link does.
func (l *Link) Set(s LinkState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state = s
	close(l.changed)
	l.changed = make(chan struct{})
	if s == Broken {
		for c := range l.conns {
			reset(c)
		}
	}
}

func reset(c *net.TCPConn) {
	_ = c.SetLinger(0) // the connection is closed either way
	c.Close()
}

// pass waits while the link is silent. It returns false if the link is broken.
func (l *Link) pass() bool {
	for {
		l.mu.Lock()
		state, changed := l.state, l.changed
		l.mu.Unlock()
		switch state {
		case Passing:
			return true
		case Broken:
			return false
		}
		select {
		case <-changed:
		case <-l.done.Done():
			return false
		}
	}
}

func (l *Link) accept() {
	for {
		c, err := l.ln.Accept()
		if err != nil {
			return // the listener is closed
		}
		l.wg.Go(func() { l.forward(c.(*net.TCPConn)) })
	}
}

// hold keeps a connection so that it is reset when the link breaks.
func (l *Link) hold(c *net.TCPConn) (release func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[c] = true
	return func() {
		c.Close()
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.conns, c)
	}
}

func (l *Link) forward(near *net.TCPConn) {
	defer l.hold(near)()
	if !l.pass() {
		reset(near)
		return
	}
	var d net.Dialer
	conn, err := d.DialContext(l.done, "tcp", l.target)
	if err != nil {
		reset(near) // as if the target had refused
		return
	}
	far := conn.(*net.TCPConn)
	defer l.hold(far)()
	var wg sync.WaitGroup
	wg.Go(func() { l.pipe(far, near) })
	wg.Go(func() { l.pipe(near, far) })
	wg.Wait()
}

// pipe passes on what comes from src, including its end.
func (l *Link) pipe(dst, src *net.TCPConn) {
	b := make([]byte, 32<<10)
	for {
		n, err := src.Read(b)
		if !l.pass() {
			reset(dst)
			return
		}
		if n > 0 {
			if _, werr := dst.Write(b[:n]); werr != nil {
				reset(src)
				return
			}
		}
		if err != nil {
			_ = dst.CloseWrite() // fails if the other side has gone
			return
		}
	}
}
