package cider

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/internal/corpus"
	"example.org/slipway/integration/internal/ctrnode"
	"example.org/slipway/integration/internal/tasks"
	"example.org/slipway/integration/internal/tool"
)

// Throughput says how fast applications are when everything they need is present.
type Throughput struct {
	Run  measure.Run     `json:"run"`
	List []ThroughputOne `json:"list"`
}

// ThroughputOne holds the rates of one application, per second, by way and round.
type ThroughputOne struct {
	Name   string               `json:"name"`
	PerSec map[string][]float64 `json:"per_sec"`
	// Why says why the rates were not measured.
	Why string `json:"why,omitempty"`
}

// application is an application whose speed is measured. A program of this machine
// measures a service of an image, or a script in the image prints how fast it was.
type application struct {
	series, name string
	program      string
	prepare      []string
	args         []string
	script       string
	after        string // the word in front of the rate
}

func applications(quick bool) []application {
	requests, seconds := "60000", "10"
	if quick {
		requests, seconds = "5000", "2"
	}
	pgbench := func(args ...string) []string {
		return append(args, "-h", "127.0.0.1", "-U", "postgres", "postgres")
	}
	return []application{
		{series: "nginx", name: "nginx, a page (ab)", program: "ab", args: []string{"-q", "-k", "-n", requests, "-c", "10", "http://127.0.0.1:6402/"}, after: "Requests per second:"},
		{series: "postgres", name: "postgres, TPC-B (pgbench)", program: "pgbench", prepare: pgbench("-i", "-q", "-s", "2"), args: pgbench("-c", "4", "-T", seconds), after: "tps ="},
		{series: "python", name: "python, a solver", script: solver, after: "rate"},
	}
}

// solver places queens and loads modules again and again, as larger programs do when they
// start.
const solver = `cat >/tmp/solver.py <<'X'
import time, subprocess, sys
def queens(n, row=0, cols=0, d1=0, d2=0):
    if row == n: return 1
    total, free = 0, ((1 << n) - 1) & ~(cols | d1 | d2)
    while free:
        bit = free & -free
        free ^= bit
        total += queens(n, row + 1, cols | bit, (d1 | bit) << 1, (d2 | bit) >> 1)
    return total
begin = time.monotonic()
rounds = 0
while time.monotonic() - begin < 5:
    assert queens(8) == 92
    subprocess.run([sys.executable, "-c", "import json, decimal, email.message, unittest"], check=True)
    rounds += 1
print("rate", rounds / (time.monotonic() - begin))
X
PYTHONDONTWRITEBYTECODE=1 python3 /tmp/solver.py`

func runThroughput(b *bench, ctx context.Context) error {
	began := time.Now()
	out := &Throughput{}
	b.results.Throughput = out
	defer func() { out.Run = b.Since(began) }()
	var errs []error
	for _, app := range applications(b.Run.Quick) {
		one := ThroughputOne{Name: app.name, PerSec: map[string][]float64{}}
		if err := b.application(ctx, app, &one); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", app.name, err))
		}
		out.List = append(out.List, one)
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// application measures one application in all ways, in an order that changes from round to round. A
// first run does not count.
func (b *bench) application(ctx context.Context, app application, out *ThroughputOne) (err error) {
	i := slices.IndexFunc(b.all, func(im *corpus.Image) bool { return im.Series == app.series })
	if i < 0 {
		out.Why = "no image"
		return nil
	}
	if app.program != "" {
		if app.program, err = tool.Find(app.program); err != nil {
			out.Why = app.program + " is not installed"
			return nil
		}
	}
	im := b.all[i]
	if err := b.ready(ctx, []*corpus.Image{im}); err != nil {
		return err
	}
	nodes := map[string]*ctrnode.Node{}
	defer func() {
		for _, n := range nodes {
			err = errors.Join(err, n.Stop())
		}
	}()
	ways := b.ways()
	for i, way := range ways {
		n, err := b.node(ctx, way, i)
		if err != nil {
			return err
		}
		nodes[way] = n
		if err := n.Pull(ctx, ref(b.registry, im)); err != nil {
			return err
		}
		if _, err := b.rate(ctx, n, im, app); err != nil {
			return fmt.Errorf("%s: %w", way, err)
		}
	}
	for round := range b.o.Rounds {
		for i := range ways {
			way := ways[(i+round)%len(ways)]
			rate, err := b.rate(ctx, nodes[way], im, app)
			if err != nil {
				return fmt.Errorf("%s: %w", way, err)
			}
			out.PerSec[way] = append(out.PerSec[way], rate)
			b.Logf("%-28s %-8s %s/s", app.name, way, measure.Figure(rate))
		}
	}
	return nil
}

// rate runs the application in a new container.
func (b *bench) rate(ctx context.Context, n *ctrnode.Node, im *corpus.Image, app application) (rate float64, err error) {
	if app.script != "" {
		t := tasks.Task{Series: app.series, Name: app.name, Args: []string{"/bin/sh", "-ec", app.script}, Timeout: time.Minute}
		r, err := n.Tasks().Run(ctx, ref(b.registry, im), containerID(), t)
		if err != nil {
			return 0, err
		}
		return app.find(r.Output)
	}
	run := n.Tasks()
	run.Running = func(pid int) error {
		inside := func(args []string) (string, error) {
			out, err := exec.CommandContext(ctx, "nsenter", append([]string{"--net=/proc/" + strconv.Itoa(pid) + "/ns/net", app.program}, args...)...).CombinedOutput()
			if err != nil {
				return "", fmt.Errorf("%s: %w: %s", app.program, err, out)
			}
			return string(out), nil
		}
		if len(app.prepare) > 0 {
			if _, err := inside(app.prepare); err != nil {
				return err
			}
		}
		out, err := inside(app.args)
		if err != nil {
			return err
		}
		rate, err = app.find(out)
		return err
	}
	_, err = run.Run(ctx, ref(b.registry, im), containerID(), task(im))
	return rate, err
}

// find finds the rate in the program's output.
func (a *application) find(out string) (float64, error) {
	_, rest, ok := strings.Cut(out, a.after)
	f := strings.Fields(rest)
	if !ok || len(f) == 0 {
		return 0, fmt.Errorf("no %q in %q", a.after, out)
	}
	return strconv.ParseFloat(f[0], 64)
}

// Title returns the heading.
func (t *Throughput) Title() string { return "Throughput of applications" }

// Head says how the part was measured.
func (t *Throughput) Head() string { return t.Run.Head() }

// About says what was done.
func (t *Throughput) About() string {
	return "Each mode has a node with the image, on which one run was made first and not counted. In each round a new container runs in each mode in turn. Programs of this machine send requests to nginx and postgres in the container's network; postgres keeps its data in the container. Ratios are ratios of medians. Cider's own figures (Figure 11, five minutes each): nginx and postgres very close to overlay, the solver loses less than 0.3 %."
}

// Targets returns the target that rates reach 0.97 of overlay's rate.
func (t *Throughput) Targets() (list []measure.Target) {
	for _, one := range t.List {
		plain, own := measure.SpreadOf(one.PerSec[ctrnode.Plain]), measure.SpreadOf(one.PerSec[ctrnode.VolumeLocal])
		target := measure.Target{Scenario: "throughput", What: one.Name + ", local / overlay", Limit: 0.97, AtLeast: true, Missing: plain.Median <= 0 || own.N == 0}
		if !target.Missing {
			target.Figure = own.Median / plain.Median
		}
		list = append(list, target)
	}
	return list
}

// Write writes the table.
func (t *Throughput) Write(w *strings.Builder) {
	ways := []string{ctrnode.Plain, ctrnode.Gear, ctrnode.VolumeLocal, ctrnode.VolumeNetwork}
	head := []string{"application, per second"}
	for _, way := range ways {
		head = append(head, wayTitle(way))
	}
	var rows [][]string
	for _, one := range t.List {
		row := []string{one.Name}
		if one.Why != "" {
			row[0] += " (" + one.Why + ")"
		}
		for _, way := range ways {
			row = append(row, measure.SpreadOf(one.PerSec[way]).String())
		}
		rows = append(rows, row)
	}
	measure.Table(w, 1, head, rows)
}

// Pictures returns no pictures.
func (t *Throughput) Pictures() []measure.Picture { return nil }
