package notify_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/registry/notify"
)

// memStore keeps webhooks and their queues in RAM.
type memStore struct {
	*notify.MemQueue
	mu   sync.Mutex
	list []notify.Webhook
}

func newMemStore() *memStore { return &memStore{MemQueue: notify.NewMemQueue(1000)} }

func (s *memStore) Webhooks(context.Context) ([]notify.Webhook, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := slices.Clone(s.list)
	slices.SortFunc(list, func(a, b notify.Webhook) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

func (s *memStore) AddWebhook(_ context.Context, h notify.Webhook) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, h)
	return nil
}

func (s *memStore) SetWebhook(_ context.Context, h notify.Webhook) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.list, func(o notify.Webhook) bool { return o.ID == h.ID })
	if i < 0 {
		return notify.ErrNoWebhook
	}
	s.list[i] = h
	return nil
}

func (s *memStore) RemoveWebhook(ctx context.Context, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.list)
	s.list = slices.DeleteFunc(s.list, func(h notify.Webhook) bool { return h.ID == id })
	if len(s.list) == n {
		return notify.ErrNoWebhook
	}
	items, err := s.Next(ctx, notify.ManagedQueue+id, 1000)
	for _, it := range items {
		err = errors.Join(err, s.Delete(ctx, notify.ManagedQueue+id, it.ID))
	}
	return err
}

// here are the networks of the webhooks of tests.
func here() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} }

func managed(t *testing.T, s *memStore, eps ...notify.Endpoint) *notify.Notifier {
	t.Helper()
	n, _ := start(t, s, &notify.Options{Store: s, Networks: here(), RefreshEvery: 20 * time.Millisecond}, eps...)
	return n
}

func url(h *hook) *string { s := h.URL + "/path-token"; return &s }

func is(b bool) *bool { return &b }

func event(action notify.Action, repo, tag string) notify.Event {
	return notify.Event{Action: action, Repo: repo, Tag: tag}
}

func publishAll(t *testing.T, n *notify.Notifier, list ...notify.Event) {
	t.Helper()
	for _, e := range list {
		if err := n.Publish(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
}

// TestManaged adds a webhook, changes, pauses and removes it while events are published by
// two processes that share the webhooks, and compares what arrives with what it asked for.
func TestManaged(t *testing.T) {
	t.Parallel()
	s, one, two := newMemStore(), newHook(t), newHook(t)
	fixed := newHook(t)
	n := managed(t, s, fixed.endpoint())
	other, err := notify.New([]notify.Endpoint{fixed.endpoint()}, s, &notify.Options{Store: s, Networks: here(), RefreshEvery: 20 * time.Millisecond,
		Turn: func(context.Context, string) (bool, error) { return false, nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer run(t, other)()
	known := func(name string, there bool) {
		t.Helper()
		waitFor(t, "the other process knows of the change", func() bool {
			list, err := other.Status(t.Context())
			return err == nil && there == slices.ContainsFunc(list, func(st notify.EndpointStatus) bool { return st.Name == name && !st.Paused })
		})
	}
	ctx, secret := t.Context(), "s3cret"
	st, err := n.AddWebhook(ctx, notify.Change{Name: "ci", URL: url(one), Secret: &secret, Repositories: []string{"team/**"}, By: "root"})
	if err != nil || !st.Managed || !st.Signed || st.Creator != "root" || st.To != one.URL {
		t.Fatalf("added %+v, %v", st, err)
	}
	known("ci", true)
	blob := event(notify.ActionPush, "team/app", "blob")
	blob.Blob = true
	publishAll(t, n, event(notify.ActionPush, "team/app", "1"), event(notify.ActionPush, "base", "not its"), blob, event(notify.ActionPull, "team/app", "not asked for"))
	publishAll(t, other, event(notify.ActionDelete, "team/b/c", "2"))
	one.wantTags(t, "1", "2")

	if _, err := n.ChangeWebhook(ctx, notify.Change{Name: "ci", Paused: is(true)}); err != nil {
		t.Fatal(err)
	}
	known("ci", false)
	publishAll(t, n, event(notify.ActionPush, "team/app", "while paused"))
	publishAll(t, other, event(notify.ActionPush, "team/app", "while paused"))
	if _, err := n.ChangeWebhook(ctx, notify.Change{Name: "ci", Paused: is(false), Events: []notify.Action{notify.ActionPull, notify.ActionTag}, Repositories: []string{}}); err != nil {
		t.Fatal(err)
	}
	publishAll(t, n, event(notify.ActionPush, "team/app", "no more"), event(notify.ActionTag, "base", "3"), event(notify.ActionPull, "x", "4"))
	one.wantTags(t, "3", "4")

	// What waits goes to the new address.
	one.answer(http.StatusServiceUnavailable)
	publishAll(t, n, event(notify.ActionTag, "base", "5"))
	tries := one.attempts()
	waitFor(t, "an attempt", func() bool { return one.attempts() > tries })
	if _, err := n.ChangeWebhook(ctx, notify.Change{Name: "ci", URL: url(two)}); err != nil {
		t.Fatal(err)
	}
	two.wantTags(t, "5")

	// Nothing of a webhook that is gone comes to another of its name.
	two.answer(http.StatusServiceUnavailable)
	publishAll(t, n, event(notify.ActionTag, "base", "lost"), event(notify.ActionPull, "base", "lost"))
	if err := n.RemoveWebhook(ctx, "ci"); err != nil {
		t.Fatal(err)
	}
	two.answer(http.StatusOK)
	if _, err := n.AddWebhook(ctx, notify.Change{Name: "ci", URL: url(two)}); err != nil {
		t.Fatal(err)
	}
	publishAll(t, n, event(notify.ActionPush, "base", "6"))
	two.wantTags(t, "6")
	if err := n.RemoveWebhook(ctx, "ci"); err != nil {
		t.Fatal(err)
	}
	if err := n.RemoveWebhook(ctx, "ci"); !errors.Is(err, notify.ErrNoWebhook) {
		t.Errorf("removed twice: %v", err)
	}
	if got := labelled(t, n, "ci"); got > 0 {
		t.Errorf("%d metrics are left of a webhook that is gone", got)
	}
	if len(one.got)+len(two.got) > 0 {
		t.Error("more was delivered than was asked for")
	}
	if r := fixed.next(t); r.tag() == "" {
		t.Error("the webhook of the configuration got nothing")
	}
}

// labelled counts the metrics of an endpoint.
func labelled(t *testing.T, n *notify.Notifier, endpoint string) (count int) {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(n.Metrics()...)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetValue() == endpoint {
					count++
				}
			}
		}
	}
	return count
}

// TestManagedRefused checks what cannot be a webhook, that the configuration stays out of
// reach, and that no error has the URL or the secret.
func TestManagedRefused(t *testing.T) {
	t.Parallel()
	s := newMemStore()
	off := newHook(t).endpoint()
	off.Name, off.Disabled = "off", true
	n, err := notify.New([]notify.Endpoint{newHook(t).endpoint(), off}, s, &notify.Options{Store: s})
	if err != nil {
		t.Fatal(err)
	}
	str := func(s string) *string { return &s }
	format := notify.Format("xml")
	good := str("https://listener.example.com/sesame")
	for name, c := range map[string]notify.Change{
		"no URL":        {Name: "a"},
		"scheme":        {Name: "a", URL: str("ftp://listener.example.com/sesame")},
		"no host":       {Name: "a", URL: str("http:///sesame")},
		"broken":        {Name: "a", URL: str("http://[sesame")},
		"long":          {Name: "a", URL: str("http://a.example.com/" + strings.Repeat("sesame", 400))},
		"loopback":      {Name: "a", URL: str("http://127.0.0.1/sesame")},
		"localhost":     {Name: "a", URL: str("http://localhost:8080/sesame")},
		"private":       {Name: "a", URL: str("http://10.1.2.3/sesame")},
		"metadata":      {Name: "a", URL: str("http://169.254.169.254/sesame")},
		"mapped":        {Name: "a", URL: str("http://[::ffff:169.254.169.254]/sesame")},
		"number":        {Name: "a", URL: str("http://2130706433/sesame")},
		"name":          {Name: "a b", URL: good},
		"no name":       {URL: good},
		"configured":    {Name: "hook", URL: good},
		"disabled":      {Name: "off", URL: good},
		"format":        {Name: "a", URL: good, Format: &format},
		"no events":     {Name: "a", URL: good, Events: []notify.Action{}},
		"unknown event": {Name: "a", URL: good, Events: []notify.Action{"mount"}},
		"pattern":       {Name: "a", URL: good, Repositories: []string{"NO"}},
		"secret":        {Name: "a", URL: good, Secret: str(strings.Repeat("sesame", 300))},
	} {
		if _, err := n.AddWebhook(t.Context(), c); !errors.Is(err, notify.ErrInvalid) || strings.Contains(err.Error(), "sesame") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if list, _ := s.Webhooks(t.Context()); len(list) > 0 {
		t.Errorf("stored %v", list)
	}
	if _, err := n.AddWebhook(t.Context(), notify.Change{Name: "a", URL: good, Secret: str("sesame")}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.AddWebhook(t.Context(), notify.Change{Name: "a", URL: good}); !errors.Is(err, notify.ErrInvalid) {
		t.Errorf("added twice: %v", err)
	}
	for _, name := range []string{"hook", "off", "nobody"} {
		if _, err := n.ChangeWebhook(t.Context(), notify.Change{Name: name, Paused: is(true)}); !errors.Is(err, notify.ErrNoWebhook) {
			t.Errorf("%s was changed: %v", name, err)
		}
		if err := n.RemoveWebhook(t.Context(), name); !errors.Is(err, notify.ErrNoWebhook) {
			t.Errorf("%s was removed: %v", name, err)
		}
	}
	list, err := n.Status(t.Context())
	shown, jerr := json.Marshal(list)
	hooks, _ := s.Webhooks(t.Context())
	if err != nil || jerr != nil || len(list) != 2 || strings.Contains(string(shown)+fmt.Sprint(hooks[0])+hooks[0].LogValue().String(), "sesame") {
		t.Errorf("the state shows credentials, or is not that of two webhooks: %s, %v", shown, err)
	}
	for i := range 200 {
		_, err = n.AddWebhook(t.Context(), notify.Change{Name: fmt.Sprint("many", i), URL: good})
		if err != nil {
			break
		}
	}
	if list, _ := s.Webhooks(t.Context()); !errors.Is(err, notify.ErrInvalid) || len(list) != 100 {
		t.Errorf("there are %d webhooks: %v", len(list), err)
	}
}

// TestManagedReach checks that a name which leads to this machine leads a managed webhook
// nowhere, even after it was added, and that one of the configuration gets there.
func TestManagedReach(t *testing.T) {
	t.Parallel()
	inside := newHook(t)
	s := newMemStore()
	_, port, _ := strings.Cut(strings.TrimPrefix(inside.URL, "http://"), ":")
	// It is stored as another version of the program, or another allowed network, left it.
	for i, host := range []string{"localhost", "127.0.0.1", "[::ffff:127.0.0.1]", "localhost."} {
		s.list = append(s.list, notify.Webhook{ID: fmt.Sprint(i), Name: fmt.Sprint("in", i), URL: "http://" + host + ":" + port, Format: notify.FormatDocker, Events: []notify.Action{notify.ActionPush}})
	}
	n, _ := start(t, s, &notify.Options{Store: s}, inside.endpoint())
	if err := n.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range s.list {
		res, ok := n.Test(t.Context(), fmt.Sprint("in", i))
		if !ok || res.Status != 0 || !strings.Contains(res.Error, "refused") {
			t.Errorf("%s: got %+v, %v", s.list[i].URL, res, ok)
		}
	}
	if inside.attempts() != 0 {
		t.Errorf("a managed webhook reached this machine")
	}
	if res, ok := n.Test(t.Context(), "hook"); !ok || res.Status != 200 {
		t.Errorf("the webhook of the configuration: %+v, %v", res, ok)
	}
}

// TestActive checks that events cost nothing while nobody is told of them.
func TestActive(t *testing.T) {
	t.Parallel()
	s := newMemStore()
	n := managed(t, s)
	if n.Active() {
		t.Error("somebody is told")
	}
	if _, err := n.AddWebhook(t.Context(), notify.Change{Name: "a", URL: url(newHook(t))}); err != nil {
		t.Fatal(err)
	}
	list, err := n.Status(t.Context())
	if diff := cmp.Diff([]notify.Action{notify.ActionPush, notify.ActionTag, notify.ActionDelete}, list[0].Events); err != nil || diff != "" || !n.Active() {
		t.Errorf("%v, %v, %s", n.Active(), err, diff)
	}
}
