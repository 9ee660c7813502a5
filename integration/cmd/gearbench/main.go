// Command gearbench measures the Gear side of Slipway on a set of images: what
// it stores in how much space, whether what it gives back is what was pushed,
// how fast it converts and serves, and whether it always does the same.
//
// The images are OCI layouts SERIES/VERSION below a directory (-corpus). Without
// one a small set is generated, on which savings and rates mean little, but
// everything runs. Servers are real processes on free loopback ports with
// directories of their own.
//
// Results go to a file of JSON (-out); scenarios that did not run keep what the
// file says of them already. The report can be made again from it (-from). The
// exit status is 1 if something could not be measured, or if -check finds a
// target missed.
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
	binary, scenarios           string
	corpus, categories          string
	dir, trees                  string
	rounds, images              int
	quick, check                bool
	commit, command, corpusName string
	output                      measure.Output
}

func parse(args []string) (*options, error) {
	o := &options{}
	fl := flag.NewFlagSet("gearbench", flag.ContinueOnError)
	fl.StringVar(&o.binary, "bin", os.Getenv("SLIPWAY_BIN"), "slipway `binary` to measure (default $SLIPWAY_BIN)")
	fl.StringVar(&o.scenarios, "scenario", "", "`names` of the scenarios to run, separated by commas (default all: "+measure.Names(scenarios())+")")
	fl.StringVar(&o.corpus, "corpus", os.Getenv("SLIPWAY_CORPUS"), "`directory` of OCI layouts SERIES/VERSION (default $SLIPWAY_CORPUS; neither: a small generated set)")
	fl.StringVar(&o.corpusName, "corpus-name", "a set of images of one's own", "what the report calls the `set` of images")
	fl.StringVar(&o.categories, "categories", "", "CSV `file` of lines SERIES,CATEGORY (default: those of the usual series)")
	fl.StringVar(&o.dir, "dir", "/var/tmp", "`directory` for the servers' data; on the disk to measure, and open to every user down from /")
	fl.StringVar(&o.trees, "trees", "", "`directory` for the trees that are compared, two of the largest image for each processor (default: as -dir)")
	fl.IntVar(&o.rounds, "rounds", 5, "`number` of rounds of what is measured in rounds")
	fl.IntVar(&o.images, "images", 0, "`number` of images at most; 0: all")
	fl.BoolVar(&o.quick, "quick", false, "a quick look: 10 images, 2 rounds, smaller content")
	fl.BoolVar(&o.check, "check", false, "compare with the targets")
	o.output.Add(fl)
	fl.StringVar(&o.commit, "commit", "unknown", "`commit` that is measured, for the report")
	fl.StringVar(&o.command, "command", "", "`command` that reproduces the run, for the report (default: the script with what was chosen to measure)")
	if err := fl.Parse(args); err != nil {
		return nil, err
	}
	if o.quick {
		o.rounds = min(o.rounds, 2)
		if o.images == 0 {
			o.images = quickImages
		}
	}
	switch {
	case fl.NArg() > 0:
		return nil, fmt.Errorf("unknown argument %q", fl.Arg(0))
	case o.output.From == "" && o.binary == "":
		return nil, errors.New("which slipway? Give -bin or SLIPWAY_BIN")
	case o.rounds < 1 || o.images < 0:
		return nil, errors.New("-rounds must be above 0, and -images not below")
	}
	if o.command == "" {
		o.command = described(fl)
	}
	return o, nil
}

// described is the command line without what is this machine's own business.
func described(fl *flag.FlagSet) string {
	out := "scripts/bench-gear.sh"
	fl.Visit(func(f *flag.Flag) {
		switch f.Name {
		case "scenario", "rounds", "images":
			out += " -" + f.Name + " " + f.Value.String()
		case "quick":
			out += " -quick"
		}
	})
	return out
}

// quickImages is how many images a quick look takes.
const quickImages = 10

// scenarios returns all there are, in the order they run.
func scenarios() []measure.Scenario[*bench] {
	return []measure.Scenario[*bench]{
		{Name: "storage", Run: runStorage}, {Name: "oracle", Run: runOracle}, {Name: "serving", Run: runServing},
		{Name: "speed", Run: runSpeed}, {Name: "push", Run: runPush}, {Name: "determinism", Run: runDeterminism},
	}
}

func main() {
	o, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gearbench:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	good, err := o.run(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "gearbench:", err)
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
	dir, err := os.MkdirTemp(o.dir, "slipway-gearbench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o755); err != nil { // nginx reads as nobody
		return nil, err
	}
	trees := dir
	if o.trees != "" {
		if trees, err = os.MkdirTemp(o.trees, "slipway-gearbench-"); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(trees)) }()
	}
	b, err := newBench(o, dir, trees)
	if err != nil {
		return nil, err
	}
	b.logf("measuring on %s", measure.ThisMachine(dir))
	return b.results, b.runAll(ctx, list)
}
