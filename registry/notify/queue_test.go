package notify_test

import (
	"errors"
	"slices"
	"testing"

	"example.org/slipway/registry/notify"
)

func TestMemQueue(t *testing.T) {
	ctx, q := t.Context(), notify.NewMemQueue(4)
	payloads := func(n int) (got []string, ids []int64) {
		items, err := q.Next(ctx, "a", n)
		if err != nil {
			t.Fatal(err)
		}
		for _, it := range items {
			got, ids = append(got, string(it.Payload)), append(ids, it.ID)
		}
		return got, ids
	}
	buf := []byte("1")
	for _, s := range []string{"1", "2", "3", "4"} {
		copy(buf, s) // the queue must not keep the slice
		if err := q.Append(ctx, "a", buf); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.Append(ctx, "a", buf); !errors.Is(err, notify.ErrQueueFull) {
		t.Errorf("got %v, want %v", err, notify.ErrQueueFull)
	}
	if err := q.Append(ctx, "b", buf); err != nil {
		t.Errorf("another endpoint: %v", err)
	}
	got, ids := payloads(3)
	if want := []string{"1", "2", "3"}; !slices.Equal(got, want) || !slices.IsSorted(ids) {
		t.Errorf("got %q with ids %v, want %q", got, ids, want)
	}
	if err := q.Delete(ctx, "a", ids[0], ids[2], 999); err != nil {
		t.Fatal(err)
	}
	if got, _ := payloads(9); !slices.Equal(got, []string{"2", "4"}) {
		t.Errorf("after Delete: got %q", got)
	}
	if n := queueLen(t, q, "a"); n != 2 {
		t.Errorf("got length %d, want 2", n)
	}
	if n := queueLen(t, q, "nobody"); n != 0 {
		t.Errorf("got length %d, want 0", n)
	}
}
