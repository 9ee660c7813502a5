// Package load measures how many images a second a registry serves.
//
// The images are either made or found in a registry. Images that are made have an index,
// a manifest, a configuration and some layers each. They are in batches, which patterns
// of their names select. Pullers then fetch whole images, and each puller has its own
// batch. Each step has one puller more than the step before, and later one less.
// Alternatively, the number of pullers rises until more pullers bring no more. With
// pruning, each pass of a puller goes through a mirror to its upstream. Without pruning,
// the registry serves what it has. Every manifest and layer is checked against its
// digest.
//
// The driver counts the images itself. It also measures its own CPU time. If that was the
// limit, the result says so. Results are files that can be compared.
package load

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"example.org/slipway/workload/load/imageset"
	"example.org/slipway/workload/replay/result"
)

// Source says where the images come from.
type Source string

// These are the sources.
const (
	// PushedSet makes images and pushes the images that are not there yet.
	PushedSet Source = "push"
	// InPlace makes the same images but expects them to be there.
	InPlace Source = "in-place"
	// Listed takes the images that the upstream lists.
	Listed Source = "list"
)

// Ramp says how the number of pullers changes.
type Ramp string

// These are the ramps.
const (
	// UpDown goes from 1 puller to the largest number, and back to 1.
	UpDown Ramp = "up-down"
	// Saturate goes up, in growing steps, until three steps bring no increase.
	Saturate Ramp = "saturate"
	// Constant runs the largest number of pullers, for one step.
	Constant Ramp = "constant"
)

// Options are the options of a run. Only Target is required.
type Options struct {
	// Target is the registry that is measured.
	Target Target
	// Upstream is the registry where images are pushed and listed. nil means the target.
	Upstream *Target
	Set      imageset.Options
	// Source says where the images come from. "" means PushedSet.
	Source Source
	// AllTags says that every tag of a listed repository is used, and not only the first.
	AllTags bool
	// Patterns are regular expressions. A puller fetches the images whose names match its
	// pattern. If there are no patterns, there is one for each batch, or one for all
	// images if they are listed.
	Patterns []string
	// Pullers is the largest number of pullers. 0 means one puller for each pattern, or
	// 64 for Saturate.
	Pullers int
	// Ramp says how the number of pullers changes. "" means UpDown.
	Ramp Ramp
	// Step is how long the number of pullers stays the same. 0 means 10 s. Tally is the
	// interval of the tallies. 0 means 1 s.
	Step, Tally time.Duration
	// Prune says how the target is made to ask its upstream again.
	Prune Prune
	// PruneMirror prunes the images of the repositories that a pattern selects, by the
	// rules of path.Match. PruneSlipway needs it.
	PruneMirror func(ctx context.Context, repositories string) error
	Mix         Mix
	// LayersAtOnce is how many layers a puller fetches at once. 0 means 1.
	LayersAtOnce int
	// Timeout bounds a request. 0 means a minute.
	Timeout time.Duration
	// Shuffle says that each pass of a puller has another order of images.
	Shuffle bool
	// Cold says that the measurement begins with the first pulls. Otherwise every image
	// is pulled once before, unless it is pruned.
	Cold bool
	// PushAtOnce is how many images are pushed at once. 0 means 8.
	PushAtOnce int
	// PID is the process of the registry, if it runs on this machine. The CPU time and
	// the memory of that process are measured. 0 means none.
	PID int
	// Version is the program's version, and Describe is how it was called. Both go into
	// the result.
	Version  string
	Describe map[string]string
	// Progress is called from time to time, but not concurrently. It must not block.
	Progress func(Status)
	// Logger gets a line for each phase. nil discards it.
	Logger *slog.Logger
}

// Status says how far a run is.
type Status struct {
	// Phase is "connecting", "making", "pushing", "listing", "pruning", "warming" or
	// "running".
	Phase string
	// Done of Total is how far a phase before the last one is.
	Done, Total int64
	// Idle is how long nothing has been done, in phases before the last one.
	Idle time.Duration
	// Elapsed of Length is how far the last phase is. Length is 0 if it is not known.
	Elapsed, Length time.Duration
	// Tally is the latest tally. Image is how long images have taken since the step
	// began.
	Tally          Tally
	Image          result.Times
	Images, Failed int64
	Tallies        []Tally
	Steps          []Step
}

// run is the state of a run.
type run struct {
	o        Options
	target   *endpoint
	upstream *endpoint
	images   []*imageset.Image
	patterns []string
	sets     [][]*imageset.Image
	set      *imageset.Set
	pushSet  imageset.Options
	mu       sync.Mutex // held while Progress is called
}

// begin opens the registries of a run. end closes them.
func begin(o *Options) (r *run, end func(), err error) {
	r = &run{o: *o}
	if err := r.complete(); err != nil {
		return nil, nil, err
	}
	if r.target, err = open(&r.o.Target, r.o.Timeout); err != nil {
		return nil, nil, err
	}
	r.upstream = r.target
	if r.o.Upstream == nil {
		return r, r.target.close, nil
	}
	if r.upstream, err = open(r.o.Upstream, r.o.Timeout); err != nil {
		r.target.close()
		return nil, nil, err
	}
	return r, func() { r.upstream.close(); r.target.close() }, nil
}

// Run puts the images in place and measures. If ctx ends early, or an error ends the run,
// Run returns the error together with what was measured until then. The result is nil if
// nothing was measured.
func Run(ctx context.Context, o *Options) (*Result, error) {
	r, end, err := begin(o)
	if err != nil {
		return nil, err
	}
	defer end()
	res := r.newResult()
	if err := r.prepare(ctx, res); err != nil {
		return nil, err
	}
	stop, cancel := context.WithCancel(ctx)
	defer cancel()
	s := r.newStepper(stop)
	res.Began = s.begin.UTC()
	err = s.run(r.schedule())
	r.finish(res, s)
	if errors.Is(err, errNothing) {
		err = fmt.Errorf("%w, for a whole step: %s", err, res.firstFault())
	}
	res.Complete = err == nil
	return res, err
}

// complete sets the defaults of the options and checks the others.
func (r *run) complete() error {
	o := &r.o
	def(&o.Source, PushedSet)
	def(&o.Ramp, UpDown)
	def(&o.Step, 10*time.Second)
	def(&o.Tally, time.Second)
	def(&o.Timeout, time.Minute)
	def(&o.PushAtOnce, 8)
	def(&o.LayersAtOnce, 1)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	var err error
	if o.Patterns, err = fixPatterns(o.Patterns); err != nil {
		return err
	}
	switch {
	case o.Step < 0 || o.Tally < 0 || o.Timeout < 0 || o.PushAtOnce < 0 || o.LayersAtOnce < 0 || o.Pullers < 0:
		return errors.New("times and numbers cannot be negative")
	case o.Pullers > maxPullers || o.LayersAtOnce > 64:
		return fmt.Errorf("at most %d pullers with 64 layers at once", maxPullers)
	case o.Source != PushedSet && o.Source != InPlace && o.Source != Listed:
		return fmt.Errorf("unknown source %q", o.Source)
	case o.Ramp != UpDown && o.Ramp != Saturate && o.Ramp != Constant:
		return fmt.Errorf("unknown ramp %q: use up-down, saturate or constant", o.Ramp)
	case o.Prune != NoPrune && !o.Mix.Has(Pull):
		return errors.New("there is nothing to prune without pulls")
	case o.Prune == PruneSlipway && o.PruneMirror == nil:
		return errors.New("nobody was named who prunes the mirror")
	case o.Prune != NoPrune && o.Upstream == nil && o.Source != InPlace:
		return errors.New("pruning a registry that the images are pushed to would delete them: name the upstream they are pulled through from")
	case o.Prune != NoPrune && o.Upstream != nil && sameURL(o.Target.URL, o.Upstream.URL):
		return errors.New("pruning the upstream itself would delete the images: name the mirror that they are pulled through")
	case o.Prune == PruneDelete && o.Upstream == nil && o.Target.Prefix == "" && o.Target.Namespace == "":
		return errors.New("nothing says that the registry is a mirror, and pruning another one would delete the images: name the upstream, or the prefix or namespace that the mirror has it by")
	}
	return nil
}

// sameURL reports whether two URLs name the same place.
func sameURL(a, b string) bool {
	x, errX := url.Parse(a)
	y, errY := url.Parse(b)
	return errX == nil && errY == nil && strings.EqualFold(x.Host, y.Host) && strings.TrimRight(x.Path, "/") == strings.TrimRight(y.Path, "/")
}

// maxPullers bounds the number of pullers.
const maxPullers = 10000

// def sets a value to its default if it is zero.
func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// prepare puts the images in place and brings the target into the state in which it is
// measured.
func (r *run) prepare(ctx context.Context, res *Result) error {
	var err error
	if r.o.Source == Listed {
		err = r.reach(ctx)
	}
	if err == nil {
		err = r.choose(ctx)
	}
	if err == nil && r.o.Source != Listed { // errors in the options are reported first
		err = r.reach(ctx)
	}
	if err != nil {
		return err
	}
	if r.o.Source == PushedSet {
		if res.Pushed, err = r.pushAll(ctx); err != nil {
			return err
		}
	}
	r.describeImages(res)
	switch {
	case r.o.Prune != NoPrune:
		return r.phase("pruning", func(tell func(done, total int64)) error { return r.pruneAll(ctx, tell) })
	case !r.o.Cold && r.o.Mix.Has(Pull):
		return r.phase("warming", func(tell func(done, total int64)) error { return r.warm(ctx, tell) })
	}
	return nil
}

// reach returns an error if a registry cannot be reached.
func (r *run) reach(ctx context.Context) error {
	return r.phase("connecting", func(func(done, total int64)) error {
		if err := r.target.reach(ctx); err != nil || r.upstream == r.target {
			return err
		}
		return r.upstream.reach(ctx)
	})
}

// choose finds or makes the images, and gives each puller its images. It changes nothing
// in a registry.
func (r *run) choose(ctx context.Context) (err error) {
	if r.o.Source == Listed {
		err = r.phase("listing", func(tell func(done, total int64)) (err error) {
			r.images, err = listImages(ctx, r.upstream, r.o.Patterns, r.o.AllTags, tell)
			return err
		})
	} else {
		r.report(Status{Phase: "making"})
		if r.set, err = imageset.Generate(ctx, &r.o.Set); err == nil {
			r.images, r.o.Set = r.set.Images, r.set.Options
		}
	}
	if err == nil {
		err = r.choosePushes()
	}
	if err != nil {
		return err
	}
	return r.distribute()
}

// choosePushes sets the options of the images that pushers make. These images are like
// the images of the set, but no other run has pushed the same ones.
func (r *run) choosePushes() error {
	s := imageset.Set{Options: r.o.Set}
	if err := s.Complete(); err != nil {
		return err
	}
	r.pushSet = s.Options
	r.pushSet.Maker.Seed ^= rand.Uint64()
	return nil
}

// pushAll pushes the images of the set.
func (r *run) pushAll(ctx context.Context) (*Pushed, error) {
	var p Pushed
	err := r.phase("pushing", func(tell func(done, total int64)) (err error) {
		p, err = pushSet(ctx, r.upstream, r.set, r.o.PushAtOnce, tell)
		return err
	})
	if err != nil {
		return nil, err
	}
	r.o.Logger.InfoContext(ctx, "images are in place", "pushed", p.Images, "present", p.Present, "seconds", p.Seconds)
	return &p, nil
}

// distribute gives each pattern its images.
func (r *run) distribute() error {
	r.patterns = r.o.Patterns
	if len(r.patterns) == 0 && r.set != nil {
		for b := range r.set.Batches() {
			r.patterns = append(r.patterns, r.set.BatchPattern(b+1))
		}
	}
	if len(r.patterns) == 0 {
		r.patterns = []string{""}
	}
	var overlap *imageset.Image
	var err error
	if r.sets, overlap, err = imageset.Select(r.images, r.patterns); err != nil {
		return err
	}
	if r.o.Pullers == 0 {
		if r.o.Pullers = len(r.patterns); r.o.Ramp == Saturate {
			r.o.Pullers = 64
		}
	}
	if r.o.Prune == NoPrune {
		return nil
	}
	if overlap != nil {
		return fmt.Errorf("several patterns select %s: with pruning, each image must have one puller", overlap.Name())
	}
	if r.o.Pullers > len(r.patterns) {
		if r.o.Ramp != Saturate {
			return fmt.Errorf("%d pullers need %d patterns: with pruning, each image must have one puller", r.o.Pullers, r.o.Pullers)
		}
		r.o.Pullers = len(r.patterns)
	}
	if r.o.Prune == PruneSlipway {
		return r.checkGlobs()
	}
	return nil
}

// warm pulls every image once, so that the first pull of an image is not measured.
func (r *run) warm(ctx context.Context, tell func(done, total int64)) error {
	const atOnce = 8
	jobs := make(chan *imageset.Image)
	g, ctx := errgroup.WithContext(ctx)
	seen, total := map[*imageset.Image]bool{}, 0
	for _, set := range r.sets {
		for _, m := range set {
			if !seen[m] {
				seen[m] = true
				total++
			}
		}
	}
	g.Go(func() error {
		defer close(jobs)
		for _, m := range r.images {
			if !seen[m] {
				continue
			}
			select {
			case jobs <- m:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	var done int64
	var mu sync.Mutex
	for range atOnce {
		g.Go(func() error {
			p := &puller{r: r, lanes: []*lane{newLane(ctx, r.target, r.o.Timeout, newRecorder())}}
			defer p.close()
			for m := range jobs {
				if err := p.pull(ctx, m); err != nil {
					return fmt.Errorf("pull %s for the first time: %w", m.Name(), err)
				}
				mu.Lock()
				done++
				tell(done, int64(total))
				mu.Unlock()
			}
			return nil
		})
	}
	return g.Wait()
}

// pruneAll prunes what earlier runs have left in the target, so that the first pass of
// each puller also goes to the upstream.
func (r *run) pruneAll(ctx context.Context, tell func(done, total int64)) error {
	for i, set := range r.sets {
		if err := r.prune(ctx, r.patterns[i], set); err != nil {
			return err
		}
		tell(int64(i+1), int64(len(r.sets)))
	}
	return nil
}

// phase runs a phase before the measurement. It reports the progress at least once a
// second, because a registry may not answer.
func (r *run) phase(name string, do func(tell func(done, total int64)) error) error {
	r.o.Logger.Info("phase begins", "phase", name)
	var mu sync.Mutex
	last, since := Status{Phase: name}, time.Now()
	tell := func(done, total int64) {
		mu.Lock()
		last.Done, last.Total, since = done, total, time.Now()
		s := last
		mu.Unlock()
		r.report(s)
	}
	r.report(last)
	end := make(chan struct{})
	var ticking sync.WaitGroup
	ticking.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				mu.Lock()
				s := last
				s.Idle = time.Since(since)
				mu.Unlock()
				r.report(s)
			case <-end:
				return
			}
		}
	})
	defer ticking.Wait()
	defer close(end)
	return do(tell)
}

func (r *run) report(s Status) {
	if r.o.Progress == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.o.Progress(s)
}

// schedule returns a function that gives the number of pullers of the next step.
func (r *run) schedule() func(done []Step) (int, bool) {
	most := r.o.Pullers
	switch r.o.Ramp {
	case Constant:
		return func(done []Step) (int, bool) {
			if len(done) > 0 {
				return 0, false
			}
			return most, false
		}
	case Saturate:
		return func(done []Step) (int, bool) {
			if len(done) == 0 {
				return 1, false
			}
			last := done[len(done)-1].Pullers
			if last >= most || saturated(levels(done, r.o.Mix)) {
				return 0, false
			}
			return min(nextLevel(last), most), false
		}
	}
	return func(done []Step) (int, bool) {
		switch n := len(done); {
		case n < most:
			return n + 1, false
		case n < 2*most-1:
			return 2*most - 1 - n, true
		}
		return 0, false
	}
}

// length returns how long the run takes, or 0 if that is not known.
func (r *run) length() time.Duration {
	switch r.o.Ramp {
	case Constant:
		return r.o.Step
	case Saturate:
		return 0
	}
	return time.Duration(2*r.o.Pullers-1) * r.o.Step
}

// levels returns the rates of the steps in which pullers were added.
func levels(steps []Step, m Mix) []Level {
	var out []Level
	for _, s := range steps {
		if s.Down {
			continue
		}
		rate := s.Rate
		if !m.PullsOnly() {
			rate = s.OperationsRate
		}
		out = append(out, Level{s.Pullers, rate})
	}
	return out
}

// fixPatterns replaces "*" by an expression that matches everything, in patterns that are
// not regular expressions. Somebody who writes "*" or "*-0001" means that.
func fixPatterns(patterns []string) ([]string, error) {
	patterns = slices.Clone(patterns)
	for i, p := range patterns {
		if _, err := regexp.Compile(p); err == nil {
			continue
		}
		glob := "^" + strings.ReplaceAll(regexp.QuoteMeta(p), `\*`, ".*")
		if !strings.HasPrefix(p, "*") || strings.ContainsAny(p, `()[]{}+?|\^$`) {
			return nil, fmt.Errorf("pattern %q is not a regular expression; .* selects everything", p)
		}
		patterns[i] = glob
	}
	return patterns, nil
}
