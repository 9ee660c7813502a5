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

// lateConn is a connection whose writer comes back from a request's body only
// when it is told to.
type lateConn struct {
	net.Conn
	body []byte // what the body is
	back <-chan struct{}
}

func (c *lateConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if bytes.HasSuffix(p, c.body) {
		<-c.back
	}
	return n, err
}

// TestAnswerBeforeWriterIsBack: net/http looks for the end of a body once more
// when all of it has been sent. If the answer is quicker than that look, the look
// must not end the connection, on which the rest of the answer comes.
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
	for range 3 { // on the same connection
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
