package notify_test

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"

	"example.org/slipway/registry/notify"
)

// TestTurns runs two processes over one queue. The one whose turn it is delivers, wherever the
// events come from. The other continues in order where it stopped.
func TestTurns(t *testing.T) {
	h, q := newHook(t), notify.NewMemQueue(100)
	var turn atomic.Int32
	var list []*notify.Notifier
	for i := range int32(2) {
		n, _ := start(t, q, &notify.Options{Turn: func(context.Context, string) (bool, error) { return turn.Load() == i, nil }}, h.endpoint())
		list = append(list, n)
	}
	publish(t, list[1], notify.ActionPush, "1") // by the one whose turn it is not
	publish(t, list[0], notify.ActionPush, "2")
	h.wantTags(t, "1", "2")
	h.answer(http.StatusServiceUnavailable)
	tries := h.attempts()
	publish(t, list[0], notify.ActionPush, "3", "4")
	waitFor(t, "an attempt", func() bool { return h.attempts() > tries })
	turn.Store(1)
	h.answer(http.StatusOK)
	publish(t, list[0], notify.ActionPush, "5")
	h.wantTags(t, "3", "4", "5")
	// An event that was delivered but is still in the queue is delivered again when the turn passes
	// to the other process. The test therefore waits until the queue is empty.
	empty := func() {
		waitFor(t, "an empty queue", func() bool {
			n, err := q.Len(t.Context(), "hook")
			return err == nil && n == 0
		})
	}
	empty()
	for i := range 3 { // back and forth
		turn.Store(int32(i % 2))
		publish(t, list[1-i%2], notify.ActionPush, fmt.Sprint(i))
		h.wantTags(t, fmt.Sprint(i))
		empty()
	}
}

// TestTurnsWhileDown checks that events which another process delivers, while this one waits for an
// endpoint that is down, are not delivered again.
func TestTurnsWhileDown(t *testing.T) {
	h, q := newHook(t), notify.NewMemQueue(100)
	h.answer(http.StatusServiceUnavailable)
	n, _ := start(t, q, &notify.Options{Turn: func(context.Context, string) (bool, error) { return true, nil }}, h.endpoint())
	publish(t, n, notify.ActionPush, "1", "2")
	waitFor(t, "an attempt", func() bool { return h.attempts() > 0 })
	items, err := q.Next(t.Context(), "hook", 1)
	if err == nil {
		err = q.Delete(t.Context(), "hook", items[0].ID) // as the other one does
	}
	if err != nil {
		t.Fatal(err)
	}
	tries := h.attempts()
	waitFor(t, "two attempts", func() bool { return h.attempts() > tries+1 })
	h.answer(http.StatusOK)
	h.wantTags(t, "2")
}
