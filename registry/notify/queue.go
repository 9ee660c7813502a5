package notify

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
)

// Item is a queued payload.
type Item struct {
	// ID grows in the order of Append within an endpoint.
	ID      int64
	Payload []byte
}

// Queue keeps payloads per endpoint, first in, first out. All methods may run
// concurrently; ctx bounds the call.
type Queue interface {
	// Append adds a payload. When it returns nil, the payload is as durable as the queue
	// is. Append does not keep the slice.
	Append(ctx context.Context, endpoint string, payload []byte) error
	// Next returns up to n payloads, the oldest first, and leaves them queued. It returns
	// none for an unknown endpoint.
	Next(ctx context.Context, endpoint string, n int) ([]Item, error)
	// Delete removes payloads. It is not an error if they are not there.
	Delete(ctx context.Context, endpoint string, ids ...int64) error
	// Len returns how many payloads an endpoint has.
	Len(ctx context.Context, endpoint string) (int, error)
}

// ErrQueueFull is returned by MemQueue.Append.
var ErrQueueFull = errors.New("the queue is full")

// MemQueue is a bounded Queue in RAM. It is safe for concurrent use.
type MemQueue struct {
	limit int

	mu   sync.Mutex
	last int64
	byEP map[string][]Item
}

var _ Queue = (*MemQueue)(nil)

// NewMemQueue returns a queue of at most limit payloads for each endpoint.
func NewMemQueue(limit int) *MemQueue {
	return &MemQueue{limit: limit, byEP: make(map[string][]Item)}
}

// Append implements Queue. It returns ErrQueueFull at the limit.
func (q *MemQueue) Append(_ context.Context, endpoint string, payload []byte) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.byEP[endpoint]) >= q.limit {
		return ErrQueueFull
	}
	q.last++
	q.byEP[endpoint] = append(q.byEP[endpoint], Item{ID: q.last, Payload: bytes.Clone(payload)})
	return nil
}

// Next implements Queue.
func (q *MemQueue) Next(_ context.Context, endpoint string, n int) ([]Item, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	items := q.byEP[endpoint]
	return slices.Clone(items[:min(max(0, n), len(items))]), nil
}

// Delete implements Queue.
func (q *MemQueue) Delete(_ context.Context, endpoint string, ids ...int64) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	items := q.byEP[endpoint]
	// Usually the oldest item is removed first, and then nothing has to be moved.
	for len(items) > 0 && slices.Contains(ids, items[0].ID) {
		items[0] = Item{}
		items = items[1:]
	}
	items = slices.DeleteFunc(items, func(i Item) bool { return slices.Contains(ids, i.ID) })
	if len(items) == 0 {
		delete(q.byEP, endpoint)
		return nil
	}
	q.byEP[endpoint] = items
	return nil
}

// Len implements Queue.
func (q *MemQueue) Len(_ context.Context, endpoint string) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.byEP[endpoint]), nil
}

// forget removes everything of an endpoint.
func (q *MemQueue) forget(endpoint string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.byEP, endpoint)
}
