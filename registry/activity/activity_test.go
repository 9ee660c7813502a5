package activity_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"example.org/slipway/registry/activity"
	"example.org/slipway/registry/auth"
)

var begin = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

// writeLogs writes events over a log and two rotated ones, one of them compressed.
func writeLogs(t *testing.T, n int) (path string, events []auth.Event) {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	path = filepath.Join(t.TempDir(), "audit[1].log")
	pick := func(of ...string) string { return of[rng.IntN(len(of))] }
	for i := range n {
		events = append(events, auth.Event{Time: begin.Add(time.Duration(i) * time.Second), Event: pick("push", "delete", "login"), Outcome: "success",
			Subject: pick("alice", "robot:ci", ""), Repo: pick("team/a", "team/b/c", "other", ""), Reference: fmt.Sprint(i)})
	}
	for i, name := range []string{path + ".2.gz", path + ".1", path} {
		plain := filepath.Join(t.TempDir(), "log")
		log, err := auth.OpenAuditLog(plain, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events[i*n/3 : (i+1)*n/3] {
			log.Record(e)
		}
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(plain)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, ".gz") {
			var z bytes.Buffer
			w := gzip.NewWriter(&z)
			w.Write(b)
			w.Close()
			b = z.Bytes()
		}
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(name, begin, begin.Add(time.Duration(i)*time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	return path, events
}

// TestFilters compares what is read with what a plain search of all events finds.
func TestFilters(t *testing.T) {
	path, events := writeLogs(t, 90)
	team := func(e auth.Event) bool { return strings.HasPrefix(e.Repo, "team/") }
	for name, c := range map[string]struct {
		filter activity.Filter
		match  func(auth.Event) bool
	}{
		"everything": {activity.Filter{}, func(auth.Event) bool { return true }},
		"few":        {activity.Filter{Limit: 7}, func(auth.Event) bool { return true }},
		"exactly":    {activity.Filter{Limit: 90}, func(auth.Event) bool { return true }},
		"user":       {activity.Filter{User: "robot:ci"}, func(e auth.Event) bool { return e.Subject == "robot:ci" }},
		"repository": {activity.Filter{Repository: "team/**", Limit: 20}, team},
		"actions":    {activity.Filter{Actions: []string{"push", "delete"}}, func(e auth.Event) bool { return e.Event != "login" }},
		"time":       {activity.Filter{Since: begin.Add(20 * time.Second), Until: begin.Add(70 * time.Second)}, func(e auth.Event) bool { s := e.Time.Sub(begin); return s >= 20*time.Second && s < 70*time.Second }},
		"all at once": {activity.Filter{User: "alice", Repository: "team/*", Actions: []string{"push"}, Since: begin.Add(5 * time.Second)}, func(e auth.Event) bool {
			return e.Subject == "alice" && e.Repo == "team/a" && e.Event == "push" && e.Time.Sub(begin) >= 5*time.Second
		}},
		"a page":           {activity.Filter{Limit: 7, Skip: 14}, func(auth.Event) bool { return true }},
		"the last page":    {activity.Filter{Limit: 20, Skip: 80}, func(auth.Event) bool { return true }},
		"a page of a user": {activity.Filter{User: "alice", Limit: 5, Skip: 10}, func(e auth.Event) bool { return e.Subject == "alice" }},
		"after the last":   {activity.Filter{Skip: 90}, func(auth.Event) bool { return true }},
		"nobody":           {activity.Filter{User: "mallory"}, func(auth.Event) bool { return false }},
	} {
		var want []auth.Event
		for _, e := range slices.Backward(events) {
			if c.match(e) {
				want = append(want, e)
			}
		}
		limit := c.filter.Limit
		if limit == 0 {
			limit = activity.DefaultLimit
		}
		want = want[min(len(want), c.filter.Skip):]
		more := len(want) > limit
		want = want[:min(len(want), limit)]
		got, err := activity.Read(t.Context(), path, c.filter)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(want, got.Events, cmpopts.EquateEmpty()); diff != "" || got.More != more {
			t.Errorf("%s: more %v, want %v; (-want +got)\n%s", name, got.More, more, diff)
		}
	}
}

// TestDamaged reads a log with lines that are cut off or foreign.
func TestDamaged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	if err := os.WriteFile(path, []byte("{\"event\":\"push\"}\nnonsense\n{\"event\":\"del"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := activity.Read(t.Context(), path, activity.Filter{})
	if err != nil || len(got.Events) != 1 || got.Unreadable != 2 {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := activity.Read(t.Context(), path+"x", activity.Filter{}); err == nil {
		t.Error("a log that is not there is read")
	}
	for _, f := range []activity.Filter{{Limit: -1}, {Limit: activity.MaxLimit + 1}, {Skip: -1}, {Skip: activity.MaxLimit + 1}, {Repository: "A"}} {
		if _, err := activity.Read(t.Context(), path, f); err == nil {
			t.Errorf("%+v is accepted", f)
		}
	}
}
