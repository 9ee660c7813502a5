// Package gear measures the Gear side of Slipway on a set of images. It measures how much
// space the images take, whether the registry returns what was pushed, how fast it
// converts and serves, and whether it always produces the same result.
//
// The images are OCI layouts SERIES/VERSION below a directory (-corpus). Without a
// directory, a small set is generated. Savings and rates mean little on it, but
// everything runs. Servers are real processes on free loopback ports, each with its own
// directory.
//
// Results go to a JSON file (-out). Results of scenarios that did not run stay in the
// file as they are. The report can be made again from the file (-from). The exit status
// is 1 if something could not be measured, or if -check finds a target missed.
package gear

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
	corpus, corpusName string
	categories, trees  string
	images             int
}

func parse(args []string) (*options, error) {
	o := &options{}
	fl := flag.NewFlagSet("bench gear", flag.ContinueOnError)
	o.Add(fl, measure.Defaults{Scenarios: measure.Names(scenarios()), Rounds: 5, Dir: "the servers' data; on the disk to measure, and open to every user down from /",
		Quick: "10 images, 2 rounds, smaller content"})
	fl.StringVar(&o.corpus, "corpus", os.Getenv("SLIPWAY_CORPUS"), "`directory` of OCI layouts SERIES/VERSION (default $SLIPWAY_CORPUS; neither: a small generated set)")
	fl.StringVar(&o.corpusName, "corpus-name", "a set of images of one's own", "what the report calls the `set` of images")
	fl.StringVar(&o.categories, "categories", "", "CSV `file` of lines SERIES,CATEGORY (default: those of the usual series)")
	fl.StringVar(&o.trees, "trees", "", "`directory` for the trees that are compared, two of the largest image for each processor (default: as -dir)")
	fl.IntVar(&o.images, "images", 0, "`number` of images at most; 0: all")
	if err := fl.Parse(args); err != nil {
		return nil, err
	}
	if o.images < 0 {
		return nil, errors.New("-images must not be below 0")
	}
	if o.Quick {
		o.Rounds = min(o.Rounds, 2)
		if o.images == 0 {
			o.images = quickImages
		}
	}
	if o.Command == "" {
		o.Command = measure.Described(fl, "scripts/bench-gear.sh", []string{"scenario", "rounds", "images"}, []string{"quick"})
	}
	return o, o.Validate(fl)
}

// quickImages is the number of images in a quick look.
const quickImages = 10

// scenarios returns all scenarios, in the order in which they run.
func scenarios() []measure.Scenario[*bench] {
	return []measure.Scenario[*bench]{
		{Name: "storage", Run: runStorage}, {Name: "oracle", Run: runOracle}, {Name: "serving", Run: runServing},
		{Name: "speed", Run: runSpeed}, {Name: "push", Run: runPush}, {Name: "convert", Run: runConvert}, {Name: "determinism", Run: runDeterminism},
	}
}

// Suite returns the suite.
func Suite() measure.Suite {
	return measure.NewSuite("gear", "images by files: space, equality, conversion, pushes and serving", parse, measure.Measuring(marks(), (*options).measure))
}

// measure runs the scenarios. It returns no results if none was begun.
func (o *options) measure(ctx context.Context) (r *Results, err error) {
	list, err := measure.Choose(scenarios(), o.Scenarios)
	if err != nil {
		return nil, err
	}
	in, err := o.Start("gearbench")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	trees := in.Dir
	if o.trees != "" {
		if trees, err = os.MkdirTemp(o.trees, "slipway-gearbench-"); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(trees)) }()
	}
	b, err := newBench(o, in, trees)
	if err != nil {
		return nil, err
	}
	defer b.unload()
	return b.results, measure.RunAll(ctx, b, list, func(name string) {
		if !sharesServer(name) {
			b.unload()
		}
	})
}
