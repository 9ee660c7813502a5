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
	Run     Run   `json:"run"`
	Clients int   `json:"clients"`
	Size    int64 `json:"size"`
	// Reads is the number of times that the upstream was asked for the blob. ReadBytes is what it
	// sent of the blob.
	Reads     int64 `json:"reads"`
	ReadBytes int64 `json:"read_bytes"`
	// First holds the times to each client's first byte, All the times to the last byte, in
	// milliseconds.
	First []float64 `json:"first_ms"`
	All   []float64 `json:"all_ms"`
	// Idle is Slipway's resident set before, and Peak its largest resident set afterwards, in
	// bytes.
	Idle int64 `json:"idle_rss"`
	Peak int64 `json:"peak_rss"`
	// CPU is Slipway's CPU time in seconds.
	CPU float64 `json:"cpu_seconds"`
}

func runCrowd(b *bench, ctx context.Context) error {
	began := time.Now()
	im, err := b.largeImage(ctx)
	if err != nil {
		return err
	}
	out := &Crowd{Clients: b.o.clients, Size: im.layer.Size}
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
	for _, f := range fetched {
		out.First = append(out.First, f.First.Seconds()*1e3)
		out.All = append(out.All, f.All.Seconds()*1e3)
	}
	b.Logf("%d clients: %d downloads, first bytes after %s ms, %s MB", out.Clients, out.Reads, measure.SpreadOf(out.First), measure.Megabytes(out.Peak))
	out.Run = b.since(ctx, began, b.mirrors(b.upstream.Addr)[:1])
	out.Run.Rounds = 1
	b.results.Crowd = out
	return nil
}

// Title is the heading.
func (c *Crowd) Title() string { return "Many clients and one blob that nobody has pulled before" }

// Head says how it was measured.
func (c *Crowd) Head() string { return c.Run.Head() }

// About says what was done.
func (c *Crowd) About() string {
	return fmt.Sprintf("%d clients, connected before, ask a Slipway that has nothing at once for one layer of %d MiB. A proxy before the upstream counts what is asked for there.", c.Clients, c.Size>>20)
}

// Targets returns the target of one download.
func (c *Crowd) Targets() []measure.Target {
	return []measure.Target{
		{Scenario: "crowd", What: "downloads of the blob from the upstream", Limit: 1, Figure: float64(c.Reads)},
		{Scenario: "crowd", What: "bytes of it from the upstream / size", Limit: 1, Figure: float64(c.ReadBytes) / float64(c.Size)},
	}
}

// Write writes the table.
func (c *Crowd) Write(w *strings.Builder) {
	all := measure.SpreadOf(c.All)
	measure.Table(w, 0, []string{"clients", "downloads", "MB from the upstream", "first byte, ms", "last byte, ms", "MB/s to all", "idle RSS MB", "peak RSS MB", "server CPU s"}, [][]string{{
		fmt.Sprint(c.Clients), fmt.Sprint(c.Reads), measure.Megabytes(c.ReadBytes), measure.SpreadOf(c.First).String(), all.String(),
		measure.Figure(float64(c.Clients) * float64(c.Size) / 1e3 / max(all.Max, 1e-3)), measure.Megabytes(c.Idle), measure.Megabytes(c.Peak), measure.Figure(c.CPU),
	}})
}

// Pictures returns no pictures.
func (c *Crowd) Pictures() []measure.Picture { return nil }
