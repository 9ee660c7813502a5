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
	"slices"
	"strings"
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
	out, from, doc, img         string
	commit, command, corpusName string
}

func parse(args []string) (*options, error) {
	o := &options{}
	fl := flag.NewFlagSet("gearbench", flag.ContinueOnError)
	fl.StringVar(&o.binary, "bin", os.Getenv("SLIPWAY_BIN"), "slipway `binary` to measure (default $SLIPWAY_BIN)")
	fl.StringVar(&o.scenarios, "scenario", "", "`names` of the scenarios to run, separated by commas (default all: "+scenarioNames()+")")
	fl.StringVar(&o.corpus, "corpus", os.Getenv("SLIPWAY_CORPUS"), "`directory` of OCI layouts SERIES/VERSION (default $SLIPWAY_CORPUS; neither: a small generated set)")
	fl.StringVar(&o.corpusName, "corpus-name", "a set of images of one's own", "what the report calls the `set` of images")
	fl.StringVar(&o.categories, "categories", "", "CSV `file` of lines SERIES,CATEGORY (default: those of the usual series)")
	fl.StringVar(&o.dir, "dir", "/var/tmp", "`directory` for the servers' data; on the disk to measure, and open to every user down from /")
	fl.StringVar(&o.trees, "trees", "", "`directory` for the trees that are compared, two of the largest image for each processor (default: as -dir)")
	fl.IntVar(&o.rounds, "rounds", 5, "`number` of rounds of what is measured in rounds")
	fl.IntVar(&o.images, "images", 0, "`number` of images at most; 0: all")
	fl.BoolVar(&o.quick, "quick", false, "a quick look: 10 images, 2 rounds, smaller content")
	fl.BoolVar(&o.check, "check", false, "compare with the targets")
	fl.StringVar(&o.out, "out", "", "`file` for the results")
	fl.StringVar(&o.from, "from", "", "`file` of results to report on, instead of measuring")
	fl.StringVar(&o.doc, "doc", "", "Markdown `file` to write the report into, between its marks (default: print it)")
	fl.StringVar(&o.img, "img", "", "`directory` for the pictures")
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
	case o.from == "" && o.binary == "":
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

// scenario is one thing that is measured.
type scenario struct {
	name string
	// run measures and keeps the outcome in the bench's results.
	run func(*bench, context.Context) error
}

// scenarios returns all there are, in the order they run.
func scenarios() []scenario {
	return []scenario{
		{"storage", runStorage}, {"oracle", runOracle}, {"serving", runServing},
		{"speed", runSpeed}, {"push", runPush}, {"determinism", runDeterminism},
	}
}

func scenarioNames() string {
	var names []string
	for _, sc := range scenarios() {
		names = append(names, sc.name)
	}
	return strings.Join(names, ",")
}

// chosen returns the scenarios of a list of names, in their own order.
func chosen(names string) ([]scenario, error) {
	all := scenarios()
	if names == "" {
		return all, nil
	}
	wanted := strings.Split(names, ",")
	for _, name := range wanted {
		if !slices.ContainsFunc(all, func(sc scenario) bool { return sc.name == name }) {
			return nil, fmt.Errorf("no scenario %q; there are %s", name, scenarioNames())
		}
	}
	return slices.DeleteFunc(all, func(sc scenario) bool { return !slices.Contains(wanted, sc.name) }), nil
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
	if o.from != "" {
		r, err := measure.Load[Results](o.from)
		if err != nil {
			return false, err
		}
		met, err := o.report(r)
		return met || !o.check, err
	}
	r, measured := o.measure(ctx)
	if r == nil {
		return false, measured
	}
	if o.out != "" {
		if old, err := measure.Load[Results](o.out); err == nil {
			r.fill(old)
		} else if !errors.Is(err, os.ErrNotExist) {
			return false, errors.Join(measured, err)
		}
		if err := measure.Save(o.out, r); err != nil {
			return false, errors.Join(measured, fmt.Errorf("write results: %w", err))
		}
	}
	if measured != nil { // part of the results: shown, but no document is made of it
		o.doc, o.img = "", ""
	}
	met, err := o.report(r)
	return met || !o.check, errors.Join(measured, err)
}

// report writes the report and the pictures, and returns whether the targets
// are met.
func (o *options) report(r *Results) (met bool, err error) {
	var verdict strings.Builder
	met = check(&verdict, r)
	text := report(r, verdict.String())
	if o.img != "" {
		if err := measure.WritePictures(o.img, r.pictures()); err != nil {
			return met, fmt.Errorf("write pictures: %w", err)
		}
	}
	if o.doc == "" {
		fmt.Println(text)
		return met, nil
	}
	fmt.Print(verdict.String())
	doc, err := os.ReadFile(o.doc)
	if err != nil {
		return met, err
	}
	changed, err := marks().Replace(string(doc), text)
	if err != nil {
		return met, fmt.Errorf("%s: %w", o.doc, err)
	}
	return met, os.WriteFile(o.doc, []byte(changed), 0o644)
}

// measure runs the scenarios. It returns no results if none was begun.
func (o *options) measure(ctx context.Context) (r *Results, err error) {
	list, err := chosen(o.scenarios)
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
