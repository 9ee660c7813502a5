package cluster

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	"example.org/slipway/oci"
)

// nobody is an empty directory.
type nobody struct{}

func (nobody) Lease(context.Context, string, string, time.Duration) (bool, error) { return true, nil }
func (nobody) Unlease(context.Context, string, string) error                      { return nil }
func (nobody) Leases(context.Context, string) (map[string]string, error)          { return nil, nil }

func testConfig(id string) Config {
	return Config{ID: id, URL: "http://127.0.0.1:1", Secret: []byte("0123456789abcdef"),
		Digest: func(key string) (oci.Digest, bool) { return oci.SHA256([]byte(key)), true }}
}

func newTest(t *testing.T, id string, o *Options) *Cluster {
	t.Helper()
	var opts Options
	if o != nil {
		opts = *o
	}
	opts.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	c, err := New(nobody{}, testConfig(id), &opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// leases returns the directory entries of the given replicas.
func leases(ids ...string) map[string]string {
	m := map[string]string{}
	for _, id := range ids {
		m[leasePrefix+id] = "incarnation-" + id + " http://127.0.0.1:2"
	}
	return m
}

func keys(n int) []string {
	list := make([]string, n)
	for i := range list {
		d := oci.SHA256(fmt.Append(nil, i)).Encoded()
		list[i] = "docker/registry/v2/blobs/sha256/" + d[:2] + "/" + d + "/data"
	}
	return list
}

func homes(t *testing.T, c *Cluster, keys []string) map[string]string {
	t.Helper()
	m := map[string]string{}
	for _, k := range keys {
		id, ok := c.Home(k)
		if !ok {
			t.Fatalf("%s has no home", k)
		}
		m[k] = id
	}
	return m
}

// TestHomesAreEven checks that each of n replicas is the home of about 1/n of all blobs.
func TestHomesAreEven(t *testing.T) {
	c := newTest(t, "r0", nil)
	all := keys(20_000)
	for _, ids := range [][]string{{"r1"}, {"r1", "r2"}, {"r1", "r2", "r3", "r4", "r5", "r6", "r7", "r8", "r9"}} {
		c.setMembers(leases(ids...))
		n := map[string]int{}
		for _, id := range homes(t, c, all) {
			n[id]++
		}
		want := len(all) / (len(ids) + 1)
		if len(n) != len(ids)+1 {
			t.Errorf("%d replicas: homes at %v", len(ids)+1, n)
		}
		for id, got := range n {
			// The bound is six standard deviations of a binomial with 20,000 draws.
			if d := got - want; d*d > 36*want {
				t.Errorf("%d replicas: %s is the home of %d blobs, want about %d", len(ids)+1, id, got, want)
			}
		}
	}
}

// TestHomesMoveLittle checks that a new replica takes its share from all others, and that one which
// leaves gives its share to all others. No other blob moves.
func TestHomesMoveLittle(t *testing.T) {
	c := newTest(t, "r0", nil)
	all := keys(20_000)
	c.setMembers(leases("r1", "r2"))
	three := homes(t, c, all)
	c.setMembers(leases("r1", "r2", "r3"))
	four := homes(t, c, all)
	moved := 0
	for _, k := range all {
		if three[k] != four[k] {
			moved++
			if four[k] != "r3" {
				t.Fatalf("%s moved from %s to %s when r3 came", k, three[k], four[k])
			}
		}
	}
	if moved < 4500 || moved > 5500 {
		t.Errorf("%d of %d blobs moved when a fourth replica came, want about a quarter", moved, len(all))
	}
	c.setMembers(leases("r2", "r3"))
	for k, id := range homes(t, c, all) {
		if four[k] != "r1" && id != four[k] {
			t.Fatalf("%s moved from %s to %s when r1 left", k, four[k], id)
		}
	}
}

// TestAllAgree checks that every replica finds the same homes, whatever else it knows.
func TestAllAgree(t *testing.T) {
	all := keys(1000)
	var want map[string]string
	for _, id := range []string{"r0", "r1", "r2"} {
		c := newTest(t, id, nil)
		c.setMembers(leases("r0", "r1", "r2"))
		got := homes(t, c, all)
		if want == nil {
			want = got
		}
		for k := range got {
			if got[k] != want[k] {
				t.Fatalf("%s: %s says %s, r0 says %s", k, id, got[k], want[k])
			}
		}
	}
	// The answer is part of the protocol between versions.
	if got := want[all[0]]; got != "r2" {
		t.Errorf("the home of %s is %s now", all[0], got)
	}
}

// TestBoundedLoad checks that no peer gets more than its bounded share of the running reads,
// however popular one blob is. The excess goes to the next home.
func TestBoundedLoad(t *testing.T) {
	c := newTest(t, "r0", &Options{MaxPerPeer: 1000})
	c.setMembers(leases("r1", "r2", "r3", "r4"))
	var hot string // a blob that r0 would be the last to read itself
	for _, k := range keys(10_000) {
		if last := rank(c, k); last[4] == "r0" {
			hot = k
			break
		}
	}
	inFlight := map[string]int{}
	const total = 200
	for range total {
		r := c.begin(hot)
		if r == nil {
			t.Fatalf("a read went to the store after %v", inFlight)
		}
		inFlight[r.peer.id]++
	}
	for id, n := range inFlight {
		if bound := total*125/100/4 + 1; n > bound {
			t.Errorf("%s has %d of %d reads, more than %d", id, n, total, bound)
		}
	}
	if len(inFlight) != 4 {
		t.Errorf("the reads went to %v, want all four", inFlight)
	}
}

// TestFewReadsStayHome checks that the bound on shares does not scatter a handful of reads.
func TestFewReadsStayHome(t *testing.T) {
	c := newTest(t, "r0", nil)
	c.setMembers(leases("r1", "r2"))
	for _, k := range keys(1000) {
		home, _ := c.Home(k)
		if home == "r0" {
			continue
		}
		var open []*reading
		for range ownFloor {
			r := c.begin(k)
			if r == nil || r.peer.id != home {
				t.Fatalf("read %d of %s did not go to its home %s", len(open), k, home)
			}
			open = append(open, r)
		}
		for _, r := range open {
			c.end(r, verdictGood)
		}
	}
	if c.inFlight != 0 || len(c.asking) != 0 {
		t.Errorf("%d reads are left, asking %v", c.inFlight, c.asking)
	}
}

// TestAwayPeers checks that a failing peer is left out at once, for longer each time, and is then
// tried again. Its blobs go to their next homes meanwhile.
func TestAwayPeers(t *testing.T) {
	now := time.Unix(1e9, 0)
	c := newTest(t, "r0", &Options{Clock: func() time.Time { return now }})
	c.setMembers(leases("r1", "r2"))
	var key string
	for _, k := range keys(1000) {
		if r := rank(c, k); r[0] == "r1" && r[1] == "r2" {
			key = k
			break
		}
	}
	ask := func(v verdict) string {
		r := c.begin(key)
		if r == nil {
			return "store"
		}
		defer c.end(r, v)
		return r.peer.id
	}
	for i, pause := range []time.Duration{500, 1000, 2000, 4000} {
		if got := ask(verdictFailure); got != "r1" {
			t.Fatalf("round %d: asked %s, want r1", i, got)
		}
		now = now.Add((pause - 1) * time.Millisecond)
		if got := ask(verdictGood); got != "r2" {
			t.Errorf("round %d: asked %s while r1 is away, want r2", i, got)
		}
		now = now.Add(time.Millisecond)
	}
	if got := ask(verdictGood); got != "r1" {
		t.Errorf("after the last pause: asked %s, want r1", got)
	}
	for range maxSlow {
		ask(verdictSlow)
	}
	if got := ask(verdictGood); got != "r2" {
		t.Errorf("after %d slow answers: asked %s, want r2", maxSlow, got)
	}
	now = now.Add(time.Minute)
	ask(verdictWrong)
	now = now.Add(wrongPause - time.Second)
	if got := ask(verdictGood); got != "r2" {
		t.Errorf("after wrong bytes: asked %s, want r2", got)
	}
}

// rank returns the IDs of the members in the order in which a key would go to them.
func rank(c *Cluster, key string) (ids []string) {
	h := hashString(key)
	for p, s := next(c.members, h, 0, true); p != nil; p, s = next(c.members, h, s, false) {
		ids = append(ids, p.id)
	}
	return ids
}

// TestStrangeMembers checks that invalid members are left out and the rest count.
func TestStrangeMembers(t *testing.T) {
	c := newTest(t, "r0", nil)
	c.setMembers(map[string]string{
		"member/r1": "inc http://10.0.0.1:5002", "member/r2": "no-url", "member/r 3": "inc http://h", "member/": "inc http://h",
		"member/r4": "inc ftp://h", "member/r5": "inc http://u:p@h/", "member/r6": "inc http://h/path", "member/r7": " http://h",
	})
	if got := fmt.Sprint(c.Members()); got != "[r0 r1]" {
		t.Errorf("members %s, want [r0 r1]", got)
	}
}
