// Package registry compares Slipway with other registries, and with a web server that serves the same
// bytes as files. The web server is the limit.
//
// It starts every server itself on free loopback ports, each with its own directory. It alternates
// between the servers and reports medians with their spread. It compares the CPU time of the
// servers' processes, which other work on the machine disturbs less than rates. Every figure shows
// how busy everything else was.
//
// Servers: the slipway binary (-bin) and other builds of it (-variant); nginx and docker-registry
// if they are installed; and the binaries that these environment variables name:
//
//	SLIPWAY_BENCH_ZOT            a zot binary
//	SLIPWAY_BENCH_DISTRIBUTION   a Distribution 3 binary ("registry")
//
// Raw results go to a file of JSON lines (-out). The report, the pictures and the check can be made
// again from it (-from). The exit status is 1 if something could not be measured that should have
// been, or if -check finds a target missed.
package registry

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"example.org/slipway/integration/bench/measure"
)

// options are the options of the command line.
type options struct {
	binary, scenarios, dir string
	rounds                 int
	slice                  time.Duration
	scale                  float64
	full, check            bool
	commit, command        string
	output                 measure.Output
	variants               []variant
}

func parse(args []string) (*options, error) {
	o := &options{}
	fl := flag.NewFlagSet("bench registry", flag.ContinueOnError)
	fl.StringVar(&o.binary, "bin", os.Getenv("SLIPWAY_BIN"), "slipway `binary` to measure (default $SLIPWAY_BIN)")
	fl.StringVar(&o.scenarios, "scenario", "", "`names` of the scenarios to run, separated by commas (default all: "+scenarioNames()+")")
	fl.StringVar(&o.dir, "dir", "/var/tmp", "`directory` for the servers' data; on the disk to measure, and open to every user down from /")
	fl.IntVar(&o.rounds, "rounds", 5, "`number` of rounds")
	fl.DurationVar(&o.slice, "slice", 800*time.Millisecond, "`time` of one measurement")
	fl.Float64Var(&o.scale, "scale", 1, "`factor` of the amounts of content, for a quick look")
	fl.BoolVar(&o.full, "full", false, "also what takes long at the other registries: their memory, and 10,000 tags")
	fl.BoolVar(&o.check, "check", false, "compare with the targets")
	o.output.Add(fl)
	fl.StringVar(&o.commit, "commit", "unknown", "`commit` that is measured, for the report")
	fl.StringVar(&o.command, "command", "bench "+strings.Join(args, " "), "`command` that reproduces the run, for the report")
	fl.Func("variant", "`NAME=BINARY` of another build of slipway to measure as well; may be repeated", func(s string) error {
		name, binary, ok := strings.Cut(s, "=")
		if !ok || name == "" || binary == "" {
			return errors.New("want NAME=BINARY")
		}
		binary, err := filepath.Abs(binary)
		o.variants = append(o.variants, variant{name, binary})
		return err
	})
	if err := fl.Parse(args); err != nil {
		return nil, err
	}
	switch {
	case fl.NArg() > 0:
		return nil, fmt.Errorf("unknown argument %q", fl.Arg(0))
	case o.output.From == "" && o.binary == "":
		return nil, errors.New("which slipway? Give -bin or SLIPWAY_BIN")
	case o.rounds < 1 || o.slice <= 0 || o.scale <= 0:
		return nil, errors.New("-rounds, -slice and -scale must be above 0")
	}
	return o, nil
}

func scenarioNames() string {
	var names []string
	for _, sc := range scenarios() {
		names = append(names, sc.name)
	}
	return strings.Join(names, ",")
}

// chosen returns the scenarios with the listed names, in the scenarios' own order.
func chosen(names string) ([]*scenario, error) {
	if names == "" {
		return scenarios(), nil
	}
	wanted := map[string]bool{}
	for name := range strings.SplitSeq(names, ",") {
		if scenarioNamed(name) == nil {
			return nil, fmt.Errorf("no scenario %q; there are %s", name, scenarioNames())
		}
		wanted[name] = true
	}
	var out []*scenario
	for _, sc := range scenarios() {
		if wanted[sc.name] {
			out = append(out, sc)
		}
	}
	return out, nil
}

// Suite returns the suite.
func Suite() measure.Suite {
	return measure.NewSuite("registry", "Slipway beside other registries and a web server", parse, (*options).run)
}

// run measures, or reads earlier results, and reports. It returns whether all is well.
func (o *options) run(ctx context.Context) (good bool, err error) {
	if o.output.From != "" {
		r, err := o.read()
		if err != nil {
			return false, err
		}
		met, err := publish(&o.output, r)
		return met || !o.check, err
	}
	r, good, measured := o.measure(ctx)
	if r == nil {
		return false, measured
	}
	if o.output.File != "" {
		if err := writeResults(o.output.File, r); err != nil {
			return false, errors.Join(measured, fmt.Errorf("write results: %w", err))
		}
	}
	met, err := publish(o.output.Shown(measured), r)
	return good && (met || !o.check), errors.Join(measured, err)
}

func (o *options) read() (*Results, error) {
	f, err := os.Open(o.output.From)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readResults(f)
}

// publish writes the report and the pictures, and reports whether the targets are met.
func publish(to *measure.Output, r *Results) (met bool, err error) {
	var verdict strings.Builder
	met = check(&verdict, r)
	var pictures []measure.Picture
	for _, p := range plots(r) {
		pictures = append(pictures, p.Picture)
	}
	return met, to.Publish(marks(), verdict.String(), report(r, verdict.String()), pictures)
}

// measure runs the scenarios. It returns no results if none was begun.
func (o *options) measure(ctx context.Context) (r *Results, good bool, err error) {
	list, err := chosen(o.scenarios)
	if err != nil {
		return nil, false, err
	}
	common := &measure.Options{Binary: o.binary, Dir: o.dir, Rounds: o.rounds, Commit: o.commit, Command: o.command}
	in, err := common.Start("bench")
	if err != nil {
		return nil, false, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	b := &bench{
		Bench: in, specs: specs(in.Binary, o.variants), slice: o.slice, large: map[int]*image{},
		results: &Results{Run: Run{Date: time.Now(), Commit: o.commit, Command: o.command, Machine: in.Run.Machine,
			Rounds: o.rounds, SliceSec: o.slice.Seconds(), Full: o.full, Scale: newScale(o.scale)}},
	}
	for _, s := range b.specs {
		rs := RunServer{Name: s.Name, Missing: s.Why}
		for _, v := range o.variants {
			rs.Variant = rs.Variant || v.name == s.Name
		}
		if s.Binary != "" {
			rs.Version = s.Version(ctx)
		}
		b.results.Run.Servers = append(b.results.Run.Servers, rs)
	}
	err = b.runAll(ctx, list)
	return b.results, !b.failed, err
}

// newScale returns the amounts of content, multiplied by a factor.
func newScale(factor float64) Scale {
	// The numbers are hundreds, because tags are stored and pages read by the hundred.
	n := func(full int) int { return max(2, int(float64(full)*factor/100)) * 100 }
	return Scale{Images: n(300), MemImages: n(1500), Tags: n(1_000_000), Repos: n(100_000), StoreBlobs: [2]int{n(10_000), n(200_000)}, GarbageEach: 100}
}
