package registry

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/bench/rival"
)

// bench is a run of some scenarios.
type bench struct {
	*measure.Bench
	specs   []*rival.Spec
	slice   time.Duration
	results *Results

	failed bool // a server that is available could not be measured
	fleet  *fleet
	large  map[int]*image
}

// runAll runs scenarios one after the other. A scenario that fails does not keep the
// others from running. runAll returns the errors of the scenarios that failed.
func (b *bench) runAll(ctx context.Context, list []*scenario) error {
	var errs []error
	for i, sc := range list {
		if !sc.serving {
			b.stopFleet()
		}
		b.Logf("== %s (%d of %d): %s", sc.name, i+1, len(list), sc.title)
		err := sc.run(b, ctx, sc)
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("scenario %s: %w", sc.name, err))
			b.Logf("scenario %s failed: %v", sc.name, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	b.stopFleet()
	b.results.Run.TookSec = time.Since(b.results.Run.Date).Seconds()
	return errors.Join(errs...)
}

// available returns the servers of a scenario that can be started.
func (b *bench) available(sc *scenario) []*rival.Spec {
	var out []*rival.Spec
	for _, name := range sc.rows(b.results) {
		i := slices.IndexFunc(b.specs, func(s *rival.Spec) bool { return s.Name == name })
		if i >= 0 && b.specs[i].Binary != "" {
			out = append(out, b.specs[i])
		}
	}
	return out
}

// drop leaves a server out of the rest of the run, because it failed during preparation.
func (b *bench) drop(s *rival.Spec, err error) {
	b.Logf("%s is left out from here on: %v", s.Name, err)
	b.failed = true
	s.Binary, s.Why = "", "failed: "+measure.FirstLine(err.Error())
	for i := range b.results.Run.Servers {
		if b.results.Run.Servers[i].Name == s.Name {
			b.results.Run.Servers[i].Missing = s.Why
		}
	}
}

// start starts servers, each on its own directory. It drops a server that does not start.
func (b *bench) start(ctx context.Context, list []*rival.Spec) ([]*server, error) {
	var out []*server
	for _, sp := range list {
		s, err := startServer(ctx, sp, b.NewDir())
		if ctx.Err() != nil {
			if err == nil {
				out = append(out, s)
			}
			b.stop(out...)
			return nil, ctx.Err()
		}
		if err != nil {
			b.drop(sp, err)
			continue
		}
		out = append(out, s)
	}
	if len(out) == 0 {
		return nil, errors.New("no server could be started")
	}
	return out, nil
}

// stop stops servers and removes their directories.
func (b *bench) stop(servers ...*server) {
	for _, s := range servers {
		s.stop()
		if err := os.RemoveAll(s.Dir); err != nil {
			b.Logf("remove the directory of %s: %v", s.Name, err)
		}
	}
}

// arm is a case on a server. Arms take turns.
type arm struct {
	cas string
	s   *server
}

// arms returns a case once for each of several servers.
func arms(cas string, servers []*server) []arm {
	var out []arm
	for _, s := range servers {
		out = append(out, arm{cas, s})
	}
	return out
}

// interleave measures each arm once a round. It reverses the order from round to round, so that
// drift on the machine affects all arms alike. It returns an error only when ctx has ended: a
// server that fails is recorded as failed.
func (b *bench) interleave(ctx context.Context, sc *scenario, list []arm, do func(ctx context.Context, a arm) (Sample, error)) error {
	order := slices.Clone(list)
	for round := 1; round <= b.Run.Rounds; round++ {
		for _, a := range order {
			sample, err := do(ctx, a)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			b.record(sc, a.cas, a.s.Name, round, sample, err)
		}
		slices.Reverse(order)
	}
	return nil
}

// record keeps a sample and prints it.
func (b *bench) record(sc *scenario, cas, server string, round int, s Sample, err error) {
	if err != nil {
		s = Sample{Err: measure.FirstLine(err.Error())}
		b.failed = true
	}
	s.Scenario, s.Case, s.Server, s.Round = sc.name, cas, server, round
	b.results.Samples = append(b.results.Samples, s)
	head := fmt.Sprintf("%-9s %-30s %d/%d  %-23s", sc.name, cas, round, b.Run.Rounds, server)
	if err != nil {
		b.Logf("%s FAILED: %v", head, err)
		return
	}
	for _, m := range sc.columns() {
		head += fmt.Sprintf("  %s %s", measure.Figure(m.of(s)), m.title)
	}
	b.Logf("%s", head)
}

// slices measures a load on each arm for the time of a slice. Before that, the load runs unmeasured
// for a tenth of that time, so that connections and caches are ready.
func (b *bench) slices(ctx context.Context, sc *scenario, list []arm, clients int,
	do func(a arm) func(ctx context.Context, w *measure.Worker, i int) (int64, error)) error {
	return b.interleave(ctx, sc, list, func(ctx context.Context, a arm) (Sample, error) {
		l := measure.Clients{N: clients, Least: b.slice / 10, Do: do(a)}
		if _, err := l.Run(ctx); err != nil {
			return Sample{}, err
		}
		l.Least = b.slice
		return measureLoad(ctx, a.s, l)
	})
}

// largeOf returns the image with one layer of the given size. It makes each image only
// once.
func (b *bench) largeOf(size int) *image {
	if b.large[size] == nil {
		b.large[size] = largeImage(size)
	}
	return b.large[size]
}
