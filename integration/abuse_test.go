package integration

import (
	"bufio"
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/wire"
)

// TestHalfOpenUploads opens 10,000 uploads and finishes none. They must not tie up descriptors or
// memory in the server. They must survive a restart, and cancelling them must free all their bytes.
func TestHalfOpenUploads(t *testing.T) {
	const (
		uploads = 10_000
		maxRSS  = 100 << 20
	)
	s := slipway.Start(t, t.TempDir(), nil)
	before := openFiles(t, s)
	used := diskUsage(t, s.Root)
	var (
		mu        sync.Mutex
		locations []string
	)
	parallel(t, uploads, 32, func(int) error {
		location, err := s.Client.StartUpload(t.Context(), "half/open")
		mu.Lock()
		defer mu.Unlock()
		locations = append(locations, location)
		return err
	})
	s.Client.Close()
	settled(t, s, before)
	if rss, err := s.Process.RSS(); err != nil || rss > maxRSS {
		t.Errorf("with %d open uploads the server's resident set is %d bytes (%v), want at most %d", uploads, rss, err, maxRSS)
	}

	s.Stop()
	s.Restart()
	data := []byte("the upload that outlived its server")
	put, err := wire.WithDigest(absolute(t, s, locations[0]), wire.Digest(data))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := s.Client.Do(t.Context(), http.MethodPut, put, nil, data)
	if err != nil || resp.Status != http.StatusCreated {
		t.Fatalf("finish an upload after a restart: %+v, %v, want status 201", resp, err)
	}

	parallel(t, uploads-1, 32, func(i int) error {
		resp, err := s.Client.Do(t.Context(), http.MethodDelete, absolute(t, s, locations[i+1]), nil, nil)
		if err == nil && resp.Status != http.StatusNoContent {
			err = fmt.Errorf("cancel an upload: status %d: %s", resp.Status, resp.Body)
		}
		return err
	})
	reclaimed(t, s.Root, used, 8<<20)
	s.Stop()
	s.Run("fsck")
}

// TestBrokenTransfers sends uploads that break off, lie about their length, or carry content other
// than what they claim. None may leave anything visible, and none may take space once the uploads
// are cancelled.
func TestBrokenTransfers(t *testing.T) {
	s := slipway.Start(t, t.TempDir(), nil)
	pushWorks(t, s, "broken/healthy")
	before, used := openFiles(t, s), diskUsage(t, s.Root)
	data := make([]byte, 1<<20)
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	digest := wire.Digest(data)
	other := wire.Digest([]byte("something else"))

	for _, tt := range []struct {
		name   string
		method string
		digest string
		claim  int // the claimed Content-Length
		send   int // bytes sent before the connection is cut
	}{
		{"PUT cut in the middle", http.MethodPut, digest, len(data), len(data) / 2},
		{"PUT cut before the body", http.MethodPut, digest, len(data), 0},
		{"PUT cut one byte short", http.MethodPut, digest, len(data), len(data) - 1},
		{"PUT with a length too great", http.MethodPut, digest, len(data) + 100, len(data)},
		{"PUT with a length too small", http.MethodPut, digest, len(data) - 100, len(data) - 100},
		{"PUT of another content", http.MethodPut, other, len(data), len(data)},
		{"PATCH cut in the middle", http.MethodPatch, "", len(data), len(data) / 2},
		{"PATCH with a length too great", http.MethodPatch, "", len(data) + 100, len(data)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for range 8 { // often enough for a leak to show
				location, err := s.Client.StartUpload(t.Context(), "broken/app")
				if err != nil {
					t.Fatal(err)
				}
				target := location
				if tt.digest != "" {
					if target, err = wire.WithDigest(location, tt.digest); err != nil {
						t.Fatal(err)
					}
				}
				status := sendPart(t, s, tt.method, target, tt.claim, data[:tt.send])
				if status >= 200 && status < 300 {
					t.Errorf("answered with status %d", status)
				}
				for _, d := range []string{digest, other} {
					if err := s.Client.CheckBlob(t.Context(), "broken/app", d, -1); wire.StatusOf(err) != http.StatusNotFound {
						t.Errorf("blob %s: %v, want status 404", d, err)
					}
				}
				cancelUpload(t, s, location)
			}
		})
	}
	t.Run("a healthy push of the same content", func(t *testing.T) {
		if _, err := s.Client.PushBlob(t.Context(), "broken/app", data); err != nil {
			t.Fatal(err)
		}
		if err := s.Client.CheckBlob(t.Context(), "broken/app", digest, int64(len(data))); err != nil {
			t.Error(err)
		}
	})
	s.Client.Close()
	settled(t, s, before)
	reclaimed(t, s.Root, used, 4*int64(len(data)))
	s.Alive()
	s.Stop()
	s.Run("fsck")
}

// TestHangingClients leaves connections open in the middle of requests. Other clients must not
// notice, and nothing may remain of the connections once they close.
func TestHangingClients(t *testing.T) {
	const hanging = 200
	s := slipway.Start(t, t.TempDir(), nil)
	pushWorks(t, s, "hang/warm")
	before := openFiles(t, s)
	var conns []net.Conn
	for i := range hanging {
		conn, err := net.Dial("tcp", s.Addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conns = append(conns, conn)
		request := "GET /v2/ HTTP/1.1\r\nHost:" // hangs in the header
		if i%2 == 0 {                           // hangs while sending the body
			location, err := s.Client.StartUpload(t.Context(), "hang/app")
			if err != nil {
				t.Fatal(err)
			}
			request = requestHead(http.MethodPatch, s.Addr, path(t, location), 1<<20) + "some bytes"
		}
		if _, err := conn.Write([]byte(request)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	im := imagetest.Hello(t)
	if err := im.Push(t.Context(), s.Client, "hang/other", "v1"); err != nil {
		t.Fatalf("a push beside %d hanging clients: %v", hanging, err)
	}
	if _, err := s.Client.CheckImage(ctx, "hang/other", "v1"); err != nil {
		t.Fatalf("a pull beside %d hanging clients: %v", hanging, err)
	}
	for _, c := range conns {
		c.Close()
	}
	s.Client.Close()
	settled(t, s, before)
	s.Stop()
	s.Run("fsck")
}

// sendPart sends a request that claims a Content-Length, sends only the given body, and closes its
// side. It returns the status of the answer, or 0 if the server just closed the connection.
func sendPart(t *testing.T, s *slipway.Server, method, target string, claim int, body []byte) int {
	t.Helper()
	conn, err := net.Dial("tcp", s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	// A write may fail: the server may refuse before it has read the whole body.
	_, _ = conn.Write([]byte(requestHead(method, s.Addr, path(t, target), claim)))
	_, _ = conn.Write(body)
	_ = conn.(*net.TCPConn).CloseWrite()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

func requestHead(method, host, path string, length int) string {
	return fmt.Sprintf("%s %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/octet-stream\r\nContent-Length: %d\r\n\r\n",
		method, path, host, length)
}

// path returns a location's path and query.
func path(t *testing.T, location string) string {
	t.Helper()
	u, err := url.Parse(location)
	if err != nil {
		t.Fatal(err)
	}
	return u.RequestURI()
}

// absolute returns a location as a URL on the server's current address.
func absolute(t *testing.T, s *slipway.Server, location string) string {
	t.Helper()
	return "http://" + s.Addr + path(t, location)
}

// cancelUpload cancels an upload that may be gone already. The server may refuse while it has not
// yet noticed that its client has left.
func cancelUpload(t *testing.T, s *slipway.Server, location string) {
	t.Helper()
	proc.Poll(t, 30*time.Second, "cancel an upload", func() bool {
		resp, err := s.Client.Do(t.Context(), http.MethodDelete, location, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		return resp.Status == http.StatusNoContent || resp.Status == http.StatusNotFound
	})
}

// parallel calls f for 0 to n-1 from several goroutines and fails the test
// with the first error.
func parallel(t *testing.T, n, workers int, f func(i int) error) {
	t.Helper()
	var (
		once  sync.Once
		first error
		wg    sync.WaitGroup
	)
	todo := make(chan int)
	for range workers {
		wg.Go(func() {
			for i := range todo {
				if err := f(i); err != nil {
					once.Do(func() { first = err })
				}
			}
		})
	}
	for i := range n {
		todo <- i
	}
	close(todo)
	wg.Wait()
	if first != nil {
		t.Fatal(first)
	}
}

func openFiles(t *testing.T, s *slipway.Server) int {
	t.Helper()
	n, err := s.Process.OpenFiles()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// diskUsage returns the bytes in files below dir, without the catalogue
// database, whose free pages are kept for reuse.
func diskUsage(t *testing.T, dir string) int64 {
	t.Helper()
	var sum int64
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.Contains(d.Name(), ".db") {
			return nil // a file that vanishes meanwhile uses nothing
		}
		if fi, err := d.Info(); err == nil {
			sum += fi.Size()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// reclaimed waits until the files below dir hold no more bytes than before, plus the slack that the
// test itself accounts for.
func reclaimed(t *testing.T, dir string, before, slack int64) {
	t.Helper()
	proc.Poll(t, 30*time.Second, fmt.Sprintf("space in use back to %d bytes", before), func() bool {
		return diskUsage(t, dir) <= before+slack
	})
}
