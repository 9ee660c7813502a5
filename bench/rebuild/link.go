package rebuild

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// link is the way of a client to a registry. Each connection has a rate of its own.
type link struct {
	bytesPerSec int64         // 0: no limit
	rtt         time.Duration // added to the handshake and to each answer
}

// pulled is what a pull took.
type pulled struct {
	first, all time.Duration // until the first byte of the layer, and until the last
}

// pull gets a layer on a new connection and compares its digest. Times count from since.
func (l link) pull(ctx context.Context, addr, repo, digest string, since time.Time) (p pulled, err error) {
	t := &http.Transport{DisableKeepAlives: true, DisableCompression: true, DialContext: l.dial}
	defer t.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/v2/"+repo+"/blobs/"+digest, nil)
	if err != nil {
		return p, err
	}
	resp, err := (&http.Client{Transport: t}).Do(req)
	if err != nil {
		return p, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return p, fmt.Errorf("pull %s: %s", digest, resp.Status)
	}
	sum := sha256.New()
	n, err := io.CopyN(sum, resp.Body, 1)
	p.first = time.Since(since)
	if n == 1 && err == nil {
		_, err = io.Copy(sum, resp.Body)
	}
	p.all = time.Since(since)
	if got := "sha256:" + hex.EncodeToString(sum.Sum(nil)); err == nil && got != digest {
		err = fmt.Errorf("pull %s: got other bytes", digest)
	}
	return p, err
}

// dial connects over the link.
func (l link) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	time.Sleep(l.rtt)
	if tcp, ok := c.(*net.TCPConn); ok && l.bytesPerSec > 0 {
		// Else the kernel would take some MB ahead of the rate.
		if err := tcp.SetReadBuffer(socketBytes); err != nil {
			return nil, fmt.Errorf("set the buffer of a connection: %w", err)
		}
	}
	return &slowConn{Conn: c, link: l}, nil
}

// socketBytes is the receive buffer of a connection with a rate.
const socketBytes = 64 << 10

// slowConn is a connection whose reads keep to the rate.
type slowConn struct {
	net.Conn
	link  link
	asked bool      // something was sent, and its answer has not begun
	free  time.Time // when the link has carried all that was read
}

// Write implements io.Writer.
func (c *slowConn) Write(p []byte) (int, error) {
	c.asked = true
	return c.Conn.Write(p)
}

// Read implements io.Reader.
func (c *slowConn) Read(p []byte) (int, error) {
	if c.link.bytesPerSec > 0 {
		p = p[:min(len(p), socketBytes/2)]
	}
	n, err := c.Conn.Read(p)
	now := time.Now()
	if c.asked && n > 0 {
		c.asked = false
		now = now.Add(c.link.rtt)
	}
	if c.free.Before(now) {
		c.free = now
	}
	if c.link.bytesPerSec > 0 {
		c.free = c.free.Add(time.Duration(int64(n) * int64(time.Second) / c.link.bytesPerSec))
	}
	time.Sleep(time.Until(c.free))
	return n, err
}
