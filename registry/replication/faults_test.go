package replication_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/oci"
	"example.org/slipway/registry/replication"
)

// faulty is a registry of which some requests fail, as fail says.
type faulty struct {
	oci.Registry
	fail func(op, repo, ref string) error
}

func (f *faulty) Tags(ctx context.Context, repo, last string, n int) ([]string, bool, error) {
	if err := f.fail("list", repo, ""); err != nil {
		return nil, false, err
	}
	return f.Registry.Tags(ctx, repo, last, n)
}

func (f *faulty) ResolveManifest(ctx context.Context, repo, ref string) (oci.Descriptor, error) {
	if err := f.fail("resolve", repo, ref); err != nil {
		return oci.Descriptor{}, err
	}
	return f.Registry.ResolveManifest(ctx, repo, ref)
}

func (f *faulty) GetManifest(ctx context.Context, repo, ref string) (*oci.Manifest, error) {
	if err := f.fail("get", repo, ref); err != nil {
		return nil, err
	}
	return f.Registry.GetManifest(ctx, repo, ref)
}

func (f *faulty) PushBlob(ctx context.Context, repo string, d oci.Digest, size int64, r io.Reader) (oci.Descriptor, error) {
	if err := f.fail("put", repo, string(d)); err != nil {
		return oci.Descriptor{}, err
	}
	return f.Registry.PushBlob(ctx, repo, d, size, r)
}

func (f *faulty) PutManifest(ctx context.Context, repo string, m oci.PutManifest) (oci.PutResult, error) {
	if err := f.fail("put", repo, strings.Join(m.Tags, "")); err != nil {
		return oci.PutResult{}, err
	}
	return f.Registry.PutManifest(ctx, repo, m)
}

func (f *faulty) DeleteTag(ctx context.Context, repo, tag string) error {
	if err := f.fail("delete", repo, tag); err != nil {
		return err
	}
	return f.Registry.DeleteTag(ctx, repo, tag)
}

// errReset is how a request fails that gets no answer.
var errReset = errors.New("connection reset by peer")

// onDemand makes a replicator of a registry that only does the runs of the test.
func (s *side) onDemand(t *testing.T, rule replication.Rule) *replication.Replicator {
	t.Helper()
	r, stop := s.replicate(t, "here", newStore(), rule)
	stop()
	return r
}

// TestBadImagesHoldUpNothing has runs meet many images in a row that cannot be copied, for
// different reasons, and a repository that cannot be listed. They copy everything else, fail,
// and delete nothing of what they know nothing about.
func TestBadImagesHoldUpNothing(t *testing.T) {
	t.Parallel()
	const bad, good = 14, 3
	for name, c := range map[string]struct {
		push bool
		op   string
		err  error
	}{
		"the source is broken there":         {false, "resolve", oci.Errorf(oci.CodeUnknown, "internal error")},
		"the source does not answer there":   {false, "resolve", errReset},
		"the source refuses":                 {false, "resolve", oci.Errorf(oci.CodeDenied, "no")},
		"the source only lists it":           {false, "resolve", oci.Errorf(oci.CodeManifestUnknown, "no such manifest")},
		"the source breaks off":              {false, "get", errReset},
		"the destination refuses":            {true, "put", oci.Errorf(oci.CodeDenied, "the tag is immutable")},
		"the destination does not support":   {true, "put", oci.Errorf(oci.CodeUnsupported, "no such media types here")},
		"the destination breaks off":         {true, "put", errReset},
		"the destination does not look":      {true, "resolve", errReset},
		"the destination is too busy for it": {true, "put", oci.Errorf(oci.CodeTooManyRequests, "slow down")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			here, there := newSide(t), newSide(t)
			from, to := there, here
			if c.push {
				from, to = here, there
			}
			broken, closed := map[string]bool{}, atomic.Bool{}
			remote := &faulty{there.Registry, func(op, repo, ref string) error {
				switch {
				case closed.Load() && repo == "team/closed":
					return oci.Errorf(oci.CodeDenied, "closed")
				case op == c.op && broken[ref]:
					return c.err
				}
				return nil
			}}
			r := here.onDemand(t, replication.Rule{Name: "rule", Push: c.push, Remote: remote, Delete: !c.push, Referrers: true})
			for i := range good {
				push(t, from, "team/closed", fmt.Sprint("v", i), fmt.Sprint("closed ", i), nil)
			}
			push(t, from, "team/app", "z", "z", nil)
			if _, err := r.Replicate(t.Context(), replication.Args{Rule: "rule"}, nil); err != nil {
				t.Fatal(err)
			}
			before := content(t, to)
			closed.Store(true)
			var want []string
			for i := range bad + good {
				tag := fmt.Sprint("v", i)
				d := push(t, from, "team/app", tag, tag, nil)
				if i < bad {
					broken[tag], broken[string(d.Digest)] = true, true
				} else {
					want = append(want, "team/app:"+tag)
				}
			}
			push(t, from, "zoo/app", "v99", "zoo", nil)
			want = append(want, "zoo/app:v99")
			rep, err := r.Replicate(t.Context(), replication.Args{Rule: "rule", DeleteMany: true}, nil)
			if err == nil || rep.Failed < bad {
				t.Errorf("the run says %+v, %v", rep, err)
			}
			after := content(t, to)
			for _, name := range want {
				if after[name] == "" {
					t.Errorf("%s was not copied", name)
				}
			}
			for name := range before {
				if after[name] == "" {
					t.Errorf("%s was deleted", name)
				}
			}
		})
	}
}

// TestRemoteIsAway checks that a run does not go through everything while the remote registry
// does not answer at all, or does not take the password.
func TestRemoteIsAway(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{"no answer": errReset, "password": oci.Errorf(oci.CodeUnauthorized, "who are you?")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			here, there := newSide(t), newSide(t)
			var asked atomic.Int64
			remote := &faulty{there.Registry, func(string, string, string) error { asked.Add(1); return err }}
			r := here.onDemand(t, replication.Rule{Name: "rule", Push: true, Remote: remote})
			const images = 60
			for i := range images {
				push(t, here, fmt.Sprint("team/", i), "v1", "one", nil)
			}
			if _, err := r.Replicate(t.Context(), replication.Args{Rule: "rule"}, nil); err == nil || !strings.Contains(err.Error(), "broken off") {
				t.Errorf("got %v", err)
			}
			if n := asked.Load(); n >= images {
				t.Errorf("the remote was asked %d times", n)
			}
		})
	}
}

// TestQueueDoesNotWaitForRuns has all runs fail for one image, with long pauses between
// them. What is pushed and deleted meanwhile is repeated at once.
func TestQueueDoesNotWaitForRuns(t *testing.T) {
	t.Parallel()
	here, there, st := newSide(t), newSide(t), newStore()
	remote := &faulty{there.Registry, func(op, _, ref string) error {
		if op == "put" && ref == "refused" {
			return oci.Errorf(oci.CodeDenied, "the tag is immutable")
		}
		return nil
	}}
	push(t, here, "team/app", "refused", "refused", nil)
	r, _ := here.run(t, "here", st, replication.Options{RetryWait: 24 * time.Hour, RetryMaxWait: 24 * time.Hour},
		replication.Rule{Name: "out", Push: true, OnPush: true, Every: 24 * time.Hour, Delete: true, Remote: remote})
	until(t, "a run that fails", func() bool {
		list, err := r.Status(t.Context())
		return err == nil && list[0].State == "failing"
	})
	d := push(t, here, "team/app", "v1", "one", nil)
	until(t, "the push at the other side", func() bool {
		got, err := there.ResolveManifest(t.Context(), "team/app", "v1")
		return err == nil && got.Digest == d.Digest
	})
	if err := here.DeleteTag(t.Context(), "team/app", "v1"); err != nil {
		t.Fatal(err)
	}
	until(t, "the deletion at the other side", func() bool {
		_, err := there.ResolveManifest(t.Context(), "team/app", "v1")
		return err != nil
	})
	if list, err := r.Status(t.Context()); err != nil || list[0].State != "failing" || len(list[0].Errors) == 0 {
		t.Errorf("the failed run is forgotten: %+v, %v", list, err)
	}
}

// TestOneImageDoesNotHoldUpTheQueue pushes an image that can never be copied, for different
// reasons, and then others.
func TestOneImageDoesNotHoldUpTheQueue(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]error{
		"no answer": errReset, "refused": oci.Errorf(oci.CodeDenied, "no"),
		"busy": oci.Errorf(oci.CodeUnavailable, "later"), "unsupported": oci.Errorf(oci.CodeUnsupported, "no"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			here, there, st := newSide(t), newSide(t), newStore()
			remote := &faulty{there.Registry, func(op, _, ref string) error {
				if op == "put" && ref == "bad" {
					return fault
				}
				return nil
			}}
			r, _ := here.replicate(t, "here", st, replication.Rule{Name: "out", Push: true, OnPush: true, Remote: remote})
			push(t, here, "team/app", "bad", "bad", nil)
			for i := range 5 {
				tag := fmt.Sprint("v", i)
				push(t, here, "team/app", tag, tag, nil)
				until(t, tag+" at the other side", func() bool {
					_, err := there.ResolveManifest(t.Context(), "team/app", tag)
					return err == nil
				})
			}
			if list, err := r.Status(t.Context()); err != nil || list[0].Waiting < 1 {
				t.Errorf("the image that failed does not wait any more: %+v, %v", list, err)
			}
		})
	}
}

// TestStatusSaysWhyAPushWaits has the remote refuse one of several pushes. The status has its
// reason although later pushes pass, and forgets it when the push has passed, too.
func TestStatusSaysWhyAPushWaits(t *testing.T) {
	t.Parallel()
	here, there, st := newSide(t), newSide(t), newStore()
	var full atomic.Bool
	full.Store(true)
	remote := &faulty{there.Registry, func(op, _, ref string) error {
		if op == "put" && ref == "v2" && full.Load() {
			return oci.Errorf(oci.CodeDenied, "the quota of team/** is reached")
		}
		return nil
	}}
	r, _ := here.replicate(t, "here", st, replication.Rule{Name: "out", Push: true, OnPush: true, Remote: remote})
	status := func() replication.Status {
		t.Helper()
		list, err := r.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return list[0]
	}
	for round := range 3 {
		push(t, here, "team/app", "v2", fmt.Sprint("two ", round), nil)
		for _, tag := range []string{"v1", "v3"} {
			push(t, here, "team/app", tag, fmt.Sprint(tag, round), nil)
		}
		until(t, "only the refused push to wait", func() bool {
			s := status()
			return s.Waiting == 1 && s.Held == 1
		})
		s := status()
		if len(s.Errors) != 1 || s.Errors[0] != "copy team/app:v2: DENIED: the quota of team/** is reached" || s.State != "failing" {
			t.Errorf("round %d: got %+v", round, s)
		}
	}
	full.Store(false)
	quiet(t, st)
	until(t, "the rule to be idle", func() bool { return status().State == "idle" })
	if s := status(); s.Held != 0 || len(s.Errors) != 0 {
		t.Errorf("nothing is refused any more: got %+v", s)
	}
}

// TestManyRefusalsHoldUpNothing has the remote refuse many images, which then wait for long,
// and pushes another.
func TestManyRefusalsHoldUpNothing(t *testing.T) {
	t.Parallel()
	here, there, st := newSide(t), newSide(t), newStore()
	const many = 700 // more than are read at once
	remote := &faulty{there.Registry, func(_, repo, _ string) error {
		if repo == "team/refused" {
			return oci.Errorf(oci.CodeDenied, "no")
		}
		return nil
	}}
	rule := replication.Rule{Name: "out", Push: true, OnPush: true, Remote: remote}
	here.run(t, "here", st, replication.Options{RetryWait: 24 * time.Hour, RetryMaxWait: 24 * time.Hour}, rule)
	d := push(t, here, "team/refused", "v", "refused", nil)
	for i := range many {
		m, err := here.GetManifest(t.Context(), "team/refused", string(d.Digest))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := here.PutManifest(t.Context(), "team/refused", oci.PutManifest{Bytes: m.Bytes, MediaType: m.MediaType, Tags: []string{fmt.Sprint("v", i)}}); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "refusals of all", func() bool {
		st.mu.Lock()
		defer st.mu.Unlock()
		for _, it := range st.queue["out"] {
			if !strings.Contains(string(it.Payload), `"attempts"`) {
				return false
			}
		}
		return len(st.queue["out"]) > many/2
	})
	push(t, here, "team/app", "v1", "one", nil)
	until(t, "the image behind them", func() bool {
		_, err := there.ResolveManifest(t.Context(), "team/app", "v1")
		return err == nil
	})
}

// slowStore is a store whose Next waits until the test lets it go on.
type slowStore struct {
	*store
	looks, goOn chan struct{}
}

func (s *slowStore) Next(ctx context.Context, rule string, n int) ([]replication.Item, error) {
	s.looks <- struct{}{}
	<-s.goOn
	return s.store.Next(ctx, rule, n)
}

// TestRunWaitsForALookAtTheQueue starts a run while the rule looks at its queue.
func TestRunWaitsForALookAtTheQueue(t *testing.T) {
	t.Parallel()
	here, there := newSide(t), newSide(t)
	st := &slowStore{newStore(), make(chan struct{}, 1000), make(chan struct{})}
	r, _ := here.replicate(t, "here", st, replication.Rule{Name: "out", Push: true, OnPush: true, Remote: there.Registry})
	<-st.looks
	time.AfterFunc(200*time.Millisecond, func() { close(st.goOn) }) // a run that does not wait fails before
	if _, err := r.Replicate(t.Context(), replication.Args{Rule: "out"}, nil); err != nil {
		t.Error(err)
	}
}

// TestDeletionsThatAreNotSupported has a remote registry that deletes nothing, now or ever.
func TestDeletionsThatAreNotSupported(t *testing.T) {
	t.Parallel()
	for name, times := range map[string]int64{"for a while": 20, "ever": 1 << 40} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			here, there, st := newSide(t), newSide(t), newStore()
			var asked atomic.Int64
			remote := &faulty{there.Registry, func(op, _, _ string) error {
				if op == "delete" && asked.Add(1) <= times {
					return oci.Errorf(oci.CodeUnsupported, "nothing is deleted here")
				}
				return nil
			}}
			here.run(t, "here", st, replication.Options{RetryWait: time.Microsecond, RetryMaxWait: 100 * time.Microsecond},
				replication.Rule{Name: "out", Push: true, OnPush: true, Delete: true, Remote: remote})
			push(t, here, "team/app", "v1", "one", nil)
			quiet(t, st)
			if err := here.DeleteTag(t.Context(), "team/app", "v1"); err != nil {
				t.Fatal(err)
			}
			quiet(t, st)
			_, err := there.ResolveManifest(t.Context(), "team/app", "v1")
			if deleted, want := err != nil, times < 100; deleted != want {
				t.Errorf("after %d requests: deleted %t, want %t", asked.Load(), deleted, want)
			}
		})
	}
}

// forgetful is a registry that leaves out some names in lists, and whose pages are short.
type forgetful struct {
	oci.Registry
	leaves func(name string) bool
}

func (f *forgetful) Tags(ctx context.Context, repo, last string, n int) ([]string, bool, error) {
	list, more, err := f.Registry.Tags(ctx, repo, last, n)
	return slices.DeleteFunc(list, f.leaves), more, err
}

func (f *forgetful) Repositories(ctx context.Context, last string, n int) ([]string, bool, error) {
	list, more, err := f.Registry.Repositories(ctx, last, n)
	return slices.DeleteFunc(list, f.leaves), more, err
}

func (f *forgetful) Referrers(ctx context.Context, repo string, d oci.Digest, kind, last string, n int) ([]oci.Descriptor, bool, error) {
	return f.Registry.Referrers(ctx, repo, d, kind, last, min(n, 1))
}

// TestIncompleteListsDeleteNothing pulls from a registry whose lists leave out what it has.
// Only what it really does not have is deleted.
func TestIncompleteListsDeleteNothing(t *testing.T) {
	t.Parallel()
	here, there := newSide(t), newSide(t)
	source := &forgetful{there.Registry, func(string) bool { return false }}
	r := here.onDemand(t, replication.Rule{Name: "in", Remote: source, Delete: true})
	for _, repo := range []string{"team/a", "team/b", "team/lost"} {
		for i := range 8 {
			push(t, there, repo, fmt.Sprint("v", i), fmt.Sprint(repo, i), nil)
		}
	}
	run := func() replication.Report {
		t.Helper()
		rep, err := r.Replicate(t.Context(), replication.Args{Rule: "in", DeleteMany: true}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return rep
	}
	run()
	want := content(t, here)
	if err := there.DeleteTag(t.Context(), "team/a", "v0"); err != nil {
		t.Fatal(err)
	}
	delete(want, "team/a:v0")
	source.leaves = func(name string) bool { return slices.Contains([]string{"v1", "v2", "v6", "team/lost"}, name) }
	if rep := run(); rep.Deleted != 1 {
		t.Errorf("%d tags were deleted", rep.Deleted)
	}
	if diff := cmp.Diff(want, content(t, here)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// pushIndex pushes an index of images.
func pushIndex(t *testing.T, r oci.Registry, repo, tag string, images ...oci.Descriptor) oci.Descriptor {
	t.Helper()
	b, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": oci.MediaTypeOCIIndex, "manifests": images})
	if err != nil {
		t.Fatal(err)
	}
	put := oci.PutManifest{Bytes: b, MediaType: oci.MediaTypeOCIIndex}
	if tag != "" {
		put.Tags = []string{tag}
	}
	res, err := r.PutManifest(t.Context(), repo, put)
	if err != nil {
		t.Fatal(err)
	}
	return res.Descriptor
}

// TestEverythingAttachedFollows attaches referrers and cosign's tags to an index, to its
// platforms and to other referrers, before and after the image is copied, by runs in both
// directions and by pushes. The source gives lists of referrers in short pages.
func TestEverythingAttachedFollows(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"push", "pull", "on push"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			here, there, st := newSide(t), newSide(t), newStore()
			from, to := here, there
			rule := replication.Rule{Name: "rule", Push: true, Referrers: true, Remote: there.Registry, OnPush: way == "on push",
				Tags: func(tag string) bool { return strings.HasPrefix(tag, "v") }}
			if way == "pull" {
				from, to = there, here
				rule.Push, rule.Remote = false, &forgetful{there.Registry, func(string) bool { return false }}
			}
			r, stop := here.replicate(t, "here", st, rule)
			if way != "on push" {
				stop()
			}
			copied := func() {
				t.Helper()
				if way == "on push" {
					quiet(t, st)
				} else if _, err := r.Replicate(t.Context(), replication.Args{Rule: "rule"}, nil); err != nil {
					t.Fatal(err)
				}
			}
			var want []string
			attach := func(round string, subjects ...oci.Descriptor) (added []oci.Descriptor) {
				for i, s := range subjects {
					for k := range 3 {
						d := push(t, from, "team/app", "", fmt.Sprint(round, i, k), &s)
						added = append(added, d)
						want = append(want, string(d.Digest))
					}
					for _, kind := range []string{".sig", ".att"} {
						tag := strings.Replace(string(s.Digest), ":", "-", 1) + kind
						push(t, from, "team/app", tag, round+tag, nil)
						want = append(want, tag)
					}
				}
				return added
			}
			check := func(when string) {
				t.Helper()
				copied()
				for _, ref := range want {
					if _, err := to.ResolveManifest(t.Context(), "team/app", ref); err != nil {
						t.Errorf("%s: %s was not copied: %v", when, ref, err)
					}
				}
			}
			one, two := push(t, from, "team/app", "", "one", nil), push(t, from, "team/app", "", "two", nil)
			three := push(t, from, "team/app", "", "three", nil)
			inner := pushIndex(t, from, "team/app", "", three) // an index in an index
			index := pushIndex(t, from, "team/app", "v1", one, two, inner)
			stray := push(t, from, "team/app", "edge", "stray", nil)
			strayTag := strings.Replace(string(stray.Digest), ":", "-", 1) + ".sig"
			push(t, from, "team/app", strayTag, "signature of another", nil)
			first := attach("before", index, one)
			check("with the image")
			attach("later", index, two, inner, three, first[0], first[len(first)-1])
			check("later")
			if _, err := to.ResolveManifest(t.Context(), "team/app", strayTag); err == nil {
				t.Error("the signature of an image that is not copied was copied")
			}
		})
	}
}

// TestClockThatWasWrong begins with a clock that is years ahead while the remote fails. When
// the clock is right again, runs and pushes do not wait for years.
func TestClockThatWasWrong(t *testing.T) {
	t.Parallel()
	here, there, st := newSide(t), newSide(t), newStore()
	var ahead, away atomic.Bool
	ahead.Store(true)
	away.Store(true)
	remote := &faulty{there.Registry, func(op, _, _ string) error {
		if away.Load() && op != "list" {
			return errReset
		}
		return nil
	}}
	o := replication.Options{RetryWait: time.Millisecond, RetryMaxWait: 20 * time.Millisecond, Clock: func() time.Time {
		if ahead.Load() {
			return time.Now().AddDate(10, 0, 0)
		}
		return time.Now()
	}}
	rule := replication.Rule{Name: "out", Push: true, OnPush: true, Remote: remote}
	rule.Every = time.Hour
	r, stop := here.run(t, "here", st, o, rule)
	push(t, here, "team/app", "v1", "one", nil)
	until(t, "failures", func() bool {
		list, err := r.Status(t.Context())
		return err == nil && list[0].Failures > 2
	})
	stop()
	ahead.Store(false)
	away.Store(false)
	here.run(t, "here", st, o, rule)
	until(t, "the image at the other side", func() bool {
		_, err := there.ResolveManifest(t.Context(), "team/app", "v1")
		return err == nil
	})
	quiet(t, st)
}

// TestLongIDsAreNotKept sends ids that no registry has.
func TestLongIDsAreNotKept(t *testing.T) {
	t.Parallel()
	var got []string
	h := replication.Receive(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = replication.ViaFrom(r.Context()) }))
	req := httptest.NewRequest(http.MethodPut, "/", http.NoBody)
	req.Header.Set(replication.Header, "one,"+strings.Repeat("x", 100_000)+",two"+strings.Repeat(",three", 1000))
	h.ServeHTTP(httptest.NewRecorder(), req)
	size := 0
	for _, id := range got {
		size += len(id)
	}
	if size > 4096 || len(got) < 2 || got[0] != "one" || got[1] != "two" {
		t.Errorf("got %d ids with %d bytes, %.80q", len(got), size, got)
	}
}
