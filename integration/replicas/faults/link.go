// Package faults stands between the parts of a cluster and breaks what passes: links
// that fall silent as when packets are dropped, and an object store that is slow, busy,
// cut off or lost.
package faults

import (
	"context"
	"net"
	"sync"
	"testing"
)

// LinkState is what a link does.
type LinkState int

// States of a link.
const (
	// Passing passes everything on.
	Passing LinkState = iota
	// Silent passes nothing on and ends nothing, as a partition that drops packets:
	// connections are made by the near side's kernel and never answered. What was sent
	// arrives when the link passes again.
	Silent
	// Broken ends all connections with a reset, and new ones at once.
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

// NewLink returns a link to a target that passes, until the end of the test. It listens
// on host.
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
	_ = c.SetLinger(0) // it is closed either way
	c.Close()
}

// pass waits while the link is silent. It returns false when it is broken.
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
			return // closed
		}
		l.wg.Go(func() { l.forward(c.(*net.TCPConn)) })
	}
}

// hold keeps a connection to be reset when the link breaks.
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

// pipe passes on what comes from src, and its end.
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
