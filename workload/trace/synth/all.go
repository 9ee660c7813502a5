package synth

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"example.org/slipway/workload/trace"
)

// Job is one zone of a trace.
type Job struct {
	Profile *Profile
	Options Options
	// Add is called with each record in order of time, see [Profile.Generate]. It is
	// called from one goroutine only, but at the same time as the Adds of other jobs.
	Add func(*trace.Record) error
	// Done is called after the last record. May be nil.
	Done func() error
}

// GenerateAll generates several zones at once, one for each processor. It ends at the
// first error.
func GenerateAll(ctx context.Context, jobs []Job) error {
	// The largest zone goes first, so that nobody waits for it at the end.
	jobs = slices.Clone(jobs)
	slices.SortStableFunc(jobs, func(a, b Job) int { return cmp.Compare(b.Options.Requests, a.Options.Requests) })
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for _, j := range jobs {
		group.Go(func() error {
			if err := j.Profile.Generate(ctx, &j.Options, j.Add); err != nil {
				return fmt.Errorf("generate %s: %w", j.Profile.Zone, err)
			}
			if j.Done != nil {
				return j.Done()
			}
			return nil
		})
	}
	return group.Wait()
}

// spread divides a number of requests among zones in proportion to their profiles.
func spread(requests int64, profiles []*Profile) []int64 {
	total := 0.0
	for _, p := range profiles {
		total += float64(max(p.Requests, 1))
	}
	out := make([]int64, len(profiles))
	before, weight := int64(0), 0.0
	for i, p := range profiles {
		weight += float64(max(p.Requests, 1))
		upTo := int64(float64(requests)*(weight/total) + 0.5)
		if i == len(profiles)-1 {
			upTo = requests
		}
		out[i] = max(upTo-before, 0)
		before = max(upTo, before)
	}
	return out
}
