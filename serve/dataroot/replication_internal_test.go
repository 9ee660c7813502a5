package dataroot

import (
	"bufio"
	"bytes"
	"context"
	"net"
	"net/http"
	"testing"
	"time"
)

// TestRemoteThatHangs sends to servers that take a connection and then read nothing, or read
// everything and do not answer. Neither may hold up a rule for ever.
func TestRemoteThatHangs(t *testing.T) {
	t.Parallel()
	for name, serve := range map[string]func(net.Conn){
		"reads nothing": func(net.Conn) {},
		"answers nothing": func(c net.Conn) {
			if req, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				for buf := make([]byte, 1<<20); err == nil; {
					_, err = req.Body.Read(buf)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			conns := make(chan net.Conn, 16)
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						close(conns)
						return
					}
					conns <- c
					go serve(c)
				}
			}()
			tr := remoteTransport(nil, 200*time.Millisecond)
			defer tr.CloseIdleConnections()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			const size = 64 << 20 // more than the kernel keeps for both sides
			req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://"+l.Addr().String()+"/", bytes.NewReader(make([]byte, size)))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := tr.RoundTrip(req)
			if err == nil {
				resp.Body.Close()
				t.Error("there was an answer")
			}
			if ctx.Err() != nil {
				t.Error("the request went on for a minute")
			}
			l.Close()
			for c := range conns {
				c.Close()
			}
		})
	}
}
