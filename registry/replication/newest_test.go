package replication_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/oci"
	"example.org/slipway/registry/replication"
)

// outage is a registry that cannot be reached for a while.
type outage struct {
	oci.Registry
	away *atomic.Bool
}

func (o outage) check() error {
	if o.away.Load() {
		return errors.New("no route to host")
	}
	return nil
}

func (o outage) ResolveManifest(ctx context.Context, repo, ref string) (oci.Descriptor, error) {
	if err := o.check(); err != nil {
		return oci.Descriptor{}, err
	}
	return o.Registry.ResolveManifest(ctx, repo, ref)
}

func (o outage) PutManifest(ctx context.Context, repo string, m oci.PutManifest) (oci.PutResult, error) {
	if err := o.check(); err != nil {
		return oci.PutResult{}, err
	}
	return o.Registry.PutManifest(ctx, repo, m)
}

func (o outage) Tags(ctx context.Context, repo, last string, n int) ([]string, bool, error) {
	if err := o.check(); err != nil {
		return nil, false, err
	}
	return o.Registry.Tags(ctx, repo, last, n)
}

// nextTime waits until the clock of the registries, which counts milliseconds, goes on.
func nextTime() {
	for now := time.Now().UnixMilli(); time.Now().UnixMilli() == now; <-time.After(100 * time.Microsecond) {
	}
}

// TestTheNewestMoveWins moves and deletes tags at two registries that replicate to each
// other, on push and with runs, while they cannot reach each other from time to time. In
// the end both have the last move of each tag, wherever it was made, and agree on tags that
// were deleted. A registry in the middle of a chain of three makes no difference.
func TestTheNewestMoveWins(t *testing.T) {
	t.Parallel()
	for _, pull := range []bool{false, true} {
		for seed := range uint64(6) {
			for _, deletes := range []bool{false, true} {
				t.Run(fmt.Sprintf("pull=%v/deletes=%v/%d", pull, deletes, seed), func(t *testing.T) {
					t.Parallel()
					newestMoveWins(t, pull, deletes, seed)
				})
			}
		}
	}
}

func newestMoveWins(t *testing.T, pull, deletes bool, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 41))
	sides := []*side{newSide(t), newSide(t), newSide(t)}[:2+seed%2]
	stores, away := make([]*store, len(sides)), &atomic.Bool{}
	var replicators []*replication.Replicator
	for i, s := range sides {
		stores[i] = newStore()
		var rules []replication.Rule
		for j, other := range sides {
			if j != i-1 && j != i+1 {
				continue
			}
			remote, history := outage{other.Registry, away}, func(ctx context.Context, repo, tag string) ([]oci.TagChange, error) {
				if away.Load() {
					return nil, errors.New("no route to host")
				}
				return other.history(ctx, repo, tag)
			}
			rules = append(rules, replication.Rule{Name: fmt.Sprint("out", j), Push: true, OnPush: true, Delete: deletes, Referrers: true, Remote: remote, History: history})
			if pull {
				rules = append(rules, replication.Rule{Name: fmt.Sprint("in", j), Referrers: true, Remote: remote, History: history})
			}
		}
		r, _ := s.replicate(t, fmt.Sprint("side ", i), stores[i], rules...)
		replicators = append(replicators, r)
	}
	runs := func() error {
		for _, r := range replicators {
			for _, rule := range r.Rules() {
				if _, err := r.Replicate(t.Context(), replication.Args{Rule: rule}, nil); err != nil {
					return fmt.Errorf("%s: %w", rule, err)
				}
			}
		}
		return nil
	}
	want, deleted := map[string]string{}, map[string]bool{}
	for step := range 60 {
		nextTime()
		switch n := rng.IntN(10); {
		case n < 2:
			tag, s := fmt.Sprint("v", rng.IntN(3)), sides[rng.IntN(len(sides))]
			if deletes && s.DeleteTag(t.Context(), "team/app", tag) == nil {
				deleted["team/app:"+tag] = true
			}
		case n < 7:
			tag, s, image := fmt.Sprint("v", rng.IntN(3)), sides[rng.IntN(len(sides))], fmt.Sprint("image ", rng.IntN(8))
			before, _ := s.history(t.Context(), "team/app", tag)
			d := push(t, s, "team/app", tag, image, nil).Digest
			after, _ := s.history(t.Context(), "team/app", tag)
			if len(before) == 0 || after[0] != before[0] { // it was a move
				want["team/app:"+tag] = string(d)
			}
		case n < 9:
			away.Store(!away.Load())
		default:
			if err := runs(); err != nil && !away.Load() && !strings.Contains(err.Error(), "no route") && !strings.Contains(err.Error(), "at work already") {
				t.Fatalf("step %d: %v", step, err)
			}
		}
	}
	away.Store(false)
	quiet(t, stores...)
	for range len(sides) {
		until(t, "a run of each rule", func() bool { return runs() == nil })
		quiet(t, stores...)
	}
	for tag := range deleted { // all that is asked is that the registries agree
		delete(want, tag)
		if d, there := content(t, sides[0])[tag]; there {
			want[tag] = d
		}
	}
	for i, s := range sides {
		if diff := cmp.Diff(want, content(t, s)); diff != "" {
			t.Errorf("registry %d does not have the last moves (-want +got):\n%s", i, diff)
		}
	}
}

// TestKeepsWhatIsNewerThere lets a run tell of a tag that was moved at the destination, and
// a deletion come too late.
func TestKeepsWhatIsNewerThere(t *testing.T) {
	t.Parallel()
	here, there, st := newSide(t), newSide(t), newStore()
	rule := replication.Rule{Name: "out", Push: true, Delete: true, OnPush: true, Referrers: true, Remote: there.Registry, History: there.history}
	old := push(t, here, "team/app", "v1", "old", nil)
	r, stop := here.replicate(t, "here", st, rule)
	if rep, err := r.Replicate(t.Context(), replication.Args{Rule: "out"}, nil); err != nil || rep.Images != 1 {
		t.Fatalf("the first run: %+v, %v", rep, err)
	}
	a, _ := here.history(t.Context(), "team/app", "v1")
	b, _ := there.history(t.Context(), "team/app", "v1")
	if len(a) != 1 || len(b) != 1 || !a[0].At.Equal(b[0].At) {
		t.Errorf("the copy has another time: %v and %v", a, b)
	}
	nextTime()
	newer := push(t, there, "team/app", "v1", "new", nil)
	for _, dry := range []bool{true, false} {
		rep, err := r.Replicate(t.Context(), replication.Args{Rule: "out", DryRun: dry}, nil)
		if err != nil || rep.Newer != 1 || rep.Images != 0 || dry && (len(rep.Changes) != 1 || rep.Changes[0].Action != "keep") {
			t.Errorf("dry run %v: %+v, %v", dry, rep, err)
		}
	}
	stop()
	if err := here.DeleteTag(t.Context(), "team/app", "v1"); err != nil {
		t.Fatal(err)
	}
	nextTime()
	again := push(t, there, "team/app", "v1", "newest", nil)
	here.replicate(t, "here", st, rule)
	quiet(t, st)
	if got, err := there.ResolveManifest(t.Context(), "team/app", "v1"); err != nil || got.Digest != again.Digest {
		t.Errorf("the other registry has %v, %v; want %s, neither %s nor %s", got.Digest, err, again.Digest, newer.Digest, old.Digest)
	}
}
