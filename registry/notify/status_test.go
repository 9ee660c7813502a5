package notify_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/registry/notify"
)

// TestWebhookTest tests webhooks that answer, refuse and do not exist, with events waiting for
// them. The test must not touch the queue, and must be signed and formed like other events.
func TestWebhookTest(t *testing.T) {
	t.Parallel()
	var status atomic.Int64
	status.Store(204)
	type got struct {
		signature, body string
	}
	arrived := make(chan got, 10)
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		arrived <- got{r.Header.Get(notify.SignatureHeader), string(b)}
		w.WriteHeader(int(status.Load()))
	}))
	t.Cleanup(hook.Close)
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	q := notify.NewMemQueue(10)
	n, err := notify.New([]notify.Endpoint{
		{Name: "ci", URL: hook.URL + "/secret-path", Secret: "s3cret", Format: notify.FormatCloudEvents, Ignore: notify.Ignore{Actions: []string{"push"}}},
		{Name: "gone", URL: gone.URL},
	}, q, &notify.Options{Transport: &http.Transport{DisableKeepAlives: true}})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Publish(t.Context(), notify.Event{Action: notify.ActionDelete, Repo: "team/app", Tag: "v1"}); err != nil {
		t.Fatal(err)
	}
	if res, ok := n.Test(t.Context(), "ci"); !ok || res.Status != 204 || res.Error != "" {
		t.Errorf("the test gave %+v, %v", res, ok)
	}
	g := <-arrived
	var e struct {
		Type string
		Data struct{ Repository string }
	}
	if err := json.Unmarshal([]byte(g.body), &e); err != nil || e.Data.Repository != notify.TestRepo || e.Type != "dev.slipway.image.push" {
		t.Errorf("the event is %s: %v", g.body, err)
	}
	if g.signature != notify.Sign("s3cret", []byte(g.body)) {
		t.Errorf("the signature is %q", g.signature)
	}
	status.Store(500)
	if res, ok := n.Test(t.Context(), "ci"); !ok || res.Status != 500 || !strings.Contains(res.Error, "500") {
		t.Errorf("a webhook that fails gave %+v, %v", res, ok)
	}
	<-arrived
	if res, ok := n.Test(t.Context(), "gone"); !ok || res.Status != 0 || res.Error == "" || strings.Contains(res.Error, gone.URL) {
		t.Errorf("a webhook that is away gave %+v, %v", res, ok)
	}
	if _, ok := n.Test(t.Context(), "nobody"); ok {
		t.Error("a webhook that does not exist was tested")
	}
	list, err := n.Status(t.Context())
	if err != nil || len(list) != 2 {
		t.Fatalf("the state is %+v, %v", list, err)
	}
	if c := list[0]; c.Name != "ci" || c.Waiting != 1 || c.Failures != 0 || !c.Signed || c.To != hook.URL || !c.Succeeded.IsZero() {
		t.Errorf("after tests alone the state is %+v", c)
	}
	shown, err := json.Marshal(list)
	if err != nil || strings.Contains(string(shown), "secret") || strings.Contains(string(shown), "s3cret") {
		t.Errorf("the state shows credentials: %s, %v", shown, err)
	}
}

// TestStatus checks that the state follows deliveries that fail and then succeed.
func TestStatus(t *testing.T) {
	t.Parallel()
	var bad atomic.Bool
	bad.Store(true)
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if bad.Load() {
			w.WriteHeader(503)
		}
	}))
	t.Cleanup(hook.Close)
	n, err := notify.New([]notify.Endpoint{{Name: "ci", URL: hook.URL, Threshold: 1000}}, notify.NewMemQueue(10), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer run(t, n)()
	if err := n.Publish(t.Context(), notify.Event{Action: notify.ActionDelete, Repo: "team/app", Tag: "v1"}); err != nil {
		t.Fatal(err)
	}
	until := func(what string, is func(notify.EndpointStatus) bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
			list, err := n.Status(t.Context())
			if err == nil && is(list[0]) {
				return
			}
			if time.Now().After(end) {
				t.Fatal(what, list, errors.Join(err))
			}
		}
	}
	until("failures", func(s notify.EndpointStatus) bool {
		return s.Failures > 1 && s.Waiting == 1 && strings.Contains(s.Error, "503") && !s.Failed.IsZero()
	})
	bad.Store(false)
	until("a delivery", func(s notify.EndpointStatus) bool { return s.Failures == 0 && s.Waiting == 0 && !s.Succeeded.IsZero() })
}
