package tracker_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.org/slipway/oci/peering"
	"example.org/slipway/registry/tracker"
)

type bed struct {
	*testing.T
	*tracker.Tracker
	now time.Time
}

func newBed(t *testing.T) *bed {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{T: t, now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	b.Tracker = tracker.New(key, func() time.Time { return b.now })
	return b
}

// of returns an announcement of node n.
func of(n int, change func(*peering.Announcement)) *peering.Announcement {
	a := &peering.Announcement{Manifest: "sha256:m", Address: ":5003"}
	if change != nil {
		change(a)
	}
	seed := sha256.Sum256(fmt.Append(nil, n))
	if err := a.Sign(ed25519.NewKeyFromSeed(seed[:])); err != nil {
		panic(err) // there are keys of that kind
	}
	return a
}

func keyOf(n int) string { return of(n, nil).Key }

func (b *bed) announce(repo string, n int, change func(*peering.Announcement)) *peering.Answer {
	b.Helper()
	out, err := b.Announce(repo, fmt.Sprintf("10.0.%d.%d:4711", n>>8, n&255), of(n, change))
	if err != nil {
		b.Fatal(err)
	}
	return out
}

// TestSince checks that nodes know since when each of them uses an image, however often they
// announce it.
func TestSince(t *testing.T) {
	b := newBed(t)
	began := map[string]int64{}
	for n := range 5 {
		began[keyOf(n)] = b.now.UnixMicro()
		b.announce("team/app", n, nil)
		b.now = b.now.Add(700 * time.Millisecond)
	}
	for n := range 5 {
		a := b.announce("team/app", n, func(a *peering.Announcement) { a.Complete = n%2 == 0 })
		if len(a.Peers) != 4 || a.Since != began[keyOf(n)] {
			t.Errorf("node %d began at %d and is told %d, with %d others", n, began[keyOf(n)], a.Since, len(a.Peers))
		}
		for _, p := range a.Peers {
			if p.Since != began[p.Key] {
				t.Errorf("another node began at %d, and node %d is told %d", began[p.Key], n, p.Since)
			}
		}
		b.now = b.now.Add(time.Second)
	}
	// One that leaves and comes back has nothing any more.
	b.announce("team/app", 2, func(a *peering.Announcement) { a.Leaving = true })
	if a := b.announce("team/app", 2, nil); a.Since != b.now.UnixMicro() {
		t.Errorf("a node that came back at %d is told %d", b.now.UnixMicro(), a.Since)
	}
}

func TestSwarm(t *testing.T) {
	b := newBed(t)
	if a := b.announce("team/app", 1, nil); len(a.Peers) != 0 {
		t.Errorf("the first node is told of %v", a.Peers)
	}
	a := b.announce("team/app", 2, func(a *peering.Announcement) { a.Complete = true })
	if len(a.Peers) != 1 || a.Peers[0].Key != keyOf(1) || a.Peers[0].Address != "10.0.0.1:5003" {
		t.Errorf("the second node is told of %v", a.Peers)
	}
	if a := b.announce("team/app", 1, nil); len(a.Peers) != 1 || !a.Peers[0].Complete {
		t.Errorf("the first node is told of %v", a.Peers)
	}
	if a := b.announce("team/other", 3, nil); len(a.Peers) != 0 {
		t.Errorf("a node of another repository is told of %v", a.Peers)
	}
	if a := b.announce("team/app", 3, func(a *peering.Announcement) { a.Manifest = "sha256:n" }); len(a.Peers) != 0 {
		t.Errorf("a node with another image is told of %v", a.Peers)
	}
	g, err := peering.Verify(a.Grant, a.Signer)
	if err != nil || g.Repo != "team/app" || g.Holder.String() != keyOf(2) || g.Ends != a.Ends.Unix() || !a.Ends.After(b.now) {
		t.Errorf("grant %+v, error %v", g, err)
	}
	b.announce("team/app", 2, func(a *peering.Announcement) { a.Leaving = true })
	if a := b.announce("team/app", 1, nil); len(a.Peers) != 0 {
		t.Errorf("after the second left, the first is told of %v", a.Peers)
	}
	b.announce("team/app", 2, nil)
	// Node 2 restarts with another key. Only an address that the registry sees itself drops the
	// member that had it before.
	for key, address := range map[int]string{5: "10.0.0.2:5003", 6: ":5003"} {
		for _, a := range []*peering.Announcement{
			of(2, func(a *peering.Announcement) { a.Manifest = address }),
			of(key, func(a *peering.Announcement) { a.Manifest, a.Address = address, address }),
		} {
			if _, err := b.Announce("team/app", "10.0.0.2:99", a); err != nil {
				t.Fatal(err)
			}
		}
		want := 1
		if key == 5 {
			want = 2
		}
		if a := b.announce("team/app", 1, func(a *peering.Announcement) { a.Manifest = address }); len(a.Peers) != want {
			t.Errorf("after a node came at %s, others are told of %v", address, a.Peers)
		}
	}
	b.now = b.now.Add(3 * time.Minute)
	if a := b.announce("team/app", 1, nil); len(a.Peers) != 0 {
		t.Errorf("a node that said nothing for three minutes is still known: %v", a.Peers)
	}
}

// TestCells checks that the nodes of a large roll-out form groups in which everybody knows the same
// nodes, that zones keep together, and that an answer stays short.
func TestCells(t *testing.T) {
	const nodes = 300
	b := newBed(t)
	zone := func(n int) func(*peering.Announcement) {
		return func(a *peering.Announcement) { a.Zone = fmt.Sprint("z", n%3) }
	}
	for range 2 {
		for n := range nodes {
			b.announce("team/app", n, zone(n))
		}
	}
	near, sizes := 0, 0
	for n := range nodes {
		a := b.announce("team/app", n, zone(n))
		sizes += len(a.Peers)
		if len(a.Peers) > 60 {
			t.Fatalf("node %d is told of %d nodes", n, len(a.Peers))
		}
		for _, p := range a.Peers {
			if near += p.Near; p.Key == keyOf(n) {
				t.Errorf("node %d is told of itself", n)
			}
		}
	}
	if near != sizes {
		t.Errorf("of %d introductions, %d are in the same zone", sizes, near)
	}
	if sizes < nodes*20 {
		t.Errorf("%d nodes are told of %d in all", nodes, sizes)
	}
}

func TestRefused(t *testing.T) {
	b := newBed(t)
	for name, change := range map[string]func(*peering.Announcement){
		"no manifest": func(a *peering.Announcement) { a.Manifest = "" }, "name": func(a *peering.Announcement) { a.Address = "localhost:1" }, "loopback": func(a *peering.Announcement) { a.Address = "127.0.0.1:1" },
		"link-local": func(a *peering.Announcement) { a.Address = "[fe80::1]:1" }, "metadata": func(a *peering.Announcement) { a.Address = "169.254.169.254:80" },
		"zone": func(a *peering.Announcement) { a.Zone = string(make([]byte, 300)) }, "line": func(a *peering.Announcement) { a.Rack = "a\nb" },
		"port": func(a *peering.Announcement) { a.Address = ":0" }, "multicast": func(a *peering.Announcement) { a.Address = "[ff02::1]:1" },
	} {
		if _, err := b.Announce("team/app", "10.0.0.1:1", of(1, change)); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	for name, key := range map[string]string{"no key": "", "short key": "ab", "large key": strings.ToUpper(keyOf(1)), "another's key": keyOf(3)} {
		a := of(1, nil)
		a.Key = key
		if _, err := b.Announce("team/app", "10.0.0.1:1", a); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	if a := b.announce("team/app", 2, nil); len(a.Peers) != 0 {
		t.Errorf("refused announcements count: %v", a.Peers)
	}
	if a, err := b.Announce("six/app", "2001:db8::7", of(1, func(a *peering.Announcement) { a.Manifest = "m" })); err != nil || len(a.Peers) != 0 {
		t.Fatalf("IPv6: %v, %v", a, err)
	}
	if a := b.announce("six/app", 2, func(a *peering.Announcement) { a.Manifest = "m" }); len(a.Peers) != 1 || a.Peers[0].Address != "[2001:db8::7]:5003" {
		t.Errorf("IPv6: %v", a.Peers)
	}
}

// TestStorms checks how often nodes are to announce an image, whatever their addresses are.
func TestStorms(t *testing.T) {
	const quiet = 2 * time.Minute
	for name, c := range map[string]struct {
		nodes, perSecond int
		seen             func(n int) string
	}{
		"a large roll-out":       {1000, 1000, func(n int) string { return fmt.Sprintf("10.0.%d.%d:1", n>>8, n&255) }},
		"all behind one address": {20, 80, func(int) string { return "10.0.0.1:1" }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			begin := b.now
			due, all := make([]time.Time, c.nodes), make([]*peering.Announcement, c.nodes)
			for n := range due {
				all[n] = of(n, nil)
				due[n] = begin.Add(time.Duration(n) * time.Second / time.Duration(c.nodes)) // all within a second
			}
			count := map[time.Duration]int{} // by second
			for ; b.now.Sub(begin) < quiet+time.Minute; b.now = b.now.Add(20 * time.Millisecond) {
				for n := range due {
					if b.now.Before(due[n]) {
						continue
					}
					a, err := b.Announce("team/app", c.seen(n), all[n])
					if err != nil {
						t.Fatal(err)
					}
					count[b.now.Sub(begin).Truncate(time.Second)]++
					due[n] = b.now.Add(time.Duration(a.Again) * time.Millisecond)
				}
			}
			last := 0
			for at, n := range count {
				if n > c.perSecond && at >= time.Second { // each node comes in the first second
					t.Errorf("%d nodes announce %d times in the second after %v", c.nodes, n, at)
				}
				if at >= quiet {
					last += n
				}
			}
			if last > 2*c.nodes {
				t.Errorf("%d nodes announce %d times in a minute in which nothing happens", c.nodes, last)
			}
		})
	}
}

// BenchmarkRollout has all nodes of a roll-out come within a second, announce themselves as often as
// they are told to, and have the image after half a minute, for two minutes by the tracker's clock. It
// counts what the tracker does for one node, with the JSON that goes over the network.
func BenchmarkRollout(b *testing.B) {
	const step, whole, end = 20 * time.Millisecond, 30 * time.Second, 2 * time.Minute
	for _, nodes := range []int{50, 100, 200, 400} {
		b.Run(fmt.Sprint(nodes, "-nodes"), func(b *testing.B) {
			var begun, complete [][]byte
			for n := range nodes {
				for list, done := range map[*[][]byte]bool{&begun: false, &complete: true} {
					text, err := json.Marshal(of(n, func(a *peering.Announcement) { a.Complete = done }))
					if err != nil {
						b.Fatal(err)
					}
					*list = append(*list, text)
				}
			}
			var used time.Duration
			var announced, sent, kept int64
			for b.Loop() {
				heap := heapBytes()
				began := cpuTime(b)
				now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
				tr := tracker.New(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)), func() time.Time { return now })
				begin, due := now, make([]time.Time, nodes)
				for n := range due {
					due[n] = begin.Add(time.Duration(n) * time.Second / time.Duration(nodes))
				}
				for ; now.Sub(begin) < end; now = now.Add(step) {
					for n := range due {
						if now.Before(due[n]) {
							continue
						}
						text := begun[n]
						if now.Sub(begin) > whole {
							text = complete[n]
						}
						var a peering.Announcement
						if err := json.Unmarshal(text, &a); err != nil {
							b.Fatal(err)
						}
						out, err := tr.Announce("team/app", fmt.Sprintf("10.0.%d.%d:1", n>>8, n&255), &a)
						if err != nil {
							b.Fatal(err)
						}
						answer, err := json.Marshal(out)
						if err != nil {
							b.Fatal(err)
						}
						announced, sent = announced+1, sent+int64(len(answer))
						due[n] = now.Add(time.Duration(out.Again) * time.Millisecond)
					}
				}
				used += cpuTime(b) - began
				kept += heapBytes() - heap
				runtime.KeepAlive(tr)
			}
			per := float64(b.N * nodes)
			b.ReportMetric(float64(used.Microseconds())/1000/per, "cpu-ms/node")
			b.ReportMetric(float64(announced)/per, "announcements/node")
			b.ReportMetric(float64(sent)/float64(announced), "B/answer")
			b.ReportMetric(float64(kept)/per, "heap-B/node")
		})
	}
}

// heapBytes returns the bytes of the heap that are in use.
func heapBytes() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// cpuTime returns the time that this process has computed.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkAnnounce has 200 nodes of one image announce themselves in turn.
func BenchmarkAnnounce(b *testing.B) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	tr := tracker.New(key, nil)
	var all [200]*peering.Announcement
	for i := range all {
		all[i] = of(i, nil)
	}
	for i := 0; b.Loop(); i++ {
		if _, err := tr.Announce("team/app", fmt.Sprintf("10.0.0.%d:1", i%len(all)), all[i%len(all)]); err != nil {
			b.Fatal(err)
		}
	}
}
