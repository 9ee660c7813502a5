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

// link stands between a mirror and its upstream, and gets into trouble at random.
type link struct {
	addr     string
	upstream string // host:port

	mu    sync.Mutex
	rnd   *rand.Rand
	calm  bool      // no trouble
	until time.Time // time until which everybody is told to wait
	count map[string]int
	blobs map[string]*transfer // by path
}

// transfer is what the link has seen of a blob.
type transfer struct {
	// Requests counts the GETs that were passed on. Breaks counts those that did not bring
	// everything.
	Requests, Breaks int
	// Sent is the number of bytes handed to the kernel. Lost is the maximum number of these bytes
	// that may not have arrived because the connection was reset.
	Sent, Lost, Size int64
	// Again counts GETs after the first that asked for everything, although the bytes before a cut
	// were known to have arrived.
	Again int
	// known is the number of bytes that have certainly arrived.
	known int64
}

// lostBytes is how many bytes the kernels on both sides may hold. When a connection is reset, what
// was not read is dropped.
const lostBytes = 8 << 20

// trouble is what happens to an answer.
type trouble int

const (
	fine     trouble = iota
	delay            // it begins late
	slow             // it comes in small pieces
	refusal          // 429 for everybody, for a second
	down             // 503, once
	hangUp           // the connection is reset before the answer
	reset            // the connection is reset during the answer
	truncate         // the connection is closed during the answer
)

func (x trouble) String() string {
	return [...]string{"fine", "delay", "slow", "refusal", "down", "hang up", "reset", "truncate"}[x]
}

// newLink starts a link. With calm it starts without trouble.
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

// chance chooses at random what happens to the next answer, and where in it, as a share. wait is
// the rest of a refusal's time.
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
		most = int64(share * float64(size)) // less than size, so that something is always missing
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
			_ = http.NewResponseController(w).Flush() // it only makes the answer arrive in pieces
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

// begin notes a GET of a blob. It returns nil for other requests.
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

// hang ends the connection of an answer, either with a reset or in an orderly way.
func hang(w http.ResponseWriter, abruptly bool) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // makes the server end the connection
	}
	if tcp, ok := c.(*net.TCPConn); ok && abruptly {
		_ = tcp.SetLinger(0)
	}
	c.Close()
}

// happened returns how many answers met a trouble.
func (l *link) happened(x trouble) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count[x.String()]
}

// summary describes what happened, and returns what should not have happened.
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
