package catalog_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/catalogtest"
	"example.org/slipway/registry/catalog/webhookfacts"
)

// TestWebhooks records, changes and removes webhooks, with what is queued for them.
func TestWebhooks(t *testing.T) { servers.OnBoth(t, testWebhooks) }

func testWebhooks(t *testing.T, base *catalogtest.Bed) {
	cat := open(t, base, nil)
	ctx, c := t.Context(), webhookfacts.New(cat.DB)
	one := webhookfacts.Webhook{ID: "id1", Name: "zulu", Spec: `{"url":"x"}`, Creator: "root", Created: time.UnixMilli(10_000)}
	two := webhookfacts.Webhook{ID: "id2", Name: "alpha", Spec: `{}`, Paused: true, Created: time.UnixMilli(11_000)}
	for _, w := range []webhookfacts.Webhook{one, two} {
		if err := c.Add(ctx, w); err != nil {
			t.Fatal(err)
		}
	}
	for _, w := range []webhookfacts.Webhook{{ID: "id1", Name: "other"}, {ID: "other", Name: "alpha"}} {
		if err := c.Add(ctx, w); err == nil {
			t.Errorf("%+v is there twice", w)
		}
	}
	one.Spec, one.Paused, two.Paused = `{"url":"y"}`, true, false
	for _, w := range []webhookfacts.Webhook{one, two} {
		if err := c.Set(ctx, w); err != nil {
			t.Fatal(err)
		}
	}
	got, err := c.List(ctx)
	if diff := cmp.Diff([]webhookfacts.Webhook{two, one}, got); err != nil || diff != "" {
		t.Errorf("listed: %v (-want +got)\n%s", err, diff)
	}
	// Those of a configuration have queues, too, and one was removed while a server queued.
	queues := map[string]int{"notify/webhook/id1": 0, "notify/webhook/id2": 1, "notify/webhook/gone": 0, "notify/id1": 1, "other": 1}
	for name := range queues {
		if err := cat.Queue.Append(ctx, name, []byte("event")); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Remove(ctx, "id1", "notify/webhook/"); err != nil {
		t.Fatal(err)
	}
	for name, want := range queues {
		if n, err := cat.Queue.Len(ctx, name); err != nil || n != want {
			t.Errorf("%s has %d events, want %d: %v", name, n, want, err)
		}
	}
	if err := c.Remove(ctx, "id1", "notify/webhook/"); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("removed twice: %v", err)
	}
	if err := c.Set(ctx, one); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("changed what is gone: %v", err)
	}
}
