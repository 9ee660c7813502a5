package server_test

import (
	"strings"
	"testing"

	"example.org/slipway/oci/fleet"
	"example.org/slipway/registry/server"
)

// TestNodeReports checks that a client that may pull from a repository may report which nodes run
// its images, within bounds.
func TestNodeReports(t *testing.T) {
	book := fleet.NewBook(nil)
	b, _ := newGearBed(t, server.Options{Nodes: book})
	at := gearAt + "nodes"
	report := []byte(`{"node":"n1","image":"r/alice/app:1","files":3,"containers":[{"id":"c"}]}`)
	if a := b.ask("POST", at, report); a.Status != 202 {
		t.Fatalf("a report is answered %d %s", a.Status, a.Body)
	}
	if n := book.Nodes(); len(n) != 1 || n[0].Images[0].Repo != "alice/app" || n[0].Images[0].Containers[0].ID != "c" {
		t.Errorf("the book has %+v", n)
	}
	for body, want := range map[string]int{"": 400, "x": 400, "[]": 400, `{"node":"n","image":"i","files":-1}`: 400, "{}": 400,
		`{"node":"` + strings.Repeat("n", 300<<10) + `"}`: 413} {
		if a := b.ask("POST", at, []byte(body)); a.Status != want || !strings.Contains(string(a.Body), "errors") {
			t.Errorf("%.40q is answered %d %s", body, a.Status, a.Body)
		}
	}
	if a := b.ask("GET", at, nil); a.Status != 405 {
		t.Errorf("GET is answered %d", a.Status)
	}
	if a := b.ask("GET", "/v2/alice/app/_oci/ext/discover", nil); !strings.Contains(string(a.Body), "_slipway/gear/nodes") {
		t.Errorf("the discovery does not name it: %s", a.Body)
	}
	b, _ = newGearBed(t, server.Options{})
	if a := b.ask("POST", at, report); a.Status != 404 || !strings.Contains(string(a.Body), "UNSUPPORTED") {
		t.Errorf("a registry that wants no reports answers %d %s", a.Status, a.Body)
	}
	if len(book.Nodes()) != 1 {
		t.Error("a bad report counts")
	}
}
