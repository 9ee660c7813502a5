package workload

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/oci/wire"
	"example.org/slipway/workload/replay"
	"example.org/slipway/workload/replay/plan"
	"example.org/slipway/workload/replay/result"
	"example.org/slipway/workload/trace/store"
)

// replayFlags are the flags of slipway trace replay.
type replayFlags struct {
	o                                 replay.Options
	targets                           []string
	each, dryRun, quiet               bool
	user, passwordFile, ca, cert, key string
	noDocker, insecure, http1         bool
	level, speed, from, to, policy    string
	phase, forward, form              string
	secretFile, workerCA, workerCert  string
	workerKey                         string
	workerTLS                         bool
	metrics                           string
	gates                             gateFlags
}

func traceReplayCommand() *cobra.Command {
	var f replayFlags
	cmd := &cobra.Command{
		Use:   "replay STORE -o RESULT --target [NAME=]URL",
		Short: "Send the requests of a trace to registries and measure the answers",
		Long: `Send the requests of a trace to a registry at the times at which they were recorded, or
faster. What the trace does not hold is made up: the content of a layer follows from its name,
and manifests have the layers that clients fetched with them. Before the test, everything that
will be read and that the trace does not push itself is put in place.

Levels: L0 sends blobs only, L1 every request, L2 whole pulls and pushes, in which a manifest
comes before its layers. Latencies count from the time at which a request was to be sent.

With --each the trace is replayed to one target after another, and the results are compared;
otherwise each request goes to one of the targets. Exit status 3 means that a gate failed, 4
that the run is not valid. docs/replay.md describes everything.`,
		Example: `  slipway trace replay traces -o monday --target http://localhost:5000 --from 2017-07-03 --to 2017-07-04 --speed 10
  slipway trace replay traces -o three --each --level L2 --target slipway=http://a:5000 --target zot=http://b:5000
  slipway trace replay traces -o big --target https://registry.example.com --workers load1:7761,load2:7761 --worker-tls --secret-file secret`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	f.addPlan(cmd.Flags())
	f.addTargets(cmd.Flags())
	f.addRun(cmd.Flags())
	f.gates.add(cmd.Flags())
	return cmd
}

func (f *replayFlags) addPlan(fl *pflag.FlagSet) {
	p := &f.o.Plan
	fl.StringVar(&f.level, "level", "L1", "what is replayed: L0 (blobs), L1 (every request) or L2 (pulls and pushes)")
	fl.StringVar(&p.Zone, "zone", "", "zone of the store (default: the only one)")
	fl.StringVar(&f.from, "from", "", "leave out requests before this time, such as 2017-07-03 or 2017-07-03T12:00:00Z")
	fl.StringVar(&f.to, "to", "", "leave out requests from this time on")
	fl.Int64Var(&p.MaxRequests, "max-requests", 0, "end after this many requests of the trace")
	fl.DurationVar(&p.MaxTime, "max-time", 0, "end after this much recorded time")
	fl.StringVar(&f.speed, "speed", "1x", "speed as a multiple of the recorded one, or max: as fast as the registry answers")
	fl.DurationVar(&p.MaxGap, "max-gap", 0, "shorten longer times without requests to this")
	fl.Float64Var(&p.Rate, "rate", 0, "limit of requests (L2: sessions) per second; later ones are delayed")
	fl.StringVar(&p.RepoPrefix, "repo-prefix", "", "prefix of all repository names, such as replay/")
	fl.Float64Var(&p.SizeScale, "size-scale", 1, "multiply the sizes of blobs")
	fl.Int64Var(&p.MaxSize, "max-size", 0, "make no blob larger than this, in bytes")
	fl.Uint64Var(&p.Maker.Seed, "seed", 0, "seed of the content and of everything random; another seed makes other content")
	fl.Float64Var(&p.Maker.Compressible, "compressible", 0, "share of the content that compression removes, 0 to 1")
	fl.Float64Var(&p.Maker.Duplicates, "duplicates", 0, "share of blocks of 4 KiB that other layers have, too, 0 to 1")
	fl.DurationVar(&p.SessionGap, "session-gap", time.Minute, "longest pause within a pull or push")
	fl.BoolVar(&p.KeepGaps, "keep-gaps", false, "request no layer of a pull sooner after the pull's begin than in the trace (L2)")
	fl.IntVar(&p.LayersAtOnce, "layers-at-once", 3, "number of layers of a pull or push that are transferred at once (L2)")
	fl.BoolVar(&p.Deletes, "deletes", false, "replay DELETE requests too")
}

func (f *replayFlags) addTargets(fl *pflag.FlagSet) {
	fl.StringArrayVar(&f.targets, "target", nil, "registry, as [NAME=]URL; may be repeated")
	fl.BoolVar(&f.each, "each", false, "replay to one target after another, and compare them")
	fl.StringVar(&f.policy, "targets-by", "random", "what decides which of several targets gets a request: random, digest or host")
	fl.StringVar(&f.user, "username", "", "user name at the targets (default: Docker's credentials)")
	fl.StringVar(&f.passwordFile, "password-file", "", "file with the password")
	fl.BoolVar(&f.noDocker, "no-docker-config", false, "do not use Docker's credentials")
	fl.StringVar(&f.ca, "ca", "", "file with the CA certificates of the targets")
	fl.StringVar(&f.cert, "cert", "", "file with a client certificate for the targets")
	fl.StringVar(&f.key, "key", "", "file with the certificate's key")
	fl.BoolVar(&f.insecure, "insecure", false, "accept any certificate of the targets")
	fl.BoolVar(&f.o.Clients, "clients", false, "send the trace's client in an X-Forwarded-For of each request; the targets must trust this machine as a proxy")
	fl.BoolVar(&f.http1, "http1", false, "do not use HTTP/2")
}

func (f *replayFlags) addRun(fl *pflag.FlagSet) {
	o := &f.o
	command.AddPath(fl, &o.Dir, "out", "directory of the result")
	command.AddForm(fl, &f.form, "output", "json")
	fl.StringVar(&f.phase, "phase", "all", "all, warmup (only put everything in place) or run (everything is in place)")
	fl.BoolVar(&o.Resume, "resume", false, "continue the run whose result the directory holds")
	fl.BoolVar(&f.dryRun, "dry-run", false, "show what would be sent, and send nothing")
	fl.BoolVarP(&f.quiet, "quiet", "q", false, "no progress")
	fl.IntVar(&o.ClosedLoop, "closed-loop", 0, "ignore the times: each worker keeps this many requests under way, one after another")
	fl.IntVar(&o.Concurrency, "concurrency", 4096, "limit of requests (L2: sessions) under way on each worker")
	fl.DurationVar(&o.Patience, "patience", 30*time.Second, "how long a request may wait because --concurrency is reached, before it is dropped")
	fl.IntVar(&o.WarmConcurrency, "warmup-concurrency", 16, "number of contents that each worker puts in place at once")
	fl.DurationVar(&o.Timeout, "timeout", 5*time.Minute, "limit of the time of a request")
	fl.DurationVar(&o.MaxLag, "max-lag", 10*time.Millisecond, "99th percentile of the generator's lag above which the run is not valid")
	fl.StringVar(&f.metrics, "metrics", "", "address at which Prometheus can scrape the progress of the replay, such as 127.0.0.1:5003 (default: none)")
	fl.DurationVar(&o.Checkpoint, "checkpoint", 10*time.Second, "how often results are made durable")
	fl.StringSliceVar(&o.Workers, "workers", nil, "HOST:PORT of workers (default: this process)")
	fl.StringVar(&f.forward, "forward", "client", "how the worker for a request is chosen: client (by a hash of the client) or round-robin")
	fl.StringVar(&f.secretFile, "secret-file", "", "file with the workers' secret")
	fl.BoolVar(&f.workerTLS, "worker-tls", false, "connect to the workers with TLS")
	fl.StringVar(&f.workerCA, "worker-ca", "", "file with the CA certificates of the workers")
	fl.StringVar(&f.workerCert, "worker-cert", "", "file with a client certificate for the workers")
	fl.StringVar(&f.workerKey, "worker-key", "", "file with the certificate's key")
}

func (f *replayFlags) run(cmd *cobra.Command, dir string) error {
	gates, err := f.gates.parse()
	if err != nil {
		return err
	}
	if len(gates) > 0 && (!f.each || len(f.targets) < 2) {
		return command.Usagef("--max-regression compares targets: it needs --each and two of them; slipway trace compare compares results")
	}
	s, err := store.Open(dir)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := f.complete(cmd, s); err != nil {
		return err
	}
	if f.dryRun {
		return f.describe(cmd, s)
	}
	if err := f.reach(cmd.Context()); err != nil {
		return err
	}
	if f.metrics != "" {
		stop, err := f.serveMetrics()
		if err != nil {
			return err
		}
		defer stop()
	}
	var dirs []string
	if !f.each {
		if err := f.once(cmd, s, f.o); err != nil {
			return err
		}
		dirs = append(dirs, f.o.Dir)
	} else {
		for _, t := range f.o.Targets {
			o := f.o
			o.Targets = []replay.Target{t}
			o.Dir = filepath.Join(f.o.Dir, t.Name)
			if f.finished(&o) {
				dirs = append(dirs, o.Dir)
				continue
			}
			if _, err := os.Stat(o.Dir); o.Resume && errors.Is(err, os.ErrNotExist) {
				o.Resume = false // the earlier run did not get this far
			}
			if err := f.once(cmd, s, o); err != nil {
				return fmt.Errorf("%s: %w", t.Name, err)
			}
			dirs = append(dirs, o.Dir)
		}
	}
	if f.phase == string(replay.WarmUpOnly) {
		return nil
	}
	return f.report(cmd, dirs, gates)
}

// finished reports whether a resumed run already has the result of one target.
func (f *replayFlags) finished(o *replay.Options) bool {
	if !o.Resume {
		return false
	}
	r, err := result.Load(o.Dir)
	return err == nil && r.Complete
}

// once replays to targets.
func (f *replayFlags) once(cmd *cobra.Command, s *store.Store, o replay.Options) error {
	p := command.NewProgress("reading")
	if !f.quiet {
		o.Progress = func(doing string, done, total int64) {
			p.Doing = doing
			if total > 0 {
				p.Share(done, total, "")
			} else {
				p.Show("%d requests", done)
			}
		}
		o.Status = func(st replay.Status) { showReplay(p, st) }
	}
	sum, err := replay.Run(cmd.Context(), s, o)
	p.End()
	if err == nil && o.Phase == replay.WarmUpOnly {
		w := sum.WarmUp
		if f.form == "json" {
			return printJSON(cmd.OutOrStdout(), w)
		}
		fmt.Fprintf(cmd.OutOrStdout(), "put in place: %d blobs and %d manifests with %d requests in %.1f s, %d failed\n", w.Blobs, w.Manifests, w.Requests, w.Seconds, w.Errors)
		return nil
	}
	if err != nil && sum != nil {
		return fmt.Errorf("%w; what was measured until then is in %s (--resume continues, slipway trace report shows it)", err, o.Dir)
	}
	return err
}

// showReplay shows the state of a running replay.
func showReplay(p *command.Progress, s replay.Status) {
	p.Doing = s.Phase
	count, left := fmt.Sprint(s.Done), ""
	if s.Total > 0 {
		count += fmt.Sprintf(" of %d", s.Total)
	}
	switch {
	case s.Length > 0: // the replay takes as long as the recording
		left = max(0, s.Length-s.Position).Round(time.Second).String() + " left"
	case s.Done > 0 && s.Total > s.Done:
		left = time.Duration(float64(s.Elapsed)/float64(s.Done)*float64(s.Total-s.Done)).Round(time.Second).String() + " left"
	}
	problem := ""
	if s.Problem != nil {
		problem = fmt.Sprintf("; %d SAMPLES NOT WRITTEN: %v", s.Unwritten, s.Problem)
	}
	p.Show("%s, %.0f/s, %s/s, p50 %s p99 %s, %d errors, %d not sent, lag %s, %s%s", count, s.Rate, command.Size(int64(s.BytesPerSec)),
		s.P50.Round(10*time.Microsecond), s.P99.Round(10*time.Microsecond), s.Errors, s.Unsent, s.Lag.Round(10*time.Microsecond), left, problem)
}

// report writes the reports of finished runs and evaluates them.
func (f *replayFlags) report(cmd *cobra.Command, dirs []string, gates []result.Gate) error {
	results, err := loadResults(dirs)
	if err != nil {
		return err
	}
	comparisons := compareAll(results, result.CompareOptions{Seed: f.o.Plan.Maker.Seed, Gates: gates})
	page := filepath.Join(f.o.Dir, "report.html")
	err = writeReport(page, func(w *os.File) error { return result.HTML(w, "Replay", results, comparisons) })
	if err != nil {
		return err
	}
	if f.form == "json" {
		err = printJSON(cmd.OutOrStdout(), newReplayReport(results, comparisons, page))
	} else {
		err = printReplay(cmd.OutOrStdout(), results, comparisons, page)
	}
	if err != nil {
		return err
	}
	return verdict(results, comparisons)
}

func printReplay(w io.Writer, results []*result.Result, comparisons []*result.Comparison, page string) error {
	for _, r := range results {
		if err := r.Text(w); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	for _, c := range comparisons {
		if err := c.Text(w); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "report: %s\n", page)
	return err
}

// replayReport is the output of --output json.
type replayReport struct {
	Results     []replayResult       `json:"results"`
	Comparisons []*result.Comparison `json:"comparisons,omitempty"`
	Page        string               `json:"page"`
}

type replayResult struct {
	Name string `json:"name"`
	*result.Summary
}

func newReplayReport(results []*result.Result, comparisons []*result.Comparison, page string) *replayReport {
	r := &replayReport{Comparisons: comparisons, Page: page}
	for _, res := range results {
		r.Results = append(r.Results, replayResult{res.Name, res.Summary})
	}
	return r
}

// verdict returns the exit status for the results.
func verdict(results []*result.Result, comparisons []*result.Comparison) error {
	if slices.ContainsFunc(comparisons, (*result.Comparison).Failed) {
		return command.ExitWith(3, errors.New("a gate failed"))
	}
	for _, r := range results {
		if !r.Valid {
			return command.ExitWith(4, fmt.Errorf("%s is not a valid run: %s", r.Name, r.Verdict))
		}
	}
	return nil
}

// replayPlan describes what would be sent.
type replayPlan struct {
	Requests   int64           `json:"requests"`
	First      time.Time       `json:"first,omitzero"`
	Last       time.Time       `json:"last,omitzero"`
	Level      string          `json:"level"`
	Tasks      int64           `json:"tasks"`
	Steps      int64           `json:"steps"`
	Seconds    float64         `json:"seconds"`
	Skipped    plan.Skip       `json:"skipped,omitempty"`
	Blobs      int64           `json:"blobs"`
	Bytes      int64           `json:"bytes"`
	Paired     int64           `json:"paired"`
	WarmBlobs  int64           `json:"warmBlobs"`
	WarmImages int64           `json:"warmManifests"`
	Unsized    *result.Unsized `json:"unsized,omitempty"`
}

// describe prints the plan.
func (f *replayFlags) describe(cmd *cobra.Command, s *store.Store) error {
	dir, err := os.MkdirTemp("", "slipway-replay-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	o := f.o.Plan
	o.Targets = max(1, len(f.o.Targets))
	if f.each {
		o.Targets = 1
	}
	p, err := plan.New(cmd.Context(), s, o, filepath.Join(dir, "digests"), nil)
	if err != nil {
		return err
	}
	defer p.Close()
	d := replayPlan{Requests: p.Requests, First: p.First, Last: p.Last, Level: o.Level.String(), Skipped: p.Skipped, Blobs: p.Blobs, Bytes: p.BlobBytes,
		Paired: p.Paired, WarmBlobs: p.WarmBlobs, WarmImages: p.WarmManifests}
	if u := p.Unsized; u.Blobs+u.Manifests > 0 {
		d.Unsized = &result.Unsized{Blobs: u.Blobs, Manifests: u.Manifests, BlobSize: o.UnknownSize(), Examples: u.Examples}
	}
	err = p.Tasks(cmd.Context(), 0, func(t *plan.Task) error {
		d.Tasks, d.Steps, d.Seconds = d.Tasks+1, d.Steps+int64(len(t.Steps)), t.At.Seconds()
		return nil
	})
	if err != nil {
		return err
	}
	if f.form == "json" {
		return printJSON(cmd.OutOrStdout(), &d)
	}
	d.print(cmd.OutOrStdout())
	return nil
}

func (d *replayPlan) print(w io.Writer) {
	if d.Requests == 0 {
		fmt.Fprintln(w, "nothing of the trace is to be replayed")
	} else {
		fmt.Fprintf(w, "%d requests from %s to %s are %d tasks of %d steps at %s, in %s\n", d.Requests, d.First.Format(time.RFC3339), d.Last.Format(time.RFC3339),
			d.Tasks, d.Steps, d.Level, time.Duration(d.Seconds*float64(time.Second)).Round(time.Millisecond))
	}
	for _, reason := range slices.Sorted(maps.Keys(d.Skipped)) {
		fmt.Fprintf(w, "left out: %d, %s\n", d.Skipped[reason], reason)
	}
	fmt.Fprintf(w, "%d blobs of %s are made; %d uploads were paired with later requests by repository and size\n", d.Blobs, command.Size(d.Bytes), d.Paired)
	if d.Unsized != nil {
		fmt.Fprintf(w, "! %s\n", d.Unsized)
	}
	fmt.Fprintf(w, "put in place before: %d blobs in their repositories, %d manifests\n", d.WarmBlobs, d.WarmImages)
}

// complete converts flags to options.
func (f *replayFlags) complete(cmd *cobra.Command, s *store.Store) (err error) {
	o := &f.o
	o.Version = command.LongVersion()
	o.Phase, o.RoundRobin = replay.Phase(f.phase), f.forward == "round-robin"
	o.Plan.TargetPolicy = plan.Policy(f.policy)
	if f.forward != "client" && !o.RoundRobin {
		return command.Usagef("--forward %q: use client or round-robin", f.forward)
	}
	if o.Plan.Level, err = plan.ParseLevel(f.level); err != nil {
		return err
	}
	if o.Plan.Zone, err = onlyZone(s, o.Plan.Zone); err != nil {
		return err
	}
	span := traceRangeFlags{from: f.from, to: f.to}
	if o.Plan.From, o.Plan.To, err = span.times(); err != nil {
		return err
	}
	if err := f.setSpeed(); err != nil {
		return err
	}
	if o.Dir == "" && !f.dryRun {
		return command.Usagef("name the directory of the result with -o")
	}
	if err := f.setTargets(cmd.Context()); err != nil {
		return err
	}
	if o.Secret, err = command.ReadOptionalSecret(f.secretFile); err != nil {
		return err
	}
	if f.workerTLS || f.workerCA != "" || f.workerCert != "" || f.workerKey != "" {
		if o.TLS, err = wire.ClientTLS(f.workerCA, f.workerCert, f.workerKey); err != nil {
			return err
		}
	}
	o.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	o.Describe = map[string]string{"store": filepath.Base(s.Dir())}
	cmd.Flags().Visit(func(fl *pflag.Flag) {
		if fl.Name != "target" && fl.Name != "username" {
			o.Describe[fl.Name] = fl.Value.String()
		}
	})
	return nil
}

// setSpeed parses --speed.
func (f *replayFlags) setSpeed() error {
	if f.speed == "max" {
		if f.o.ClosedLoop == 0 {
			f.o.ClosedLoop = min(f.o.Concurrency, 64)
		}
		return nil
	}
	var err error
	if f.o.Plan.Speed, err = strconv.ParseFloat(strings.TrimSuffix(f.speed, "x"), 64); err != nil || !(f.o.Plan.Speed > 0) {
		return command.Usagef("--speed %q: use a number, such as 2x, or max", f.speed)
	}
	return nil
}

// onlyZone returns the named zone. If name is empty, it returns the only zone.
func onlyZone(s *store.Store, name string) (string, error) {
	var names []string
	for _, z := range s.Zones() {
		names = append(names, z.Name)
	}
	switch {
	case name != "" && !slices.Contains(names, name):
		return "", fmt.Errorf("the store has no zone %s; it has %s", name, strings.Join(names, ", "))
	case name == "" && len(names) == 1:
		return names[0], nil
	case name == "":
		return "", fmt.Errorf("name one of the zones with --zone: %s", strings.Join(names, ", "))
	}
	return name, nil
}
