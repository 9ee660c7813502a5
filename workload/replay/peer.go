package replay

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"example.org/slipway/workload/replay/plan"
	"example.org/slipway/workload/replay/result"
)

// Dial opens a connection to a worker at host:port. If c is not nil, the connection uses
// TLS. The caller closes it.
func Dial(ctx context.Context, addr string, c *tls.Config) (net.Conn, error) {
	d := net.Dialer{Timeout: handshakeTimeout}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	if c != nil {
		c = c.Clone()
		c.NextProtos = []string{"http/1.1"} // HTTP/2 has no such upgrade
		if c.ServerName == "" {
			c.ServerName, _, _ = net.SplitHostPort(addr)
		}
		conn = tls.Client(conn, c)
	}
	if err := upgrade(conn, addr); err != nil {
		return nil, fmt.Errorf("worker %s: %w", addr, errors.Join(err, conn.Close()))
	}
	return conn, nil
}

// upgrade asks for the connection itself. The answer is read byte by byte: what
// follows it is not HTTP.
func upgrade(conn net.Conn, host string) error {
	if err := conn.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return err
	}
	_, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", WorkerPath, host, upgradeName)
	if err != nil {
		return err
	}
	var head []byte
	for b := make([]byte, 1); len(head) < 4096 && (len(head) < 4 || string(head[len(head)-4:]) != "\r\n\r\n"); {
		if _, err := io.ReadFull(conn, b); err != nil {
			return err
		}
		head = append(head, b[0])
	}
	const want = "HTTP/1.1 101 "
	if len(head) < len(want) || string(head[:len(want)]) != want {
		return errors.New("it is not a worker, or one that wants TLS")
	}
	return conn.SetDeadline(time.Time{})
}

// local makes a worker in this process and returns the other end of its connection.
// The worker ends with the connection; stopped is closed when it has.
func local(ctx context.Context, o *WorkerOptions) (conn net.Conn, stopped <-chan struct{}) {
	ours, theirs := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer theirs.Close()
		_ = NewWorker(o).Serve(ctx, theirs) // the coordinator notices by itself
	}()
	return ours, done
}

// handed is a task that a peer was given; order is its number among the peer's tasks of the
// phase.
type handed struct {
	task  *plan.Task
	order int64
	done  []int32 // its steps that have samples
}

// peer is a worker, as the coordinator sees it. Fields whose comment says mu are guarded by the
// coordinator's mu.
type peer struct {
	name  string
	index uint8
	link  *link
	// offset is the worker's time of day minus the coordinator's. trip is the round trip
	// of the measurement, which limits its accuracy.
	offset, trip time.Duration
	// last is the latest estimate.
	last time.Duration

	// chunk is the data to be sent next. Only the goroutine that hands out tasks uses it.
	chunk []byte

	alive   bool              // mu
	sent    int64             // mu: tasks of the phase
	begun   int64             // mu: how many of these have begun, according to the worker
	tasks   map[int64]*handed // mu: not yet answered
	working bool              // mu: the phase has not ended there
}

// clockRounds is how many times a worker's clock is requested. The answer with the
// shortest round trip counts.
const clockRounds = 16

// meet introduces the coordinator, sends the configuration and compares clocks.
func (p *peer) meet(secret string, c *config) error {
	if err := introduce(p.link, secret); err != nil {
		return err
	}
	if err := p.link.sendJSON(frameConfig, c); err != nil {
		return err
	}
	p.trip = time.Hour
	for range clockRounds {
		if err := p.ping(); err != nil {
			return err
		}
		b, err := p.link.expectRaw(framePong)
		if err != nil {
			return err
		}
		if trip, offset := clock(b, time.Now()); trip < p.trip {
			p.trip, p.offset, p.last = trip, offset, offset
		}
	}
	return nil
}

// expectRaw receives a frame of one type.
func (l *link) expectRaw(t frameType) ([]byte, error) {
	got, b, err := l.receive(handshakeTimeout)
	if err == nil && got == frameRefuse {
		err = fmt.Errorf("refused: %.200q", b)
	}
	if err == nil && (got != t || t == framePong && len(b) != 16) {
		err = errors.New("the worker speaks something else")
	}
	return b, err
}

// ping asks for the worker's time; the time of asking comes back with it.
func (p *peer) ping() error {
	return p.link.send(framePing, binary.LittleEndian.AppendUint64(nil, uint64(time.Now().UnixNano())))
}

// clock reads a pong, and returns the round trip and how far the worker's clock is ahead.
func clock(b []byte, now time.Time) (trip, offset time.Duration) {
	asked := int64(binary.LittleEndian.Uint64(b))
	told := int64(binary.LittleEndian.Uint64(b[8:]))
	trip = time.Duration(now.UnixNano() - asked)
	return trip, time.Duration(told - asked - int64(trip)/2)
}

// decodeSamples reads a frame of samples.
func decodeSamples(b []byte) (begun int64, samples []result.Sample, err error) {
	if len(b) < outboxHead {
		return 0, nil, result.ErrEncoding
	}
	begun, b = int64(binary.LittleEndian.Uint64(b)), b[outboxHead:]
	for len(b) > 0 {
		var s result.Sample
		if s, b, err = result.DecodeSample(b); err != nil {
			return 0, nil, err
		}
		samples = append(samples, s)
	}
	return begun, samples, nil
}

// RequireSafe returns an error if a worker that listens at addr would serve anybody who
// can reach it. Beyond loopback, a worker needs a secret, or certificates of its
// coordinators.
func RequireSafe(addr, secret string, c *tls.Config) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	certificates := c != nil && c.ClientAuth == tls.RequireAndVerifyClientCert
	switch {
	case isLoopback(host) || certificates:
		return nil
	case secret == "":
		return errors.New("a worker sends any request that a replay orders: on any address but loopback it needs a secret (--secret-file), or TLS with --client-ca")
	case len(secret) < minSecret:
		return fmt.Errorf("the secret is too short: beyond loopback it needs %d characters that nobody guesses", minSecret)
	}
	return nil
}

// minSecret is the least length of a secret beyond loopback, in bytes, because a false worker
// has time to guess a secret.
const minSecret = 16

// Server returns the HTTP server of a worker.
func (w *Worker) Server(c *tls.Config) *http.Server {
	s := &http.Server{Handler: w, ReadHeaderTimeout: handshakeTimeout, TLSConfig: c}
	s.Protocols = new(http.Protocols)
	s.Protocols.SetHTTP1(true)
	return s
}
