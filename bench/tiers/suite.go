// Package tiers measures the tiers of slipway serve: memory and SSD in front of an object
// store, the prefetchers, and the effect of many clients and many blobs on them.
//
// The binary does all the work, in separate processes, on real object stores (Swift,
// versitygw, and Ceph's gateway if it is installed). They run on free loopback ports,
// each with its own directory. Traces are generated. If the real sample is at hand
// (-traces), caches are simulated on it too.
//
// Results go to a JSON file (-out). Results of scenarios that did not run stay in the
// file as they are. The report can be made again from the file (-from). The exit status
// is 1 if something could not be measured, or if -check finds a target missed.
package tiers

import (
	"context"
	"errors"
	"flag"
	"os"

	"example.org/slipway/integration/bench/measure"
)

// options are the options of the command line.
type options struct {
	measure.Options
	traces string
	// These are the clients of the crowd and the size of the layer that they ask for.
	clients int
	size    int64
}

func parse(args []string) (*options, error) {
	o := &options{clients: 100, size: 1 << 30}
	fl := flag.NewFlagSet("bench tiers", flag.ContinueOnError)
	o.Add(fl, measure.Defaults{Scenarios: measure.Names(scenarios()), Rounds: 5, Dir: "traces, stores and the servers' data; on the disk to measure",
		Quick: "few requests, small blobs, one round"})
	fl.StringVar(&o.traces, "traces", os.Getenv("SLIPWAY_TRACES"), "`directory` of the real sample (default $SLIPWAY_TRACES; neither: it is not simulated)")
	if err := fl.Parse(args); err != nil {
		return nil, err
	}
	if o.Command == "" {
		o.Command = measure.Described(fl, "scripts/bench-tiers.sh", []string{"scenario", "rounds"}, []string{"quick"})
	}
	if o.Quick {
		o.size = 64 << 20
		if !measure.Given(fl)["rounds"] {
			o.Rounds = 1
		}
	}
	return o, o.Validate(fl)
}

// scenarios returns all scenarios, in the order in which they run.
func scenarios() []measure.Scenario[*bench] {
	return []measure.Scenario[*bench]{
		{Name: "fig16", Run: runFig16}, {Name: "hits", Run: runHits}, {Name: "ratios", Run: runRatios},
		{Name: "prefetch", Run: runPrefetch}, {Name: "crowd", Run: runCrowd}, {Name: "start", Run: runStart}, {Name: "replicas", Run: runReplicas},
	}
}

// Suite returns the suite.
func Suite() measure.Suite {
	return measure.NewSuite("tiers", "memory and SSD in front of object stores, and the prefetchers", parse, measure.Measuring(marks(), (*options).measure))
}

// measure runs the scenarios. It returns no results if none was begun.
func (o *options) measure(ctx context.Context) (r *Results, err error) {
	list, err := measure.Choose(scenarios(), o.Scenarios)
	if err != nil {
		return nil, err
	}
	in, err := o.Start("tierbench")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	b := &bench{Bench: in, o: o, results: &Results{}}
	return b.results, measure.RunAll(ctx, b, list, nil)
}
