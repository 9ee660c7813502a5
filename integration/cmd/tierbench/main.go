// Command tierbench measures the tiers of slipway serve: memory and SSD in front of an
// object store, the prefetchers, and what many clients and many blobs do to them.
//
// Everything is done by the binary, in processes of its own, on real object stores
// (Swift, versitygw, Ceph's gateway where it is installed) that run on free loopback
// ports with directories of their own. Traces are generated; where the real sample is at
// hand (-traces), caches are simulated on it, too.
//
// Results go to a file of JSON (-out); scenarios that did not run keep what the file says
// of them already. The report can be made again from it (-from). The exit status is 1 if
// something could not be measured, or if -check finds a target missed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"example.org/slipway/integration/internal/measure"
)

// options are the command line.
type options struct {
	binary, scenarios, dir, traces string
	rounds                         int
	quick, check                   bool
	commit, command                string
	output                         measure.Output
}

func parse(args []string) (*options, error) {
	o := &options{}
	fl := flag.NewFlagSet("tierbench", flag.ContinueOnError)
	fl.StringVar(&o.binary, "bin", os.Getenv("SLIPWAY_BIN"), "slipway `binary` to measure (default $SLIPWAY_BIN)")
	fl.StringVar(&o.scenarios, "scenario", "", "`names` of the scenarios to run, separated by commas (default all: "+measure.Names(scenarios())+")")
	fl.StringVar(&o.dir, "dir", "/var/tmp", "`directory` for traces, stores and the servers' data; on the disk to measure")
	fl.StringVar(&o.traces, "traces", os.Getenv("SLIPWAY_TRACES"), "`directory` of the real sample (default $SLIPWAY_TRACES; neither: it is not simulated)")
	fl.IntVar(&o.rounds, "rounds", 5, "`number` of rounds of what is measured in rounds")
	fl.BoolVar(&o.quick, "quick", false, "a quick look: few requests, small blobs, one round")
	fl.BoolVar(&o.check, "check", false, "compare with the targets")
	fl.StringVar(&o.commit, "commit", "unknown", "`commit` that is measured, for the report")
	fl.StringVar(&o.command, "command", "", "`command` that reproduces the run, for the report (default: the script with what was chosen to measure)")
	o.output.Add(fl)
	if err := fl.Parse(args); err != nil {
		return nil, err
	}
	if o.command == "" {
		o.command = described(fl)
	}
	switch {
	case fl.NArg() > 0:
		return nil, fmt.Errorf("unknown argument %q", fl.Arg(0))
	case o.output.From == "" && o.binary == "":
		return nil, errors.New("which slipway? Give -bin or SLIPWAY_BIN")
	case o.rounds < 1:
		return nil, errors.New("-rounds must be above 0")
	}
	if o.quick {
		given := false
		fl.Visit(func(f *flag.Flag) { given = given || f.Name == "rounds" })
		if !given {
			o.rounds = 1
		}
	}
	return o, nil
}

// described is the command line without what is this machine's own business.
func described(fl *flag.FlagSet) string {
	out := "scripts/bench-tiers.sh"
	fl.Visit(func(f *flag.Flag) {
		switch f.Name {
		case "scenario", "rounds":
			out += " -" + f.Name + " " + f.Value.String()
		case "quick":
			out += " -quick"
		}
	})
	return out
}

// scenarios returns all there are, in the order they run.
func scenarios() []measure.Scenario[*bench] {
	return []measure.Scenario[*bench]{
		{Name: "fig16", Run: runFig16}, {Name: "hits", Run: runHits}, {Name: "ratios", Run: runRatios},
		{Name: "prefetch", Run: runPrefetch}, {Name: "crowd", Run: runCrowd}, {Name: "start", Run: runStart},
	}
}

func main() {
	o, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "tierbench:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	good, err := o.run(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "tierbench:", err)
	}
	if err != nil || !good {
		stop()
		os.Exit(1)
	}
}

// run measures, or reads what was measured, and reports. It returns whether all targets
// are met, or none were to be checked.
func (o *options) run(ctx context.Context) (good bool, err error) {
	met, err := measure.Carry(&o.output, marks(), func() (*Results, error) { return o.measure(ctx) })
	return met || !o.check, err
}

// measure runs the scenarios. It returns no results if none was begun.
func (o *options) measure(ctx context.Context) (r *Results, err error) {
	list, err := measure.Choose(scenarios(), o.scenarios)
	if err != nil {
		return nil, err
	}
	if o.binary, err = filepath.Abs(o.binary); err != nil {
		return nil, err
	}
	if _, err := exec.LookPath(o.binary); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(o.dir, "slipway-tierbench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o755); err != nil { // nginx reads as somebody else
		return nil, err
	}
	b, err := newBench(o, dir)
	if err != nil {
		return nil, err
	}
	b.logf("measuring on %s", b.run.Machine)
	return b.results, b.runAll(ctx, list)
}
