package mirrors

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"example.org/slipway/integration/bench/measure"
)

// Large describes the pull of a blob that nobody has pulled before.
type Large struct {
	Run   Run    `json:"run"`
	Size  int64  `json:"size"`
	Links []Link `json:"links"`
}

// Link is one way to the upstream.
type Link struct {
	Name string `json:"name"`
	// Direct and Through hold downloads from the upstream and through Slipway, by round.
	Direct  []Download `json:"direct"`
	Through []Download `json:"through"`
}

// Download is one download, with times in milliseconds.
type Download struct {
	First float64 `json:"first_ms"`
	All   float64 `json:"all_ms"`
	// CPU is Slipway's CPU time in seconds. OtherCPUs is the number of CPUs that everything else
	// kept busy.
	CPU       float64 `json:"cpu_sec,omitempty"`
	OtherCPUs float64 `json:"other_cpus"`
	// PeakRSS is Slipway's largest resident set, in bytes.
	PeakRSS int64 `json:"peak_rss,omitempty"`
}

// These are the names of the ways to the upstream.
const (
	linkLoopback = "loopback"
	linkGigabit  = "1 Gbit/s"
	gigabit      = 125_000_000 // bytes per second
)

func runLarge(b *bench, ctx context.Context) error {
	began := time.Now()
	im, err := b.largeImage(ctx)
	if err != nil {
		return err
	}
	out := &Large{Size: im.layer.Size}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	narrow, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	wg.Go(func() { shape(ctx, narrow, b.upstream.Addr, gigabit) })
	for _, l := range []struct{ name, addr string }{{linkLoopback, b.upstream.Addr}, {linkGigabit, narrow.Addr().String()}} {
		link := Link{Name: l.name}
		arms := []func() error{
			func() error { return b.direct(ctx, &link, l.addr, im) },
			func() error { return b.through(ctx, &link, l.addr, im) },
		}
		for range b.Run.Rounds {
			for _, arm := range arms {
				if err := arm(); err != nil {
					return fmt.Errorf("%s: %w", l.name, err)
				}
			}
			slices.Reverse(arms)
		}
		out.Links = append(out.Links, link)
		b.Logf("%-10s first byte %s ms more, all of it at %s of the rate", l.name, measure.SpreadOf(link.later()), measure.SpreadOf(link.share()))
	}
	out.Run = b.since(ctx, began, b.mirrors(b.upstream.Addr)[:1])
	b.results.Large = out
	return nil
}

// direct downloads from the upstream.
func (b *bench) direct(ctx context.Context, l *Link, addr string, im *large) error {
	d, err := b.download(ctx, addr, im.repo, im)
	l.Direct = append(l.Direct, d)
	return err
}

// through downloads the image through a Slipway with an empty store.
func (b *bench) through(ctx context.Context, l *Link, addr string, im *large) error {
	s, err := b.slipway(ctx, addr)
	if err != nil {
		return err
	}
	defer b.end(s)
	before, err := measure.CPUTime(s.Process.Pid())
	if err != nil {
		return err
	}
	d, err := b.download(ctx, s.Addr, upstreamName+"/"+im.repo, im)
	if err != nil {
		return err
	}
	after, err := measure.CPUTime(s.Process.Pid())
	d.CPU = (after - before).Seconds()
	if err == nil {
		d.PeakRSS, err = s.Process.PeakRSS()
	}
	l.Through = append(l.Through, d)
	return err
}

// download fetches the manifest, and then the layer over the same connection.
func (b *bench) download(ctx context.Context, addr, repo string, im *large) (Download, error) {
	client := &http.Client{Transport: &http.Transport{DisableCompression: true, ReadBufferSize: 64 << 10}}
	defer client.CloseIdleConnections()
	if err := getManifest(ctx, client, "http://"+addr, repo, im.manifest); err != nil {
		return Download{}, err
	}
	m, err := measure.NewMeter()
	if err != nil {
		return Download{}, err
	}
	f, err := measure.Get(ctx, client, "http://"+addr+"/v2/"+repo+"/blobs/"+im.layer.Digest, im.layer.Size, make([]byte, 1<<20))
	if err != nil {
		return Download{}, err
	}
	u, err := m.Stop()
	return Download{First: f.First.Seconds() * 1e3, All: f.All.Seconds() * 1e3, OtherCPUs: u.OtherCPUs}, err
}

// getManifest fetches a manifest, which is how every pull begins.
func getManifest(ctx context.Context, client *http.Client, registry, repo, digest string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, registry+"/v2/"+repo+"/manifests/"+digest, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/vnd.oci.image.manifest.v1+json")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET manifest %s of %s: status %d", digest, repo, resp.StatusCode)
	}
	return nil
}

// shape forwards the connections of a listener to a host:port until the context ends. On each
// connection at most perSecond bytes a second come back.
func shape(ctx context.Context, l net.Listener, target string, perSecond int64) {
	var wg sync.WaitGroup
	defer wg.Wait()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	for {
		near, err := l.Accept()
		if err != nil {
			return // the context has ended
		}
		wg.Go(func() {
			defer near.Close()
			var d net.Dialer
			far, err := d.DialContext(ctx, "tcp", target)
			if err != nil {
				return // the client sees that the connection ends
			}
			defer far.Close()
			stop := context.AfterFunc(ctx, func() { near.Close(); far.Close() })
			defer stop()
			go func() { // ends with the connections
				_, _ = io.Copy(far, near)
				_ = far.(*net.TCPConn).CloseWrite()
			}()
			paced(near, far, perSecond)
		})
	}
}

// paced copies at most perSecond bytes a second. It does not make up for periods in which
// it copied less.
func paced(to io.Writer, from io.Reader, perSecond int64) {
	buf := make([]byte, 128<<10)
	var free time.Time
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if wait := time.Until(free); wait > 0 {
				time.Sleep(wait)
			} else if wait < -5*time.Millisecond {
				free = time.Now()
			}
			free = free.Add(time.Duration(int64(n) * int64(time.Second) / perSecond))
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// later returns by how many milliseconds the first byte is later through Slipway than
// directly.
func (l *Link) later() []float64 {
	var out []float64
	for i := range min(len(l.Direct), len(l.Through)) {
		out = append(out, l.Through[i].First-l.Direct[i].First)
	}
	return out
}

// over returns the time to the first byte divided by what the target allows.
func (l *Link) over() []float64 {
	var out []float64
	for i := range min(len(l.Direct), len(l.Through)) {
		out = append(out, l.Through[i].First/(1.1*l.Direct[i].First+1))
	}
	return out
}

// share returns the rate through Slipway divided by the direct rate.
func (l *Link) share() []float64 {
	var out []float64
	for i := range min(len(l.Direct), len(l.Through)) {
		out = append(out, l.Direct[i].All/l.Through[i].All)
	}
	return out
}

// Title is the heading.
func (x *Large) Title() string { return "A large blob that nobody has pulled before" }

// Head says how the part was measured.
func (x *Large) Head() string { return x.Run.Head() }

// About says what was done.
func (x *Large) About() string {
	return fmt.Sprintf("A client downloads a layer of %d MiB from the upstream and through a Slipway that has nothing, in turn; the manifest was fetched before, over the same connection, because every pull begins with it. The client counts bytes and hashes nothing. On the loopback the upstream, Slipway and the client share the processors, and a second copy of the bytes takes a part of them; the other link is as wide as a network card of 1 Gbit/s.", x.Size>>20)
}

// Targets returns the project's targets.
func (x *Large) Targets() []measure.Target {
	var out []measure.Target
	for i := range x.Links {
		l := &x.Links[i]
		out = append(out,
			measure.TargetOf("large", l.Name+": first byte / (1.1 of the direct + 1 ms)", 1, false, l.over()),
			measure.TargetOf("large", l.Name+": whole transfer, share of the direct rate", 0.9, true, l.share()))
	}
	return out
}

// Write writes the table.
func (x *Large) Write(w *strings.Builder) {
	var rows [][]string
	for i := range x.Links {
		l := &x.Links[i]
		of := func(list []Download, f func(Download) float64) string {
			var v []float64
			for _, d := range list {
				v = append(v, f(d))
			}
			return measure.SpreadOf(v).String()
		}
		rate := func(d Download) float64 { return float64(x.Size) / 1e3 / d.All }
		first := func(d Download) float64 { return d.First }
		rows = append(rows, []string{l.Name, of(l.Direct, first), of(l.Through, first), of(l.Direct, rate), of(l.Through, rate), measure.SpreadOf(l.share()).String(),
			of(l.Through, func(d Download) float64 { return d.CPU / (float64(x.Size) / 1e9) }), of(l.Through, func(d Download) float64 { return float64(d.PeakRSS) / 1e6 })})
	}
	measure.Table(w, 1, []string{"link", "first byte ms, direct", "through Slipway", "MB/s, direct", "through Slipway", "share", "CPU s/GB", "peak RSS MB"}, rows)
}

// Pictures returns no pictures.
func (x *Large) Pictures() []measure.Picture { return nil }
