package store_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
	"example.org/slipway/workload/trace/tracetest"
)

// TestNames writes names of all lengths that differ in one place.
func TestNames(t *testing.T) {
	var recs []trace.Record
	for n := 1; n <= 12; n++ {
		for i := range n {
			for _, c := range []string{"a", "b", "\x01", "é"} {
				name := strings.Repeat("x", i) + c + strings.Repeat("x", n-1-i)
				recs = append(recs, trace.Record{Method: "GET", URI: "v2/" + name + "/manifests/" + name, UserAgent: name, ID: name,
					Time: start.Add(time.Duration(len(recs)) * time.Millisecond)})
			}
		}
	}
	dir := t.TempDir()
	write(t, dir, nil, "a", append(recs, recs...)) // known names, too
	var want []trace.Record
	for _, r := range recs {
		want = append(want, r, r)
	}
	s := tracetest.Open(t, dir)
	if diff := cmp.Diff(want, tracetest.ReadAll(t, s, store.Query{Zone: "a"})); diff != "" {
		t.Errorf("records differ (-want +got):\n%s", diff)
	}
	n := 0
	err := s.Scan(context.Background(), store.Query{Zone: "a"}, func(b *store.Batch) error {
		for i := range b.Ref {
			if got := s.Name(store.Refs, b.Ref[i]); got != want[n].UserAgent {
				t.Errorf("row %d: reference %q, want %q", n, got, want[n].UserAgent)
			}
			if sym, ok := s.Lookup(store.Agents, want[n].UserAgent); !ok || sym != b.Agent[i] {
				t.Errorf("row %d: agent %d, want %d", n, b.Agent[i], sym)
			}
			n++
		}
		return nil
	})
	if err != nil || n != len(want) {
		t.Errorf("%d rows, %v", n, err)
	}
	if _, ok := s.Lookup(store.Agents, "none"); ok {
		t.Error("there is a name that nobody wrote")
	}
	if sym, ok := s.Lookup(store.Agents, ""); !ok || sym != store.None {
		t.Errorf("the empty name is %d, %v", sym, ok)
	}
}
