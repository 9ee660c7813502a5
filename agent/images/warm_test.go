package images

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// TestHeld keeps images for the same orders of two registries, as a server with two names has
// them. Each name keeps its own image until its own order ends.
func TestHeld(t *testing.T) {
	dir := t.TempDir()
	open := func() *Set {
		m := &Set{dir: dir, chains: &chains{records: &records{dir: t.TempDir()}}, warm: map[string]held{}}
		if err := m.loadWarm(); err != nil {
			t.Fatal(err)
		}
		return m
	}
	m := open()
	for _, registry := range []string{"a.example", "b.example"} {
		for id := range 3 {
			o := WarmOrder{registry, fmt.Sprint("order", id), time.Now().Add(time.Hour)}
			if err := m.hold(o, fmt.Sprint("sha256:", registry, id)); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := []string{"sha256:a.example1", "sha256:b.example0", "sha256:b.example1", "sha256:b.example2"}
	if err := m.EndWarm("a.example", map[string]bool{"order1": true}); err != nil {
		t.Fatal(err)
	}
	for what, m := range map[string]*Set{"this agent": m, "the next agent": open()} {
		if got := m.warmed(); !slices.Equal(got, want) {
			t.Errorf("%s keeps %q, want %q", what, got, want)
		}
	}
	if err := m.ExpireWarm(time.Now().Add(2 * time.Hour)); err != nil || len(m.warmed()) > 0 {
		t.Errorf("after all orders expired: %q, error %v", m.warmed(), err)
	}
}
