package server_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/objstore/fsstore"
	"example.org/slipway/registry/server"
)

// idle is how long these tests let a client stall.
const idle = 150 * time.Millisecond

// wantClosed checks that the server closes a connection by itself.
func (c *conn) wantClosed(what string) {
	c.t.Helper()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	_, err := io.Copy(io.Discard, c.r)
	if ne, ok := err.(net.Error); ok && ne.Timeout() {
		c.t.Errorf("%s: the server still holds the connection after 10 s", what)
	}
}

// startUpload opens an upload and returns its path.
func (b *bed) startUpload(repo string) string {
	b.t.Helper()
	a := b.ask("POST", "/v2/"+repo+"/blobs/uploads/", []byte{})
	a.want(b.t, "start an upload", 202, nil)
	return a.Header.Get("Location")
}

// uploaded returns how many bytes an upload holds, once no request writes to it.
func (b *bed) uploaded(loc string) string {
	b.t.Helper()
	var got answer
	waitFor(b.t, "the upload is still being written to", func() bool {
		got = b.ask("GET", loc, nil)
		return got.Status != http.StatusConflict
	})
	got.want(b.t, "status", 204, nil)
	return got.Header.Get("Range")
}

// TestHangingBodies has clients that announce a body and stop sending it. They get an error and the
// connection is closed, whatever the request was for.
func TestHangingBodies(t *testing.T) {
	b := newBed(t, setup{server: server.Options{IdleTimeout: idle}})
	loc := b.startUpload("a")
	d := oci.SHA256([]byte("x"))
	for _, c := range []struct {
		name, request, sent string
		status              int
	}{
		{"append", "PATCH " + loc, "0123456789", 408},
		{"push in one", "POST /v2/a/blobs/uploads/?digest=" + string(d), "0123456789", 408},
		{"manifest", "PUT /v2/a/manifests/x", "{", 408},
		{"refused before the body is read", "PUT /v2/A/manifests/x", "{", 400},
		{"wrong method", "POST /v2/a/manifests/x", "", 405},
		{"no such path", "POST /nowhere", "", 404},
		{"no such upload", "PATCH /v2/a/blobs/uploads/none", "x", 404},
		{"start, with a body nobody wants", "POST /v2/a/blobs/uploads/", "x", 202},
		{"get, with a body nobody wants", "GET /v2/", "x", 200},
	} {
		for _, framing := range []string{"Content-Length: 1000", "Transfer-Encoding: chunked"} {
			conn := b.dial()
			sent := c.sent
			if framing[0] == 'T' && sent != "" {
				sent = fmt.Sprintf("%x\r\n%s\r\n", len(sent), sent)
			}
			begin := time.Now()
			conn.send("%s HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n%s", c.request, framing, sent)
			method, _, _ := strings.Cut(c.request, " ")
			got, err := conn.tryReceive(method)
			what := c.name + ", " + framing
			if err != nil {
				t.Errorf("%s: no answer: %v", what, err)
				continue
			}
			got.want(t, what, c.status, nil)
			conn.wantClosed(what)
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("%s: took %v, the timeout is %v", what, took, idle)
			}
		}
	}
	if got := b.uploaded(loc); got != "0-19" {
		t.Errorf("after two appends of 10 bytes that hung: got Range %q", got)
	}
	b.ask("HEAD", "/v2/a/blobs/"+string(d), nil).want(t, "what hung", 404, nil)
}

// TestTricklingBody sends a byte of a body now and then. Such a body must not hold its upload
// longer than a stalled one, and the upload keeps what arrived.
func TestTricklingBody(t *testing.T) {
	b := newBed(t, setup{server: server.Options{IdleTimeout: idle, MinBodyRate: 1 << 10}})
	loc := b.startUpload("a")
	c := b.dial()
	c.send("PATCH %s HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n", loc)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(idle / 10)
		defer tick.Stop()
		for range tick.C {
			if _, err := c.Write([]byte("x")); err != nil {
				return
			}
		}
	}()
	got := c.receive("PATCH")
	got.want(t, "a byte now and then", 408, nil)
	c.wantClosed("a byte now and then")
	c.Close()
	<-ended
	if r := b.uploaded(loc); r == "0-0" || len(r) > len("0-99") {
		t.Errorf("what came is not kept: got Range %q", r)
	}

	// A body that is just fast enough is left alone.
	data := random(2, 1000)
	c = b.dial()
	c.send("POST /v2/a/blobs/uploads/?digest=%s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", oci.SHA256(data), len(data))
	tick := time.NewTicker(idle / 3)
	defer tick.Stop()
	for part := range slices.Chunk(data, 160) {
		<-tick.C
		c.send("%s", part)
	}
	c.receive("POST").want(t, "slow, but fast enough", 201, nil)
}

// TestSlowButAlive sends a body that is slow but steady, and lets an answer take longer than a
// client may stall.
func TestSlowButAlive(t *testing.T) {
	const idle = 4 * idle // other tests on the machine may hold up the sender
	b := newBed(t, setup{
		server: server.Options{IdleTimeout: idle},
		registry: registry.Options{OnEvent: func(ctx context.Context, e registry.Event) error {
			// Longer than the deadline of the last read.
			timer := time.NewTimer(2 * idle)
			defer timer.Stop()
			select {
			case <-timer.C:
				return nil
			case <-ctx.Done():
				return fmt.Errorf("the request was given up: %w", ctx.Err())
			}
		}},
	})
	data := random(1, 40_000)
	d := oci.SHA256(data)
	c := b.dial()
	c.send("POST /v2/a/blobs/uploads/?digest=%s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", d, len(data))
	tick := time.NewTicker(idle / 3)
	defer tick.Stop()
	for part := range 8 {
		<-tick.C
		c.send("%s", data[part*5000:(part+1)*5000])
	}
	c.receive("POST").want(t, "a slow push", 201, nil)
	// The connection can still be used.
	for range 3 {
		<-tick.C
	}
	c.ask("GET", "/v2/a/blobs/"+string(d), nil).want(t, "the next request", 200, nil)
	c.ask("POST", "/v2/a/blobs/uploads/?digest="+string(d), data).want(t, "and one with a body", 201, nil)
}

// TestClientsThatDoNotRead has clients that send requests and read nothing. The server must
// disconnect them.
func TestClientsThatDoNotRead(t *testing.T) {
	b := newBed(t, setup{server: server.Options{IdleTimeout: idle}})
	for _, size := range []int{100, 60_000, 8 << 20} {
		d := b.push("a", random(3, size))
		request := strings.Repeat(fmt.Sprintf("GET /v2/a/blobs/%s HTTP/1.1\r\nHost: x\r\n\r\n", d), 100)
		c := b.dial()
		begin := time.Now()
		for {
			_ = c.SetWriteDeadline(time.Now().Add(10 * time.Second))
			if _, err := io.WriteString(c, request); err != nil {
				break // the server has closed the connection
			}
			if time.Since(begin) > 30*time.Second {
				t.Errorf("blobs of %d bytes: still connected after 30 s", size)
				break
			}
		}
		if took := time.Since(begin); took > 8*time.Second {
			t.Errorf("blobs of %d bytes: it took %v to get rid of a client that reads nothing", size, took)
		}
		c.Close()
	}
	waitFor(t, "requests are still being served", func() bool { return b.gauge("registry_http_in_flight_requests") == 0 })
}

// TestLyingBodies sends bodies that differ from their announcement.
func TestLyingBodies(t *testing.T) {
	b := newBed(t, setup{})
	data := random(1, 20_000)
	d := oci.SHA256(data)
	target := "/v2/a/blobs/uploads/?digest=" + string(d)

	t.Run("cut off", func(t *testing.T) {
		for _, request := range []string{"POST " + target, "PUT " + b.startUpload("a") + "?digest=" + string(d)} {
			c := b.dial()
			c.send("%s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", request, len(data), data[:len(data)-1])
			c.Close()
		}
		b.ask("HEAD", "/v2/a/blobs/"+string(d), nil).want(t, "after the cut", 404, nil)
	})
	t.Run("cut off half way", func(t *testing.T) {
		loc := b.startUpload("a")
		c := b.dial()
		c.send("PATCH %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", loc, len(data), data[:12_000])
		_ = c.Conn.(*net.TCPConn).CloseWrite()
		c.receive("PATCH").wantError(t, "a body that ends early", 400, oci.CodeSizeInvalid)
		if got := b.uploaded(loc); got != "0-11999" {
			t.Errorf("got Range %q", got)
		}
		b.ask("PUT", loc+"?digest="+string(d), data[12_000:], "Content-Range: 12000-19999").want(t, "go on", 201, nil)
	})
	t.Run("longer than announced", func(t *testing.T) {
		// The rest is read as the beginning of another, malformed request.
		loc := b.startUpload("b")
		c := b.dial()
		c.send("PATCH %s HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n%s", loc, "0123456789abcdef\r\n\r\n")
		c.receive("PATCH").want(t, "the first ten bytes", 202, map[string]string{"Range": "0-9"})
		c.receive("GET").want(t, "the rest", 400, nil)
		c.wantClosed("after the rest")
		if got := b.uploaded(loc); got != "0-9" {
			t.Errorf("got Range %q", got)
		}
	})
	t.Run("chunked", func(t *testing.T) {
		loc := b.startUpload("b")
		c := b.dial()
		chunked := func(request, headers string, parts ...string) answer {
			c.send("%s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n%s\r\n", request, headers)
			for _, p := range parts {
				c.send("%x\r\n%s\r\n", len(p), p)
			}
			c.send("0\r\n\r\n")
			method, _, _ := strings.Cut(request, " ")
			return c.receive(method)
		}
		chunked("PATCH "+loc, "", "01234", "56789").want(t, "of unknown size", 202, map[string]string{"Range": "0-9"})
		chunked("PATCH "+loc, "Content-Range: 10-14\r\n", "abcde").want(t, "as announced", 202, map[string]string{"Range": "0-14"})
		chunked("PATCH "+loc, "Content-Range: 15-19\r\n", "abc", "def").wantError(t, "longer than announced", 400, oci.CodeSizeInvalid)
		chunked("PATCH "+loc, "Content-Range: 15-19\r\n", "abc", "def").wantError(t, "the same again", 416, oci.CodeRangeInvalid)
		if got := b.uploaded(loc); got != "0-19" {
			t.Errorf("got Range %q", got)
		}
		chunked("PATCH "+loc, "Content-Range: 20-29\r\n", "abc").wantError(t, "shorter than announced", 400, oci.CodeSizeInvalid)
		chunked("POST /v2/b/blobs/uploads/?digest="+string(oci.SHA256([]byte("abcd"))), "", "ab", "cd").want(t, "push in one", 201, nil)
	})
	t.Run("broken chunks", func(t *testing.T) {
		loc := b.startUpload("b")
		c := b.dial()
		c.send("PATCH %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n01234\r\nzz\r\n", loc)
		c.receive("PATCH").wantError(t, "a chunk of zz bytes", 400, oci.CodeBlobUploadInvalid)
		c.wantClosed("after broken chunks")
		if got := b.uploaded(loc); got != "0-4" {
			t.Errorf("got Range %q", got)
		}
	})
	t.Run("two lengths", func(t *testing.T) {
		for _, headers := range []string{"Content-Length: 1\r\nContent-Length: 2", "Content-Length: -1", "Content-Length: 1x", "Transfer-Encoding: gzip"} {
			c := b.dial()
			c.send("POST %s HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n%s", target, headers, data)
			// The answer may be lost, because the server closes the connection with unread data.
			if got, err := c.tryReceive("POST"); err == nil && (got.Status < 400 || got.Status > 501) {
				t.Errorf("%q: got status %d", headers, got.Status)
			}
			c.wantClosed(headers)
		}
	})
	waitFor(t, "uploads stay in memory", func() bool { return b.gauge("registry_http_in_flight_requests") == 0 })
}

// TestManifestTooLarge wants a 413, whether or not the size is announced.
func TestManifestTooLarge(t *testing.T) {
	b := newBed(t, setup{server: server.Options{MaxManifestBytes: 1000}, registry: registry.Options{MaxManifestBytes: 1000}})
	raw := b.imageJSON("a", 1)
	body := append(raw, bytes.Repeat([]byte{' '}, 1001-len(raw))...)
	b.ask("PUT", "/v2/a/manifests/x", body[:1000]).want(t, "just small enough", 201, nil)
	b.ask("PUT", "/v2/a/manifests/y", body).wantError(t, "announced", 413, oci.CodeManifestInvalid)
	c := b.dial()
	c.send("PUT /v2/a/manifests/y HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000000\r\n\r\n")
	c.receive("PUT").wantError(t, "announced, immense", 413, oci.CodeManifestInvalid)
	c = b.dial()
	c.send("PUT /v2/a/manifests/y HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(body), body)
	c.receive("PUT").wantError(t, "not announced", 413, oci.CodeManifestInvalid)
	b.ask("HEAD", "/v2/a/manifests/y", nil).want(t, "nothing is there", 404, nil)
}

// TestOldClients uses HTTP/1.0, with and without keep-alive.
func TestOldClients(t *testing.T) {
	b := newBed(t, setup{})
	data := random(1, 100_000)
	d := b.push("a", data)
	c := b.dial()
	c.send("GET /v2/a/blobs/%s HTTP/1.0\r\n\r\n", d)
	got := c.receive("GET")
	got.want(t, "HTTP/1.0", 200, map[string]string{"Content-Length": "100000"})
	if !bytes.Equal(got.Body, data) {
		t.Error("HTTP/1.0: other bytes")
	}
	c.wantClosed("HTTP/1.0")
	c = b.dial()
	for range 2 {
		c.send("GET /v2/a/blobs/%s HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", d)
		if got := c.receive("GET"); got.Status != 200 || !bytes.Equal(got.Body, data) {
			t.Errorf("HTTP/1.0, keep-alive: got %d and %d bytes", got.Status, len(got.Body))
		}
	}
}

// TestFiles checks that bodies which the kernel copies have the stored bytes, at sizes around the
// limits of buffers and deadlines, over HTTP/1.1 and HTTP/2.
func TestFiles(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	for name, tlsToo := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			store, err := fsstore.New(t.TempDir(), nil)
			if err != nil {
				t.Fatal(err)
			}
			b := newBed(t, setup{store: store, tls: tlsToo, server: server.Options{IdleTimeout: 10 * time.Second}})
			client := b.http.Client()
			sizes := []int{1, 511, 512, 513, 64<<10 - 1, 64 << 10, 64<<10 + 1, 1<<20 - 1, 1 << 20, 1<<20 + 1, 5<<20 - 1, 5<<20 + 1}
			if tlsToo {
				sizes = []int{1, 64<<10 + 1, 1<<20 + 1}
			}
			for i, size := range sizes {
				data := random(byte(i), size)
				url := b.http.URL + "/v2/a/blobs/" + string(b.push("a", data))
				for _, r := range [][2]int{{0, size}, {0, 1}, {size - 1, size}, {size / 3, size}, {size / 3, 2*size/3 + 1}, {max(0, size-(1<<20)), size}, {0, min(size, 1<<20)}, {min(1, size-1), size}} {
					req, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
					if err != nil {
						t.Fatal(err)
					}
					want := http.StatusOK
					if r != [2]int{0, size} {
						req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", r[0], r[1]-1))
						want = http.StatusPartialContent
					}
					resp, err := client.Do(req)
					if err != nil {
						t.Fatal(err)
					}
					got, err := io.ReadAll(resp.Body)
					resp.Body.Close()
					if err != nil || resp.StatusCode != want || resp.ContentLength != int64(r[1]-r[0]) || !bytes.Equal(got, data[r[0]:r[1]]) {
						t.Errorf("%d bytes, range %v: got status %d, %d bytes, %v", size, r, resp.StatusCode, len(got), err)
					}
					if tlsToo != (resp.ProtoMajor == 2) {
						t.Errorf("got %s", resp.Proto)
					}
				}
			}
		})
	}
}

// TestHTTP2Push sends a push, an error and a pull over one HTTP/2 connection.
func TestHTTP2Push(t *testing.T) {
	b := newBed(t, setup{tls: true, server: server.Options{IdleTimeout: 2 * time.Second}})
	client := b.http.Client()
	do := func(method, target string, body io.Reader) (int, []byte) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, b.http.URL+target, body)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatalf("%s %s: %v", method, target, err)
		}
		defer resp.Body.Close()
		got, err := io.ReadAll(resp.Body)
		if err != nil || resp.ProtoMajor != 2 {
			t.Fatalf("%s %s: %s, %v", method, target, resp.Proto, err)
		}
		return resp.StatusCode, got
	}
	data := random(1, 3<<20)
	d := string(oci.SHA256(data))
	if status, body := do("POST", "/v2/a/blobs/uploads/?digest="+d, bytes.NewReader(data)); status != 201 {
		t.Errorf("push: %d %s", status, body)
	}
	if status, _ := do("POST", "/v2/a/blobs/uploads/?digest="+d, strings.NewReader("other")); status != 400 {
		t.Errorf("push of other bytes: %d", status)
	}
	if status, got := do("GET", "/v2/a/blobs/"+d, nil); status != 200 || !bytes.Equal(got, data) {
		t.Errorf("pull: %d and %d bytes", status, len(got))
	}
	// A stalled stream ends, and its connection does not.
	pr, pw := io.Pipe()
	defer pw.Close()
	go func() { _, _ = pw.Write([]byte("0123456789")) }()
	if status, _ := do("POST", "/v2/a/blobs/uploads/?digest="+d, pr); status != 408 {
		t.Errorf("a body that stands still: %d", status)
	}
	if status, _ := do("HEAD", "/v2/a/blobs/"+d, nil); status != 200 {
		t.Errorf("the next request: %d", status)
	}
	if _, err := tls.Dial("tcp", b.addr, &tls.Config{RootCAs: client.Transport.(*http.Transport).TLSClientConfig.RootCAs, ServerName: "example.com", MaxVersion: tls.VersionTLS12}); err != nil {
		t.Errorf("TLS 1.2: %v", err)
	}
}
