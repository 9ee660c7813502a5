// Package rebuild measures layers that are kept as recipes: how large recipes are, what
// it costs to make them and to rebuild layers, and how much space a registry needs once
// it has dropped its layers.
//
// The images are OCI layouts SERIES/VERSION below a directory (-corpus). Recipes are made
// and tried in this process. The registry is a real server on a free loopback port.
//
// Results go to a JSON file (-out). Results of scenarios that did not run stay in the
// file as they are. The report can be made again from the file (-from). The exit status
// is 1 if something could not be measured, or if -check finds a target missed.
package rebuild

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/internal/corpus"
	"example.org/slipway/integration/internal/wire"
)

// options are the options of the command line.
type options struct {
	measure.Options
	corpus, corpusName, images string
	day                        dayOptions
	state                      string
	limit                      time.Duration
	sample                     int64 // bytes of the layer that is compressed again
}

func parse(args []string) (*options, error) {
	o := &options{sample: sampleBytes}
	fl := flag.NewFlagSet("bench rebuild", flag.ContinueOnError)
	o.Add(fl, measure.Defaults{Scenarios: measure.Names(scenarios()), Rounds: 1, Dir: "the server's data and uncompressed layers"})
	fl.StringVar(&o.corpus, "corpus", os.Getenv("SLIPWAY_CORPUS"), "`directory` of OCI layouts SERIES/VERSION (default $SLIPWAY_CORPUS)")
	fl.StringVar(&o.corpusName, "corpus-name", "a set of images of one's own", "what the report calls the `set` of images")
	fl.StringVar(&o.images, "images", "", "the `images` to take, SERIES/VERSION or SERIES for its last version, separated by commas (default all)")
	fl.StringVar(&o.state, "state", "", "storage, day: keep the registries in this `directory`, and continue a run that is not finished there")
	fl.DurationVar(&o.limit, "for", 0, "storage, day: begin nothing more after this `time` (0: no limit); the same command with -state continues")
	o.day.add(fl)
	if err := fl.Parse(args); err != nil {
		return nil, err
	}
	if o.corpus == "" && o.Output.From == "" {
		return nil, errors.New("which images? Give -corpus or SLIPWAY_CORPUS")
	}
	if o.Command == "" {
		o.Command = measure.Described(fl, "scripts/bench-rebuild.sh", append([]string{"scenario", "images", "for"}, dayFlags...), nil)
	}
	if o.limit > 0 && o.state == "" {
		return nil, errors.New("-for needs -state, else the next run cannot continue")
	}
	return o, errors.Join(o.Validate(fl), o.day.validate())
}

// scenarios returns all scenarios, in the order in which they run.
func scenarios() []measure.Scenario[*bench] {
	return []measure.Scenario[*bench]{{Name: "recipes", Run: runRecipes}, {Name: "storage", Run: runStorage}, {Name: "day", Run: runDay}}
}

// Suite returns the suite.
func Suite() measure.Suite {
	return measure.NewSuite("rebuild", "layers as recipes: their size, their cost, and what they save", parse, measure.Measuring(marks(), (*options).measure))
}

// bench is a run of some scenarios.
type bench struct {
	*measure.Bench
	images  []*corpus.Image
	day     dayOptions
	state   string
	limit   time.Duration
	sample  int64
	set     string // the report's words on the images
	results *Results
}

// measure runs the scenarios. It returns no results if none was begun.
func (o *options) measure(ctx context.Context) (r *Results, err error) {
	list, err := measure.Choose(scenarios(), o.Scenarios)
	if err != nil {
		return nil, err
	}
	all, err := corpus.Read(o.corpus)
	if err != nil {
		return nil, err
	}
	images := []*corpus.Image(all)
	if o.images != "" {
		if images, err = all.Choose(strings.Split(o.images, ",")); err != nil {
			return nil, err
		}
	}
	in, err := o.Start("rebuildbench")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	b := &bench{Bench: in, images: images, day: o.day, state: o.state, limit: o.limit, sample: o.sample, results: &Results{}, set: fmt.Sprintf("%d images (%s)", len(images), o.corpusName)}
	return b.results, measure.RunAll(ctx, b, list, nil)
}

// source is a layer and an image that has it.
type source struct {
	wire.Descriptor
	im *corpus.Image
}

// layers returns the different layers, in order of first appearance.
func (b *bench) layers() (out []source) {
	seen := map[string]bool{}
	for _, im := range b.images {
		for _, l := range im.Layers {
			if !seen[l.Digest] {
				seen[l.Digest] = true
				out = append(out, source{l, im})
			}
		}
	}
	return out
}

// Run says how, when and on what a scenario was measured.
type Run struct {
	measure.Run
	Set string `json:"set"`
}

// Head returns what the document says of the run.
func (r *Run) Head() string { return r.Run.Head() + "\n- Images: " + r.Set }

// since completes the description of a run that began at the given time.
func (b *bench) since(began time.Time) Run { return Run{Run: b.Since(began), Set: b.set} }

// Results are everything that was measured. A scenario that was not measured is nil.
type Results struct {
	Recipes *Recipes `json:"recipes,omitempty"`
	Storage *Storage `json:"storage,omitempty"`
	Day     *Day     `json:"day,omitempty"`
}

// Parts returns what was measured.
func (r *Results) Parts() []measure.Part { return measure.Measured(r.Recipes, r.Storage, r.Day) }

// Fill takes from old the results of scenarios that were not measured this time.
func (r *Results) Fill(old *Results) {
	r.Recipes, r.Storage, r.Day = cmp.Or(r.Recipes, old.Recipes), cmp.Or(r.Storage, old.Storage), cmp.Or(r.Day, old.Day)
}

// marks returns the lines that enclose the generated part of the document.
func marks() measure.Marks {
	return measure.Marks{
		Begin: "<!-- bench-rebuild:begin (scripts/bench-rebuild.sh writes what is between the two marks) -->",
		End:   "<!-- bench-rebuild:end -->",
	}
}

// percent returns a part of a whole in percent.
func percent(part, whole int64) float64 { return 100 * float64(part) / float64(max(1, whole)) }

// rate returns a rate in MB/s.
func rate(bytes int64, sec float64) float64 { return float64(bytes) / 1e6 / max(sec, 1e-9) }
