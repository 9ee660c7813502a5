package start

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/internal/corpus"
	"example.org/slipway/integration/internal/tasks"
	"example.org/slipway/integration/internal/wire"
)

// These are the two tasks of a series, by their names in results and on the command line.
const (
	firstTask  = "first"
	secondTask = "second"
)

// Cell is one comparison, in which all systems have the same image, link and task.
type Cell struct {
	Image string `json:"image"`
	Task  string `json:"task"`
	Mbit  int    `json:"mbit"`
	RTTms int    `json:"rtt_ms"`
}

// Sample is one start from nothing.
type Sample struct {
	Cell
	System string `json:"system"`
	Round  int    `json:"round"`
	// PullSec is the time of the pull. RunSec is the time of the first run until the task
	// is done. SecondSec is the same time for another container that runs afterwards. All
	// are in seconds.
	PullSec   float64 `json:"pull_sec"`
	RunSec    float64 `json:"run_sec"`
	SecondSec float64 `json:"second_sec"`
	// PullBytes and RunBytes are the bytes that had come over the link at the end of the
	// pull and at the end of the first run. They include the headers of all network
	// layers.
	PullBytes int64 `json:"pull_bytes"`
	RunBytes  int64 `json:"run_bytes"`
	// Computed says that the start was not measured but computed. The pull is then the
	// time that the image's compressed bytes take at the full rate. The run is the median
	// of the measured runs.
	Computed bool   `json:"computed,omitempty"`
	Failure  string `json:"failure,omitempty"`
}

// TotalSec returns the time from nothing to the end of the task.
func (s Sample) TotalSec() float64 { return s.PullSec + s.RunSec }

// Start is the outcome of the scenario.
type Start struct {
	Run     Run      `json:"run"`
	Samples []Sample `json:"samples"`
	// Needs are what the tasks need of their images.
	Needs []Need `json:"needs"`
}

// runReady puts everything that the scenario start needs into the registry. This takes
// long, but is done only once.
func runReady(b *bench, ctx context.Context) error {
	if err := b.push(ctx, b.images); err != nil {
		return err
	}
	if b.system(stargzName) == nil {
		return nil
	}
	for _, im := range b.images {
		if err := b.optimise(ctx, im); err != nil {
			return fmt.Errorf("optimise %s: %w", im, err)
		}
	}
	return nil
}

// runStart measures all cells.
func runStart(b *bench, ctx context.Context) error {
	began := time.Now()
	if err := runReady(b, ctx); err != nil {
		return err
	}
	out := &Start{}
	b.results.Start = out
	defer func() { out.Run = b.since(began) }()
	var errs []error
	for _, im := range b.images {
		for _, task := range strings.Split(b.o.tasks, ",") {
			need, err := b.need(ctx, im, task)
			if err != nil {
				return fmt.Errorf("what %s needs: %w", im, err)
			}
			out.Needs = append(out.Needs, need)
			b.Logf("%s", need)
		}
	}
	if err := b.recordProfiles(ctx); err != nil {
		return err
	}
	for round := range b.o.Rounds {
		for _, l := range b.links {
			for _, im := range b.images {
				for _, task := range strings.Split(b.o.tasks, ",") {
					errs = append(errs, b.cell(ctx, Cell{im.String(), task, l.mbit, l.rttMs}, im, round, out))
					if ctx.Err() != nil {
						return errors.Join(append(errs, ctx.Err())...)
					}
				}
			}
		}
	}
	out.complete()
	return errors.Join(errs...)
}

// cell measures one cell once with each system. The order changes from round to round.
func (b *bench) cell(ctx context.Context, c Cell, im *corpus.Image, round int, out *Start) error {
	var errs []error
	for i := range b.systems {
		s := b.systems[(i+round)%len(b.systems)]
		sample := Sample{Cell: c, System: s.name, Round: round}
		im := im
		if s.name == newName {
			copies, err := asNew([]*corpus.Image{im})
			if err != nil {
				return err
			}
			im = copies[0]
		}
		if seconds := transferSec(im.Bytes(), c.Mbit); s.name == plainName && seconds > b.o.wait.Seconds() {
			sample.Computed, sample.PullSec, sample.PullBytes = true, seconds, im.Bytes()
		} else if err := b.once(ctx, im, s, true, &sample); err != nil {
			sample.Failure = err.Error()
			errs = append(errs, fmt.Errorf("%s at %s with %s: %w", c.Image, link{c.Mbit, c.RTTms}, s.name, err))
		}
		out.Samples = append(out.Samples, sample)
		b.Logf("%s", sample)
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

func (s Sample) String() string {
	at := fmt.Sprintf("%-22s %-6s %4d Mbit/s %2d ms  %-8s", s.Image, s.Task, s.Mbit, s.RTTms, s.System)
	again := ""
	if s.SecondSec > 0 {
		again = fmt.Sprintf(" again %.2f s;", s.SecondSec)
	}
	switch {
	case s.Failure != "":
		return at + " FAILED: " + s.Failure
	case s.Computed:
		return fmt.Sprintf("%s pull %.2f s (computed)", at, s.PullSec)
	}
	return fmt.Sprintf("%s %7.2f s = pull %.2f + run %.2f;%s %.1f + %.1f MB", at, s.TotalSec(), s.PullSec, s.RunSec, again,
		float64(s.PullBytes)/1e6, float64(s.RunBytes-s.PullBytes)/1e6)
}

// transferSec returns how long bytes take on a link that carries nothing else.
func transferSec(bytes int64, mbit int) float64 { return float64(bytes) * 8 / 1e6 / float64(mbit) }

func taskOf(im *corpus.Image, name string) (tasks.Task, error) {
	if strings.HasPrefix(im.Series, touchSeries) {
		return touchTask(im), nil
	}
	of := tasks.First
	if name == secondTask {
		of = tasks.Second
	}
	task, ok := of(strings.TrimSuffix(im.Series, newSuffix))
	if !ok {
		return task, fmt.Errorf("series %s has no task", im.Series)
	}
	return task, nil
}

// once pulls an image on a new node and runs its task. If again is set, it runs the task twice.
func (b *bench) once(ctx context.Context, im *corpus.Image, s *system, again bool, out *Sample) (err error) {
	task, err := taskOf(im, out.Task)
	if err != nil {
		return err
	}
	syscall.Sync() // pending writes must not slow the measurement
	n, err := startNode(ctx, b.NewDir(), s, b.hosts())
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, n.logs())
		}
		err = errors.Join(err, n.stop())
	}()
	if err := b.net.shape(ctx, out.Mbit); err != nil {
		return err
	}
	host := b.registry.host(out.RTTms)
	if s.held {
		stop, err := b.net.hold(ctx, out.RTTms, heldRate)
		if err != nil {
			return err
		}
		defer stop()
		host = b.registry.heldHost()
	}
	return b.timed(ctx, n, ref(host, im, s), task, again, out)
}

// timed is the measured part of once.
func (b *bench) timed(ctx context.Context, n *node, ref string, task tasks.Task, again bool, out *Sample) error {
	before, err := b.net.received()
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := n.pull(ctx, ref); err != nil {
		return err
	}
	out.PullSec = time.Since(begin).Seconds()
	now, err := b.net.received()
	if err != nil {
		return err
	}
	out.PullBytes = now - before
	run := n.tasks()
	var readErr error
	run.Done = func() { now, readErr = b.net.received() }
	task.Timeout += slower(out.Mbit)
	r, err := run.Run(ctx, ref, "first", task)
	if err := errors.Join(err, readErr); err != nil {
		return err
	}
	out.RunSec, out.RunBytes = r.Took.Seconds(), now-before
	if !again {
		return nil
	}
	run.Done = nil
	if r, err = run.Run(ctx, ref, "second", task); err != nil {
		return fmt.Errorf("second run: %w", err)
	}
	out.SecondSec = r.Took.Seconds()
	return nil
}

// slower returns how much longer a task may take if its files come over a link. It is the
// time that 500 MB take on the link.
func slower(mbit int) time.Duration {
	return time.Duration(transferSec(500e6, mbit) * float64(time.Second))
}

// profileDuration is how long the agent watches a container for its profile. It is longer than the
// tasks take when everything is local.
const profileDuration = 40 * time.Second

// recordProfiles runs each first task once with an agent that reports to the registry
// what the container opens first. The link has no limits. Stargz learns the same from its
// optimizer. Profiles that the registry already has are kept. With -profiles earlier,
// recordProfiles runs only the versions before each image. The image then starts as a new
// version does. With -profiles both, it does the one for the images and the other one for
// copies of the images and of the versions before them, in repositories of their own.
func (b *bench) recordProfiles(ctx context.Context) error {
	if b.system(slipwayName) == nil {
		return nil
	}
	if err := b.net.shape(ctx, 0); err != nil {
		return err
	}
	started, known := b.images, b.images
	switch b.o.profiles {
	case earlierProfiles:
		known = b.earlier()
		if err := b.push(ctx, known); err != nil {
			return err
		}
	case bothProfiles:
		all := append(b.images[:len(b.images):len(b.images)], b.earlier()...)
		copies, err := asNew(all)
		if err == nil {
			err = b.push(ctx, all)
		}
		if err == nil {
			err = b.pushCopies(ctx, all, copies)
		}
		if err != nil {
			return err
		}
		n := len(b.images)
		started, known = append(started[:n:n], copies[:n]...), append(known[:n:n], copies[n:]...)
	}
	for _, im := range known {
		if err := b.recordProfile(ctx, im); err != nil {
			return fmt.Errorf("record the profile of %s: %w", im, err)
		}
	}
	for _, im := range started {
		if own := b.hasProfile(ctx, im); own != slices.Contains(known, im) {
			return fmt.Errorf("%s has a profile of its own: %t; use another -prepared", im, own)
		}
	}
	return nil
}

// newSuffix ends the names of the series whose images start as new versions.
const newSuffix = "-new"

// asNew returns copies of images that are in repositories of their own. Their manifests differ from
// those of the images by an annotation, because profiles belong to manifests.
func asNew(images []*corpus.Image) ([]*corpus.Image, error) {
	out := make([]*corpus.Image, len(images))
	for i, im := range images {
		var manifest map[string]any
		if err := json.Unmarshal(im.Manifest, &manifest); err != nil {
			return nil, fmt.Errorf("manifest of %s: %w", im, err)
		}
		manifest["annotations"] = map[string]string{"copy": newSuffix}
		c := *im
		var err error
		if c.Manifest, err = json.Marshal(manifest); err != nil {
			return nil, err
		}
		c.Series, c.Digest = im.Series+newSuffix, wire.Digest(c.Manifest)
		out[i] = &c
	}
	return out, nil
}

// pushCopies makes copies of images that are in the registry.
func (b *bench) pushCopies(ctx context.Context, images, copies []*corpus.Image) error {
	w := wire.New(b.registry.host(0))
	defer w.Close()
	for i, c := range copies {
		if b.registry.has(ctx, c, "") == c.Digest {
			continue
		}
		for _, d := range append([]wire.Descriptor{c.Config}, c.Layers...) {
			q := url.Values{"mount": {d.Digest}, "from": {images[i].Repo()}}
			r, err := w.Do(ctx, http.MethodPost, "/v2/"+c.Repo()+"/blobs/uploads/?"+q.Encode(), nil, nil)
			if err == nil && r.Status != http.StatusCreated {
				err = fmt.Errorf("status %d", r.Status)
			}
			if err != nil {
				return fmt.Errorf("copy a blob of %s: %w", images[i], err)
			}
		}
		if _, err := w.PutManifest(ctx, c.Repo(), c.Version, c.ManifestType, c.Manifest); err != nil {
			return fmt.Errorf("copy %s: %w", images[i], err)
		}
	}
	return nil
}

// earlier returns the versions of the images' series that come before them.
func (b *bench) earlier() []*corpus.Image {
	return slices.DeleteFunc(slices.Clone(b.all), func(o *corpus.Image) bool {
		return slices.Contains(b.images, o) || !slices.ContainsFunc(b.images, func(im *corpus.Image) bool {
			return im.Series == o.Series && corpus.CompareVersions(o.Version, im.Version) < 0
		})
	})
}

// hasProfile reports whether the registry has reports about the image itself. A list with origins
// is inferred.
func (b *bench) hasProfile(ctx context.Context, im *corpus.Image) bool {
	_, body, err := b.registry.read(ctx, http.MethodGet, "/v2/"+im.Repo()+"/_slipway/gear/profiles/"+im.Digest, "")
	var list struct {
		Names   []string
		Origins string
	}
	return err == nil && json.Unmarshal(body, &list) == nil && len(list.Names) > 0 && list.Origins == ""
}

func (b *bench) recordProfile(ctx context.Context, im *corpus.Image) (err error) {
	known := func() bool { return b.hasProfile(ctx, im) }
	if known() {
		return nil
	}
	b.Logf("recording the profile of %s", im)
	task, err := taskOf(im, firstTask)
	if err != nil {
		return err
	}
	n, err := startNode(ctx, b.NewDir(), slipway(b.Binary, agentSettings{record: true, watch: b.o.watch}), b.hosts())
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, n.logs())
		}
		err = errors.Join(err, n.stop())
	}()
	image := ref(b.registry.host(0), im, n.system)
	if err := n.pull(ctx, image); err != nil {
		return err
	}
	if _, err := n.tasks().Run(ctx, image, "profile", task); err != nil {
		return err
	}
	for end := time.Now().Add(b.o.watch + 20*time.Second); !known(); {
		if time.Now().After(end) {
			return errors.New("the registry has none")
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
	return nil
}

// complete fills in the run of computed starts. It takes runs that were measured on other links,
// because by then everything is local and the link does not matter.
func (st *Start) complete() {
	for i := range st.Samples {
		if s := &st.Samples[i]; s.Computed {
			native := st.native(s.Image, s.Task)
			s.RunSec = native.Median
			s.RunBytes = s.PullBytes
		}
	}
}

// native returns the spread of the runs of a task for which everything was already local.
func (st *Start) native(image, task string) measure.Spread {
	var runs []float64
	for _, s := range st.Samples {
		if s.System == plainName && s.Image == image && s.Task == task && !s.Computed && s.Failure == "" {
			runs = append(runs, s.RunSec)
		}
	}
	return measure.SpreadOf(runs)
}

// limit returns the least time that a cell could take. It consists of the unavoidable
// round trips, the time of the needed bytes at the full rate, and the task itself. It is
// 0 if that is not known.
func (st *Start) limit(c Cell) float64 {
	native := st.native(c.Image, c.Task)
	i := slices.IndexFunc(st.Needs, func(n Need) bool { return n.Image == c.Image && n.Task == c.Task })
	if i < 0 || native.N == 0 {
		return 0
	}
	return leastRTTs*float64(c.RTTms)/1e3 + transferSec(st.Needs[i].WireBytes(), c.Mbit) + native.Median
}

// leastRTTs is the number of round trips of a start with an index: connection, manifest by tag
// (HEAD, then GET, as containerd does), configuration, index, files.
const leastRTTs = 6

// spread returns the time that a system needed in a cell, in seconds.
func (st *Start) spread(c Cell, system string, of func(Sample) float64) (sp measure.Spread, computed bool) {
	var v []float64
	for _, s := range st.Samples {
		if s.Cell == c && s.System == system && s.Failure == "" {
			v, computed = append(v, of(s)), computed || s.Computed
		}
	}
	sp = measure.SpreadOf(v)
	if sp.N > 0 && sp.Median == 0 {
		sp.Median = math.SmallestNonzeroFloat64
	}
	return sp, computed
}

// cells returns the cells that have samples, by link, task and image.
func (st *Start) cells() []Cell {
	var out []Cell
	for _, s := range st.Samples {
		if !slices.Contains(out, s.Cell) {
			out = append(out, s.Cell)
		}
	}
	slices.SortStableFunc(out, func(x, y Cell) int {
		return cmp.Or(cmp.Compare(x.Task, y.Task), cmp.Compare(x.RTTms, y.RTTms), cmp.Compare(y.Mbit, x.Mbit), cmp.Compare(x.Image, y.Image))
	})
	return out
}

// expectation is what a series' first task is known to need. It is used for estimates.
// share is the share of the compressed image that the task needs, and runSec is how many
// seconds the task takes when everything is local.
type expectation struct{ share, runSec float64 }

func expected(series string) expectation {
	e, ok := map[string]expectation{"debian": {0.02, 0.2}, "django": {0.17, 2}, "golang": {0.07, 14}, "maven": {0.2, 6}, "nginx": {0.13, 0.2},
		"postgres": {0.17, 2}, "python": {0.02, 2.5}, "redis": {0.28, 0.2}, "tomcat": {0.25, 7}}[series]
	if !ok {
		return expectation{0.15, 3}
	}
	return e
}

const (
	aroundSec   = 3    // to start a node and to remove it
	unpackBytes = 30e6 // compressed bytes unpacked per second
	recordSec   = 15   // to record the profile of an image, if it has to be pushed
)

// estimate prints how long the scenarios start and touch will take with the chosen options,
// if the machine is like the one that the expectations come from.
func (b *bench) estimate() error {
	if scenarios := strings.Split(b.o.Scenarios, ","); slices.Contains(scenarios, touchScenario) {
		if err := b.estimateTouch(); err != nil || !slices.Contains(scenarios, startScenario) {
			return err
		}
	}
	var sec float64
	for _, l := range b.links {
		for _, im := range b.images {
			e := expected(im.Series)
			for _, s := range b.systems {
				switch transfer := transferSec(im.Bytes(), l.mbit); {
				case s.name != plainName:
					sec += transfer*e.share + 2*e.runSec + aroundSec
				case transfer <= b.o.wait.Seconds():
					sec += transfer + float64(im.Bytes())/unpackBytes + 2*e.runSec + aroundSec
				}
			}
		}
	}
	sec *= float64(b.o.Rounds * len(strings.Split(b.o.tasks, ",")))
	for _, im := range b.images { // a plain pull shows what is needed
		sec += float64(im.Bytes())/unpackBytes + 2*expected(im.Series).runSec + aroundSec
	}
	once := 90 * len(b.images)
	if b.o.profiles != ownProfiles {
		once += recordSec * len(b.earlier())
	}
	fmt.Printf("start: %d images, %d links, %d systems, %d rounds: about %s, and once for all %s for pushing, optimising and recording\n",
		len(b.images), len(b.links), len(b.systems), b.o.Rounds, time.Duration(sec)*time.Second, time.Duration(once)*time.Second)
	return nil
}
