package notify

import (
	"context"
	"fmt"
	"net/url"
	"sync"
	"time"
)

// EndpointStatus is the state of a webhook. It has none of its credentials.
type EndpointStatus struct {
	Name string `json:"name"`
	// To is the scheme and the host of the URL, whose path may hold a token.
	To     string `json:"to"`
	Format Format `json:"format"`
	// Signed reports whether bodies are signed.
	Signed bool `json:"signed"`
	// Waiting is how many events wait for delivery.
	Waiting int `json:"waiting"`
	// Failures counts the failed deliveries since the last one that succeeded. The times
	// and the last error are of this process.
	Failures  int       `json:"failures"`
	Succeeded time.Time `json:"succeeded,omitzero"`
	Failed    time.Time `json:"failed,omitzero"`
	Error     string    `json:"error,omitempty"`
	// Managed reports whether it can be changed while the registry runs. What follows is
	// set only then.
	Managed      bool      `json:"managed"`
	Paused       bool      `json:"paused,omitempty"`
	Events       []Action  `json:"events,omitempty"`
	Repositories []string  `json:"repositories,omitempty"`
	Creator      string    `json:"creator,omitempty"`
	Created      time.Time `json:"created,omitzero"`
}

// TestResult is what a webhook answered to a test.
type TestResult struct {
	// Status is the HTTP status, or 0 if there was no answer.
	Status int           `json:"status"`
	Took   time.Duration `json:"took"`
	// Error says why the test failed; it is empty if it did not.
	Error string `json:"error,omitempty"`
}

// outcomes are the outcomes of the deliveries to an endpoint. The zero value has none.
type outcomes struct {
	mu                sync.Mutex
	failures          int
	succeeded, failed time.Time
	err               string
}

func (o *outcomes) note(at time.Time, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err == nil {
		o.failures, o.succeeded = 0, at
		return
	}
	o.failures, o.failed, o.err = o.failures+1, at, err.Error()
}

// Status returns the state of each endpoint: first those of the configuration, in its
// order, and then the managed ones, ordered by name.
func (n *Notifier) Status(ctx context.Context) ([]EndpointStatus, error) {
	list := []EndpointStatus{}
	for _, ep := range n.current() {
		st, err := n.status(ctx, ep)
		if err != nil {
			return nil, err
		}
		list = append(list, st)
	}
	return list, nil
}

func (n *Notifier) status(ctx context.Context, ep *endpoint) (EndpointStatus, error) {
	st := EndpointStatus{Name: ep.cfg.Name, Format: ep.cfg.Format, Signed: ep.cfg.Secret != ""}
	if u, err := url.Parse(ep.cfg.URL); err == nil {
		st.To = u.Scheme + "://" + u.Host
	}
	if h := ep.hook; h != nil {
		st.Managed, st.Paused, st.Events, st.Repositories, st.Creator, st.Created = true, h.Paused, h.Events, h.Repositories, h.Creator, h.Created
	}
	var err error
	if st.Waiting, err = n.waiting(ctx, ep); err != nil {
		return st, fmt.Errorf("count the events that wait for endpoint %s: %w", ep.cfg.Name, err)
	}
	ep.outcomes.mu.Lock()
	defer ep.outcomes.mu.Unlock()
	st.Failures, st.Succeeded, st.Failed, st.Error = ep.outcomes.failures, ep.outcomes.succeeded, ep.outcomes.failed, ep.outcomes.err
	return st, nil
}

// waiting returns how many events wait for an endpoint.
func (n *Notifier) waiting(ctx context.Context, ep *endpoint) (int, error) {
	durable, err := n.queue.Len(ctx, ep.queue)
	if err != nil {
		return 0, err
	}
	pulls, err := n.pulls.Len(ctx, ep.queue)
	return durable + pulls, err
}

// TestRepo is the repository of the event that Test sends.
const TestRepo = "slipway/webhook-test"

// Test sends an endpoint an event of a push that did not happen, to TestRepo, past its
// queue and whatever it ignores. ok is false if there is no such endpoint.
func (n *Notifier) Test(ctx context.Context, name string) (r TestResult, ok bool) {
	for _, ep := range n.current() {
		if ep.cfg.Name != name {
			continue
		}
		began := time.Now()
		e := Event{ID: newID(), Time: n.o.Now(), Action: ActionPush, Repo: TestRepo, Tag: "test", MediaType: "application/vnd.oci.image.manifest.v1+json"}
		status, _, err := (&worker{n: n, ep: ep}).post(ctx, e)
		r = TestResult{Status: status, Took: time.Since(began)}
		if err != nil {
			r.Error = err.Error()
		}
		return r, true
	}
	return r, false
}
