package measure

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// Content is a blob whose bytes are computed from a number instead of stored.
type Content struct {
	Digest string
	// Size is the size in bytes.
	Size int64

	seed uint64
}

// NewContent returns a blob whose content is determined by a number and differs for every
// number.
func NewContent(seed uint64, size int64) Content {
	c := Content{Size: size, seed: seed}
	h := sha256.New()
	_, _ = io.Copy(h, c.Reader()) // neither side fails
	c.Digest = "sha256:" + hex.EncodeToString(h.Sum(nil))
	return c
}

// Reader returns a reader of all bytes.
func (c Content) Reader() io.Reader {
	var seed [32]byte
	for i := range 8 {
		seed[i] = byte(c.seed >> (8 * i))
	}
	return io.LimitReader(rand.NewChaCha8(seed), c.Size)
}

// Fetched describes a download.
type Fetched struct {
	// First is the time until the first byte, All the time until the last.
	First, All time.Duration
}

// Get downloads from a URL into a buffer. It checks nothing but the size, so that the client costs
// as little as possible.
func Get(ctx context.Context, client *http.Client, url string, size int64, buf []byte) (Fetched, error) {
	var f Fetched
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return f, err
	}
	began := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		return f, err
	}
	defer resp.Body.Close()
	var n int64
	for err == nil {
		var k int
		k, err = resp.Body.Read(buf)
		if n += int64(k); k > 0 && f.First == 0 {
			f.First = time.Since(began)
		}
	}
	f.All = time.Since(began)
	if err != io.EOF || resp.StatusCode != http.StatusOK || n != size {
		return f, fmt.Errorf("GET %s: status %d, %d of %d bytes: %w", url, resp.StatusCode, n, size, err)
	}
	return f, nil
}

// Crowd makes many clients ask a registry, "http://host:port", for a path at once. It
// calls ready when all are connected, and they ask when ready has returned.
func Crowd(ctx context.Context, clients int, registry, path string, size int64, ready func() error) ([]Fetched, error) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients, DisableCompression: true}}
	defer client.CloseIdleConnections()
	if err := connect(ctx, client, clients, registry+"/v2/"); err != nil {
		return nil, err
	}
	if err := ready(); err != nil {
		return nil, err
	}
	fetched, errs := make([]Fetched, clients), make([]error, clients)
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for i := range clients {
		wg.Go(func() {
			buf := make([]byte, 64<<10)
			<-begin
			fetched[i], errs[i] = Get(ctx, client, registry+path, size, buf)
		})
	}
	close(begin)
	wg.Wait()
	return fetched, errors.Join(errs...)
}

// connect opens connections with a ping on each. No ping ends before all have begun.
func connect(ctx context.Context, client *http.Client, n int, url string) error {
	errs := make([]error, n)
	var begun, done sync.WaitGroup
	begun.Add(n)
	for i := range n {
		done.Go(func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			if err != nil {
				begun.Done()
				errs[i] = err
				return
			}
			resp, err := client.Do(req)
			begun.Done()
			begun.Wait() // keeps any connection from being used twice
			if errs[i] = err; err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
	}
	done.Wait()
	return errors.Join(errs...)
}

// Counter forwards HTTP and counts the reads that matter.
type Counter struct {
	// Of reports whether reads of a path count.
	Of func(path string) bool
	// Reads counts GETs. Bytes sums the sizes that their answers announced.
	Reads, Bytes atomic.Int64
}

// Reset sets the counters to zero.
func (c *Counter) Reset() {
	c.Reads.Store(0)
	c.Bytes.Store(0)
}

// Serve forwards the connections of a listener to a host:port until the context ends. Requests keep
// their Host header, which may be part of a signature.
func (c *Counter) Serve(ctx context.Context, l net.Listener, target string) {
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: target})
			r.Out.Host = r.In.Host
		},
		ModifyResponse: func(resp *http.Response) error {
			if resp.Request.Method == http.MethodGet && c.Of(resp.Request.URL.Path) {
				c.Reads.Add(1)
				c.Bytes.Add(max(0, resp.ContentLength))
			}
			return nil
		},
	}
	proxy.ErrorLog = log.New(io.Discard, "", 0) // clients give up reads on purpose
	server := &http.Server{Handler: proxy}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	_ = server.Serve(l) // ends with the context
}
