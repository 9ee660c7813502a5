package replication_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/auth/patterns"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/historyfacts"
	"example.org/slipway/registry/objstore/memstore"
	"example.org/slipway/registry/replication"
)

// patience is how long a test waits for something that must happen.
const patience = time.Minute

// store is a replication.Store in memory.
type store struct {
	mu    sync.Mutex
	state map[string][]byte
	queue map[string][]replication.Item
	last  int64
}

func newStore() *store {
	return &store{state: map[string][]byte{}, queue: map[string][]replication.Item{}}
}

func (s *store) Load(_ context.Context, rule string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state[rule], nil
}

func (s *store) Save(_ context.Context, rule string, state []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state[rule] = state
	return nil
}

func (s *store) Append(_ context.Context, rule string, payload []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	s.queue[rule] = append(s.queue[rule], replication.Item{ID: s.last, Payload: payload})
	return nil
}

func (s *store) Next(_ context.Context, rule string, n int) ([]replication.Item, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.queue[rule]
	return slices.Clone(list[:min(n, len(list))]), nil
}

func (s *store) Delete(_ context.Context, ids ...int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for rule, list := range s.queue {
		s.queue[rule] = slices.DeleteFunc(list, func(i replication.Item) bool { return slices.Contains(ids, i.ID) })
	}
	return nil
}

func (s *store) Len(_ context.Context, rule string) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue[rule]), nil
}

// side is a registry with its catalogue. Its events go to a replicator, once there is one.
type side struct {
	*registry.Registry
	cat        *catalog.Catalog
	replicator atomic.Pointer[replication.Replicator]
	puts       atomic.Int64
}

func newSide(t *testing.T) *side {
	t.Helper()
	s := &side{}
	var err error
	if s.cat, err = catalog.Open(t.Context(), t.TempDir()+"/catalog.db", nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.cat.Close() })
	s.Registry, err = registry.New(t.Context(), s.cat, memstore.New(nil), &registry.Options{Logger: slog.New(slog.DiscardHandler), OnEvent: s.event})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(context.Background()) })
	return s
}

func (s *side) event(ctx context.Context, e registry.Event) error {
	if e.Blob || e.Action == registry.ActionPull {
		return nil
	}
	if e.Action == registry.ActionPush {
		s.puts.Add(1)
	}
	return s.replicator.Load().OnEvent(ctx, replication.Event{Repo: e.Repo, Tag: e.Tag, Digest: e.Descriptor.Digest, Deleted: e.Action == registry.ActionDelete})
}

// history is how rules learn who has set a tag, and when.
func (s *side) history(ctx context.Context, repo, tag string) ([]oci.TagChange, error) {
	list, err := historyfacts.History{DB: s.cat.DB}.Tag(ctx, repo, tag, 100)
	if errors.Is(err, catalog.ErrNotFound) {
		return nil, nil
	}
	return list, err
}

// replicate makes a replicator of a registry. It runs until the test ends or stop is called.
func (s *side) replicate(t *testing.T, id string, st replication.Store, rules ...replication.Rule) (r *replication.Replicator, stop func()) {
	t.Helper()
	return s.run(t, id, st, replication.Options{RetryWait: time.Millisecond, RetryMaxWait: 20 * time.Millisecond}, rules...)
}

// run is replicate with pauses and a clock of the test's own.
func (s *side) run(t *testing.T, id string, st replication.Store, o replication.Options, rules ...replication.Rule) (r *replication.Replicator, stop func()) {
	t.Helper()
	for i := range rules {
		if rules[i].Match == nil {
			rules[i].Match = func(string) bool { return true }
		}
	}
	o.Rules, o.Local, o.Store, o.ID, o.Mark = rules, s.Registry, st, func(context.Context) string { return id }, registry.Unnoticed
	o.History, o.Logger = s.history, slog.New(slog.DiscardHandler)
	r = replication.New(o)
	s.replicator.Store(r)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return r, stop
}

func matching(t *testing.T, list ...string) func(string) bool {
	t.Helper()
	m, err := patterns.CompileAll(list)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// push pushes an image whose only layer is content, and returns its descriptor.
func push(t *testing.T, r oci.Registry, repo, tag, content string, subject *oci.Descriptor) oci.Descriptor {
	t.Helper()
	d := oci.SHA256([]byte(content))
	if _, err := r.PushBlob(t.Context(), repo, d, int64(len(content)), strings.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	layer := oci.Descriptor{MediaType: "application/vnd.example.text", Digest: d, Size: int64(len(content))}
	doc := map[string]any{"schemaVersion": 2, "mediaType": oci.MediaTypeOCIManifest, "config": layer, "layers": []oci.Descriptor{layer}}
	if subject != nil {
		doc["subject"] = subject
	}
	b, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	put := oci.PutManifest{Bytes: b, MediaType: oci.MediaTypeOCIManifest}
	if tag != "" {
		put.Tags = []string{tag}
	}
	res, err := r.PutManifest(t.Context(), repo, put)
	if err != nil {
		t.Fatal(err)
	}
	return res.Descriptor
}

// content returns the tags of a registry with what they point at, and what refers to that.
func content(t *testing.T, r oci.Registry) map[string]string {
	t.Helper()
	found := map[string]string{}
	repos, err := oci.AllNames(func(last string, n int) ([]string, bool, error) { return r.Repositories(t.Context(), last, n) })
	if err != nil {
		t.Fatal(err)
	}
	for _, repo := range repos {
		tags, err := oci.AllNames(func(last string, n int) ([]string, bool, error) { return r.Tags(t.Context(), repo, last, n) })
		if err != nil {
			t.Fatal(err)
		}
		for _, tag := range tags {
			desc, err := r.ResolveManifest(t.Context(), repo, tag)
			if err != nil {
				t.Fatal(err)
			}
			text := string(desc.Digest)
			list, _, err := r.Referrers(t.Context(), repo, desc.Digest, "", "", 100)
			if err != nil {
				t.Fatal(err)
			}
			for _, ref := range list {
				text += " " + string(ref.Digest)
			}
			found[repo+":"+tag] = text
		}
	}
	return found
}

// until waits for a condition.
func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !f(); <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it did not come to that: %s", what)
		}
	}
}

// quiet waits until the queues of a rule are empty.
func quiet(t *testing.T, stores ...*store) {
	t.Helper()
	until(t, "empty queues", func() bool {
		for _, s := range stores {
			s.mu.Lock()
			n := 0
			for _, list := range s.queue {
				n += len(list)
			}
			s.mu.Unlock()
			if n > 0 {
				return false
			}
		}
		return true
	})
}

// flaky is a registry of which many requests fail, some without an answer and some refused.
type flaky struct {
	oci.Registry
	// meanwhile does something before a request fails. It is not called concurrently.
	meanwhile func()
	mu        sync.Mutex
	rng       *rand.Rand
}

func (f *flaky) fail() (err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch f.rng.IntN(12) {
	case 0:
		err = errors.New("connection reset by peer")
	case 1:
		err = oci.Errorf(oci.CodeDenied, "not now")
	case 2:
		err = oci.Errorf(oci.CodeUnsupported, "read-only for a while")
	}
	if err != nil && f.meanwhile != nil {
		f.meanwhile()
	}
	return err
}

func (f *flaky) ResolveManifest(ctx context.Context, repo, ref string) (oci.Descriptor, error) {
	if err := f.fail(); err != nil {
		return oci.Descriptor{}, err
	}
	return f.Registry.ResolveManifest(ctx, repo, ref)
}

func (f *flaky) PutManifest(ctx context.Context, repo string, m oci.PutManifest) (oci.PutResult, error) {
	if err := f.fail(); err != nil {
		return oci.PutResult{}, err
	}
	return f.Registry.PutManifest(ctx, repo, m)
}

func (f *flaky) DeleteTag(ctx context.Context, repo, tag string) error {
	if err := f.fail(); err != nil {
		return err
	}
	return f.Registry.DeleteTag(ctx, repo, tag)
}

// TestPushedInTheEnd makes random pushes, deletions and signatures at a registry while its
// remote fails often and the replicator is restarted. Some happen while a request is under
// way that fails. In the end the remote has exactly what the rule picks.
func TestPushedInTheEnd(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 33))
			here, there, st := newSide(t), newSide(t), newStore()
			repos, tags := []string{"team/a", "team/b/c", "other/d"}, []string{"v1", "v2", "latest", "private"}
			inner, more := rand.New(rand.NewPCG(seed, 35)), 60
			meanwhile := func() {
				if more--; more < 0 {
					return
				}
				repo, tag := repos[inner.IntN(2)], tags[inner.IntN(2)]
				if inner.IntN(2) == 0 {
					push(t, here, repo, tag, fmt.Sprint("image ", inner.IntN(6)), nil)
				} else {
					_ = here.DeleteTag(t.Context(), repo, tag) // it may not be there
				}
			}
			rule := replication.Rule{Name: "out", Push: true, OnPush: true, Delete: true, Referrers: true, Prefix: "copy",
				Remote: &flaky{Registry: there.Registry, rng: rand.New(rand.NewPCG(seed, 34)), meanwhile: meanwhile}, Match: matching(t, "team/**"),
				Tags: func(tag string) bool { return tag != "private" }}
			_, stop := here.replicate(t, "here", st, rule)
			for i := range 80 {
				if i%27 == 26 {
					stop()
					_, stop = here.replicate(t, "here", st, rule)
				}
				repo, tag := repos[rng.IntN(len(repos))], tags[rng.IntN(len(tags))]
				switch rng.IntN(5) {
				case 0:
					if err := here.DeleteTag(t.Context(), repo, tag); err != nil && !oci.HasCode(err, oci.CodeManifestUnknown) && !oci.HasCode(err, oci.CodeNameUnknown) {
						t.Fatal(err)
					}
				case 1:
					if desc, err := here.ResolveManifest(t.Context(), repo, tag); err == nil {
						push(t, here, repo, "", fmt.Sprint("signature ", i), &desc)
					}
				default:
					push(t, here, repo, tag, fmt.Sprint("image ", rng.IntN(6)), nil)
				}
			}
			quiet(t, st)
			want := map[string]string{}
			for name, digests := range content(t, here) {
				if strings.HasPrefix(name, "team/") && !strings.HasSuffix(name, ":private") {
					want["copy/"+name] = digests
				}
			}
			if diff := cmp.Diff(want, content(t, there)); diff != "" {
				t.Errorf("the remote registry (-want +got):\n%s", diff)
			}
			if len(want) == 0 {
				t.Error("nothing was left to compare")
			}
		})
	}
}

// TestLoopEnds has two registries replicate everything to one another, and pushes different
// images under the same tags to both at once. They must come to rest.
func TestLoopEnds(t *testing.T) {
	t.Parallel()
	a, b, sa, sb := newSide(t), newSide(t), newStore(), newStore()
	rule := func(to *side, prefix string) replication.Rule {
		return replication.Rule{Name: "out", Push: true, OnPush: true, Delete: true, Referrers: true, Remote: to.Registry, Prefix: prefix}
	}
	ra, _ := a.replicate(t, "a", sa, rule(b, ""))
	rb, _ := b.replicate(t, "b", sb, rule(a, ""))
	const tags = 20
	var wg sync.WaitGroup
	for i, s := range []*side{a, b} {
		wg.Go(func() {
			for n := range tags {
				push(t, s, "team/app", fmt.Sprint("v", n), fmt.Sprint("image ", n, " of ", i), nil)
			}
		})
	}
	wg.Wait()
	quiet(t, sa, sb)
	// Each push goes to the other side, and from there back at most once.
	if n := a.puts.Load() + b.puts.Load(); n > 2*tags*3 {
		t.Errorf("%d pushes became %d", 2*tags, n)
	}
	before := a.puts.Load() + b.puts.Load()
	// Runs settle what is different, and then there is nothing more to do.
	for range 3 {
		for _, r := range []*replication.Replicator{ra, rb} {
			var err error
			until(t, "a run", func() bool {
				_, err = r.Replicate(t.Context(), replication.Args{Rule: "out"}, nil)
				return err == nil || !strings.Contains(err.Error(), "at work already")
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		quiet(t, sa, sb)
	}
	if diff := cmp.Diff(content(t, a), content(t, b)); diff != "" {
		t.Errorf("the registries differ:\n%s", diff)
	}
	if n := a.puts.Load() + b.puts.Load() - before; n > 3*tags {
		t.Errorf("the runs copied %d images", n)
	}
	if err := a.DeleteTag(t.Context(), "team/app", "v0"); err != nil {
		t.Fatal(err)
	}
	until(t, "the deletion at the other side", func() bool {
		_, err := b.ResolveManifest(t.Context(), "team/app", "v0")
		return err != nil
	})
	quiet(t, sa, sb)
}

// TestNamesDoNotGrow has two registries replicate everything to one another below prefixes.
func TestNamesDoNotGrow(t *testing.T) {
	t.Parallel()
	a, b, sa, sb := newSide(t), newSide(t), newStore(), newStore()
	out := func(to *side, prefix string) replication.Rule {
		return replication.Rule{Name: "out", Push: true, OnPush: true, Remote: to.Registry, Prefix: prefix}
	}
	ra, _ := a.replicate(t, "a", sa, out(b, "from-a"))
	rb, _ := b.replicate(t, "b", sb, out(a, "from-b"))
	push(t, a, "app", "v1", "one", nil)
	push(t, b, "lib", "v1", "two", nil)
	quiet(t, sa, sb)
	for range 4 {
		for _, r := range []*replication.Replicator{ra, rb} {
			until(t, "a run", func() bool {
				_, err := r.Replicate(t.Context(), replication.Args{Rule: "out"}, nil)
				return err == nil
			})
		}
		quiet(t, sa, sb)
	}
	for _, s := range []*side{a, b} {
		for name := range content(t, s) {
			if strings.Count(name, "from-a/") > 1 || strings.Count(name, "from-b/") > 1 {
				t.Errorf("the name %s has grown", name)
			}
		}
	}
}

// TestPull checks what a rule that pulls copies, what it deletes, and what it leaves alone.
func TestPull(t *testing.T) {
	t.Parallel()
	here, there, st := newSide(t), newSide(t), newStore()
	r, stop := here.replicate(t, "here", st, replication.Rule{Name: "in", Remote: there.Registry, URL: "https://there.example", Referrers: true, Delete: true, Prefix: "there",
		Match: matching(t, "team/**"), Tags: func(tag string) bool { return strings.HasPrefix(tag, "v") }})
	stop() // only the runs of the test
	image := push(t, there, "team/app", "v1", "one", nil)
	push(t, there, "team/app", "v2", "two", nil)
	push(t, there, "team/app", "nightly", "three", nil)
	push(t, there, "other/app", "v1", "four", nil)
	push(t, there, "team/app", "", "signature", &image)
	push(t, there, "team/app", "sha256-"+image.Digest.Encoded()+".sig", "cosign", nil)
	push(t, there, "team/app", "sha256-"+oci.SHA256([]byte("x")).Encoded()+".sig", "of another", nil)
	push(t, here, "there/team/app", "vmine", "mine", nil)

	run := func(args replication.Args) replication.Report {
		t.Helper()
		args.Rule = "in"
		rep, err := r.Replicate(t.Context(), args, nil)
		if err != nil {
			t.Fatal(err)
		}
		return rep
	}
	before := content(t, here)
	rep := run(replication.Args{DryRun: true})
	if rep.Images != 3 || len(rep.Changes) != 3 || rep.Bytes != 0 {
		t.Errorf("dry run: got %+v", rep)
	}
	if diff := cmp.Diff(before, content(t, here)); diff != "" {
		t.Errorf("a dry run changed something:\n%s", diff)
	}
	if rep := run(replication.Args{}); rep.Images != 3 || rep.Repositories != 1 {
		t.Errorf("first run: got %+v", rep)
	}
	want := []string{"there/team/app:sha256-" + image.Digest.Encoded() + ".sig", "there/team/app:v1", "there/team/app:v2", "there/team/app:vmine"}
	have := content(t, here)
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(have))); diff != "" {
		t.Errorf("after the first run (-want +got):\n%s", diff)
	}
	if strings.Count(have["there/team/app:v1"], " ") != 1 {
		t.Errorf("the signature did not come along: %s", have["there/team/app:v1"])
	}
	push(t, there, "team/app", "", "another signature", &image)
	if rep := run(replication.Args{}); rep.Images != 1 || rep.Present != 3 {
		t.Errorf("a new signature: got %+v", rep)
	}
	for _, tag := range []string{"v2", "nightly"} {
		if err := there.DeleteTag(t.Context(), "team/app", tag); err != nil {
			t.Fatal(err)
		}
	}
	if rep := run(replication.Args{}); rep.Deleted != 1 {
		t.Errorf("after a deletion: got %+v", rep)
	}
	if rep := run(replication.Args{}); rep.Deleted+rep.Images != 0 {
		t.Errorf("nothing has changed: got %+v", rep)
	}
	// A source that has lost everything must not take the copies with it.
	for _, name := range []string{"v1", "sha256-" + image.Digest.Encoded() + ".sig", "sha256-" + oci.SHA256([]byte("x")).Encoded() + ".sig"} {
		if err := there.DeleteTag(t.Context(), "team/app", name); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Replicate(t.Context(), replication.Args{Rule: "in"}, nil); err == nil || !strings.Contains(err.Error(), "--delete-many in") {
		t.Errorf("an empty source: got %v", err)
	}
	if st, err := r.Status(t.Context()); err != nil || st[0].State != "failing" || st[0].Failures != 1 {
		t.Errorf("status: got %+v, %v", st, err)
	}
	if rep := run(replication.Args{DeleteMany: true}); rep.Deleted != 2 {
		t.Errorf("with DeleteMany: got %+v", rep)
	}
	if diff := cmp.Diff([]string{"there/team/app:vmine"}, slices.Sorted(maps.Keys(content(t, here)))); diff != "" {
		t.Errorf("in the end (-want +got):\n%s", diff)
	}
}

// TestNothingIsDeletedUnasked deletes at the source of rules that do not repeat deletions.
func TestNothingIsDeletedUnasked(t *testing.T) {
	t.Parallel()
	here, out, in, st := newSide(t), newSide(t), newSide(t), newStore()
	r, _ := here.replicate(t, "here", st,
		replication.Rule{Name: "out", Push: true, OnPush: true, Remote: out.Registry, Match: matching(t, "mine/*")},
		replication.Rule{Name: "in", Remote: in.Registry, Match: matching(t, "theirs/*")})
	d := push(t, here, "mine/app", "v1", "one", nil)
	push(t, in, "theirs/app", "v1", "two", nil)
	replicate := func() {
		t.Helper()
		for _, rule := range r.Rules() {
			until(t, "a run", func() bool {
				_, err := r.Replicate(t.Context(), replication.Args{Rule: rule}, nil)
				return err == nil
			})
		}
		quiet(t, st)
	}
	replicate()
	if err := errors.Join(here.DeleteManifest(t.Context(), "mine/app", d.Digest), in.DeleteTag(t.Context(), "theirs/app", "v1")); err != nil {
		t.Fatal(err)
	}
	replicate()
	for name, s := range map[string]*side{"mine/app:v1": out, "theirs/app:v1": here} {
		if _, ok := content(t, s)[name]; !ok {
			t.Errorf("%s was deleted", name)
		}
	}
}
