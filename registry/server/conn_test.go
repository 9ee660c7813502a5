package server_test

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"example.org/slipway/registry/server"
	"example.org/slipway/registry/server/edge"
)

// countingListener counts the writes to its connections.
type countingListener struct {
	net.Listener
	writes atomic.Int64
}

func (l *countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &countingConn{c, l}, nil
}

type countingConn struct {
	net.Conn
	l *countingListener
}

func (c *countingConn) Write(p []byte) (int, error) {
	c.l.writes.Add(1)
	return c.Conn.Write(p)
}

// TestSmallAnswerInOneWrite checks that an answer is written together with its headers, also one
// after the other on the same connection, and that a long one arrives whole.
func TestSmallAnswerInOneWrite(t *testing.T) {
	m := newMemGear()
	bd := newBed(t, setup{server: server.Options{Gear: m}})
	ts := httptest.NewUnstartedServer(bd.srv)
	ln := &countingListener{Listener: ts.Listener}
	ts.Listener, ts.Config.ConnContext = edge.Listener(ln), edge.ConnContext
	ts.Start()
	defer ts.Close()
	get := func(method string, size, most int) {
		t.Helper()
		data := random(byte(size>>8), size)
		before := ln.writes.Load()
		req, err := http.NewRequest(method, ts.URL+gearAt+"files/"+digestOf(m.add("alice/app", data)), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := ts.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		got, err := io.ReadAll(resp.Body)
		if method == http.MethodHead {
			data = nil
		}
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%s of %d bytes: got %d, %v", method, size, len(got), err)
		}
		if n := ln.writes.Load() - before; most > 0 && n > int64(most) {
			t.Errorf("%s of %d bytes: got %d writes, want %d", method, size, n, most)
		}
	}
	for range 2 {
		for _, size := range []int{1, 4096, 16 << 10, 32 << 10} {
			get("GET", size, 1)
			get("HEAD", size, 1)
		}
		get("GET", 300<<10, 0)
	}
}

// TestRefusedBodies sends the whole of a large body before it looks for the answer, as many clients
// do. The refusal must arrive, and the connection must serve the next request.
func TestRefusedBodies(t *testing.T) {
	bd := newBed(t, setup{})
	for _, target := range []string{"/v2/alice/app/blobs/uploads/none", "/v2/alice/app/wrong", "/elsewhere"} {
		for _, size := range []int{100, 300 << 10, 8 << 20} {
			for _, chunked := range []bool{false, true} {
				c, data := bd.dial(), random(1, size)
				if chunked {
					c.send("PATCH %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", target, size, data)
				} else {
					c.send("PATCH %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", target, size, data)
				}
				a, err := c.tryReceive("PATCH")
				if err != nil || a.Status < 400 || a.Status >= 500 {
					t.Fatalf("%s with %d bytes (chunked: %t): got %d, %v; want an error of the client", target, size, chunked, a.Status, err)
				}
				if a := c.ask("GET", "/v2/", nil); a.Status != http.StatusOK {
					t.Errorf("after %s with %d bytes (chunked: %t): got %d", target, size, chunked, a.Status)
				}
			}
		}
	}
}
