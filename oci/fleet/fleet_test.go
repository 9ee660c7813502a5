package fleet_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"example.org/slipway/oci/fleet"
)

func TestBook(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	b := fleet.NewBook(func() time.Time { return now })
	add := func(node, image string, local int) {
		t.Helper()
		if err := b.Add(node, "team/app", &fleet.Report{Node: node, Image: image, Files: 10, LocalFiles: local, Tier: fmt.Sprint(local)}); err != nil {
			t.Fatal(err)
		}
	}
	add("b", "r/team/app:1", 1)
	add("a", "r/team/app:2", 2)
	now = now.Add(fleet.Lifetime - time.Second)
	add("b", "r/team/app:1", 5)
	add("b", "r/team/app:0", 6)
	nodes := b.Nodes()
	if len(nodes) != 2 || nodes[0].Name != "a" || nodes[1].Name != "b" || len(nodes[1].Images) != 2 || nodes[1].Images[0].Image != "r/team/app:0" ||
		nodes[1].Images[1].LocalFiles != 5 || !nodes[1].Seen.Equal(now) {
		t.Fatalf("%+v", nodes)
	}
	now = now.Add(2 * time.Second)
	if nodes = b.Nodes(); len(nodes) != 1 || nodes[0].Name != "b" {
		t.Errorf("a node is known after it said nothing for %v: %+v", fleet.Lifetime, nodes)
	}
}

func TestBadReports(t *testing.T) {
	b := fleet.NewBook(nil)
	for name, r := range map[string]*fleet.Report{
		"no node": {Image: "i"}, "no image": {Node: "n"}, "negative": {Node: "n", Image: "i", Bytes: -1},
		"long": {Node: strings.Repeat("n", 513), Image: "i"}, "line": {Node: "n\nm", Image: "i"},
		"many":           {Node: "n", Image: "i", Containers: make([]fleet.Container, 501)},
		"long container": {Node: "n", Image: "i", Containers: []fleet.Container{{ID: strings.Repeat("c", 513)}}},
	} {
		if err := b.Add("client", "a", r); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	if len(b.Nodes()) != 0 {
		t.Error("a bad report counts")
	}
}

// TestFull checks that a client that may pull can fill the book, but not the memory.
func TestFull(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	b := fleet.NewBook(func() time.Time { return now })
	var err error
	n := 0
	for ; err == nil && n < 100_000; n++ {
		err = b.Add(fmt.Sprint("client", n%5), "a", &fleet.Report{Node: fmt.Sprint(n), Image: "i"})
	}
	if err == nil {
		t.Fatalf("%d reports are kept", n)
	}
	b = fleet.NewBook(func() time.Time { return now })
	large := make([]fleet.Container, 500)
	for i := range large {
		large[i].ID = strings.Repeat("c", 500)
	}
	for n, err = 0, nil; err == nil && n < 1000; n++ {
		err = b.Add(fmt.Sprint("client", n%5), "a", &fleet.Report{Node: fmt.Sprint(n), Image: "i", Containers: large})
	}
	if err == nil {
		t.Fatalf("%d large reports are kept", n)
	}
	if err := b.Add("client0", "a", &fleet.Report{Node: "0", Image: "i"}); err != nil {
		t.Errorf("a known node is refused: %v", err)
	}
	now = now.Add(fleet.Lifetime + time.Second)
	if err := b.Add("new", "a", &fleet.Report{Node: "new", Image: "i"}); err != nil {
		t.Errorf("old reports keep new ones out: %v", err)
	}
}

// TestOneClient checks that a client reports only for its own nodes, and leaves room for
// others.
func TestOneClient(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	b := fleet.NewBook(func() time.Time { return now })
	add := func(client, node, image string) error {
		return b.Add(client, "a", &fleet.Report{Node: node, Image: image, Tier: client})
	}
	if err := add("alice", "n1", "i"); err != nil {
		t.Fatal(err)
	}
	for _, image := range []string{"i", "j"} {
		if err := add("mallory", "n1", image); err == nil {
			t.Errorf("another client reports image %s of the node", image)
		}
	}
	if err := add("alice", "n1", "j"); err != nil {
		t.Error(err)
	}
	if n := b.Nodes(); len(n) != 1 || len(n[0].Images) != 2 || n[0].Tier != "alice" {
		t.Errorf("the book has %+v", n)
	}
	var err error
	n := 0
	for ; err == nil && n < 100_000; n++ {
		err = add("mallory", fmt.Sprint("m", n), "i")
	}
	if err == nil {
		t.Fatalf("one client has %d reports", n)
	}
	if err := add("bob", "n2", "i"); err != nil {
		t.Errorf("one client keeps others out: %v", err)
	}
	now = now.Add(fleet.Lifetime + time.Second)
	if err := add("bob", "n1", "i"); err != nil {
		t.Errorf("a node that nobody reports any more has an owner: %v", err)
	}
}
