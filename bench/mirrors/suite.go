// Package mirrors measures Slipway as a mirror of another registry. It runs the load test
// of Ociregistry, with Ociregistry beside it. It measures how soon a large blob that
// nobody has pulled before begins to arrive, and how fast it comes. It also measures what
// happens when many clients ask for such a blob at once.
//
// Servers are real processes on free loopback ports, each with its own directory. The
// upstream is Distribution: version 3 if SLIPWAY_BENCH_DISTRIBUTION names it, otherwise
// Debian's version. Ociregistry takes part if SLIPWAY_BENCH_OCIREGISTRY names it.
//
// Results go to a JSON file (-out). Results of scenarios that did not run stay in the
// file as they are. The report can be made again from the file (-from). The exit status
// is 1 if something could not be measured, or if -check finds a target missed.
package mirrors

import (
	"context"
	"errors"
	"flag"
	"path/filepath"
	"time"

	"example.org/slipway/integration/bench/measure"
)

// options are the options of the command line.
type options struct {
	measure.Options
	prepared                 string
	images, batches, clients int
	step                     time.Duration
	check                    time.Duration // how long mirrors pull to prove that they use the upstream
	sizeMiB                  int64
}

func parse(args []string) (*options, error) {
	o := &options{check: 2 * time.Second}
	fl := flag.NewFlagSet("bench mirrors", flag.ContinueOnError)
	o.Add(fl, measure.Defaults{Scenarios: measure.Names(scenarios()), Rounds: 3, Dir: "the servers' data; on the disk to measure",
		Quick: "a tenth of the images, short steps, a small blob, few clients, one round"})
	fl.StringVar(&o.prepared, "prepared", "", "`directory` that keeps the upstream with the pushed images from run to run (default: none)")
	fl.IntVar(&o.images, "images", 1500, "`number` of images of the load test")
	fl.IntVar(&o.batches, "batches", 10, "`number` of their batches, and of pullers at most")
	fl.DurationVar(&o.step, "step", 5*time.Second, "`time` with one number of pullers")
	fl.IntVar(&o.clients, "clients", 100, "`number` of clients of the crowd")
	fl.Int64Var(&o.sizeMiB, "size", 1024, "size of the large blob in `MiB`")
	if err := fl.Parse(args); err != nil {
		return nil, err
	}
	if o.Command == "" {
		o.Command = measure.Described(fl, "scripts/bench-mirrors.sh", []string{"scenario", "rounds", "images", "batches", "step", "clients", "size"}, []string{"quick"})
	}
	if o.Quick {
		o.quicken(measure.Given(fl))
	}
	if o.batches < 1 || o.batches > 1000 || o.images < o.batches || o.step <= 0 || o.clients < 1 || o.sizeMiB < 1 {
		return nil, errors.New("-batches (at most 1000), -step, -clients and -size must be above 0, and there must be an image for each batch")
	}
	return o, o.Validate(fl)
}

// quicken reduces the amount of work that the command line does not set.
func (o *options) quicken(given map[string]bool) {
	less := func(name string, change func()) {
		if !given[name] {
			change()
		}
	}
	less("images", func() { o.images = 150 })
	less("step", func() { o.step = 300 * time.Millisecond })
	less("clients", func() { o.clients = 10 })
	less("size", func() { o.sizeMiB = 32 })
	less("rounds", func() { o.Rounds = 1 })
}

// scenarios returns all scenarios, in the order in which they run.
func scenarios() []measure.Scenario[*bench] {
	return []measure.Scenario[*bench]{{Name: "load", Run: runLoad}, {Name: "large", Run: runLarge}, {Name: "crowd", Run: runCrowd}}
}

// Suite returns the suite.
func Suite() measure.Suite {
	return measure.NewSuite("mirrors", "Slipway as a mirror of another registry", parse, measure.Measuring(marks(), (*options).measure))
}

// measure runs the scenarios. It returns no results if none was begun.
func (o *options) measure(ctx context.Context) (r *Results, err error) {
	list, err := measure.Choose(scenarios(), o.Scenarios)
	if err != nil {
		return nil, err
	}
	in, err := o.Start("mirrorbench")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	b := &bench{Bench: in, o: o, results: &Results{}}
	prepared := filepath.Join(in.Dir, "upstream")
	if o.prepared != "" {
		if prepared, err = filepath.Abs(o.prepared); err != nil {
			return nil, err
		}
	}
	if err := b.startUpstream(ctx, prepared); err != nil {
		return nil, err
	}
	defer b.upstream.Stop()
	return b.results, measure.RunAll(ctx, b, list, nil)
}
