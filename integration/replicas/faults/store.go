package faults

import (
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Trouble is how a store misbehaves. Each share is the fraction of the requests, from 0 to 1, that
// meet the trouble.
type Trouble struct {
	// SlowDown answers 503 SlowDown and does nothing.
	SlowDown float64
	// Lost does nothing and ends the connection.
	Lost float64
	// Unanswered carries out the request and ends the connection.
	Unanswered float64
	// Cut ends the body of an answer too early.
	Cut float64
	// Slow delays the answer by up to Delay.
	Slow  float64
	Delay time.Duration
}

// Store forwards HTTP to an object store and can cause trouble.
type Store struct {
	// Addr is where it listens, host:port.
	Addr string

	trouble atomic.Pointer[Trouble]
	counts  [5]atomic.Int64
	mu      sync.Mutex
	rng     *rand.Rand
}

// errUnanswered ends a connection after the store has done its work.
var errUnanswered = errors.New("the answer is lost")

// NewStore returns a store in front of target, host:port, until the end of the test. It starts
// without trouble. Requests keep their Host header, which is part of what S3 clients sign.
func NewStore(t testing.TB, target string, seed uint64) *Store {
	t.Helper()
	s := &Store{rng: rand.New(rand.NewPCG(seed, 3))}
	s.Set(Trouble{})
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: target})
			r.Out.Host = r.In.Host
		},
		Transport:      &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 128},
		FlushInterval:  -1,
		ModifyResponse: s.answer,
		ErrorLog:       log.New(io.Discard, "", 0),
		ErrorHandler:   func(w http.ResponseWriter, _ *http.Request, _ error) { hangUp(w) },
	}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.serve(proxy, w, r) }))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.Start()
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
	})
	s.Addr = srv.Listener.Addr().String()
	return s
}

// Set changes the trouble of requests from now on.
func (s *Store) Set(t Trouble) { s.trouble.Store(&t) }

// Summary says how many requests met which trouble.
func (s *Store) Summary() string {
	return fmt.Sprintf("%d slow down, %d lost, %d unanswered, %d cut, %d slow", s.counts[0].Load(), s.counts[1].Load(), s.counts[2].Load(), s.counts[3].Load(), s.counts[4].Load())
}

// hit decides whether a request meets a trouble, and counts it.
func (s *Store) hit(share float64, count int) bool {
	if share <= 0 {
		return false
	}
	s.mu.Lock()
	hit := s.rng.Float64() < share
	s.mu.Unlock()
	if hit {
		s.counts[count].Add(1)
	}
	return hit
}

func (s *Store) random(n int64) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rng.Int64N(max(n, 1))
}

func (s *Store) serve(next http.Handler, w http.ResponseWriter, r *http.Request) {
	t := s.trouble.Load()
	switch {
	case s.hit(t.SlowDown, 0):
		w.Header().Set("Content-Type", "application/xml")
		w.Header().Set("Connection", "close") // the body was not read
		w.WriteHeader(http.StatusServiceUnavailable)
		io.WriteString(w, `<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>`)
		return
	case s.hit(t.Lost, 1):
		hangUp(w)
		return
	case s.hit(t.Slow, 4):
		select {
		case <-time.After(time.Duration(s.random(int64(t.Delay)))):
		case <-r.Context().Done():
			return
		}
	}
	next.ServeHTTP(w, r)
}

// answer breaks an answer of the store if trouble strikes it.
func (s *Store) answer(resp *http.Response) error {
	t := s.trouble.Load()
	if s.hit(t.Unanswered, 2) {
		resp.Body.Close()
		return errUnanswered
	}
	if resp.ContentLength > 0 && resp.Request.Method == http.MethodGet && s.hit(t.Cut, 3) {
		resp.Body = &cut{resp.Body, s.random(resp.ContentLength)}
	}
	return nil
}

// hangUp ends a connection with a reset.
func hangUp(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // this ends the connection too
	}
	if c, ok := conn.(*net.TCPConn); ok {
		reset(c)
	}
}

// cut is a body that ends too early.
type cut struct {
	io.ReadCloser
	left int64
}

func (c *cut) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := c.ReadCloser.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	return n, err
}
