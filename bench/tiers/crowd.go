package tiers

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/bench/netdelay"
	"example.org/slipway/internal/backendtest"
)

// Crowd shows what happens when many clients ask for one uncached layer at once.
type Crowd struct {
	Run measure.Run `json:"run"`
	measure.Crowded
}

// newCounter counts reads of blobs from a store.
func newCounter() *measure.Counter {
	return &measure.Counter{Of: func(path string) bool { return strings.HasSuffix(path, "/data") }}
}

func runCrowd(b *bench, ctx context.Context) error {
	began := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	out := &Crowd{Crowded: measure.Crowded{Clients: b.o.clients, Size: b.o.size}}
	h := newHost(b)
	defer h.close()
	s, bucket, err := h.bucket(backendtest.S3)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	count := newCounter()
	wg.Go(func() { count.Serve(ctx, l, s.Endpoint) })
	far, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	delay := &netdelay.Proxy{Target: l.Addr().String(), RTT: storeRTT}
	wg.Go(func() { _ = delay.Serve(ctx, far) }) // ends with the context
	dir := b.NewDir()
	defer b.Remove(dir)
	storage := s3(s3Name, far.Addr().String(), bucket, s).driver +
		"  blob_cache: {ram: 16MiB, ssd: 4GiB, admission: all, write_through: false}\n  prefetch: {mode: \"off\"}\n"
	r, err := b.serve(ctx, "crowd", dir, storage)
	if err != nil {
		return err
	}
	defer func() { r.stop() }()
	layer := measure.NewContent(300, out.Size)
	if err := r.push(ctx, "bench/crowd", layer); err != nil {
		return err
	}
	// The memory that the push took would count as idle memory, so the registry is
	// restarted.
	r.stop()
	if r, err = b.serve(ctx, "crowd", dir, storage); err != nil {
		return err
	}
	if err := out.ask(ctx, r, layer, count); err != nil {
		return err
	}
	b.Logf("%d clients: %d reads, first bytes after %s ms, %s MB more memory", out.Clients, out.Reads, measure.SpreadOf(out.First), measure.Megabytes(out.Peak-out.Idle))
	out.Run = b.Since(began)
	out.Run.Rounds = 1
	b.results.Crowd = out
	return nil
}

// ask makes all clients ask at once.
func (c *Crowd) ask(ctx context.Context, r *server, layer measure.Content, count *measure.Counter) error {
	var m *measure.Meter
	fetched, err := measure.Crowd(ctx, c.Clients, "http://"+r.Addr, "/v2/bench/crowd/blobs/"+layer.Digest, layer.Size, func() (err error) {
		if c.Idle, err = r.Process.RSS(); err != nil {
			return err
		}
		count.Reset()
		m, err = r.meter()
		return err
	})
	if err != nil {
		return err
	}
	c.Add(fetched)
	u, err := m.Stop()
	if err != nil {
		return err
	}
	c.CPU = u.Server.Seconds()
	c.Reads, c.ReadBytes = count.Reads.Load(), count.Bytes.Load()
	c.Peak, err = r.Process.PeakRSS()
	return err
}

// Title is the heading.
func (c *Crowd) Title() string { return "Many clients and one uncached layer" }

// Head says how the part was measured.
func (c *Crowd) Head() string { return c.Run.Head() }

// About says what was done.
func (c *Crowd) About() string {
	return fmt.Sprintf("%d clients ask at once for one layer of %s that no tier holds: memory has no room for it, and it is not on the SSD. The store is versitygw, %.0f ms away, behind a proxy that counts what is read. The clients are connected before. Memory is the largest resident set of the registry since its start, less its size before the requests.", c.Clients, binary(c.Size), storeRTT.Seconds()*1e3)
}

// Targets returns three targets: one read, first bytes that are close to each other, and
// little memory.
func (c *Crowd) Targets() []measure.Target {
	spread := measure.SpreadOf(c.First)
	ratio := 0.0
	if spread.Min > 0 {
		ratio = spread.Max / spread.Min
	}
	return []measure.Target{
		{Scenario: "crowd", What: "reads of the layer from the store", Limit: 1, Figure: float64(c.Reads)},
		{Scenario: "crowd", What: "bytes read from the store / size", Limit: 1, Figure: float64(c.ReadBytes) / float64(c.Size)},
		{Scenario: "crowd", What: "first byte, last client / first client", Limit: 2, Figure: ratio, Missing: spread.N == 0},
		{Scenario: "crowd", What: "memory above idle", Limit: 64 << 20 / 1e6, Unit: " MB", Figure: float64(c.Peak-c.Idle) / 1e6},
	}
}

// Write writes the table.
func (c *Crowd) Write(w *strings.Builder) {
	c.Table(w, "reads", "MB read")
}

// Pictures returns no pictures.
func (c *Crowd) Pictures() []measure.Picture { return nil }
