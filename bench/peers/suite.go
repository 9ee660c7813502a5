// Package peers measures roll-outs in which nodes get an image from each other: with
// Slipway's agents, with Spegel beside containerd, and with containerd alone, which gets
// everything from the registry.
//
// Each node is a network namespace with a containerd of its own. Its link and the link of
// the registry, a Slipway, have the same rate in both directions. A node is ready when it
// has the whole image: containerd has pulled and unpacked it, or Slipway's agent has all of
// its files. What the registry sends is counted at its link. Root only.
//
// Results go to a JSON file (-out). Results of scenarios that did not run stay in the
// file as they are. The report can be made again from the file (-from). The exit status
// is 1 if something could not be measured, or if -check finds a target missed.
package peers

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"example.org/slipway/integration/bench/measure"
)

// options are the options of the command line.
type options struct {
	measure.Options
	systems            string
	nodes, group, mbit int
	mbytes             int
	every              time.Duration
	one                bool
}

func parse(args []string) (*options, error) {
	o := &options{}
	fl := flag.NewFlagSet("bench peers", flag.ContinueOnError)
	o.Add(fl, measure.Defaults{Scenarios: measure.Names(scenarios()), Rounds: 3,
		Dir: "the nodes; with a short path and not on overlayfs", Quick: "two nodes, a small image, one round"})
	fl.StringVar(&o.systems, "systems", strings.Join(systems, ","), "`names` of the systems to compare, separated by commas; Spegel takes part if SLIPWAY_BENCH_SPEGEL names it")
	fl.IntVar(&o.nodes, "nodes", 6, "`number` of nodes")
	fl.IntVar(&o.group, "group", 5, "`number` of nodes that start at a time, in the scenario staggered")
	fl.DurationVar(&o.every, "every", 10*time.Second, "`time` between two groups")
	fl.IntVar(&o.mbit, "mbit", 100, "rate of each link in `Mbit/s`")
	fl.IntVar(&o.mbytes, "mb", 300, "size of the image in `MiB`")
	fl.BoolVar(&o.one, "one-file", false, "the image is one file, and not many")
	if err := fl.Parse(args); err != nil {
		return nil, err
	}
	if o.Command == "" {
		o.Command = measure.Described(fl, "scripts/bench-peers.sh", []string{"scenario", "rounds", "systems", "nodes", "group", "every", "mbit", "mb"}, []string{"quick", "one-file"})
	}
	if o.Quick {
		o.quicken(measure.Given(fl))
	}
	return o, o.validate(fl)
}

// quicken reduces the amount of work that the command line does not set.
func (o *options) quicken(given map[string]bool) {
	for name, change := range map[string]func(){
		"nodes": func() { o.nodes = 2 }, "group": func() { o.group = 1 }, "every": func() { o.every = 2 * time.Second },
		"mb": func() { o.mbytes = 8 }, "rounds": func() { o.Rounds = 1 },
	} {
		if !given[name] {
			change()
		}
	}
}

func (o *options) validate(fl *flag.FlagSet) error {
	if err := o.Validate(fl); err != nil || o.Output.From != "" {
		return err
	}
	for _, s := range strings.Split(o.systems, ",") {
		if !slices.Contains(systems, s) {
			return fmt.Errorf("no system %q; there are %s", s, strings.Join(systems, ","))
		}
	}
	switch {
	case o.nodes < 2 || o.nodes > 200 || o.group < 1 || o.mbit < 1 || o.mbytes < 1 || o.every < 0:
		return errors.New("there must be 2 to 200 nodes, and -group, -mbit and -mb must be above 0")
	case os.Geteuid() != 0:
		return errors.New("namespaces and mounts need root")
	}
	return nil
}

// scenarios returns all scenarios, in the order in which they run.
func scenarios() []measure.Scenario[*bench] {
	return []measure.Scenario[*bench]{{Name: sceneTogether, Run: runTogether}, {Name: sceneStaggered, Run: runStaggered}}
}

const (
	sceneTogether  = "together"
	sceneStaggered = "staggered"
)

// Suite returns the suite.
func Suite() measure.Suite {
	return measure.NewSuite("peers", "roll-outs in which nodes get an image from each other", parse, measure.Measuring(marks(), (*options).measure))
}

// measure runs the scenarios. It returns no results if none was begun.
func (o *options) measure(ctx context.Context) (r *Results, err error) {
	list, err := measure.Choose(scenarios(), o.Scenarios)
	if err != nil {
		return nil, err
	}
	b, err := o.prepare(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.clear()) }()
	return b.results, measure.RunAll(ctx, b, list, nil)
}
