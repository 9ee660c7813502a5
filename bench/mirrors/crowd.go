package mirrors

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"example.org/slipway/integration/bench/measure"
)

// Crowd shows what happens when many clients ask at once for one blob that nobody has pulled
// before.
type Crowd struct {
	Run Run `json:"run"`
	measure.Crowded
}

func runCrowd(b *bench, ctx context.Context) error {
	began := time.Now()
	im, err := b.largeImage(ctx)
	if err != nil {
		return err
	}
	out := &Crowd{Crowded: measure.Crowded{Clients: b.o.clients, Size: im.layer.Size}}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	count := &measure.Counter{Of: func(path string) bool { return strings.HasSuffix(path, im.layer.Digest) }}
	wg.Go(func() { count.Serve(ctx, l, b.upstream.Addr) })
	s, err := b.slipway(ctx, l.Addr().String())
	if err != nil {
		return err
	}
	defer b.end(s)
	repo := upstreamName + "/" + im.repo
	if err := getManifest(ctx, http.DefaultClient, "http://"+s.Addr, repo, im.manifest); err != nil {
		return err
	}
	var m *measure.Meter
	fetched, err := measure.Crowd(ctx, out.Clients, "http://"+s.Addr, "/v2/"+repo+"/blobs/"+im.layer.Digest, im.layer.Size, func() (err error) {
		if out.Idle, err = s.Process.RSS(); err != nil {
			return err
		}
		m, err = measure.StartMeter(s.Process.Pid())
		return err
	})
	if err != nil {
		return err
	}
	u, err := m.Stop()
	if err != nil {
		return err
	}
	out.CPU, out.Reads, out.ReadBytes = u.Server.Seconds(), count.Reads.Load(), count.Bytes.Load()
	if out.Peak, err = s.Process.PeakRSS(); err != nil {
		return err
	}
	out.Add(fetched)
	b.Logf("%d clients: %d downloads, first bytes after %s ms, %s MB", out.Clients, out.Reads, measure.SpreadOf(out.First), measure.Megabytes(out.Peak))
	out.Run = b.since(ctx, began, b.mirrors(b.upstream.Addr)[:1])
	out.Run.Rounds = 1
	b.results.Crowd = out
	return nil
}

// Title is the heading.
func (c *Crowd) Title() string { return "Many clients and one blob that nobody has pulled before" }

// Head says how the part was measured.
func (c *Crowd) Head() string { return c.Run.Head() }

// About says what was done.
func (c *Crowd) About() string {
	return fmt.Sprintf("%d clients, which are connected before, ask a Slipway with an empty store for one layer at the same time. The layer has %d MiB. A proxy before the upstream counts what is asked for there.", c.Clients, c.Size>>20)
}

// Targets returns the target that the blob is downloaded once.
func (c *Crowd) Targets() []measure.Target {
	return []measure.Target{
		{Scenario: "crowd", What: "downloads of the blob from the upstream", Limit: 1, Figure: float64(c.Reads)},
		{Scenario: "crowd", What: "bytes of it from the upstream / size", Limit: 1, Figure: float64(c.ReadBytes) / float64(c.Size)},
	}
}

// Write writes the table.
func (c *Crowd) Write(w *strings.Builder) {
	c.Table(w, "downloads", "MB from the upstream")
}

// Pictures returns no pictures.
func (c *Crowd) Pictures() []measure.Picture { return nil }
