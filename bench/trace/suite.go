// Package trace measures slipway trace. It measures how fast the program imports,
// analyses and simulates logs, whether synthetic traces have the published figures,
// whether a replay sends requests on time, and what a replay finds about several
// registries.
//
// The binary does all the work, in separate processes. Traces are generated. If the real
// sample is at hand (-traces), caches are simulated on it too. Servers run on free
// loopback ports, each with its own directory.
//
// Results go to a JSON file (-out). Results of scenarios that did not run stay in the
// file as they are. The report can be made again from the file (-from). The exit status
// is 1 if something could not be measured, or if -check finds a target missed.
package trace

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
	published, traces string
	records, requests int64
	full              bool
}

func parse(args []string) (*options, error) {
	o := &options{}
	fl := flag.NewFlagSet("bench trace", flag.ContinueOnError)
	o.Add(fl, measure.Defaults{Scenarios: measure.Names(scenarios()), Rounds: 3, Dir: "traces, stores and the servers' data; on the disk to measure",
		Quick: "small traces, one round"})
	fl.StringVar(&o.published, "published", os.Getenv("SLIPWAY_PUBLISHED"), "Markdown `file` with the tables of published figures and tolerances, docs/synthetic-traces.md (default $SLIPWAY_PUBLISHED)")
	fl.StringVar(&o.traces, "traces", os.Getenv("SLIPWAY_TRACES"), "`directory` of the real sample (default $SLIPWAY_TRACES; neither: it is not simulated)")
	fl.Int64Var(&o.records, "records", 10_000_000, "`number` of records to import")
	fl.BoolVar(&o.full, "full", false, "import as many records as the public archive has, 41 million: needs 25 GB")
	fl.Int64Var(&o.requests, "requests", 0, "`number` of requests to analyse; 0: as many as the public archive has, 41 million")
	if err := fl.Parse(args); err != nil {
		return nil, err
	}
	if o.Command == "" {
		o.Command = measure.Described(fl, "scripts/bench-trace.sh", []string{"scenario", "rounds", "records", "requests"}, []string{"quick", "full"})
	}
	if o.records < 1 || o.requests < 0 {
		return nil, errors.New("-records must be above 0, and -requests not below")
	}
	if o.full {
		o.records = archiveRequests
	}
	if o.Quick {
		o.quicken(fl)
	}
	return o, o.Validate(fl)
}

// quicken reduces the amount of work that the command line does not set.
func (o *options) quicken(fl *flag.FlagSet) {
	given := measure.Given(fl)
	if !given["records"] && !o.full {
		o.records = quickRecords
	}
	if !given["requests"] {
		o.requests = quickRequests
	}
	if !given["rounds"] {
		o.Rounds = 1
	}
}

const (
	// archiveRequests is the number of requests in the public archive.
	archiveRequests = 40_872_024
	// quickRecords and quickRequests are the numbers that a quick look imports and analyses.
	quickRecords  = 100_000
	quickRequests = 200_000
)

// scenarios returns all scenarios, in the order in which they run.
func scenarios() []measure.Scenario[*bench] {
	return []measure.Scenario[*bench]{
		{Name: "import", Run: runImport}, {Name: "analyse", Run: runAnalyse}, {Name: "figures", Run: runFigures},
		{Name: "timely", Run: runTimely}, {Name: "compare", Run: runCompare}, {Name: "simulate", Run: runSimulate},
	}
}

// Suite returns the suite.
func Suite() measure.Suite {
	return measure.NewSuite("trace", "slipway trace: import, analysis, replay, comparison and simulation", parse, measure.Measuring(marks(), (*options).measure))
}

// measure runs the scenarios. It returns no results if none was begun.
func (o *options) measure(ctx context.Context) (r *Results, err error) {
	list, err := measure.Choose(scenarios(), o.Scenarios)
	if err != nil {
		return nil, err
	}
	in, err := o.Start("tracebench")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	b := &bench{Bench: in, o: o, results: &Results{}}
	return b.results, measure.RunAll(ctx, b, list, nil)
}
