package upstream_test

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/registry/mirror/upstream"
)

// shown returns the metric of an endpoint: 0, 1, or -1 if there is none.
func shown(t *testing.T, u *upstream.Upstream, url string) float64 {
	t.Helper()
	reg := prometheus.NewRegistry()
	for _, c := range u.Collectors() {
		ok(t, reg.Register(c))
	}
	families, err := reg.Gather()
	ok(t, err)
	for _, f := range families {
		if f.GetName() != "slipway_upstream_endpoint_healthy" {
			continue
		}
		for _, m := range f.Metric {
			if m.Label[0].GetValue() == url {
				return m.GetGauge().GetValue()
			}
		}
	}
	return -1
}

// TestState makes an upstream do everything that one can do. Its state must be the outcome of the
// last request, however much time passes since.
func TestState(t *testing.T) {
	t.Parallel()
	status := func(code int, header ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			if len(header) > 0 {
				w.Header().Set(header[0], header[1])
			}
			w.WriteHeader(code)
		}
	}
	body := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "20")
			_, _ = w.Write([]byte(text)) // shorter than its stated length: the connection is cut
		}
	}
	for name, tc := range map[string]struct {
		does http.HandlerFunc // nil: nobody listens
		want upstream.State
	}{
		"right":           {does: image, want: upstream.Healthy},
		"not there":       {does: status(404), want: upstream.Healthy},
		"denied":          {does: status(403), want: upstream.Healthy},
		"broken":          {does: status(500), want: upstream.Failing},
		"bad gateway":     {does: status(502), want: upstream.Failing},
		"unavailable":     {does: status(503), want: upstream.Failing},
		"a page":          {does: status(200, "Content-Type", "text/html"), want: upstream.Failing},
		"cut off":         {does: body("0123"), want: upstream.Failing},
		"a bad redirect":  {does: status(302, "Location", "ftp://elsewhere.example.com/"), want: upstream.Failing},
		"too many":        {does: status(429), want: upstream.LeftAlone},
		"too many, told":  {does: status(429, "Retry-After", "60"), want: upstream.LeftAlone},
		"busy":            {does: status(503, "Retry-After", "60"), want: upstream.LeftAlone},
		"nobody listens":  {want: upstream.Failing},
		"another content": {does: func(w http.ResponseWriter, r *http.Request) { image(w, r) }, want: upstream.Failing},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clk := newClock()
			var healed atomic.Bool
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if tc.does == nil || healed.Load() {
					image(w, r)
					return
				}
				tc.does(w, r)
			})
			url := s.URL
			if tc.does == nil {
				url = gone(t)
			}
			u := open(t, url, upstream.Options{Clock: clk.Now})
			wants := func(when string, want upstream.State, metric float64) {
				t.Helper()
				st := u.Status()
				e := st.Endpoints[0]
				if st.State != want || e.State != want || e.Healthy != (metric == 1) || st.State.Works() != (metric == 1) {
					t.Errorf("%s: got the states %q and %q (healthy: %t), want %q", when, st.State, e.State, e.Healthy, want)
				}
				if got := shown(t, u, url); got != metric {
					t.Errorf("%s: the metric says %v, want %v", when, got, metric)
				}
			}
			wants("before a request", upstream.NotAsked, -1)
			metric := 0.0
			if tc.want == upstream.Healthy {
				metric = 1
			}
			_ = getBlob(u, 0) // other tests check the result
			if name == "another content" {
				b, err := u.Blob(t.Context(), "library/app", blobDigest, 0)
				ok(t, err)
				b.Blame(http.ErrBodyNotAllowed)
				ok(t, b.Close())
			}
			wants("after a request", tc.want, metric)
			clk.add(time.Hour)
			wants("an hour later", tc.want, metric)
			if tc.does == nil {
				return
			}
			healed.Store(true)
			ok(t, getBlob(u, 0))
			wants("healed", upstream.Healthy, 1)
		})
	}
}

// TestStateOfSeveral wants the state of an upstream to follow from the states of its endpoints.
func TestStateOfSeveral(t *testing.T) {
	t.Parallel()
	var down atomic.Bool
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if down.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		image(w, r)
	})
	clk := newClock()
	u := open(t, s.URL, upstream.Options{Mirrors: []string{gone(t)}, Clock: clk.Now})
	ok(t, getBlob(u, 0))
	if st := u.Status(); st.State != upstream.HealthyInPart {
		t.Errorf("with a dead mirror: got %q", st.State)
	}
	down.Store(true)
	for range 3 {
		_ = getBlob(u, 0)
		clk.add(time.Minute)
	}
	if st := u.Status(); st.State != upstream.Failing {
		t.Errorf("with nothing that works: got %q", st.State)
	}
}
