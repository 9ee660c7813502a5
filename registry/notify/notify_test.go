package notify_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"example.org/slipway/registry/notify"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// received is what a webhook got.
type received struct {
	header http.Header
	body   []byte
}

func (r received) tag() string {
	var e struct {
		Events []struct {
			Target struct{ Tag string }
		}
		Data struct{ Tag string }
	}
	if json.Unmarshal(r.body, &e) != nil {
		return "?"
	}
	if len(e.Events) == 1 {
		return e.Events[0].Target.Tag
	}
	return e.Data.Tag
}

// hook is a webhook that answers as configured and hands out what it accepted.
type hook struct {
	*httptest.Server
	mu     sync.Mutex
	status int
	tries  int
	got    chan received
}

func newHook(t testing.TB) *hook {
	t.Helper()
	h := &hook{status: http.StatusOK, got: make(chan received, 1000)}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		h.mu.Lock()
		defer h.mu.Unlock()
		h.tries++
		w.WriteHeader(h.status)
		if err == nil && h.status/100 == 2 {
			h.got <- received{r.Header.Clone(), b}
		}
	}))
	t.Cleanup(h.Close)
	return h
}

func (h *hook) answer(status int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.status = status
}

func (h *hook) attempts() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.tries
}

// next returns the next event that the hook accepts.
func (h *hook) next(t testing.TB) received {
	t.Helper()
	select {
	case r := <-h.got:
		return r
	case <-time.After(10 * time.Second):
		t.Fatal("nothing was delivered in 10 s")
		return received{}
	}
}

func (h *hook) wantTags(t testing.TB, want ...string) {
	t.Helper()
	var got []string
	for range want {
		got = append(got, h.next(t).tag())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("delivered tags (-want +got):\n%s", diff)
	}
}

func (h *hook) endpoint() notify.Endpoint {
	return notify.Endpoint{Name: "hook", URL: h.URL, Threshold: 1, Backoff: time.Millisecond}
}

func start(t testing.TB, q notify.Queue, o *notify.Options, eps ...notify.Endpoint) (n *notify.Notifier, stop func()) {
	t.Helper()
	n, err := notify.New(eps, q, o)
	if err != nil {
		t.Fatal(err)
	}
	return n, run(t, n)
}

func run(t testing.TB, n *notify.Notifier) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func publish(t testing.TB, n *notify.Notifier, a notify.Action, tags ...string) {
	t.Helper()
	for _, tag := range tags {
		if err := n.Publish(t.Context(), notify.Event{Action: a, Repo: "a", Tag: tag}); err != nil {
			t.Fatal(err)
		}
	}
}

// waitFor polls until ok returns true.
func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Second); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited 10 s for %s", what)
		}
	}
}

func queueLen(t testing.TB, q notify.Queue, endpoint string) int {
	t.Helper()
	n, err := q.Len(context.Background(), endpoint)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestOrder(t *testing.T) {
	h, q := newHook(t), notify.NewMemQueue(1000)
	n, _ := start(t, q, nil, h.endpoint())
	var want []string
	for i := range 100 { // more than are read ahead
		tag := fmt.Sprint("t", i)
		want = append(want, tag)
		publish(t, n, []notify.Action{notify.ActionPush, notify.ActionPull}[i/10%2], tag)
	}
	var got []string
	for range want {
		got = append(got, h.next(t).tag())
	}
	// Pulls and pushes each arrive in order. A push may overtake pulls published after the queue
	// was last read.
	for _, pulls := range []bool{false, true} {
		if diff := cmp.Diff(filter(want, pulls), filter(got, pulls)); diff != "" {
			t.Errorf("pulls=%t (-want +got):\n%s", pulls, diff)
		}
	}
	waitFor(t, "an empty queue", func() bool { return queueLen(t, q, "hook") == 0 })
}

func filter(tags []string, pulls bool) (some []string) {
	for _, tag := range tags {
		var i int
		_, _ = fmt.Sscanf(tag, "t%d", &i)
		if (i/10%2 == 1) == pulls {
			some = append(some, tag)
		}
	}
	return some
}

func TestPullsAndPushesByTime(t *testing.T) {
	h, q := newHook(t), notify.NewMemQueue(10)
	n, err := notify.New([]notify.Endpoint{h.endpoint()}, q, nil)
	if err != nil {
		t.Fatal(err)
	}
	publish(t, n, notify.ActionPush, "1")
	publish(t, n, notify.ActionPull, "2", "3")
	publish(t, n, notify.ActionDelete, "4")
	publish(t, n, notify.ActionPull, "5")
	run(t, n)
	h.wantTags(t, "1", "2", "3", "4", "5")
}

func TestDownThenUp(t *testing.T) {
	h, q := newHook(t), notify.NewMemQueue(10)
	h.answer(http.StatusInternalServerError)
	ep := h.endpoint()
	ep.Threshold = 3
	n, _ := start(t, q, nil, ep)
	publish(t, n, notify.ActionPush, "1", "2")
	waitFor(t, "attempts", func() bool { return h.attempts() > 4 })
	h.answer(http.StatusAccepted)
	h.wantTags(t, "1", "2")
	if got := metric(t, n, "registry_notifications_status_total", "code", "500 Internal Server Error"); got < 5 {
		t.Errorf("got %v answers of 500, want at least 5", got)
	}
	waitFor(t, "2 successes", func() bool { return metric(t, n, "registry_notifications_events_total", "type", "Successes") == 2 })
}

func TestRestartKeepsTheQueue(t *testing.T) {
	h, q := newHook(t), notify.NewMemQueue(10)
	h.answer(http.StatusServiceUnavailable)
	n, stop := start(t, q, nil, h.endpoint())
	publish(t, n, notify.ActionPush, "1", "2")
	waitFor(t, "an attempt", func() bool { return h.attempts() > 0 })
	stop()
	publish(t, n, notify.ActionPush, "3") // nobody is running
	if got := metric(t, n, "registry_notifications_pending_total", "endpoint", "hook"); got != 3 {
		t.Errorf("got %v pending, want 3", got)
	}
	h.answer(http.StatusOK)
	start(t, q, nil, h.endpoint())
	h.wantTags(t, "1", "2", "3")
}

func TestRunTwiceAtOnce(t *testing.T) {
	h := newHook(t)
	n, stop := start(t, notify.NewMemQueue(1), nil, h.endpoint())
	publish(t, n, notify.ActionPush, "1")
	h.wantTags(t, "1")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := n.Run(ctx); err == nil {
		t.Error("a second Run got no error")
	}
	stop()
	run(t, n)
	publish(t, n, notify.ActionPush, "2")
	h.wantTags(t, "2")
}

// TestSlowEndpoint uses an endpoint that does not answer at all.
func TestSlowEndpoint(t *testing.T) {
	release := make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-release
	}))
	defer slow.Close()
	defer close(release)
	h, q := newHook(t), notify.NewMemQueue(10)
	n, stop := start(t, q, &notify.Options{PullQueue: 2}, notify.Endpoint{Name: "slow", URL: slow.URL, Timeout: 200 * time.Millisecond}, h.endpoint())
	publish(t, n, notify.ActionPush, "1")
	publish(t, n, notify.ActionPull, "2", "3", "4", "5")
	h.next(t)
	if got := metric(t, n, "registry_notifications_events_total", "endpoint", "slow", "type", "Dropped"); got != 2 {
		t.Errorf("got %v pulls dropped, want 2", got)
	}
	begin := time.Now()
	stop()
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("stopping took %v", took)
	}
	if got := queueLen(t, q, "slow"); got != 1 {
		t.Errorf("got %d queued for the slow endpoint, want 1", got)
	}
}

// TestStopFinishesDelivery stops after an endpoint has received an event and before it has
// answered.
func TestStopFinishesDelivery(t *testing.T) {
	arrived, release := make(chan struct{}), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		close(arrived)
		<-release
	}))
	defer s.Close()
	q := notify.NewMemQueue(10)
	n, err := notify.New([]notify.Endpoint{{Name: "hook", URL: s.URL}}, q, nil)
	if err != nil {
		t.Fatal(err)
	}
	publish(t, n, notify.ActionPush, "1")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	<-arrived
	cancel()
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := queueLen(t, q, "hook"); got != 0 {
		t.Errorf("got %d queued, want the delivered event gone", got)
	}
}

func TestSecretAndHeaders(t *testing.T) {
	h := newHook(t)
	ep := h.endpoint()
	ep.Secret = "hunter2"
	ep.Headers = http.Header{"authorization": {"Bearer x"}}
	n, _ := start(t, notify.NewMemQueue(1), nil, ep)
	publish(t, n, notify.ActionPush, "1")
	got := h.next(t)
	mac := hmac.New(sha256.New, []byte("hunter2"))
	mac.Write(got.body)
	if sig, want := got.header.Get("X-Slipway-Signature"), "sha256="+hex.EncodeToString(mac.Sum(nil)); sig != want {
		t.Errorf("got signature %q, want %q", sig, want)
	}
	if v := got.header.Get("Authorization"); v != "Bearer x" {
		t.Errorf("got Authorization %q", v)
	}
}

func TestRedirects(t *testing.T) {
	h := newHook(t)
	for name, tt := range map[string]struct {
		status int
		to     string
		ok     bool
	}{
		"another host":            {http.StatusTemporaryRedirect, h.URL, false},
		"the method changes":      {http.StatusFound, "/good", false},
		"the same host":           {http.StatusTemporaryRedirect, "/good", true},
		"the same host, for good": {http.StatusPermanentRedirect, "/good", true},
	} {
		t.Run(name, func(t *testing.T) {
			seen := make(chan string, 100)
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				seen <- r.Method + r.URL.Path
				if r.URL.Path != "/good" {
					http.Redirect(w, r, tt.to, tt.status)
				}
			}))
			defer s.Close()
			q := notify.NewMemQueue(1)
			n, stop := start(t, q, nil, notify.Endpoint{Name: "hook", URL: s.URL, Threshold: 1, Backoff: time.Hour, Headers: http.Header{"X-Key": {"k"}}})
			publish(t, n, notify.ActionPush, "1")
			<-seen
			if tt.ok {
				if got := <-seen; got != "POST/good" {
					t.Errorf("got %s", got)
				}
				waitFor(t, "an empty queue", func() bool { return queueLen(t, q, "hook") == 0 })
			}
			stop()
			if want := map[bool]int{true: 0, false: 1}[tt.ok]; queueLen(t, q, "hook") != want {
				t.Errorf("got %d queued, want %d", queueLen(t, q, "hook"), want)
			}
			if len(seen) > 0 {
				t.Errorf("got another request %s", <-seen)
			}
		})
	}
	if h.attempts() > 0 {
		t.Error("another host got a request")
	}
}

// brokenQueue is a durable queue whose disk is full.
type brokenQueue struct{ notify.Queue }

var errFull = errors.New("disk full")

func (brokenQueue) Append(context.Context, string, []byte) error { return errFull }

func TestPublishReportsQueueErrors(t *testing.T) {
	n, err := notify.New([]notify.Endpoint{{Name: "hook", URL: "http://127.0.0.1:1"}}, brokenQueue{notify.NewMemQueue(1)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Publish(t.Context(), notify.Event{Action: notify.ActionPush, Repo: "a"}); !errors.Is(err, errFull) {
		t.Errorf("push: got %v, want %v", err, errFull)
	}
	if err := n.Publish(t.Context(), notify.Event{Action: notify.ActionPull, Repo: "a"}); err != nil {
		t.Errorf("pull: got %v", err)
	}
}

func TestUnreadableItemIsDropped(t *testing.T) {
	h, q := newHook(t), notify.NewMemQueue(10)
	for _, junk := range []string{"", "{", "{}", "null"} {
		if err := q.Append(t.Context(), "hook", []byte(junk)); err != nil {
			t.Fatal(err)
		}
	}
	n, _ := start(t, q, nil, h.endpoint())
	publish(t, n, notify.ActionPush, "1")
	h.wantTags(t, "1")
	if got := metric(t, n, "registry_notifications_events_total", "type", "Dropped"); got != 4 {
		t.Errorf("got %v dropped, want 4", got)
	}
}

// clockTransport answers without a network, so that it works with a fake clock. It records when it
// was called.
type clockTransport struct {
	mu     sync.Mutex
	begin  time.Time
	at     []time.Duration
	answer func(n int) *http.Response
}

func (c *clockTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	_, _ = io.Copy(io.Discard, r.Body)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = append(c.at, time.Since(c.begin))
	return c.answer(len(c.at)), nil
}

func response(status int, header ...string) *http.Response {
	h := http.Header{}
	for i := 0; i+1 < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader("x"))}
}

func TestWaits(t *testing.T) {
	type window struct{ least, most time.Duration }
	for name, tt := range map[string]struct {
		answer func(n int) *http.Response
		gaps   []window
	}{
		"threshold, then growing backoff up to a maximum": {
			answer: func(n int) *http.Response { return response(map[bool]int{true: 200, false: 502}[n == 8]) },
			gaps: []window{{0, 0}, {0, 0}, {5 * time.Second, 15 * time.Second}, {10 * time.Second, 30 * time.Second},
				{20 * time.Second, 60 * time.Second}, {30 * time.Second, 90 * time.Second}, {30 * time.Second, 90 * time.Second}},
		},
		"Retry-After": {
			answer: func(n int) *http.Response {
				if n == 1 {
					return response(429, "Retry-After", "600")
				}
				return response(200)
			},
			gaps: []window{{10 * time.Minute, 10 * time.Minute}},
		},
		"Retry-After is bounded": {
			answer: func(n int) *http.Response {
				if n == 1 {
					return response(503, "Retry-After", "1000000")
				}
				return response(200)
			},
			gaps: []window{{time.Hour, time.Hour}},
		},
		"refused for good": { // and dropped after the threshold
			answer: func(n int) *http.Response { return response(422) },
			gaps:   []window{{0, 0}, {0, 0}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tr := &clockTransport{begin: time.Now(), answer: tt.answer}
				q := notify.NewMemQueue(10)
				n, stop := start(t, q, &notify.Options{Transport: tr, MaxBackoff: time.Minute},
					notify.Endpoint{Name: "hook", URL: "http://hook.invalid", Threshold: 3, Backoff: 10 * time.Second})
				publish(t, n, notify.ActionPush, "1")
				time.Sleep(3 * time.Hour) // of the fake clock
				stop()
				if got := queueLen(t, q, "hook"); got != 0 {
					t.Errorf("got %d queued", got)
				}
				var gaps []time.Duration
				for i := 1; i < len(tr.at); i++ {
					gaps = append(gaps, tr.at[i]-tr.at[i-1])
				}
				if len(gaps) != len(tt.gaps) {
					t.Fatalf("got waits %v, want %d", gaps, len(tt.gaps))
				}
				for i, w := range tt.gaps {
					if gaps[i] < w.least || gaps[i] > w.most+time.Microsecond {
						t.Errorf("wait %d: got %v, want %v to %v", i, gaps[i], w.least, w.most)
					}
				}
			})
		})
	}
}

// metric returns the sum of a metric's samples with the labels.
func metric(t testing.TB, n *notify.Notifier, name string, labels ...string) float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(n.Metrics()...)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var sum float64
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			have := map[string]string{}
			for _, l := range m.GetLabel() {
				have[l.GetName()] = l.GetValue()
			}
			match := true
			for i := 0; i+1 < len(labels); i += 2 {
				match = match && have[labels[i]] == labels[i+1]
			}
			if match {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}
