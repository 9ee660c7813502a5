package fleet_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

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

// startOf returns a start with a number of files.
func startOf(files int) *fleet.Start {
	s := &fleet.Start{Began: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	for i := range files {
		s.Add(fleet.StartFile{Path: fmt.Sprint("usr/lib/", i), From: "own", Wanted: new(time.Duration(i))}, fleet.MaxStartFiles)
	}
	return s
}

// TestStarts checks which starts a book returns, and that a report without a start leaves the last
// one of the same image.
func TestStarts(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	b := fleet.NewBook(func() time.Time { return now })
	add := func(node, repo, manifest string, s *fleet.Start) {
		t.Helper()
		if err := b.Add("client", repo, &fleet.Report{Node: node, Image: "i", Manifest: manifest, Start: s}); err != nil {
			t.Fatal(err)
		}
	}
	for i, node := range []string{"a", "b", "c"} {
		s := startOf(1)
		s.Began = now.Add(time.Duration(i-10) * time.Minute)
		add(node, "team/app", "m", s)
	}
	// A start from the future is not newer than one that was reported later.
	future := startOf(1)
	future.Began = now.Add(1000 * time.Hour)
	add("z", "team/future", "m", future)
	now = now.Add(time.Hour)
	add("y", "team/future", "m", &fleet.Start{Began: now, Files: startOf(1).Files})
	now = now.Add(-time.Hour)
	add("d", "team/other", "m", startOf(1))
	add("e", "team/app", "other", startOf(1))
	add("f", "team/app", "m", nil)
	add("b", "team/app", "m", nil)
	add("c", "team/app", "new", nil)
	nodes := func(repo string, n int, manifests ...string) (out string) {
		for _, i := range b.Starts(repo, manifests, n) {
			out += i.Node
		}
		return out
	}
	for _, c := range []struct{ got, want string }{{nodes("team/app", 9, "m"), "ba"}, {nodes("team/app", 1, "m"), "b"}, {nodes("team/app", 9, "x", "other", "m"), "eba"},
		{nodes("team/app", 9, "new"), ""}, {nodes("team/other", 9, "m"), "d"}, {nodes("team/future", 9, "m"), "yz"}, {nodes("team/app", 9), ""}} {
		if c.got != c.want {
			t.Errorf("starts on nodes %q, want %q", c.got, c.want)
		}
	}
	now = now.Add(fleet.Lifetime + time.Second)
	if got := nodes("team/app", 9, "m"); got != "" {
		t.Errorf("starts of nodes that said nothing for long: %q", got)
	}
}

// TestStartAdd checks that any path becomes one that a report may contain.
func TestStartAdd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &fleet.Start{}
		most := rapid.IntRange(0, fleet.MaxStartFiles).Draw(t, "most")
		n := rapid.IntRange(0, 120).Draw(t, "files")
		path := rapid.OneOf(rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }), rapid.Just(strings.Repeat("ü/", 200)))
		for range n {
			s.Add(fleet.StartFile{Path: path.Draw(t, "path"), Here: new(time.Second)}, most)
		}
		s.Add(fleet.StartFile{Path: "without an event"}, most)
		if len(s.Files) != min(n, most) || s.More != max(0, n-most) {
			t.Fatalf("%d files and %d more, of %d", len(s.Files), s.More, n)
		}
		if err := fleet.NewBook(nil).Add("client", "a", &fleet.Report{Node: "n", Image: "i", Start: s}); err != nil {
			t.Fatal(err)
		}
	})
}

// TestBadStarts checks that a start that no agent would report is refused.
func TestBadStarts(t *testing.T) {
	b := fleet.NewBook(nil)
	file := func(f fleet.StartFile) *fleet.Start { return &fleet.Start{Files: []fleet.StartFile{f}} }
	for name, s := range map[string]*fleet.Start{
		"many": {Files: make([]fleet.StartFile, fleet.MaxStartFiles+1)}, "negative": {More: -1},
		"long": file(fleet.StartFile{Path: strings.Repeat("p", fleet.MaxStartPath+1)}), "line": file(fleet.StartFile{Path: "a\nb"}),
		"no text": file(fleet.StartFile{Path: "\xff"}), "long reason": file(fleet.StartFile{From: strings.Repeat("f", 17)}),
		"late": file(fleet.StartFile{Here: new(time.Duration(1 << 62))}), "early": file(fleet.StartFile{Asked: new(time.Duration(-1 << 63))}),
	} {
		if err := b.Add("client", "a", &fleet.Report{Node: "n", Image: "i", Start: s}); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

// TestStartsAreBounded checks that starts take no more memory than they may, and that a report counts
// also if its start has no room.
func TestStartsAreBounded(t *testing.T) {
	b := fleet.NewBook(nil)
	s := startOf(0)
	for range fleet.MaxStartFiles {
		s.Add(fleet.StartFile{Path: strings.Repeat("p", fleet.MaxStartPath), Here: new(time.Second)}, fleet.MaxStartFiles)
	}
	kept := func(client string, n int) int {
		for i := range n {
			if err := b.Add(client, client, &fleet.Report{Node: fmt.Sprint(client, i), Image: "i", Manifest: "m", Start: s}); err != nil {
				t.Fatal(err)
			}
		}
		return len(b.Starts(client, []string{"m"}, n))
	}
	const size = fleet.MaxStartFiles * fleet.MaxStartPath
	first, second, third := kept("mallory", 2000), kept("alice", 100), kept("bob", 2000)
	if first*size > 8<<20 || first == 0 || (first+second+third)*size > 16<<20 {
		t.Errorf("%d, %d and %d starts of %d bytes are kept", first, second, third, size)
	}
	if second != 100 {
		t.Errorf("one client keeps the starts of others out: %d of 100 are kept", second)
	}
	if n := len(b.Nodes()); n != 4100 {
		t.Errorf("%d nodes are known, want 4100", n)
	}
	// What is replaced makes room.
	for range 3 {
		if n := kept("alice", 100); n != 100 {
			t.Errorf("%d of 100 starts are kept when they are reported again", n)
		}
	}
}
