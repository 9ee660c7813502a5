package replication_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/oci"
	"example.org/slipway/registry/replication"
)

// slow is a registry to which pushes of blobs do not get anywhere until they are cut off.
type slow struct {
	oci.Registry
	begun, ended atomic.Int64
}

func (s *slow) PushBlob(ctx context.Context, repo string, d oci.Digest, size int64, r io.Reader) (oci.Descriptor, error) {
	s.begun.Add(1)
	<-ctx.Done()
	s.ended.Add(1)
	return oci.Descriptor{}, ctx.Err()
}

func series(t *testing.T, r *replication.Replicator, rule string) (n int) {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(r.Metrics()...)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "rule" && l.GetValue() == rule {
					n++
				}
			}
		}
	}
	return n
}

// TestSetRules replaces a rule whose work hangs, keeps one that works, and removes both, while
// the replicator runs. Nothing that was pushed before the change is lost.
func TestSetRules(t *testing.T) {
	t.Parallel()
	here, there, kept := newSide(t), newSide(t), newSide(t)
	stuck := &slow{Registry: there.Registry}
	all := func(string) bool { return true }
	keep := replication.Rule{Name: "kept", Push: true, OnPush: true, Remote: kept.Registry, Match: all}
	wrong := replication.Rule{Name: "one", Push: true, OnPush: true, Remote: stuck, Match: all}
	st := newStore()
	r, _ := here.replicate(t, "here", st, keep, wrong)
	push(t, here, "team/app", "v1", "one", nil)
	until(t, "a push that hangs", func() bool { return stuck.begun.Load() > 0 })
	asked := make(chan error, 1)
	go func() { // somebody also waits for a run of the rule that changes
		_, err := r.Replicate(context.Background(), replication.Args{Rule: "kept"}, nil)
		asked <- err
	}()
	right := wrong
	right.Remote = there.Registry
	r.SetRules([]replication.Rule{keep, right})
	until(t, "the image at the changed rule's registry", func() bool { return content(t, there)["team/app:v1"] != "" })
	if stuck.ended.Load() != stuck.begun.Load() {
		t.Error("the work of the rule before goes on")
	}
	if err := <-asked; err != nil {
		t.Errorf("a run of a rule that stays as it was: %v", err)
	}
	until(t, "the image at the other registry", func() bool { return content(t, kept)["team/app:v1"] != "" })

	r.SetRules(nil)
	push(t, here, "team/app", "v2", "two", nil)
	if got := r.Rules(); len(got) > 0 {
		t.Errorf("the rules are %v", got)
	}
	if _, err := r.Replicate(t.Context(), replication.Args{Rule: "one"}, nil); err == nil {
		t.Error("a rule that is gone is done")
	}
	until(t, "no series of rules that are gone", func() bool { return series(t, r, "one")+series(t, r, "kept") == 0 })

	r.SetRules([]replication.Rule{right})
	push(t, here, "team/app", "v3", "three", nil)
	until(t, "the image of a rule that is back", func() bool { return content(t, there)["team/app:v3"] != "" })
	if content(t, there)["team/app:v2"] != "" || content(t, kept)["team/app:v3"] != "" {
		t.Error("a rule that was gone copied")
	}
	quiet(t, st)
}

// TestSetRulesRun checks that a run which somebody waits for ends with a reason when its rule
// is removed, and that the rule is not noted as failed.
func TestSetRulesRun(t *testing.T) {
	t.Parallel()
	here, there := newSide(t), newSide(t)
	stuck := &slow{Registry: there.Registry}
	st := newStore()
	r, _ := here.replicate(t, "here", st, replication.Rule{Name: "one", Push: true, Remote: stuck})
	push(t, here, "team/app", "v1", "one", nil)
	done := make(chan error, 1)
	go func() {
		_, err := r.Replicate(context.Background(), replication.Args{Rule: "one"}, nil)
		done <- err
	}()
	until(t, "a run that hangs", func() bool { return stuck.begun.Load() > 0 })
	r.SetRules(nil)
	if err := <-done; err == nil || !strings.Contains(err.Error(), "changed or removed") || errors.Is(err, context.Canceled) {
		t.Errorf("the run ended with %v", err)
	}
	back := replication.Rule{Name: "one", Push: true, Remote: there.Registry, Match: func(string) bool { return true }}
	r.SetRules([]replication.Rule{back})
	if list, err := r.Status(t.Context()); err != nil || list[0].Failures != 0 || list[0].Ended != nil {
		t.Errorf("the state is %+v, %v", list, err)
	}
	if rep, err := r.Replicate(t.Context(), replication.Args{Rule: "one"}, nil); err != nil || rep.Images != 1 {
		t.Errorf("the run again: %+v, %v", rep, err)
	}
}

// TestSetRulesAtOnce checks that a rule that was mended does not wait for the end of a long
// pause, neither after its registry was away nor after that refused an image.
func TestSetRulesAtOnce(t *testing.T) {
	t.Parallel()
	for name, failure := range map[string]error{"away": errReset, "refused": oci.Errorf(oci.CodeDenied, "no")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			here, there := newSide(t), newSide(t)
			st := newStore()
			rule := replication.Rule{Name: "one", Push: true, OnPush: true, Match: func(string) bool { return true },
				Remote: &faulty{there.Registry, func(op, _, _ string) error {
					if op == "put" {
						return failure
					}
					return nil
				}}}
			r, _ := here.run(t, "here", st, replication.Options{RetryWait: time.Hour, RetryMaxWait: time.Hour}, rule)
			push(t, here, "team/app", "v1", "one", nil)
			until(t, "a failure", func() bool {
				list, err := r.Status(t.Context())
				return err == nil && (list[0].Failures > 0 || strings.Contains(st.waiting("one"), `"attempts":1`))
			})
			rule.Remote = there.Registry
			r.SetRules([]replication.Rule{rule})
			until(t, "the image", func() bool { return content(t, there)["team/app:v1"] != "" })
			quiet(t, st)
		})
	}
}

// waiting returns what waits in a queue, as text.
func (s *store) waiting(rule string) (text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, it := range s.queue[rule] {
		text += string(it.Payload)
	}
	return text
}

// TestSetRulesAmongPushes changes rules at random while images are pushed, and then compares
// the registries: what was pushed while a rule was there is at its registry in the end.
func TestSetRulesAmongPushes(t *testing.T) {
	t.Parallel()
	here, st := newSide(t), newStore()
	r, _ := here.replicate(t, "here", st)
	const rules = 3
	var sides [rules]*side
	current := map[string]replication.Rule{}
	want := [rules]map[string]bool{}
	for i := range sides {
		sides[i], want[i] = newSide(t), map[string]bool{}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for step := range 60 {
		i := rng.IntN(rules)
		name := fmt.Sprint("rule", i)
		switch _, there := current[name]; {
		case there && rng.IntN(3) == 0:
			delete(current, name)
		default: // new, or changed: the registry is reached in another way
			current[name] = replication.Rule{Name: name, Push: true, OnPush: true, Match: func(string) bool { return true },
				Remote: &faulty{sides[i].Registry, func(string, string, string) error { return nil }}}
		}
		r.SetRules(slices.Collect(maps.Values(current)))
		tag := fmt.Sprint("v", step)
		push(t, here, "team/app", tag, tag, nil)
		for i := range sides {
			if _, there := current[fmt.Sprint("rule", i)]; there {
				want[i]["team/app:"+tag] = true
			}
		}
	}
	for i := range sides { // what waits for a rule that is gone is copied when it is back
		name := fmt.Sprint("rule", i)
		current[name] = replication.Rule{Name: name, Push: true, OnPush: true, Match: func(string) bool { return true }, Remote: sides[i].Registry}
	}
	r.SetRules(slices.Collect(maps.Values(current)))
	quiet(t, st)
	for i := range sides {
		got := content(t, sides[i])
		for tag := range want[i] {
			if got[tag] == "" {
				t.Errorf("registry %d lacks %s", i, tag)
			}
		}
		for tag := range got {
			if !want[i][tag] {
				t.Errorf("registry %d has %s, which was pushed without its rule", i, tag)
			}
		}
	}
}
