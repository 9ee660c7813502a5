package replay

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"example.org/slipway/workload/replay/result"
)

// outbox sends samples to the coordinator, some at a time.
type outbox struct {
	link   *link
	worker uint8

	mu     sync.Mutex
	space  sync.Cond // buf became smaller, or failed
	buf    []byte
	failed error
}

const (
	// flushEvery is how long a sample waits at most before it is sent.
	flushEvery = 20 * time.Millisecond
	// maxOutbox bounds the waiting samples, in bytes; a goroutine with a sample for a full
	// outbox waits.
	maxOutbox = 16 << 20
	// outboxHead is the count of tasks begun, before the samples.
	outboxHead = 8
)

func newOutbox(l *link, worker uint8) *outbox {
	o := &outbox{link: l, worker: worker, buf: make([]byte, outboxHead)}
	o.space.L = &o.mu
	return o
}

// put takes a sample. After an error samples are dropped, because nobody receives them.
func (o *outbox) put(s result.Sample) {
	s.Worker = o.worker
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.buf) > maxOutbox && o.failed == nil {
		o.space.Wait()
	}
	if o.failed == nil {
		o.buf = result.AppendSample(o.buf, &s)
	}
}

// begin sends samples until the returned function is called. That function sends the
// rest, and returns the first error.
func (o *outbox) begin(dispatched *atomic.Int64) (finish func() error) {
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(flushEvery)
		defer tick.Stop()
		told := int64(0)
		for {
			select {
			case <-tick.C:
				told = o.flush(dispatched, told)
			case <-stop:
				o.flush(dispatched, -1)
				return
			}
		}
	}()
	return func() error {
		close(stop)
		<-stopped
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.failed
	}
}

// flush sends the samples, if there are any or if the count of tasks has changed.
func (o *outbox) flush(dispatched *atomic.Int64, told int64) int64 {
	o.mu.Lock()
	buf := o.buf
	n := dispatched.Load()
	if len(buf) == outboxHead && n == told || o.failed != nil {
		o.mu.Unlock()
		return told
	}
	o.buf = make([]byte, outboxHead, max(4096, len(buf)))
	o.space.Broadcast()
	o.mu.Unlock()
	binary.LittleEndian.PutUint64(buf, uint64(n))
	if err := o.link.send(frameSamples, buf); err != nil {
		o.mu.Lock()
		o.failed = err
		o.space.Broadcast()
		o.mu.Unlock()
	}
	return n
}
