package client_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"

	"example.org/slipway/oci/client"
)

// lateConn is a connection whose Write does not return after the end of a request's body
// until back is closed.
type lateConn struct {
	net.Conn
	body []byte // the body of the request
	back <-chan struct{}
}

func (c *lateConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if bytes.HasSuffix(p, c.body) {
		<-c.back
	}
	return n, err
}

// TestAnswerBeforeWriterIsBack checks a race in net/http, which looks for the end of a body
// once more after all of it has been sent. If the answer comes before this check, the check
// must not close the connection, since the rest of the answer arrives on it.
func TestAnswerBeforeWriterIsBack(t *testing.T) {
	answer := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", client.MediaTypeGearStream)
		_, _ = w.Write(answer)
	})
	name := sha256.Sum256([]byte("x"))
	back := make(chan struct{})
	release := sync.OnceFunc(func() { close(back) })
	defer release()
	tr := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		return &lateConn{c, name[:], back}, err
	}}
	defer tr.CloseIdleConnections()
	c := dial(t, s.URL, &client.Options{Transport: tr})
	for range 3 { // all on the same connection
		r, err := c.GearFetch(t.Context(), "a", [][32]byte{name})
		if err != nil {
			t.Fatal(err)
		}
		release()
		got, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(got, answer) {
			t.Errorf("got %d bytes of %d, %v", len(got), len(answer), err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}
