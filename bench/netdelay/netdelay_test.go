package netdelay_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"example.org/slipway/integration/bench/netdelay"
)

// behind starts a server behind a proxy and returns the proxy's address.
func behind(t *testing.T, rtt time.Duration, serve func(net.Conn)) string {
	t.Helper()
	return behindProxy(t, &netdelay.Proxy{RTT: rtt}, serve)
}

// behindProxy is like behind, with any proxy. It sets the proxy's target.
func behindProxy(t *testing.T, p *netdelay.Proxy, serve func(net.Conn)) string {
	t.Helper()
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	far, near := listen(), listen()
	go func() {
		for {
			conn, err := far.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				serve(conn)
			}()
		}
	}()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	p.Target = far.Addr().String()
	wg.Go(func() {
		if err := p.Serve(ctx, near); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		far.Close()
		wg.Wait()
	})
	return near.Addr().String()
}

func dial(t *testing.T, address string) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn.(*net.TCPConn)
}

func echo(c net.Conn) { _, _ = io.Copy(c, c) }

// exchange sends a byte and waits for the answer.
func exchange(t *testing.T, c net.Conn) time.Duration {
	t.Helper()
	begin := time.Now()
	if _, err := c.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return time.Since(begin)
}

// TestRoundTrip expects two round trips for the first exchange of a connection, measured from
// before its handshake, and one for each other exchange. A busy machine only adds time, so the
// upper limits apply to the quickest of five tries.
func TestRoundTrip(t *testing.T) {
	const rtt = 60 * time.Millisecond
	address := behind(t, rtt, echo)
	first, other := time.Hour, time.Hour
	for range 5 {
		begin := time.Now()
		c := dial(t, address)
		exchange(t, c)
		first = min(first, time.Since(begin))
		other = min(other, exchange(t, c))
	}
	if first < 2*rtt || first > 4*rtt {
		t.Errorf("the quickest first exchange took %s, want 2 round trips of %s", first, rtt)
	}
	if other < rtt || other > 3*rtt {
		t.Errorf("the quickest exchange took %s, want a round trip of %s", other, rtt)
	}
}

// TestBandwidth moves 32 MiB over a long way. If each piece were delayed behind the one before, it
// would take two minutes.
func TestBandwidth(t *testing.T) {
	content := make([]byte, 32<<20)
	if _, err := rand.Read(content); err != nil {
		t.Fatal(err)
	}
	c := dial(t, behind(t, 100*time.Millisecond, echo))
	begin := time.Now()
	go func() {
		_, _ = c.Write(content) // a failure shows as missing bytes
		_ = c.CloseWrite()
	}()
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes came back, %v, equal %t", len(got), err, bytes.Equal(got, content))
	}
	if took := time.Since(begin); took < 200*time.Millisecond || took > time.Minute {
		t.Errorf("32 MiB there and back took %s", took)
	}
}

// TestConnectionsDoNotWait lets one connection get stuck and uses another.
func TestConnectionsDoNotWait(t *testing.T) {
	const rtt = 20 * time.Millisecond
	address := behind(t, rtt, echo)
	stuck := dial(t, address) // sends and never reads
	go func() { _, _ = stuck.Write(make([]byte, 256<<20)) }()
	c := dial(t, address)
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		exchange(t, c)
	}
}

// TestEnds checks that the end of either side reaches the other.
func TestEnds(t *testing.T) {
	ended := make(chan error, 1)
	address := behind(t, 10*time.Millisecond, func(c net.Conn) {
		_, err := io.Copy(io.Discard, c)
		ended <- err
	})
	c := dial(t, address)
	c.Close()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the server does not see the client's end")
	}
	c = dial(t, behind(t, 10*time.Millisecond, func(net.Conn) {}))
	if _, err := io.Copy(io.Discard, c); err != nil {
		t.Errorf("the server's end: %v", err)
	}
}

// TestHeldConnection fetches the same over two connections. One of them gets 1 MiB/s and the other
// one is not slowed down.
func TestHeldConnection(t *testing.T) {
	const size, held = 1 << 20, 2 << 20
	address := behindProxy(t, &netdelay.Proxy{RTT: 2 * time.Millisecond, Held: held}, func(conn net.Conn) {
		if _, err := io.CopyN(io.Discard, conn, 1); err == nil {
			_, _ = conn.Write(make([]byte, size)) // the client sees what is missing
		}
	})
	fetch := func() time.Duration {
		conn := dial(t, address)
		defer conn.Close()
		began := time.Now()
		if _, err := conn.Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
		if n, err := io.CopyN(io.Discard, conn, size); err != nil {
			t.Fatalf("%d bytes came: %v", n, err)
		}
		return time.Since(began)
	}
	least := time.Duration(float64(size-512<<10) / held * float64(time.Second))
	if slow, fast := fetch(), fetch(); slow < least || fast > slow/2 {
		t.Errorf("the held connection took %v, want at least %v; the other one took %v", slow, least, fast)
	}
}
