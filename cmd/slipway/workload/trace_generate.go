package workload

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/workload/trace/store"
	"example.org/slipway/workload/trace/synth"
)

// generateFlags are the flags of slipway trace generate.
type generateFlags struct {
	zone, start, output, like, archive string
	requests                           int64
	days                               int
	seed                               uint64
}

func traceGenerateCommand() *cobra.Command {
	var f generateFlags
	cmd := &cobra.Command{
		Use:   "generate (-o STORE | --ibm DIR)",
		Short: "Make a synthetic trace of a registry",
		Long: `Make requests like those of a real registry. They are fitted to what is published about the
seven availability zones of the IBM container registry, of which one or all are made, or to a
trace that you have. The same seed always gives the same trace.

Without --requests and --days, a zone has as many requests as in the public archive; all zones
together have 40.9 million. If only one of the two is given, the other follows from the zone's
rate. With several zones, --requests is the total.

docs/synthetic-traces.md lists what the traces are fitted to, and how well.`,
		Example: `  slipway trace generate --zone dal --requests 1000000 --seed 1 -o dal.store
  slipway trace generate --zone all --ibm archive/
  slipway trace generate --like mine.store --days 30 -o more.store`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runGenerate(cmd, &f) },
	}
	fl := cmd.Flags()
	fl.StringVar(&f.zone, "zone", "all", "zones to make, separated by commas: "+strings.Join(synth.Zones(), ", ")+", or all; with --like, zones of that store")
	fl.Int64Var(&f.requests, "requests", 0, "number of requests (default: as many as the zones have in the given days)")
	fl.IntVar(&f.days, "days", 0, "number of days (default: as many as the zones take for the given requests)")
	fl.StringVar(&f.start, "start", "2017-06-20", "first day, in UTC")
	fl.Uint64Var(&f.seed, "seed", 1, "seed of everything random")
	command.AddPath(fl, &f.output, "store", "write a store into this directory")
	fl.StringVar(&f.archive, "ibm", "", "write files in the form of the public IBM archive into this directory")
	fl.StringVar(&f.like, "like", "", "fit to the requests of this store instead of published figures")
	return cmd
}

func runGenerate(cmd *cobra.Command, f *generateFlags) error {
	start, err := time.Parse(time.DateOnly, f.start)
	switch {
	case err != nil:
		return command.Usagef("--start is %q; write it as 2017-06-20", f.start)
	case f.requests < 0 || f.days < 0:
		return command.Usagef("--requests is %d and --days is %d; they cannot be negative", f.requests, f.days)
	case f.output == "" && f.archive == "":
		return command.Usagef("say where to write the trace, with -o or --ibm")
	}
	profiles, err := f.profiles(cmd.Context())
	if err != nil {
		return err
	}
	o := synth.Options{Seed: f.seed, Start: start, Days: f.days, Requests: f.requests}
	plan, err := synth.Plan(profiles, &o)
	if err != nil {
		return err
	}
	var total int64
	for _, n := range plan {
		total += n
	}
	var done atomic.Int64
	began := time.Now()
	stop := countProgress("generate", &done, total)
	err = synth.Write(cmd.Context(), profiles, &o, &synth.Output{Store: f.output, Archive: f.archive, Done: &done})
	stop()
	if err != nil {
		return err
	}
	took := time.Since(began)
	fmt.Fprintf(cmd.OutOrStdout(), "%d requests of %d zones in %v, %.0f a second\n", done.Load(), len(profiles),
		took.Round(time.Millisecond), float64(done.Load())/took.Seconds())
	return nil
}

// profiles returns the profiles from which to generate.
func (f *generateFlags) profiles(ctx context.Context) ([]*synth.Profile, error) {
	zones, profile := synth.Zones(), synth.Zone
	if f.like != "" {
		s, err := store.Open(f.like)
		if err != nil {
			return nil, err
		}
		defer s.Close() //nolint:errcheck // read only
		zones = nil
		for _, z := range s.Zones() {
			zones = append(zones, z.Name)
		}
		profile = func(zone string) (*synth.Profile, error) { return synth.Fit(ctx, s, zone) }
	}
	if f.zone != "all" {
		zones = strings.Split(f.zone, ",")
	}
	var out []*synth.Profile
	for _, z := range zones {
		p, err := profile(strings.TrimSpace(z))
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

// countProgress shows how many of total requests are done, until stop is called.
func countProgress(doing string, done *atomic.Int64, total int64) (stop func()) {
	p := command.NewProgress(doing)
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(p.Every)
		defer tick.Stop()
		for {
			select {
			case <-end:
				p.End()
				return
			case <-tick.C:
				n, took := done.Load(), time.Since(p.Start)
				rate := float64(n) / took.Seconds()
				left := "?"
				if n > 0 {
					left = time.Duration(float64(total-n) / rate * float64(time.Second)).Round(time.Second).String()
				}
				p.Show("%d of %d requests, %.0f/s, %s left", n, total, rate, left)
			}
		}
	}()
	return func() { close(end); <-ended }
}
