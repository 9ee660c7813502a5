package agent

import (
	"fmt"
	"testing"
	"time"

	"example.org/slipway/oci/warm"
)

// TestBoundedTasks has a registry order very many images for a very long time.
func TestBoundedTasks(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	said := []warm.Task{{ID: "soon", Expires: now.Add(time.Hour)}}
	for i := range 5 * warm.MaxTasks {
		said = append(said, warm.Task{ID: fmt.Sprint(i), Expires: now.AddDate(i, 0, 0)})
	}
	got := bounded(said, now)
	if len(got) != warm.MaxTasks || got[0] != said[0] {
		t.Errorf("%d of %d tasks are heeded, the first one is %+v", len(got), len(said), got[0])
	}
	for _, task := range got {
		if task.Expires.After(now.Add(warm.MaxLifetime)) {
			t.Errorf("task %s keeps an image until %v", task.ID, task.Expires)
		}
	}
}
