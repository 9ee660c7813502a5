// Command tracebench measures slipway trace: how fast logs are imported, analysed and
// simulated, whether synthetic traces have the published figures, whether a replay
// sends requests when it should, and what a replay says of several registries.
//
// Everything is done by the binary, in processes of its own. Traces are generated;
// where the real sample is at hand (-traces), caches are simulated on it, too. Servers
// run on free loopback ports with directories of their own.
//
// Results go to a file of JSON (-out); scenarios that did not run keep what the file
// says of them already. The report can be made again from it (-from). The exit status
// is 1 if something could not be measured, or if -check finds a target missed.
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
	binary, scenarios, dir, published, traces string
	records, requests                         int64
	rounds                                    int
	full, quick, check                        bool
	commit, command                           string
	output                                    measure.Output
}

func parse(args []string) (*options, error) {
	o := &options{}
	fl := flag.NewFlagSet("tracebench", flag.ContinueOnError)
	fl.StringVar(&o.binary, "bin", os.Getenv("SLIPWAY_BIN"), "slipway `binary` to measure (default $SLIPWAY_BIN)")
	fl.StringVar(&o.scenarios, "scenario", "", "`names` of the scenarios to run, separated by commas (default all: "+measure.Names(scenarios())+")")
	fl.StringVar(&o.dir, "dir", "/var/tmp", "`directory` for traces, stores and the servers' data; on the disk to measure")
	fl.StringVar(&o.published, "published", os.Getenv("SLIPWAY_PUBLISHED"), "Markdown `file` with the tables of published figures and tolerances, docs/synthetic-traces.md (default $SLIPWAY_PUBLISHED)")
	fl.StringVar(&o.traces, "traces", os.Getenv("SLIPWAY_TRACES"), "`directory` of the real sample (default $SLIPWAY_TRACES; neither: it is not simulated)")
	fl.Int64Var(&o.records, "records", 10_000_000, "`number` of records to import")
	fl.BoolVar(&o.full, "full", false, "import as many records as the public archive has, 41 million: needs 25 GB")
	fl.Int64Var(&o.requests, "requests", 0, "`number` of requests to analyse; 0: as many as the public archive has, 41 million")
	fl.IntVar(&o.rounds, "rounds", 3, "`number` of rounds of what is measured in rounds")
	fl.BoolVar(&o.quick, "quick", false, "a quick look: small traces, one round")
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
	case o.rounds < 1 || o.records < 1 || o.requests < 0:
		return nil, errors.New("-rounds and -records must be above 0, and -requests not below")
	}
	if o.full {
		o.records = archiveRequests
	}
	if o.quick {
		o.quicken(fl)
	}
	return o, nil
}

// quicken chooses less where the command line does not say what.
func (o *options) quicken(fl *flag.FlagSet) {
	given := map[string]bool{}
	fl.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if !given["records"] && !o.full {
		o.records = quickRecords
	}
	if !given["requests"] {
		o.requests = quickRequests
	}
	if !given["rounds"] {
		o.rounds = 1
	}
}

const (
	// archiveRequests is how many requests the public archive has.
	archiveRequests = 40_872_024
	// quickRecords and quickRequests are what a quick look imports and analyses.
	quickRecords  = 100_000
	quickRequests = 200_000
)

// described is the command line without what is this machine's own business.
func described(fl *flag.FlagSet) string {
	out := "scripts/bench-trace.sh"
	fl.Visit(func(f *flag.Flag) {
		switch f.Name {
		case "scenario", "rounds", "records", "requests":
			out += " -" + f.Name + " " + f.Value.String()
		case "quick", "full":
			out += " -" + f.Name
		}
	})
	return out
}

// scenarios returns all there are, in the order they run.
func scenarios() []measure.Scenario[*bench] {
	return []measure.Scenario[*bench]{
		{Name: "import", Run: runImport}, {Name: "analyse", Run: runAnalyse}, {Name: "figures", Run: runFigures},
		{Name: "timely", Run: runTimely}, {Name: "compare", Run: runCompare}, {Name: "simulate", Run: runSimulate},
	}
}

func main() {
	o, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "tracebench:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	good, err := o.run(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "tracebench:", err)
	}
	if err != nil || !good {
		stop()
		os.Exit(1)
	}
}

// run measures, or reads what was measured, and reports. It returns whether all
// targets are met, or none were to be checked.
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
	dir, err := os.MkdirTemp(o.dir, "slipway-tracebench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	b, err := newBench(o, dir)
	if err != nil {
		return nil, err
	}
	b.logf("measuring on %s", b.run.Machine)
	return b.results, b.runAll(ctx, list)
}
