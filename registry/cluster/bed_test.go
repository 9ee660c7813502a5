package cluster_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/oci"
	"example.org/slipway/registry/cluster"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/memstore"
)

// directory holds a catalogue's leases in RAM.
type directory struct {
	mu      sync.Mutex
	leases  map[string]lease
	broken  atomic.Bool
	refused atomic.Int32 // calls while broken
}

type lease struct {
	owner string
	until time.Time
}

func (d *directory) Lease(_ context.Context, name, owner string, length time.Duration) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.broken.Load() {
		d.refused.Add(1)
		return false, errors.New("the directory is away")
	}
	l := d.leases[name]
	if l.owner != owner && l.until.After(time.Now()) {
		return false, nil
	}
	if d.leases == nil {
		d.leases = map[string]lease{}
	}
	d.leases[name] = lease{owner, time.Now().Add(length)}
	return true, nil
}

func (d *directory) Unlease(_ context.Context, name, owner string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.leases[name].owner == owner {
		delete(d.leases, name)
	}
	return nil
}

func (d *directory) Leases(_ context.Context, prefix string) (map[string]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.broken.Load() {
		return nil, errors.New("the directory is away")
	}
	m := map[string]string{}
	for name, l := range d.leases {
		if strings.HasPrefix(name, prefix) && l.until.After(time.Now()) {
			m[name] = l.owner
		}
	}
	return m, nil
}

// counted is the store that all replicas share. It counts reads by key.
type counted struct {
	objstore.Store
	mu    sync.Mutex
	reads map[string]int
	delay time.Duration
	fail  atomic.Bool
}

func (c *counted) Get(ctx context.Context, key string, off, n int64) (objstore.Object, error) {
	c.mu.Lock()
	if c.reads == nil {
		c.reads = map[string]int{}
	}
	c.reads[key]++
	c.mu.Unlock()
	select {
	case <-time.After(c.delay):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if c.fail.Load() {
		return nil, errors.New("the store is away")
	}
	return c.Store.Get(ctx, key, off, n)
}

func (c *counted) count(key string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reads[key]
}

// replica is a cluster with a real server for its peers.
type replica struct {
	*cluster.Cluster
	store *cluster.Store
	inner *counted
	srv   *httptest.Server
	stop  func()
}

const secret = "a secret of the test's replicas"

func digestOf(key string) (oci.Digest, bool) {
	f := strings.Split(key, "/")
	if len(f) != 4 || f[0] != "blobs" {
		return "", false
	}
	return oci.Digest(f[1] + ":" + f[3]), true
}

func keyOf(b []byte) string {
	hex := oci.SHA256(b).Encoded()
	return "blobs/sha256/" + hex[:2] + "/" + hex
}

// bed is a set of replicas on one store.
type bed struct {
	t        *testing.T
	dir      *directory
	mem      *memstore.Store
	replicas []*replica
}

func newBed(t *testing.T) *bed {
	return &bed{t: t, dir: &directory{}, mem: memstore.New(nil)}
}

// join adds a replica. source makes the source from which its peers are served. nil means its
// store.
func (b *bed) join(id string, o *cluster.Options, source func(*cluster.Store) cluster.Source) *replica {
	b.t.Helper()
	var opts cluster.Options
	if o != nil {
		opts = *o
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.Lease == 0 {
		opts.Lease = 300 * time.Millisecond
	}
	r := &replica{inner: &counted{Store: b.mem}}
	r.srv = httptest.NewUnstartedServer(nil)
	var err error
	r.Cluster, err = cluster.New(b.dir, cluster.Config{ID: id, URL: "http://" + r.srv.Listener.Addr().String(), Secret: []byte(secret), Digest: digestOf}, &opts)
	if err != nil {
		b.t.Fatal(err)
	}
	r.store = r.Cluster.Store(r.inner)
	var src cluster.Source = r.store
	if source != nil {
		src = source(r.store)
	}
	r.srv.Config.Handler = r.Handler(src)
	r.srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	r.srv.Start()
	b.t.Cleanup(r.srv.Close)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := r.Run(ctx); err != nil {
			b.t.Errorf("run %s: %v", id, err)
		}
	}()
	r.stop = func() { cancel(); <-done }
	b.t.Cleanup(func() {
		r.stop()
		if err := r.Close(); err != nil {
			b.t.Errorf("close %s: %v", id, err)
		}
	})
	b.replicas = append(b.replicas, r)
	return r
}

// meet waits until all replicas know of n members.
func (b *bed) meet(n int) {
	b.t.Helper()
	for _, r := range b.replicas {
		poll(b.t, fmt.Sprintf("%d members", n), func() bool { return len(r.Members()) == n })
	}
}

func poll(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 10 s", what)
		}
	}
}

// blob stores a blob of the given size whose home is a replica.
func (b *bed) blob(home string, size int) (key string, data []byte) {
	b.t.Helper()
	for seed := range uint64(1000) {
		data = make([]byte, size)
		for r, i := rand.New(rand.NewPCG(seed, uint64(size))), 0; i < size; i += 8 {
			v := r.Uint64()
			for j := range min(8, size-i) {
				data[i+j] = byte(v >> (8 * j))
			}
		}
		if key = keyOf(data); size > 0 {
			if id, _ := b.replicas[0].Home(key); id != home {
				continue
			}
		}
		if err := b.mem.Put(b.t.Context(), key, data, false); err != nil {
			b.t.Fatal(err)
		}
		return key, data
	}
	b.t.Fatalf("no blob with home %s", home)
	return "", nil
}

func read(ctx context.Context, s cluster.Source, key string, off, n int64) ([]byte, objstore.Info, error) {
	obj, err := s.Get(ctx, key, off, n)
	if err != nil {
		return nil, objstore.Info{}, err
	}
	var buf bytes.Buffer
	_, err = obj.WriteTo(&buf)
	return buf.Bytes(), obj.Info(), errors.Join(err, obj.Close())
}

// want reads a range and compares it and its description with the stored object.
func (b *bed) want(s cluster.Source, key string, data []byte, off, n int64) {
	b.t.Helper()
	got, info, err := read(b.t.Context(), s, key, off, n)
	end := int64(len(data))
	if n >= 0 {
		end = min(end, off+n)
	}
	if err != nil || !bytes.Equal(got, data[min(off, end):end]) {
		b.t.Errorf("read %d bytes at %d of %d: got %d bytes, %v", n, off, len(data), len(got), err)
	}
	stored, err := b.mem.Stat(b.t.Context(), key)
	if err != nil {
		b.t.Fatal(err)
	}
	if info.Key != key || info.Size != stored.Size || info.ModTime.Unix() != stored.ModTime.Unix() {
		b.t.Errorf("described as %+v, want %+v", info, stored)
	}
}

// metric returns the sum of a replica's counter for the given name and label value.
func metric(t *testing.T, r *replica, name, label string) float64 {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(r.Metrics()...)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var sum float64
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if len(m.GetLabel()) == 0 || m.GetLabel()[0].GetValue() == label {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

func fallbacks(t *testing.T, r *replica, reason string) float64 {
	return metric(t, r, "slipway_cluster_fallbacks_total", reason)
}
