package mirrors

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// link stands between a mirror and its upstream and gets into trouble by chance.
type link struct {
	addr     string
	upstream string // host:port

	mu    sync.Mutex
	rnd   *rand.Rand
	calm  bool      // no trouble
	until time.Time // until when everybody is told to wait
	count map[string]int
	blobs map[string]*transfer // by path
}

// transfer is what the link has seen of a blob.
type transfer struct {
	// Requests are GETs that were passed on, Breaks those of them that did not bring
	// everything.
	Requests, Breaks int
	// Sent are bytes that were handed to the kernel, and Lost the most of them that may
	// not have arrived, as the connection was reset.
	Sent, Lost, Size int64
	// Again are GETs after the first that asked for everything although what a cut had
	// brought was known to have arrived.
	Again int
	// known is what has arrived for certain.
	known int64
}

// lostBytes is how many bytes the kernels on both sides may hold: what was not read is
// dropped when a connection is reset.
const lostBytes = 8 << 20

// trouble is what happens to an answer.
type trouble int

const (
	fine     trouble = iota
	delay            // it begins later
	slow             // it comes in small pieces
	refusal          // 429 to everybody, for a second
	down             // 503, once
	hangUp           // the connection is reset before the answer
	reset            // it is reset in the answer
	truncate         // it is closed in the answer
)

func (x trouble) String() string {
	return [...]string{"fine", "delay", "slow", "refusal", "down", "hang up", "reset", "truncate"}[x]
}

// newLink starts a link; with calm it is in no trouble yet.
func newLink(t *testing.T, upstream string, seed uint64) *link {
	t.Helper()
	l := &link{upstream: upstream, rnd: rand.New(rand.NewPCG(seed, 1)), calm: true, count: map[string]int{}, blobs: map[string]*transfer{}}
	s := httptest.NewServer(l)
	t.Cleanup(s.Close)
	l.addr = s.Listener.Addr().String()
	return l
}

// setCalm ends or begins the trouble.
func (l *link) setCalm(calm bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calm = calm
}

// chance draws what happens to the next answer, and where in it, as a share. A wait is
// what is left of a refusal.
func (l *link) chance() (x trouble, share float64, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if wait = time.Until(l.until); wait > 0 {
		l.count["refused"]++
		return refusal, 0, wait
	}
	if l.calm {
		return fine, 0, 0
	}
	p := l.rnd.Float64()
	for _, c := range []struct {
		most float64
		is   trouble
	}{{0.01, refusal}, {0.02, down}, {0.05, hangUp}, {0.15, reset}, {0.25, truncate}, {0.35, delay}, {0.40, slow}} {
		if p < c.most {
			x = c.is
			break
		}
	}
	l.count[x.String()]++
	if x == refusal {
		wait = time.Second
		l.until = time.Now().Add(wait)
	}
	return x, l.rnd.Float64(), wait
}

// ServeHTTP implements http.Handler.
func (l *link) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x, share, wait := l.chance()
	switch x {
	case refusal:
		w.Header().Set("Retry-After", strconv.Itoa(int(wait.Seconds())+1))
		http.Error(w, `{"errors":[{"code":"TOOMANYREQUESTS","message":"slow down"}]}`, http.StatusTooManyRequests)
		return
	case down:
		http.Error(w, "<html>try again</html>", http.StatusServiceUnavailable)
		return
	case hangUp:
		hang(w, true)
		return
	case delay:
		<-time.After(time.Duration(share * float64(300*time.Millisecond)))
	}
	resp, err := l.forward(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer resp.Body.Close()
	for k, v := range resp.Header {
		w.Header()[k] = v
	}
	w.WriteHeader(resp.StatusCode)
	size := resp.ContentLength
	if r.Method == http.MethodHead || size <= 0 {
		return
	}
	l.body(w, r, resp, x, share)
}

func (l *link) forward(r *http.Request) (*http.Response, error) {
	req := r.Clone(context.WithoutCancel(r.Context()))
	req.RequestURI, req.URL.Scheme, req.URL.Host = "", "http", l.upstream
	req.Body = http.NoBody
	return http.DefaultTransport.RoundTrip(req)
}

// body passes on the body of an answer, or a part of it.
func (l *link) body(w http.ResponseWriter, r *http.Request, resp *http.Response, x trouble, share float64) {
	size := resp.ContentLength
	blob := l.begin(r, resp)
	most := size
	if x == reset || x == truncate {
		most = int64(share * float64(size)) // below size: something is missing always
	}
	var n int64
	var err error
	from := io.LimitReader(resp.Body, most)
	if x == slow {
		for range 10 {
			var k int64
			if k, err = io.CopyN(w, from, most/10+1); err != nil {
				n += k
				break
			}
			n += k
			_ = http.NewResponseController(w).Flush() // it is to come in pieces, that is all
			<-time.After(20 * time.Millisecond)
		}
	} else {
		n, err = io.Copy(w, from)
	}
	l.end(blob, n, size, err, x)
	if x == reset || x == truncate {
		_ = http.NewResponseController(w).Flush()
		hang(w, x == reset)
	}
}

// begin notes a GET of a blob; nil for others.
func (l *link) begin(r *http.Request, resp *http.Response) *transfer {
	if !strings.Contains(r.URL.Path, "/blobs/") || r.Method != http.MethodGet || resp.StatusCode >= 300 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.blobs[r.URL.Path]
	if b == nil {
		b = &transfer{Size: resp.ContentLength}
		l.blobs[r.URL.Path] = b
	}
	b.Requests++
	if b.known > 0 && r.Header.Get("Range") == "" {
		b.Again++
	}
	return b
}

func (l *link) end(b *transfer, n, size int64, err error, x trouble) {
	if b == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	b.Sent += n
	switch {
	case x == reset || err != nil && err != io.EOF:
		b.Breaks++
		b.Lost += min(n, lostBytes)
	case n < size:
		b.Breaks++
		b.known += n
	}
}

// hang ends the connection of an answer, with a reset or in order.
func hang(w http.ResponseWriter, abruptly bool) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // the server ends the connection then
	}
	if tcp, ok := c.(*net.TCPConn); ok && abruptly {
		_ = tcp.SetLinger(0)
	}
	c.Close()
}

// happened is how many answers got into a trouble.
func (l *link) happened(x trouble) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count[x.String()]
}

// summary tells what happened, and what must not have.
func (l *link) summary() (text string, faults []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	requests, breaks := 0, 0
	for path, b := range l.blobs {
		requests, breaks = requests+b.Requests, breaks+b.Breaks
		switch {
		case b.Requests > 1+b.Breaks:
			faults = append(faults, fmt.Sprintf("%s was asked for %d times and broke %d times", path, b.Requests, b.Breaks))
		case b.Again > 0:
			faults = append(faults, fmt.Sprintf("%s was begun again %d times after a part of it had come", path, b.Again))
		case b.Sent > b.Size+b.Lost:
			faults = append(faults, fmt.Sprintf("of %s with %d bytes %d were sent; at most %d were lost", path, b.Size, b.Sent, b.Lost))
		}
	}
	return fmt.Sprintf("%d blobs, %d GETs, %d broke; %v", len(l.blobs), requests, breaks, l.count), faults
}
