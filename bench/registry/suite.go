// Package registry compares Slipway with other registries, and with a web server that
// serves the same bytes as files. The web server is the limit.
//
// It starts every server itself on free loopback ports, each with its own directory. It
// alternates between the servers and reports medians with their spread. It compares the
// CPU time of the servers' processes, which other work on the machine disturbs less than
// rates. Every figure shows how busy everything else was.
//
// Servers: the slipway binary (-bin) and other builds of it (-variant); nginx and
// docker-registry if they are installed; and the binaries that these environment
// variables name:
//
//	SLIPWAY_BENCH_ZOT            a zot binary
//	SLIPWAY_BENCH_DISTRIBUTION   a Distribution 3 binary ("registry")
//
// Raw results go to a file of JSON lines (-out). The report, the pictures and the check
// can be made again from it (-from). The exit status is 1 if something that should have
// been measured could not be, or if -check finds a target missed.
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
	measure.Options
	slice    time.Duration
	scale    float64
	full     bool
	variants []variant
}

func parse(args []string) (*options, error) {
	o := &options{}
	fl := flag.NewFlagSet("bench registry", flag.ContinueOnError)
	o.Add(fl, measure.Defaults{Scenarios: strings.Join(scenarioNames(), ","), Rounds: 5,
		Dir: "the servers' data; on the disk to measure, and open to every user down from /"})
	fl.DurationVar(&o.slice, "slice", 800*time.Millisecond, "`time` of one measurement")
	fl.Float64Var(&o.scale, "scale", 1, "`factor` of the amounts of content, for a quick look")
	fl.BoolVar(&o.full, "full", false, "also what takes long at the other registries: their memory, and 10,000 tags")
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
	if o.Command == "" {
		o.Command = "bench " + strings.Join(args, " ")
	}
	if o.slice <= 0 || o.scale <= 0 {
		return nil, errors.New("-slice and -scale must be above 0")
	}
	return o, o.Validate(fl)
}

func scenarioNames() (names []string) {
	for _, sc := range scenarios() {
		names = append(names, sc.name)
	}
	return names
}

// chosen returns the scenarios with the listed names, in the scenarios' own order.
func chosen(names string) ([]*scenario, error) {
	return measure.ChooseBy(scenarios(), func(sc *scenario) string { return sc.name }, names)
}

// Suite returns the suite.
func Suite() measure.Suite {
	return measure.NewSuite("registry", "Slipway beside other registries and a web server", parse, (*options).run)
}

// run measures or reads earlier results, and reports on them. It returns whether all is
// well.
func (o *options) run(ctx context.Context) (good bool, err error) {
	if o.Output.From != "" {
		r, err := o.read()
		if err != nil {
			return false, err
		}
		met, err := publish(&o.Output, r)
		return met || !o.Check, err
	}
	r, good, measured := o.measure(ctx)
	if r == nil {
		return false, measured
	}
	if o.Output.File != "" {
		if err := writeResults(o.Output.File, r); err != nil {
			return false, errors.Join(measured, fmt.Errorf("write results: %w", err))
		}
	}
	met, err := publish(o.Output.Shown(measured), r)
	return good && (met || !o.Check), errors.Join(measured, err)
}

func (o *options) read() (*Results, error) {
	f, err := os.Open(o.Output.From)
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
	list, err := chosen(o.Scenarios)
	if err != nil {
		return nil, false, err
	}
	in, err := o.Start("bench")
	if err != nil {
		return nil, false, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	b := &bench{
		Bench: in, specs: specs(in.Binary, o.variants), slice: o.slice, large: map[int]*image{},
		results: &Results{Run: Run{Date: time.Now(), Commit: o.Commit, Command: o.Command, Machine: in.Run.Machine,
			Rounds: o.Rounds, SliceSec: o.slice.Seconds(), Full: o.full, Scale: newScale(o.scale)}},
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
	// The numbers are multiples of 100, because tags are stored, and pages are read, a
	// hundred at a time.
	n := func(full int) int { return max(2, int(float64(full)*factor/100)) * 100 }
	return Scale{Images: n(300), MemImages: n(1500), Tags: n(1_000_000), Repos: n(100_000), StoreBlobs: [2]int{n(10_000), n(200_000)}, GarbageEach: 100}
}
