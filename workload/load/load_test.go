package load_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/oci/client"
	"example.org/slipway/serve/servetest"
	"example.org/slipway/workload/load"
	"example.org/slipway/workload/load/imageset"
)

// clean checks that a run had no failures and that its counts agree.
func clean(t testing.TB, r *load.Result) {
	t.Helper()
	if !r.Complete || r.Total.Failed != 0 || len(r.Faults) != 0 || r.Wrong() != 0 {
		t.Errorf("the run is %v, with %d failures: %+v", r.Complete, r.Total.Failed, r.Faults)
	}
	agree(t, r)
}

// agree checks that the counts of a result agree with each other.
func agree(t testing.TB, r *load.Result) {
	t.Helper()
	var tallied, failed, bytes, stepped int64
	at := 0.0
	for _, y := range r.Tallies {
		tallied, failed, bytes = tallied+y.Images, failed+y.Failed, bytes+y.Bytes
		if y.At < at || y.Images < 0 || y.Bytes < 0 {
			t.Errorf("a tally is %+v", y)
		}
		at = y.At
	}
	for _, s := range r.Steps {
		stepped += s.Images
		if s.Seconds <= 0 || s.Image.P50 > s.Image.Max || s.ClientCPU < 0 {
			t.Errorf("a step is %+v", s)
		}
	}
	o := &r.Total
	if tallied != o.Images || failed != o.Failed || bytes != o.Bytes {
		t.Errorf("the tallies have %d images, %d failures and %d bytes; the totals %d, %d and %d", tallied, failed, bytes, o.Images, o.Failed, o.Bytes)
	}
	if stepped > o.Images { // pulls that ended after the last step are in no step
		t.Errorf("the steps have %d images, the run %d", stepped, o.Images)
	}
}

func TestCached(t *testing.T) {
	o := short(servetest.Start(t))
	var phases []string
	o.Progress = func(s load.Status) {
		if len(phases) == 0 || phases[len(phases)-1] != s.Phase {
			phases = append(phases, s.Phase)
		}
	}
	r := measure(t, o)
	clean(t, r)
	var pullers []int
	for _, s := range r.Steps {
		pullers = append(pullers, s.Pullers)
	}
	if diff := cmp.Diff([]int{1, 2, 3, 2, 1}, pullers); diff != "" {
		t.Errorf("pullers: %s", diff)
	}
	if diff := cmp.Diff([]string{"making", "connecting", "pushing", "warming", "running"}, phases); diff != "" {
		t.Errorf("phases: %s", diff)
	}
	// Each image is an index, a manifest, a configuration and five layers. No pull is cut
	// off at the end.
	if r.Total.Images == 0 || r.Total.Requests != 8*r.Total.Images || r.Images.Requests != 8 || r.Mode != "cached" {
		t.Errorf("%d images were %d requests (%g each), mode %s", r.Total.Images, r.Total.Requests, r.Images.Requests, r.Mode)
	}
	if r.Pushed == nil || r.Pushed.Images != 12 || r.Pushed.Present != 0 {
		t.Errorf("pushed: %+v, want 12", r.Pushed)
	}

	// In a second run, everything exists already.
	again := measure(t, short(o.Target.URL))
	clean(t, again)
	if again.Pushed.Images != 0 || again.Pushed.Present != 12 {
		t.Errorf("pushed again: %+v, want 12 that were there", again.Pushed)
	}
	// A run can also find the images by listing them.
	listed := short(o.Target.URL)
	listed.Source, listed.Patterns = load.Listed, []string{"-0001", "-0003"}
	found := measure(t, listed)
	clean(t, found)
	if found.Images.Count != 8 || found.Images.Requests != 8 || found.Images.Bytes != r.Images.Bytes {
		t.Errorf("listed: %+v, want the images of two of three batches", found.Images)
	}
}

func TestDistribution(t *testing.T) {
	o := short(distribution(t, ""))
	o.LayersAtOnce = 3
	clean(t, measure(t, o))
}

// TestThroughDistribution pulls through a real mirror, by the names of its upstream.
func TestThroughDistribution(t *testing.T) {
	upstream := servetest.Start(t)
	o := short(distribution(t, upstream))
	o.Upstream, o.Cold = &load.Target{URL: upstream}, true
	r := measure(t, o)
	clean(t, r)
	if r.Mode != "cold at first" {
		t.Errorf("mode %q", r.Mode)
	}
}

func TestCredentials(t *testing.T) {
	registry := servetest.Start(t)
	t.Run("password", func(t *testing.T) {
		o := short(password(t, registry, "anna", "s3cret"))
		o.Target.Username, o.Target.Password = "anna", "s3cret"
		clean(t, measure(t, o))
		o.Target.Password = "hunter2"
		_, err := load.Run(t.Context(), &o)
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("with a wrong password the error is %v", err)
		}
	})
	t.Run("tokens that end", func(t *testing.T) {
		clean(t, measure(t, short(tokens(t, registry, 50))))
	})
}

// TestRedirects redirects blobs to another server, which must not see the credentials.
func TestRedirects(t *testing.T) {
	registry := servetest.Start(t)
	var leaked, served atomic.Int64
	store := before(t, proxy(t, registry, nil).Config.Handler, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Authorization") != "" || r.URL.Query().Get("signature") != "a b" {
			leaked.Add(1)
		}
		if r.URL.Query().Get("again") == "" { // a Location with only a path refers to this host
			w.Header().Set("Location", r.URL.Path+"?signature=a+b&again=1")
			w.WriteHeader(http.StatusTemporaryRedirect)
			return false
		}
		served.Add(1)
		return true
	})
	front := before(t, proxy(t, registry, nil).Config.Handler, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/sha256:") {
			w.Header().Set("Location", store.URL+r.URL.Path+"?signature=a+b")
			w.WriteHeader(http.StatusTemporaryRedirect)
			_, _ = io.WriteString(w, strings.Repeat("a page about it\n", 1000)) // longer than the blobs
			return false
		}
		return true
	})
	o := short(password(t, front.URL, "anna", "s3cret"))
	o.Target.Username, o.Target.Password = "anna", "s3cret"
	clean(t, measure(t, o))
	if served.Load() == 0 || leaked.Load() != 0 {
		t.Errorf("of %d requests to the other host %d had credentials or no signature", served.Load(), leaked.Load())
	}
}

// tampered returns the URL of a proxy that changes every so many answers with content of
// a registry. It also counts the changed answers.
func tampered(t testing.TB, registry string, every int64, change func(*http.Response, []byte) []byte) (string, *atomic.Int64) {
	var seen, done atomic.Int64
	srv := proxy(t, registry, func(resp *http.Response) error {
		get := resp.Request.Method == http.MethodGet && resp.StatusCode == http.StatusOK
		if !get || !strings.Contains(resp.Request.URL.Path, "/sha256:") || seen.Add(1)%every != 0 {
			return nil
		}
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		_ = resp.Body.Close()
		done.Add(1)
		resp.Body = io.NopCloser(bytes.NewReader(change(resp, b)))
		return nil
	})
	return srv.URL, &done
}

// TestWrongBytes checks that a run detects each answer with other content.
func TestWrongBytes(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	registry := servetest.Start(t)
	first := short(registry)
	clean(t, measure(t, first))
	fix := func(resp *http.Response, b []byte) []byte {
		resp.ContentLength = int64(len(b))
		resp.Header.Set("Content-Length", "")
		resp.Header.Del("Content-Length")
		return b
	}
	for _, test := range []struct {
		name, kind string
		change     func(*http.Response, []byte) []byte
	}{
		{"one bit", "wrong content", func(_ *http.Response, b []byte) []byte { b[len(b)/2] ^= 4; return b }},
		{"a byte less", "wrong content", func(r *http.Response, b []byte) []byte { return fix(r, b[1:]) }},
		{"a byte more", "wrong content", func(r *http.Response, b []byte) []byte { return fix(r, append(b, 'x')) }},
		{"nothing", "wrong content", func(r *http.Response, b []byte) []byte { return fix(r, nil) }},
		{"an error page", "status 503", func(r *http.Response, b []byte) []byte {
			r.StatusCode = http.StatusServiceUnavailable
			return fix(r, []byte("<html>busy</html>"))
		}},
		{"cut off", "broken connection", func(_ *http.Response, b []byte) []byte { return b[:len(b)/2] }},
	} {
		t.Run(test.name, func(t *testing.T) {
			// An image takes seven such answers, so some images are right.
			url, changed := tampered(t, registry, 9, test.change)
			o := short(url)
			o.Source, o.Cold = load.InPlace, true
			o.Step = 200 * time.Millisecond
			r := measure(t, o)
			agree(t, r)
			if changed.Load() == 0 || len(r.Faults) != 1 || r.Faults[0].Kind != test.kind || r.Faults[0].Count != changed.Load() || r.Total.Failed != changed.Load() {
				t.Fatalf("%d answers were changed; %d failed: %+v", changed.Load(), r.Total.Failed, r.Faults)
			}
			if wrong := test.kind == "wrong content"; wrong != (r.Wrong() > 0) || wrong != strings.Contains(strings.Join(r.Notes, "\n"), "WRONG CONTENT") {
				t.Errorf("wrong is %d, the notes are %q", r.Wrong(), r.Notes)
			}
			if !strings.Contains(r.Faults[0].Example, "sha256:") {
				t.Errorf("the example does not say of what: %s", r.Faults[0].Example)
			}
		})
	}
}

// TestWrongWarmUp checks that a load that cannot pull at all fails before it measures
// anything.
func TestWrongWarmUp(t *testing.T) {
	o := short(servetest.Start(t))
	o.Source = load.InPlace
	if _, err := load.Run(t.Context(), &o); err == nil || !strings.Contains(err.Error(), "status 404") {
		t.Errorf("got %v, want the status", err)
	}
}

// TestPruneDelete deletes the manifests after each pass. The stand-in for a mirror then
// pushes them again.
func TestPruneDelete(t *testing.T) {
	registry := servetest.Start(t)
	c, err := client.New(registry, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	set, err := imageset.Generate(t.Context(), &imageset.Options{Images: 12, Batches: 3, Prefix: "load/"})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var deleted, missed int
	// The simplest mirror: it pushes a missing image to the registry first.
	mirror := before(t, proxy(t, registry, nil).Config.Handler, func(w http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		if r.Method == http.MethodDelete {
			deleted++
			return true
		}
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/manifests/v") {
			return true
		}
		resp, err := http.Head(registry + r.URL.Path)
		if err != nil {
			t.Error(err)
			return false
		}
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			return true
		}
		missed++
		for _, m := range set.Images {
			if strings.HasPrefix(r.URL.Path, "/v2/"+m.Repo+"/") {
				if err := load.PushImage(r.Context(), c, set, m); err != nil {
					t.Error(err)
				}
			}
		}
		return true
	})
	o := short(mirror.URL)
	o.Upstream, o.Prune = &load.Target{URL: registry}, load.PruneDelete
	r := measure(t, o)
	clean(t, r)
	if r.Mode != "pull-through" || missed == 0 || deleted < 24 {
		t.Errorf("mode %s: %d passes, %d manifests deleted, %d images missed", r.Mode, r.Total.Pruned, deleted, missed)
	}
	if prune := r.Steps[0].Kinds["prune"]; prune.Failed != 0 {
		t.Errorf("pruning failed: %+v", prune)
	}
}

// TestPruneMirror checks that a puller prunes its own repositories and no others.
func TestPruneMirror(t *testing.T) {
	registry := servetest.Start(t)
	o := short(registry)
	clean(t, measure(t, o))
	var mu sync.Mutex
	asked := map[string]int64{}
	o.Source, o.Prune = load.InPlace, load.PruneSlipway
	if _, err := load.Run(t.Context(), &o); err == nil {
		t.Error("pruning by nobody was taken")
	}
	o.PruneMirror = func(_ context.Context, repositories string) error {
		mu.Lock()
		defer mu.Unlock()
		asked[repositories]++
		return nil
	}
	r := measure(t, o)
	clean(t, r)
	if len(asked) != 3 || asked["load/*-0001"]+asked["load/*-0002"]+asked["load/*-0003"] != r.Total.Pruned+3 {
		t.Errorf("pruned %v, the result has %d", asked, r.Total.Pruned)
	}
	o.Patterns = []string{"-000[12]", "-0003"} // the third batch ends in the same digits as the first two
	if _, err := load.Run(t.Context(), &o); err == nil || !strings.Contains(err.Error(), "of another puller") {
		t.Errorf("got %v, want what is wrong with the patterns", err)
	}
	o.PruneMirror, o.Patterns = func(context.Context, string) error { return errors.New("no such mirror") }, nil
	if _, err := load.Run(t.Context(), &o); err == nil || !strings.Contains(err.Error(), "no such mirror") {
		t.Errorf("got %v, want the cause", err)
	}
}

// TestPruneOciregistry checks the requests that Ociregistry expects.
func TestPruneOciregistry(t *testing.T) {
	registry := servetest.Start(t)
	var mu sync.Mutex
	asked := map[string]int{}
	broken := false
	mirror := before(t, proxy(t, registry, nil).Config.Handler, func(w http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		if r.URL.Path != "/cmd/prune" {
			if got := r.URL.Query().Get("ns"); got != "localhost:5001" {
				t.Errorf("%s %s has ns=%q", r.Method, r.URL.Path, got)
			}
			return true
		}
		q := r.URL.Query()
		if want := (url.Values{"type": {"pattern"}, "expr": q["expr"], "dryRun": {"false"}, "count": {"-1"}}); r.Method != http.MethodDelete || !cmp.Equal(q, want) {
			t.Errorf("%s %s", r.Method, r.URL)
		}
		if asked[q.Get("expr")]++; broken {
			w.WriteHeader(http.StatusBadRequest)
		}
		return false
	})
	o := short(mirror.URL)
	o.Upstream, o.Prune, o.Patterns = &load.Target{URL: registry}, load.PruneOciregistry, []string{"-0001", "-0002", "-0003"}
	o.Target.Namespace = "localhost:5001"
	r := measure(t, o)
	clean(t, r)
	passes := asked["-0001"] + asked["-0002"] + asked["-0003"] - 3 // the run was preceded by three
	if len(asked) != 3 || int64(passes) != r.Total.Pruned {
		t.Errorf("pruned %v, the result has %d", asked, r.Total.Pruned)
	}
	broken = true
	if _, err := load.Run(t.Context(), &o); err == nil || !strings.Contains(err.Error(), "status 400") {
		t.Errorf("a mirror that cannot be pruned: got %v", err)
	}
}

func TestMixed(t *testing.T) {
	if os.Getenv("SLIPWAY_RACE_FOLLOWS") != "" {
		t.Skip("about what happens at once: runs with the race detector")
	}
	o := short(servetest.Start(t))
	var err error
	if o.Mix, err = load.ParseMix("pull=2,push=1,head=2,list=2"); err != nil {
		t.Fatal(err)
	}
	o.Ramp, o.Pullers, o.Step, o.Shuffle = load.Constant, 4, 5*time.Second, true
	r := measure(t, o)
	clean(t, r)
	if r.Mode != "mixed" || len(r.Steps) != 1 {
		t.Fatalf("mode %s, %d steps", r.Mode, len(r.Steps))
	}
	var sum int64
	for _, kind := range []string{"pull", "push", "head", "list"} {
		k := r.Steps[0].Kinds[kind]
		if sum += k.Done; k.Done == 0 {
			t.Errorf("no %s: %+v", kind, r.Steps[0].Kinds)
		}
	}
	if sum != r.Steps[0].Operations {
		t.Errorf("the kinds have %d operations, the step %d", sum, r.Steps[0].Operations)
	}
}

// TestPushes checks that no run pushes what another one has pushed, whatever it pulls.
func TestPushes(t *testing.T) {
	if os.Getenv("SLIPWAY_RACE_FOLLOWS") != "" {
		t.Skip("about what happens at once: runs with the race detector")
	}
	registry := servetest.Start(t)
	clean(t, measure(t, short(registry)))
	c, err := client.New(registry, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var pushed int64
	for _, source := range []load.Source{load.InPlace, load.InPlace, load.Listed} {
		o := short(registry)
		o.Source, o.Ramp, o.Pullers, o.Step = source, load.Constant, 2, time.Second
		if source == load.Listed {
			o.Patterns, o.Set = []string{"-000[123]:"}, imageset.Options{}
		}
		if o.Mix, err = load.ParseMix("push=1"); err != nil {
			t.Fatal(err)
		}
		r := measure(t, o)
		clean(t, r)
		if n := r.Steps[0].Kinds["push"].Done; n == 0 {
			t.Errorf("%s: nothing was pushed", source)
		} else {
			pushed += n
		}
	}
	var there int64
	for last, more := "", true; more; {
		var names []string
		if names, more, err = c.Repositories(t.Context(), last, 1000); err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if last = name; strings.HasSuffix(name, "-push") {
				there++
			}
		}
	}
	if there < pushed {
		t.Errorf("%d images were pushed, %d are there", pushed, there)
	}
}

// TestHeads checks that HEAD requests count no bytes.
func TestHeads(t *testing.T) {
	o := short(servetest.Start(t))
	var err error
	if o.Mix, err = load.ParseMix("head=1"); err != nil {
		t.Fatal(err)
	}
	r := measure(t, o)
	clean(t, r)
	if r.Total.Requests == 0 || r.Total.Bytes != 0 {
		t.Errorf("%d requests brought %d bytes", r.Total.Requests, r.Total.Bytes)
	}
}

// TestPagesOfTags checks that a tag beyond the first page is found, and that each request
// carries the namespace and the credentials.
func TestPagesOfTags(t *testing.T) {
	registry := servetest.Start(t)
	var pages atomic.Int64
	front := before(t, proxy(t, registry, nil).Config.Handler, func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/tags/list") {
			return true
		}
		if q := r.URL.Query(); q.Get("ns") != "up" {
			t.Errorf("%s has no namespace", r.URL)
		} else if q.Get("last") == "" {
			w.Header().Set("Link", "<"+r.URL.Path+`?last=a&n=1>; rel="next"`)
			_, _ = io.WriteString(w, `{"tags":["a"]}`)
			return false
		}
		pages.Add(1)
		return true
	})
	o := short(password(t, front.URL, "anna", "s3cret"))
	o.Target.Username, o.Target.Password, o.Target.Namespace = "anna", "s3cret", "up"
	var err error
	if o.Mix, err = load.ParseMix("list=1"); err != nil {
		t.Fatal(err)
	}
	clean(t, measure(t, o))
	if pages.Load() == 0 {
		t.Error("no second page was asked for")
	}
}

func TestSaturate(t *testing.T) {
	o := short(servetest.Start(t))
	o.Ramp, o.Pullers = load.Saturate, 12
	r := measure(t, o)
	clean(t, r)
	var pullers []int
	for _, s := range r.Steps {
		pullers = append(pullers, s.Pullers)
	}
	want := []int{1, 2, 3, 4, 6, 8, 12}
	if len(pullers) < 4 || !cmp.Equal(want[:len(pullers)], pullers) {
		t.Errorf("pullers %v, want the begin of %v", pullers, want)
	}
}

// TestGone stops the registry during the run, which must end.
func TestGone(t *testing.T) {
	registry := servetest.Start(t)
	first := short(registry)
	clean(t, measure(t, first))
	gone := proxy(t, registry, nil)
	o := short(gone.URL)
	o.Source, o.Step = load.InPlace, time.Second
	var once sync.Once
	o.Progress = func(s load.Status) {
		if s.Phase == "running" && s.Images > 0 {
			once.Do(gone.Close)
		}
	}
	r, err := load.Run(t.Context(), &o)
	if err == nil || !strings.Contains(err.Error(), "no connection") {
		t.Fatalf("got %v, want the cause", err)
	}
	agree(t, r)
	if r.Complete || len(r.Steps) == 5 || r.Total.Failed == 0 || r.Total.Failed > 1000 {
		t.Errorf("complete is %v after %d steps, %d failed; the driver must slow down", r.Complete, len(r.Steps), r.Total.Failed)
	}
}

func TestInterrupted(t *testing.T) {
	o := short(servetest.Start(t))
	o.Step = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o.Progress = func(s load.Status) {
		if s.Images > 10 {
			cancel()
		}
	}
	r, err := load.Run(ctx, &o)
	if !errors.Is(err, context.Canceled) || r == nil {
		t.Fatalf("got %v and %v", r, err)
	}
	agree(t, r)
	if r.Complete || r.Total.Images == 0 || r.Total.Failed != 0 {
		t.Errorf("%d images, %d failed; what was broken off is no failure", r.Total.Images, r.Total.Failed)
	}
}

func TestBadOptions(t *testing.T) {
	good := short("http://127.0.0.1:1")
	for name, change := range map[string]func(*load.Options){
		"no URL":          func(o *load.Options) { o.Target.URL = "" },
		"other scheme":    func(o *load.Options) { o.Target.URL = "ftp://host" },
		"password in it":  func(o *load.Options) { o.Target.URL = "http://a:b@host" },
		"bad prefix":      func(o *load.Options) { o.Target.Prefix = "a b/" },
		"bare password":   func(o *load.Options) { o.Target.URL = "a:b@host" },
		"bad upstream":    func(o *load.Options) { o.Upstream = &load.Target{URL: "ftp://host"} },
		"negative":        func(o *load.Options) { o.Step = -1 },
		"unknown ramp":    func(o *load.Options) { o.Ramp = "zigzag" },
		"unknown source":  func(o *load.Options) { o.Source = "elsewhere" },
		"prune its own":   func(o *load.Options) { o.Prune = load.PruneDelete },
		"prune no mirror": func(o *load.Options) { o.Prune, o.Source = load.PruneDelete, load.InPlace },
		"prune the upstream": func(o *load.Options) {
			o.Prune, o.Source, o.Upstream = load.PruneDelete, load.InPlace, &load.Target{URL: o.Target.URL + "/"}
		},
		"too many pullers": func(o *load.Options) { o.Pullers = 1 << 20 },
		"more than patterns": func(o *load.Options) {
			o.Prune, o.Source, o.Target.Namespace, o.Pullers = load.PruneDelete, load.InPlace, "up", 4
		},
		"overlap": func(o *load.Options) {
			o.Prune, o.Source, o.Target.Namespace, o.Patterns = load.PruneDelete, load.InPlace, "up", []string{"v", "-0001"}
		},
		"nothing selected": func(o *load.Options) { o.Source, o.Patterns = load.InPlace, []string{"nowhere"} },
	} {
		o := good
		change(&o)
		if _, err := load.Run(t.Context(), &o); err == nil || strings.Contains(err.Error(), "a:b") || strings.Contains(err.Error(), "connect") {
			t.Errorf("%s: got %v, want what is wrong before anybody is asked", name, err)
		}
	}
}
