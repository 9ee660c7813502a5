package replay

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"example.org/slipway/workload/replay/plan"
	"example.org/slipway/workload/replay/result"
	"example.org/slipway/workload/replay/send"
)

// WorkerOptions are the options of a Worker. The zero value is a worker without a secret,
// for loopback.
type WorkerOptions struct {
	// Secret is the secret that a coordinator must know.
	Secret string
	// Clock is the worker's time of day; nil means time.Now.
	Clock func() time.Time
	// Log gets a line for each coordinator; nil discards.
	Log *slog.Logger
}

// Worker sends requests for one coordinator at a time. It is an [http.Handler]: a
// coordinator requests [WorkerPath] and upgrades the connection.
type Worker struct {
	o    WorkerOptions
	busy atomic.Bool
}

// WorkerPath is the path at which a coordinator asks a worker. upgradeName is the
// protocol to which the connection is upgraded.
const (
	WorkerPath  = "/replay/v1"
	upgradeName = "slipway-replay"
)

// NewWorker returns a worker.
func NewWorker(o *WorkerOptions) *Worker {
	w := &Worker{}
	if o != nil {
		w.o = *o
	}
	if w.o.Clock == nil {
		w.o.Clock = time.Now
	}
	if w.o.Log == nil {
		w.o.Log = slog.New(slog.DiscardHandler)
	}
	return w
}

// ServeHTTP implements [http.Handler]. A worker that has a coordinator answers 409.
func (w *Worker) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path != WorkerPath:
		http.NotFound(rw, r)
		return
	case r.Header.Get("Upgrade") != upgradeName:
		http.Error(rw, "this is a worker of slipway trace replay", http.StatusUpgradeRequired)
		return
	}
	conn, buf, err := http.NewResponseController(rw).Hijack()
	if err != nil {
		http.Error(rw, "the connection cannot be upgraded", http.StatusHTTPVersionNotSupported)
		return
	}
	defer conn.Close()
	if buf.Reader.Buffered() > 0 {
		return // a coordinator waits for the answer
	}
	answer := "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + upgradeName + "\r\n\r\n"
	if _, err := io.WriteString(conn, answer); err != nil {
		return
	}
	w.o.Log.Info("a coordinator has come", "addr", r.RemoteAddr)
	if err := w.Serve(r.Context(), conn); err != nil {
		w.o.Log.Warn("the coordinator is gone", "addr", r.RemoteAddr, "err", err)
		return
	}
	w.o.Log.Info("the coordinator has finished", "addr", r.RemoteAddr)
}

// Serve works for the coordinator at the other end of a connection until it says goodbye,
// which is not an error, or is gone. The caller closes conn.
func (w *Worker) Serve(ctx context.Context, conn net.Conn) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // ends the receiving
	defer stop()
	l := newLink(conn)
	if err := greet(l, w.o.Secret); err != nil {
		return err
	}
	if !w.busy.CompareAndSwap(false, true) {
		return l.send(frameRefuse, []byte("the worker has a coordinator already"))
	}
	defer w.busy.Store(false)
	j := &job{link: l, clock: w.o.Clock, log: w.o.Log, cancel: cancel}
	err := j.serve(ctx)
	cancel()
	j.wait()
	return err
}

// job is the work for one coordinator.
type job struct {
	link   *link
	clock  func() time.Time
	log    *slog.Logger
	cancel context.CancelFunc

	config config
	sender *send.Sender

	feed   chan *plan.Task // of the phase under way
	phases sync.WaitGroup
}

// silence is how long a worker waits for a frame of its coordinator, which pings each
// second.
const silence = 30 * time.Second

func (j *job) serve(ctx context.Context) error {
	for {
		t, b, err := j.link.receive(silence)
		if err != nil {
			return fmt.Errorf("wait for the coordinator: %w", err)
		}
		if t == frameBye {
			return nil
		}
		if err := j.frame(ctx, t, b); err != nil {
			return err
		}
	}
}

func (j *job) frame(ctx context.Context, t frameType, b []byte) error {
	switch t {
	case framePing:
		return j.link.send(framePong, binary.LittleEndian.AppendUint64(b, uint64(j.clock().UnixNano())))
	case frameConfig:
		return j.configure(b)
	case frameBegin:
		return j.begin(ctx, b)
	case frameTasks:
		return j.tasks(ctx, b)
	case frameEnd:
		if j.feed == nil {
			return errors.New("the coordinator ended a phase that had not begun")
		}
		close(j.feed)
		j.feed = nil
		return nil
	}
	return fmt.Errorf("the coordinator sent the unknown frame %d", t)
}

func (j *job) configure(b []byte) (err error) {
	if j.sender != nil {
		return errors.New("the coordinator sent a second configuration")
	}
	if err := json.Unmarshal(b, &j.config); err != nil {
		return errors.New("the coordinator sent a malformed configuration")
	}
	if err := j.config.Maker.Check(); err != nil {
		return err
	}
	j.sender, err = send.New(j.config.Targets, time.Now(),
		send.Options{Maker: j.config.Maker, Timeout: j.config.Timeout, UserAgent: j.config.Agent, Clients: j.config.Clients, Log: j.log})
	return err
}

// feedSize is how many tasks wait in a worker. A coordinator sends at most maxQueued
// tasks that have not begun, so receiving never blocks.
const feedSize = 2 * maxQueued

func (j *job) begin(ctx context.Context, b []byte) error {
	var p phase
	if err := json.Unmarshal(b, &p); err != nil || j.sender == nil || j.feed != nil || p.Closed > maxClosed {
		return errors.New("the coordinator began a phase out of turn")
	}
	j.phases.Wait()
	// From here on the monotonic clock counts, because the time of day may jump.
	start := time.Now().Add(time.Unix(0, p.Start).Sub(j.clock().Round(0)))
	j.sender.SetStart(start)
	out := newOutbox(j.link, j.config.Worker)
	e := &engine{most: max(1, j.config.Most), patience: j.config.Patience, closed: p.Closed > 0}
	if e.closed {
		e.most = p.Closed
	}
	e.run = func(ctx context.Context, t *plan.Task, intended, wait int64) {
		j.sender.Run(ctx, t, intended, wait, func(s result.Sample) {
			if ctx.Err() == nil { // at the end of ctx the request fails, and the next worker sends it again
				out.put(s)
			}
		})
	}
	e.announce = j.sender.Announce
	e.drop = func(t *plan.Task, intended, wait int64) {
		j.sender.Drop(t)
		for _, s := range send.Unsent(t, result.Dropped, intended, e.now(), wait, nil) {
			out.put(s)
		}
	}
	feed := make(chan *plan.Task, feedSize)
	j.feed = feed
	finish := out.begin(&e.dispatched)
	j.phases.Go(func() {
		e.serve(ctx, start, feed)
		if finish() != nil || j.link.send(frameDone, nil) != nil {
			j.cancel() // a coordinator that takes nothing counts as gone
		}
	})
	return nil
}

func (j *job) tasks(ctx context.Context, b []byte) error {
	for len(b) > 0 {
		t, rest, err := plan.DecodeTask(b)
		if err != nil {
			return err
		}
		if j.feed == nil {
			return errors.New("the coordinator sent tasks out of turn")
		}
		select {
		case j.feed <- t:
		case <-ctx.Done():
			return ctx.Err()
		}
		b = rest
	}
	return nil
}

// wait ends the work under way, after ctx was cancelled.
func (j *job) wait() {
	if j.feed != nil {
		close(j.feed)
		j.feed = nil
	}
	j.phases.Wait()
	if j.sender != nil {
		if err := j.sender.Close(); err != nil {
			j.log.Warn("close connections", "err", err)
		}
	}
}
