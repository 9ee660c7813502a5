package load_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"example.org/slipway/serve/servetest"
	"example.org/slipway/workload/load"
)

// TestPruneOfWhatIsGone checks that a missing manifest counts as pruned, whatever error
// the registry returns.
func TestPruneOfWhatIsGone(t *testing.T) {
	registry := servetest.Start(t)
	for _, body := range []string{"", "not found", `{"errors":[{"code":"MANIFEST_UNKNOWN"}]}`, `{"errors":[{"code":"NAME_UNKNOWN"}]}`,
		`{"errors":[{"code":"BLOB_UNKNOWN"}]}`, `{"errors":[{"code":"NOT_FOUND","message":"artifact not found"}]}`} {
		mirror := before(t, proxy(t, registry, nil).Config.Handler, func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodDelete {
				return true
			}
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, body)
			return false
		})
		o := short(mirror.URL)
		o.Upstream, o.Prune, o.Ramp, o.Pullers = &load.Target{URL: registry}, load.PruneDelete, load.Constant, 1
		r := measure(t, o)
		if prune := r.Steps[0].Kinds["prune"]; r.Total.NotPruned != 0 || prune.Failed != 0 || len(r.Faults) > 0 {
			t.Errorf("%q: %d passes were not pruned, faults %+v", body, r.Total.NotPruned, r.Faults)
		}
	}
}

// TestPatternsOfAll checks that "*" means everything, and that the error for an invalid
// pattern suggests a valid one.
func TestPatternsOfAll(t *testing.T) {
	for pattern, want := range map[string]int{"*": 12, ".*": 12, "": 12, "*-0001": 4, "*-0001:*": 4, "-0002[:@]": 4, "**": 12, "*[": -1, "(": -1, "+": -1} {
		o := short("http://127.0.0.1:1")
		o.Patterns = []string{pattern}
		p, err := load.DryRun(t.Context(), &o)
		switch {
		case want < 0:
			if err == nil || !strings.Contains(err.Error(), ".*") {
				t.Errorf("%q: %v, want it refused with a way out", pattern, err)
			}
		case err != nil || p.Patterns[0].Images != want:
			t.Errorf("%q: %+v, %v; want %d images", pattern, p, err, want)
		}
		if o.Patterns[0] != pattern {
			t.Errorf("the caller's pattern became %q", o.Patterns[0])
		}
	}
}

// TestDryRunAsksNothing checks that a dry run sends no request if the images are
// generated, and only reads if they are listed. It must report what a run does.
func TestDryRunAsksNothing(t *testing.T) {
	registry := servetest.Start(t)
	var mu sync.Mutex
	var asked []string
	srv := before(t, proxy(t, registry, nil).Config.Handler, func(_ http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, r.Method)
		return true
	})
	o := short(srv.URL)
	p, err := load.DryRun(t.Context(), &o)
	if err != nil {
		t.Fatal(err)
	}
	if len(asked) > 0 {
		t.Errorf("a dry run asked %q", asked)
	}
	o.Target.URL = registry
	r := measure(t, o)
	if int64(p.Images) != r.Pushed.Images || p.Bytes != r.Pushed.Bytes || p.Pullers != 3 || len(p.Patterns) != 3 || !p.Push {
		t.Errorf("%+v, and the run pushed %+v", p, r.Pushed)
	}
	o.Target.URL, o.Source = srv.URL, load.Listed
	p, err = load.DryRun(t.Context(), &o)
	if err != nil || p.Images != 12 || p.Push {
		t.Errorf("of what is there: %+v, %v", p, err)
	}
	for _, m := range asked {
		if m != http.MethodGet && m != http.MethodHead {
			t.Errorf("a dry run sent %s", m)
		}
	}
}

// TestHangingTargetIsTold checks that the status reports a registry that does not answer,
// in each phase that sends requests to it.
func TestHangingTargetIsTold(t *testing.T) {
	for phase, hangs := range map[string]func(*http.Request) bool{
		"connecting": func(r *http.Request) bool { return true },
		"pushing":    func(r *http.Request) bool { return r.URL.Path != "/v2/" },
		"listing":    func(r *http.Request) bool { return r.URL.Path != "/v2/" },
	} {
		release := make(chan struct{})
		srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if hangs(r) {
				select {
				case <-r.Context().Done():
				case <-release:
				}
			}
		}))
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		o := short(srv.URL)
		if phase == "listing" {
			o.Source = load.Listed
		}
		told := false
		o.Progress = func(s load.Status) {
			if s.Phase == phase && s.Idle > 0 {
				told = true
				cancel()
			}
		}
		_, err := load.Run(ctx, &o)
		if err == nil || !told {
			t.Errorf("%s: %v; told that nothing happens: %v", phase, err, told)
		}
		cancel()
		close(release)
		srv.Close()
	}
}

// TestViewOfNothing checks that a view shows for how long nothing has arrived.
func TestViewOfNothing(t *testing.T) {
	for want, s := range map[string]load.Status{
		"pushing: 1 of 5, nothing for 12s": {Phase: "pushing", Done: 1, Total: 5, Idle: 12 * time.Second},
		"connecting, nothing for 4s":       {Phase: "connecting", Idle: 4 * time.Second},
		"0 failed  nothing for 5s":         {Phase: "running", Tallies: []load.Tally{{Seconds: 1, Rate: 3}, {Seconds: 2}, {Seconds: 3}}},
	} {
		var lines strings.Builder
		load.NewView(&lines, 0).Show(s)
		if !strings.Contains(lines.String(), want) {
			t.Errorf("%q, want %q", lines.String(), want)
		}
	}
}

// TestUnreachableTarget checks that no run begins if nothing listens at the target,
// whatever the first step would be.
func TestUnreachableTarget(t *testing.T) {
	srv := httptest.NewServer(http.NotFoundHandler())
	gone := srv.URL
	srv.Close()
	for _, source := range []load.Source{load.PushedSet, load.InPlace, load.Listed} {
		o := short(gone)
		o.Source, o.Cold = source, true
		begin := time.Now()
		res, err := load.Run(t.Context(), &o)
		if err == nil || res != nil || !strings.Contains(err.Error(), "cannot be reached") || time.Since(begin) > 30*time.Second {
			t.Errorf("%s: %v after %s", fmt.Sprint(source), err, time.Since(begin))
		}
	}
}
