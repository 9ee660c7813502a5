package peers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/node/gearfs/pace"
	"example.org/slipway/oci/peering"
)

const (
	// dialTimeout bounds the first try to reach a node, which may be behind a NAT.
	dialTimeout = time.Second
	// progressBytes is how many bytes a node has to send to count as one that sends.
	progressBytes = 16 << 10
	// maxStarved bounds how often in a row single connections to a node may starve, as they do
	// if many share a link. Beyond that, it is a node that stalls.
	maxStarved = 2 * conns
	// conns is how many connections to one node there are at most.
	conns = 8
	// These are the first bans, by what a node did. Each further one in a row is twice as
	// long, up to maxBan.
	lieBan     = 10 * time.Minute
	refusedBan = 20 * time.Second
	deadBan    = 10 * time.Second
	stallBan   = 2 * time.Second
	busyBan    = time.Second
	maxBan     = time.Hour
)

// peer is another node.
type peer struct {
	key    peering.Key
	addr   string
	client *http.Client
	late   *pace.Metronome // of this node, not of the other one

	mu      sync.Mutex
	until   time.Time // banned
	strikes int
	sent    time.Time     // progress on any connection
	lateBy  time.Duration // how late this process was at sent
	starved int           // since it answered a request
}

func newPeer(id *identity, key peering.Key, addr string, late *pace.Metronome) *peer {
	d := &net.Dialer{Timeout: dialTimeout}
	return &peer{key: key, addr: addr, late: late, client: &http.Client{Transport: &http.Transport{
		DialContext: d.DialContext, TLSClientConfig: id.clientTLS(key), TLSHandshakeTimeout: 2 * dialTimeout,
		MaxConnsPerHost: conns, MaxIdleConnsPerHost: conns, IdleConnTimeout: time.Minute, DisableCompression: true,
		ResponseHeaderTimeout: 0, MaxResponseHeaderBytes: 16 << 10, WriteBufferSize: 64 << 10, ReadBufferSize: 64 << 10},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

func (p *peer) usable(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !now.Before(p.until)
}

// ban keeps a node unused for a time, which doubles when it happens again.
func (p *peer) ban(now time.Time, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Before(p.until) && p.until.Sub(now) >= d {
		return // a request that began before
	}
	p.until = now.Add(min(d<<min(p.strikes, 10), maxBan))
	p.strikes++
}

func (p *peer) served() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.strikes, p.starved = 0, 0
}

// progressed notes that the node has sent something.
func (p *peer) progressed(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent, p.lateBy = now, p.late.Total(now)
}

// stalled returns what is wrong with a node that sent nothing on one connection for a time, in
// which this process did not lack a processor.
func (p *peer) stalled(now time.Time, idle time.Duration) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.starved >= maxStarved || now.Sub(p.sent)-(p.late.Total(now)-p.lateBy) > idle {
		return errStall
	}
	p.starved++
	return errStarved
}

// want is a piece and the file that it belongs to.
type want struct {
	piece
	f *gear.File
}

const (
	piecesPath  = "/v1/pieces"
	grantHeader = "Slipway-Grant"
	// fetchHeader is an order, and asks a node to get what it does not have yet.
	fetchHeader = "Slipway-Fetch"
)

var (
	errStall   = errors.New("the node sends nothing")
	errStarved = errors.New("the node sends nothing on this connection, but on others")
	errRefused = errors.New("the node refuses the grant")
	errBusy    = errors.New("the node is busy")
	errEmpty   = errors.New("the node has nothing, although it says that it has everything")
)

// limits bound how long a node may take.
type limits struct {
	idle time.Duration // without sending a piece or progressBytes
	all  time.Duration // for the whole request, without the time that the caller takes
	// coming is how often in a row it may say that it is fetching a piece, and promised for
	// how long in all.
	coming   int
	promised time.Duration
}

// ask requests pieces. It calls got with the verified bytes of each and the frame that had them, in
// their order, or with nil for one that the node does not give. moved is told of the bytes that come. Errors:
// errLie, errStall, errRefused, errBusy, and those of the network. An error of got is
// returned as it is.
func (p *peer) ask(ctx context.Context, grant string, how order, l limits, list []want, moved func(int), got func(i int, b []byte, f *frame) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p.late.Start()
	defer p.late.Stop()
	left, since, late := l.all, time.Now(), p.late.Total(time.Now())
	took := func() time.Duration { // by the node, not counting what this process was late
		now := time.Now()
		return now.Sub(since) - (p.late.Total(now) - late)
	}
	var last atomic.Bool // the time for the whole request ends first
	idle := p.late.Deadline(func() {
		if last.Load() {
			cancel(errStall)
			return
		}
		cancel(p.stalled(time.Now(), l.idle))
	})
	defer idle.Stop()
	// A few bytes now and then, or pieces that are not given, do not count as progress.
	again := func() {
		rest := left - took()
		last.Store(rest <= l.idle)
		idle.Set(max(0, min(l.idle, rest)))
	}
	again()
	come, waits, promised := 0, l.coming, l.promised
	err := p.request(ctx, grant, how, list, func() error {
		// The node waits for the registry, which would not answer this one sooner.
		if waits, promised = waits-1, promised-comingEvery; waits < 0 || promised < 0 {
			return errStall
		}
		left += comingEvery
		again()
		return nil
	}, func(n int) {
		if come += n; come >= progressBytes {
			come = 0
			p.progressed(time.Now())
			again()
		}
		moved(n)
	}, func(i int, b []byte, f *frame) error {
		if b == nil {
			return got(i, nil, nil)
		}
		idle.Stop()
		left -= took()
		err := got(i, b, f)
		since, late, waits = time.Now(), p.late.Total(time.Now()), l.coming
		again()
		return err
	})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	return err
}

// request is ask without its limits. It calls wait when the node says that it fetches a
// piece, and returns an error of wait as it is.
func (p *peer) request(ctx context.Context, grant string, how order, list []want, wait func() error, moved func(int),
	got func(i int, b []byte, f *frame) error) error {
	pieces := make([]piece, len(list))
	for i := range list {
		pieces[i] = list[i].piece
	}
	resp, err := p.do(ctx, http.MethodPost, piecesPath, grant, fetchHeader, string(how), bytes.NewReader(appendPieces(nil, pieces)))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusServiceUnavailable:
		return errBusy
	default:
		return fmt.Errorf("the node answers %s", resp.Status)
	}
	r := &counter{resp.Body, moved}
	for i := range list {
		size, sum, ok := list[i].of(list[i].f)
		if !ok {
			return fmt.Errorf("file %x has no chunk %d", list[i].name, list[i].chunk)
		}
		f, err := readFrame(r, size)
		for err == nil && f.enc == coming {
			if err = wait(); err == nil {
				f, err = readFrame(r, size)
			}
		}
		if err != nil {
			return err
		}
		var b []byte
		if f.enc != missing {
			if b, err = f.open(size, sum); err != nil {
				return err
			}
			if b == nil {
				b = []byte{}
			}
		}
		if err := got(i, b, f); err != nil {
			return err
		}
	}
	return nil
}

// do asks the node for something, with a header unless its value is empty. An answer that the
// grant does not suffice is errRefused.
func (p *peer) do(ctx context.Context, method, path, grant, header, value string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "https://"+p.addr+path, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set(grantHeader, grant)
	if value != "" {
		req.Header.Set(header, value)
	}
	resp, err := p.client.Do(req)
	if err == nil && resp.StatusCode == http.StatusForbidden {
		resp.Body.Close()
		return nil, errRefused
	}
	return resp, err
}

// banFor returns for how long a node that failed like this is not used, or 0.
func banFor(err error) time.Duration {
	switch {
	case errors.Is(err, errLie), errors.Is(err, errStranger):
		return lieBan
	case errors.Is(err, errRefused):
		return refusedBan
	case errors.Is(err, errBusy):
		return busyBan
	case errors.Is(err, errStall):
		return stallBan
	case errors.Is(err, errStarved):
		return 0
	}
	return deadBan
}

// counter tells of the bytes that are read.
type counter struct {
	r     io.Reader
	moved func(int)
}

// Read implements io.Reader.
func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if n > 0 {
		c.moved(n)
	}
	return n, err
}
