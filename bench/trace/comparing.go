package trace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/bench/rival"
)

// Compare is the replay of one trace to several registries by one command.
type Compare struct {
	Run      measure.Run   `json:"run"`
	Minutes  int           `json:"minutes"`
	Speed    int           `json:"speed"`
	Page     string        `json:"page,omitempty"` // the report that was kept
	Replay   measure.Spent `json:"replay"`
	Servers  []Rival       `json:"servers"`
	Compared []Compared    `json:"compared"`
}

// Rival is a server with the replay's figures for it.
type Rival struct {
	Name    string        `json:"name"`
	Version string        `json:"version,omitempty"`
	Missing string        `json:"missing,omitempty"` // why it was not measured
	Summary replaySummary `json:"summary"`
	// CPU is the total CPU time of the server in seconds, PeakRSS its largest resident set in
	// bytes.
	CPU     float64 `json:"cpu"`
	PeakRSS int64   `json:"peak_rss"`
}

// Compared is the comparison of a server with the first server.
type Compared struct {
	Base    string   `json:"base"`
	Other   string   `json:"other"`
	Changes []Change `json:"changes"`
}

// Change is a metric's change against the first server, as a share of that server's figure, with
// the confidence interval.
type Change struct {
	Metric string `json:"metric"`
	Change struct {
		Value float64 `json:"value"`
		Low   float64 `json:"low"`
		High  float64 `json:"high"`
	} `json:"change"`
	Differs bool `json:"differs"`
}

const (
	// compareMinutes of a busy hour are replayed at compareSpeed times the recorded speed, with
	// blobs of compareScale times the recorded size.
	compareMinutes = 15
	compareSpeed   = 20
	compareScale   = "0.05"
	compareFrom    = "2017-06-20T14:00:00Z"
	// comparePage is the name of the page that is kept beside the results.
	comparePage = "bench-trace-compare.html"
	// oldDistribution takes the place of Distribution 3 if that is not available.
	oldDistribution = "distribution-2.8"
	// compareBytes is the maximum size of the servers' data.
	compareBytes = 4e9
)

func runCompare(b *bench, ctx context.Context) error {
	began := time.Now()
	out := &Compare{Minutes: compareMinutes, Speed: compareSpeed}
	generate := []string{"trace", "generate", "--zone", "dal", "--seed", "1", "--days", "1"}
	if b.Run.Quick {
		out.Minutes, out.Speed = 12, 600
		generate = append(generate, "--requests", "20000")
	} else if err := b.needRoom("the comparison", compareBytes); err != nil {
		return err
	}
	store, result := b.NewDir(), b.NewDir()
	defer b.Remove(store, result)
	if _, _, err := b.Slipway(ctx, 0, append(generate, "-o", store)...); err != nil {
		return err
	}
	servers, err := out.start(b, ctx)
	defer func() {
		for _, s := range servers {
			s.Stop()
			b.Remove(s.Dir)
		}
	}()
	if err != nil {
		return err
	}
	if err := out.replay(b, ctx, store, result, servers); err != nil {
		return err
	}
	if b.o.Output.File != "" {
		out.Page = comparePage
		page, err := os.ReadFile(filepath.Join(result, "report.html"))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(filepath.Dir(b.o.Output.File), comparePage), page, 0o644); err != nil {
			return err
		}
	}
	out.Run = b.Since(began)
	out.Run.Rounds = 1
	b.results.Compare = out
	return nil
}

// start starts the available servers. It returns the started servers even with an error.
func (c *Compare) start(b *bench, ctx context.Context) ([]*rival.Server, error) {
	specs := []*rival.Spec{rival.Slipway("slipway", b.Binary, true), rival.Distribution3("distribution-3"), rival.Zot("zot", false)}
	if specs[1].Binary == "" {
		specs = append(specs, rival.Distribution2(oldDistribution))
	}
	var servers []*rival.Server
	for _, sp := range specs {
		if sp.Binary == "" {
			c.Servers = append(c.Servers, Rival{Name: sp.Name, Missing: sp.Why})
			continue
		}
		s, err := rival.Start(ctx, sp, b.NewDir())
		if err != nil {
			return servers, err
		}
		servers = append(servers, s)
		c.Servers = append(c.Servers, Rival{Name: sp.Name, Version: sp.Version(ctx)})
	}
	if len(servers) < 2 {
		return servers, errors.New("there is no other registry: name one with SLIPWAY_BENCH_ZOT or SLIPWAY_BENCH_DISTRIBUTION")
	}
	return servers, nil
}

// server returns the entry of a server.
func (c *Compare) server(name string) *Rival {
	for i := range c.Servers {
		if c.Servers[i].Name == name {
			return &c.Servers[i]
		}
	}
	return nil
}

// replay replays to all servers and reads the result.
func (c *Compare) replay(b *bench, ctx context.Context, store, result string, servers []*rival.Server) error {
	from, err := time.Parse(time.RFC3339, compareFrom)
	if err != nil {
		return err
	}
	args := []string{"trace", "replay", store, "-o", result, "--each", "--level", "L1", "--from", compareFrom,
		"--to", from.Add(time.Duration(c.Minutes) * time.Minute).Format(time.RFC3339), "--speed", fmt.Sprintf("%dx", c.Speed),
		"--size-scale", compareScale, "--quiet", "--no-docker-config"}
	compare := []string{"trace", "compare", "--format", "json"}
	meters := map[string]*measure.Meter{}
	for _, s := range servers {
		args = append(args, "--target", s.Name+"=http://"+s.Addr)
		compare = append(compare, filepath.Join(result, s.Name))
		if meters[s.Name], err = measure.StartMeter(s.Process.Pid()); err != nil {
			return err
		}
	}
	var out []byte
	out, c.Replay, err = b.Slipway(ctx, 0, args...)
	if err != nil && !measure.Judged(err) {
		return err
	}
	b.Logf("replayed to %d registries in %.0f s; %s", len(servers), c.Replay.Wall, measure.LastLine(out))
	for _, s := range servers {
		r := c.server(s.Name)
		u, err := meters[s.Name].Stop()
		if err != nil {
			return err
		}
		r.CPU = u.Server.Seconds()
		if _, r.PeakRSS, err = s.Memory(); err != nil {
			return err
		}
		if err := measure.ReadJSON(&r.Summary, result, s.Name, "summary.json"); err != nil {
			return err
		}
		if r.Summary.Requests == 0 {
			return fmt.Errorf("nothing was sent to %s", s.Name)
		}
	}
	_, err = b.Answer(ctx, 0, &c.Compared, compare...)
	return err
}

// Title is the heading.
func (c *Compare) Title() string { return "One trace, several registries" }

// Head says how the part was measured.
func (c *Compare) Head() string {
	out := c.Run.Head()
	for _, s := range c.Servers {
		if s.Missing != "" {
			out += "\n- " + s.Name + ": not measured: " + s.Missing
			continue
		}
		out += "\n- " + s.Name + ": " + s.Version
	}
	return out
}

// About says what was done.
func (c *Compare) About() string {
	page := ""
	if c.Page != "" {
		page = fmt.Sprintf(" Its page, with plots, is kept as `%s` beside the raw figures.", c.Page)
	}
	return fmt.Sprintf("%d min of an afternoon of a synthetic dal are replayed at level L1, %d times as fast as they were, with layers of %s times their size, by one command: to one registry after the other.%s "+
		"Latencies are from the intended time. CPU is the server's in all, including the content put in place before and the time without requests. Ratios are to the first, with intervals of 95 %%.",
		c.Minutes, c.Speed, compareScale, page)
}

// Targets returns the promise about a replay: that there is a comparison.
func (c *Compare) Targets() []measure.Target {
	none := 0
	for _, s := range c.Servers {
		if s.Missing != "" && s.Name != oldDistribution {
			none++
		}
	}
	return []measure.Target{{Scenario: "compare", What: "registries compared in one report", Limit: 3, AtLeast: true, Figure: float64(len(c.Compared) + 1), Missing: none > 0}}
}

// Write writes the tables.
func (c *Compare) Write(w *strings.Builder) {
	var rows [][]string
	for _, s := range c.Servers {
		if s.Missing != "" {
			continue
		}
		sum := s.Summary
		valid := "yes"
		if !sum.Valid {
			valid = "no: " + sum.Verdict
		}
		rows = append(rows, []string{s.Name, valid, fmt.Sprint(sum.Requests), fmt.Sprint(sum.Requests - sum.Outcomes["ok"]),
			measure.Figure(sum.Latency.P50), measure.Figure(sum.Latency.P99),
			measure.Figure(sum.Service.P50), measure.Figure(sum.Service.P99), measure.Figure(s.CPU), measure.Figure(float64(s.PeakRSS) / 1e6), measure.Figure(sum.WarmUp.Seconds), measure.Figure(sum.Lag.P99)})
	}
	measure.Table(w, 2, []string{"server", "valid", "requests", "errors", "latency p50 ms", "p99", "service p50 ms", "p99", "server CPU s", "peak RSS MB", "put in place, s", "lag p99 ms"}, rows)
	rows = nil
	for _, p := range c.Compared {
		row := []string{p.Other}
		for _, metric := range []string{"p50", "p99", "mean", "service-p50", "service-p99"} {
			row = append(row, p.change(metric))
		}
		rows = append(rows, row)
	}
	if len(rows) > 0 {
		fmt.Fprintf(w, "\nMore than %s, in %%:\n\n", c.Compared[0].Base)
		measure.Table(w, 1, []string{"server", "latency p50", "p99", "mean", "service p50", "p99"}, rows)
	}
}

// change formats a metric with its interval, in per cent.
func (p *Compared) change(metric string) string {
	for _, ch := range p.Changes {
		if ch.Metric == metric {
			return fmt.Sprintf("%+.0f (%+.0f to %+.0f)", 100*ch.Change.Value, 100*ch.Change.Low, 100*ch.Change.High)
		}
	}
	return "-"
}

// Pictures returns no pictures: the page has them.
func (c *Compare) Pictures() []measure.Picture { return nil }
