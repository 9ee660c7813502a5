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

// Status returns the state of each endpoint, in the order of the configuration.
func (n *Notifier) Status(ctx context.Context) ([]EndpointStatus, error) {
	list := []EndpointStatus{}
	for _, ep := range n.endpoints {
		st := EndpointStatus{Name: ep.cfg.Name, Format: ep.cfg.Format, Signed: ep.cfg.Secret != ""}
		if u, err := url.Parse(ep.cfg.URL); err == nil {
			st.To = u.Scheme + "://" + u.Host
		}
		for _, q := range []Queue{n.queue, n.pulls} {
			k, err := q.Len(ctx, ep.cfg.Name)
			if err != nil {
				return nil, fmt.Errorf("count the events that wait for endpoint %s: %w", ep.cfg.Name, err)
			}
			st.Waiting += k
		}
		ep.outcomes.mu.Lock()
		st.Failures, st.Succeeded, st.Failed, st.Error = ep.outcomes.failures, ep.outcomes.succeeded, ep.outcomes.failed, ep.outcomes.err
		ep.outcomes.mu.Unlock()
		list = append(list, st)
	}
	return list, nil
}

// TestRepo is the repository of the event that Test sends.
const TestRepo = "slipway/webhook-test"

// Test sends an endpoint an event of a push that did not happen, to TestRepo, past its
// queue and whatever it ignores. ok is false if there is no such endpoint.
func (n *Notifier) Test(ctx context.Context, name string) (r TestResult, ok bool) {
	for _, ep := range n.endpoints {
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
