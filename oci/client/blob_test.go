package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
)

func discardLog() *log.Logger { return log.New(io.Discard, "", 0) }

func read(t testing.TB, c *client.Client, d oci.Digest) string {
	t.Helper()
	content, err := c.GetBlob(t.Context(), "a", d)
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	b, err := io.ReadAll(content)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// brokenBlob serves a blob and breaks each connection after a number of bytes.
type brokenBlob struct {
	content []byte
	cut     func(request int) int            // bytes delivered; negative means all
	change  func(request int, h http.Header) // changes the header last
	ranges  bool
	n       atomic.Int32
}

func (b *brokenBlob) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := int(b.n.Add(1))
	from, to := 0, len(b.content)
	status := http.StatusOK
	if rng := r.Header.Get("Range"); rng != "" && b.ranges {
		first, last, _ := strings.Cut(strings.TrimPrefix(rng, "bytes="), "-")
		from, _ = strconv.Atoi(first)
		if last != "" {
			end, _ := strconv.Atoi(last)
			to = min(to, end+1)
		}
		if from >= len(b.content) {
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
			return
		}
		status = http.StatusPartialContent
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to-1, len(b.content)))
	}
	w.Header().Set("Content-Length", strconv.Itoa(to-from))
	if b.change != nil {
		b.change(n, w.Header())
	}
	w.WriteHeader(status)
	if r.Method == http.MethodHead {
		return
	}
	part := b.content[from:to]
	if b.cut != nil {
		if k := b.cut(n); k >= 0 && k < len(part) {
			_, _ = w.Write(part[:k])
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
	}
	_, _ = w.Write(part)
}

func TestGetBlobResumes(t *testing.T) {
	content := bytes.Repeat([]byte("0123456789abcdef"), 40_000) // 640 kB
	d := oci.SHA256(content)
	for name, tt := range map[string]struct {
		blob     *brokenBlob
		off, n   int64
		want     []byte // nil: an error is expected
		wantErr  string
		requests int
	}{
		"in one go":        {blob: &brokenBlob{ranges: true}, n: -1, want: content, requests: 1},
		"broken twice":     {blob: &brokenBlob{ranges: true, cut: func(n int) int { return []int{0, 1000, 300_000, -1}[n] }}, n: -1, want: content, requests: 3},
		"no ranges":        {blob: &brokenBlob{cut: func(n int) int { return []int{0, 1000, -1}[n] }}, n: -1, want: content, requests: 2},
		"part":             {blob: &brokenBlob{ranges: true, cut: func(n int) int { return []int{0, 7, 9, -1}[n] }}, off: 100, n: 1000, want: content[100:1100], requests: 3},
		"part, no ranges":  {blob: &brokenBlob{}, off: 100, n: 1000, want: content[100:1100], requests: 1},
		"part to the end":  {blob: &brokenBlob{ranges: true}, off: 639_990, n: 1000, want: content[639_990:], requests: 1},
		"part, open end":   {blob: &brokenBlob{ranges: true}, off: 639_990, n: -1, want: content[639_990:], requests: 1},
		"part overflowing": {blob: &brokenBlob{ranges: true}, off: 639_990, n: 1<<63 - 1, want: content[639_990:], requests: 1},
		"no progress":      {blob: &brokenBlob{ranges: true, cut: func(n int) int { return 1 }}, n: -1, wantErr: "unexpected EOF", requests: 5},
		"size changes": {blob: &brokenBlob{ranges: true, cut: func(n int) int { return []int{0, 10, -1}[n] }, change: func(n int, h http.Header) {
			if n == 2 {
				h.Set("Content-Range", "bytes 10-639999/700000")
			}
		}}, n: -1, wantErr: "another part", requests: 2},
		"another beginning": {blob: &brokenBlob{ranges: true, cut: func(n int) int { return []int{0, 10, -1}[n] }, change: func(n int, h http.Header) {
			if n == 2 {
				h.Set("Content-Range", "bytes 11-639999/640000")
			}
		}}, n: -1, wantErr: "another part", requests: 2},
		"lying at once": {blob: &brokenBlob{ranges: true, change: func(n int, h http.Header) {
			h.Set("Content-Range", "bytes 0-99/640000")
		}}, off: 100, n: 100, wantErr: "another part", requests: 1},
		"more than asked for": {blob: &brokenBlob{ranges: true, change: func(n int, h http.Header) {
			h.Set("Content-Range", "bytes 100-300/640000")
		}}, off: 100, n: 100, wantErr: "another part", requests: 1},
		"malformed": {blob: &brokenBlob{ranges: true, change: func(n int, h http.Header) {
			h.Set("Content-Range", "bytes 100-")
		}}, off: 100, n: 100, wantErr: "another part", requests: 1},
		"behind the end":            {blob: &brokenBlob{ranges: true}, off: 640_000, n: 1, wantErr: "RANGE_INVALID", requests: 1},
		"behind the end, no ranges": {blob: &brokenBlob{}, off: 640_000, n: 1, wantErr: "RANGE_INVALID", requests: 1},
		"nothing":                   {blob: &brokenBlob{ranges: true}, off: 3, n: 0, want: []byte{}, requests: 1},
		"nothing behind the end":    {blob: &brokenBlob{ranges: true}, off: 640_000, n: 0, wantErr: "RANGE_INVALID", requests: 1},
	} {
		t.Run(name, func(t *testing.T) {
			tt.blob.content = content
			s := serve(t, tt.blob.ServeHTTP)
			s.Config.ErrorLog = discardLog()
			got, desc, err := readRange(t.Context(), dial(t, s.URL, nil), d, tt.off, tt.n)
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Errorf("got %d bytes and error %v, want error %q", len(got), err, tt.wantErr)
				}
			} else if err != nil || !bytes.Equal(got, tt.want) {
				t.Errorf("got %d bytes and error %v, want %d bytes", len(got), err, len(tt.want))
			} else if desc.Size != int64(len(content)) || desc.Digest != d {
				t.Errorf("got descriptor %+v", desc)
			}
			if n := len(s.requests()); n != tt.requests {
				t.Errorf("got %d requests, want %d: %q", n, tt.requests, s.requests())
			}
		})
	}
}

func readRange(ctx context.Context, c *client.Client, d oci.Digest, off, n int64) ([]byte, oci.Descriptor, error) {
	content, err := c.GetBlobRange(ctx, "a", d, off, n)
	if err != nil {
		return nil, oci.Descriptor{}, err
	}
	defer content.Close()
	var buf bytes.Buffer
	_, err = content.WriteTo(&buf)
	return buf.Bytes(), content.Descriptor(), err
}

func TestGetBlobOfAnotherDigest(t *testing.T) {
	for name, served := range map[string]string{"same size": "jello", "empty": ""} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, served) })
			c := dial(t, s.URL, nil)
			content, err := c.GetBlob(t.Context(), "a", oci.SHA256([]byte("hello")))
			if err == nil {
				defer content.Close()
				// A reader that knows the size must notice, like one that reads to the
				// end.
				_, err = io.ReadFull(content, make([]byte, len(served)))
				if again, err2 := content.Read(make([]byte, 1)); again != 0 || !errors.Is(err2, err) {
					t.Errorf("a second Read got %d, %v, want the same error", again, err2)
				}
			}
			wantCode(t, err, oci.CodeDigestInvalid)
		})
	}
}

func TestGetEmptyBlob(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {})
	if got := read(t, dial(t, s.URL, nil), oci.SHA256(nil)); got != "" {
		t.Errorf("got %q", got)
	}
}

func TestGetBlobWithoutSize(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			w.Header().Set("Content-Length", "5")
			return
		}
		w.(http.Flusher).Flush() // makes the answer chunked
		_, _ = io.WriteString(w, "hello")
	})
	if got := read(t, dial(t, s.URL, nil), oci.SHA256([]byte("hello"))); got != "hello" {
		t.Errorf("got %q", got)
	}
}

func TestGetBlobStalls(t *testing.T) {
	var n atomic.Int32
	content := []byte("hello, world")
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch n.Add(1) {
		case 1: // no answer at all
			<-r.Context().Done()
		case 2: // half an answer
			w.Header().Set("Content-Length", "12")
			_, _ = w.Write(content[:5])
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		default:
			w.Header().Set("Content-Range", "bytes 5-11/12")
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(content[5:])
		}
	})
	c := dial(t, s.URL, &client.Options{StallTimeout: 50 * time.Millisecond})
	if got := read(t, c, oci.SHA256(content)); got != string(content) {
		t.Errorf("got %q", got)
	}
}

func TestGetBlobContextSpansTheContent(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "12")
		_, _ = io.WriteString(w, "hello")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancel(t.Context())
	content, err := dial(t, s.URL, nil).GetBlob(ctx, "a", oci.SHA256([]byte("x")))
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	if _, err := io.ReadFull(content, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := content.Read(make([]byte, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}

func TestResolveBlobFallsBackToGet(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		_, _ = io.WriteString(w, "hello")
	})
	desc, err := dial(t, s.URL, nil).ResolveBlob(t.Context(), "a", oci.SHA256([]byte("hello")))
	if err != nil || desc.Size != 5 {
		t.Errorf("got %+v, %v", desc, err)
	}
}
