package cluster_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"example.org/slipway/internal/logtest"
	"example.org/slipway/registry/cluster"
	"example.org/slipway/registry/objstore"
)

// oneFill is the part of a cache that can make replicas wait for each other: it reads a
// key once for all clients that request it at the same time.
type oneFill struct {
	s cluster.Source

	mu    sync.Mutex
	fills map[string]*fill
}

type fill struct {
	done chan struct{}
	data []byte
	info objstore.Info
	err  error
}

func (o *oneFill) Get(ctx context.Context, key string, off, n int64) (objstore.Object, error) {
	o.mu.Lock()
	f := o.fills[key]
	if f == nil {
		f = &fill{done: make(chan struct{})}
		if o.fills == nil {
			o.fills = map[string]*fill{}
		}
		o.fills[key] = f
		go func() {
			// Whoever asked first may leave. The others still wait.
			f.data, f.info, f.err = read(context.WithoutCancel(ctx), o.s, key, 0, -1)
			o.mu.Lock()
			delete(o.fills, key)
			o.mu.Unlock()
			close(f.done)
		}()
	}
	o.mu.Unlock()
	select {
	case <-f.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if f.err != nil {
		return nil, f.err
	}
	data := f.data[min(off, int64(len(f.data))):]
	return &bent{inRAM{info: f.info}, strings.NewReader(string(data))}, nil
}

// inRAM is an object of which only the Info is used.
type inRAM struct {
	objstore.Object
	info objstore.Info
}

func (o inRAM) Info() objstore.Info { return o.info }
func (inRAM) Close() error          { return nil }

// TestNoRing has replicas that disagree about homes so much that each takes the next one for every
// blob's home. They ask each other for the same blobs at the same moment, each with one fill for
// all callers. None may wait for one that waits for it, and no request of a peer may lead to
// another one.
func TestNoRing(t *testing.T) {
	b := newBed(t)
	// No hedge or timeout interferes: a ring would hang until the test's deadline.
	patient := &cluster.Options{HedgeAfter: time.Hour, AnswerTimeout: 2 * time.Hour, StallTimeout: time.Hour, Lease: time.Hour}
	var caches []*oneFill
	const n = 4
	for i := range n {
		b.dir = &directory{}
		b.join(fmt.Sprint("r", i), patient, func(s *cluster.Store) cluster.Source {
			o := &oneFill{s: s}
			caches = append(caches, o)
			return o
		})
	}
	for i, r := range b.replicas {
		poll(t, "joined", func() bool { return len(r.Members()) == 1 })
		r.stop()
		r.AskOnly(b.replicas[(i+1)%n].Cluster)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for round := range 200 {
		data := []byte(fmt.Sprint("blob of round ", round))
		key := keyOf(data)
		if err := b.mem.Put(t.Context(), key, data, false); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for _, c := range caches {
			for range 3 {
				wg.Go(func() {
					if got, _, err := read(ctx, c, key, 0, -1); err != nil || string(got) != string(data) {
						t.Errorf("round %d: got %q, %v", round, got, err)
					}
				})
			}
		}
		wg.Wait()
		if t.Failed() {
			return
		}
	}
	var asked, served float64
	for _, r := range b.replicas {
		asked += metric(t, r, "slipway_cluster_reads_total", "peer")
		served += metric(t, r, "slipway_cluster_served_total", "ok")
	}
	if asked == 0 || asked != served {
		t.Errorf("%v reads came from peers, who served %v", asked, served)
	}
}

// TestMembership checks that replicas find each other and notice which ones leave or are killed. A
// replica takes over the lease of its own killed predecessor and refuses the ID of another one.
func TestMembership(t *testing.T) {
	b := newBed(t)
	r1, r2, r3 := b.join("r1", nil, nil), b.join("r2", nil, nil), b.join("r3", nil, nil)
	b.meet(3)
	r3.stop()
	poll(t, "r1 knows that r3 has left", func() bool { return fmt.Sprint(r1.Members()) == "[r1 r2]" })
	b.dir.broken.Store(true)
	poll(t, "a renewal fails", func() bool { return b.dir.refused.Load() > 3 })
	if got := fmt.Sprint(r1.Members()); got != "[r1 r2]" {
		t.Errorf("while the directory is away: members %s", got)
	}
	b.dir.broken.Store(false)

	// A process that was killed leaves its lease; its successor has the same address.
	b.dir.mu.Lock()
	b.dir.leases["member/r4"] = lease{"killed http://10.0.0.4:5002", time.Now().Add(time.Hour)}
	b.dir.leases["member/r5"] = lease{"killed http://10.0.0.5:5002", time.Now().Add(time.Hour)}
	b.dir.mu.Unlock()
	poll(t, "r1 takes the killed for members", func() bool { return len(r1.Members()) == 4 })
	cfg := cluster.Config{ID: "r4", URL: "http://10.0.0.4:5002", Secret: []byte(secret), Digest: digestOf}
	var out logtest.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	successor, err := cluster.New(b.dir, cfg, &cluster.Options{Logger: log, Lease: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	cfg.ID = "r5"
	twin, err := cluster.New(b.dir, cfg, &cluster.Options{Logger: log, Lease: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, c := range []*cluster.Cluster{successor, twin} {
		wg.Go(func() {
			if err := c.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	poll(t, "the successor has the lease", func() bool {
		m, err := b.dir.Leases(ctx, "member/r4")
		return err == nil && !strings.HasPrefix(m["member/r4"], "killed")
	})
	poll(t, "the twin is told", func() bool { return strings.Contains(out.String(), "another replica has the same id") })
	if m, _ := b.dir.Leases(ctx, "member/r5"); !strings.HasPrefix(m["member/r5"], "killed") {
		t.Errorf("a replica with another address took over the lease: %v", m)
	}
	cancel()
	wg.Wait()
	if strings.Contains(out.String(), secret) {
		t.Error("the secret is in the log")
	}
	poll(t, "r2 knows that r3 has left", func() bool { return !strings.Contains(fmt.Sprint(r2.Members()), "r3") })
}

// TestConfig checks that an impossible configuration is refused at the start, without repeating the
// secret.
func TestConfig(t *testing.T) {
	good := cluster.Config{ID: "r1", URL: "http://h:1", Secret: []byte(secret), Digest: digestOf}
	for _, c := range []struct {
		name string
		bad  func(*cluster.Config)
	}{
		{"no id", func(c *cluster.Config) { c.ID = "" }},
		{"id with a slash", func(c *cluster.Config) { c.ID = "a/b" }},
		{"short secret", func(c *cluster.Config) { c.Secret = c.Secret[:15] }},
		{"no URL", func(c *cluster.Config) { c.URL = "" }},
		{"URL with a path", func(c *cluster.Config) { c.URL = "http://h/x" }},
		{"URL with a password", func(c *cluster.Config) { c.URL = "http://u:p@h" }},
		{"no digests", func(c *cluster.Config) { c.Digest = nil }},
	} {
		cfg := good
		c.bad(&cfg)
		if _, err := cluster.New(&directory{}, cfg, nil); err == nil || strings.Contains(err.Error(), secret[:15]) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if _, err := cluster.New(&directory{}, good, nil); err != nil {
		t.Errorf("a good configuration: %v", err)
	}
}
