package quota_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/registry/auth/patterns"
	"example.org/slipway/registry/quota"
)

// TestMeter checks that the metrics of namespaces are what the catalogue has of their
// repositories, also where namespaces and contents overlap.
func TestMeter(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	both := content(1, 5000)
	for repo, c := range map[string][]byte{"team/a": both, "team/b": both, "other": content(2, 300), "mirror/x": content(3, 70)} {
		if err := push(t, b.Registry, repo, c, true); err != nil {
			t.Fatal(err)
		}
	}
	var namespaces []quota.Namespace
	for _, p := range []string{"team/**", "**", "nothing/**"} {
		match, err := patterns.CompileAll([]string{p})
		if err != nil {
			t.Fatal(err)
		}
		namespaces = append(namespaces, quota.Namespace{Repositories: []string{p}, Match: match})
	}
	m := quota.NewMeter(namespaces, b.cat, slog.New(slog.DiscardHandler))
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(m.Metrics()...)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); m.Run(ctx) }()
	want := map[string]float64{"**": 5370, "nothing/**": 0, "team/**": 5000}
	var got map[string]float64
	for end := time.Now().Add(time.Minute); time.Now().Before(end) && !cmp.Equal(want, got); time.Sleep(5 * time.Millisecond) {
		got = map[string]float64{}
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() == "slipway_stored_bytes" {
					got[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
				}
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the metric is (-want +got)\n%s", diff)
	}
	cancel()
	<-done
	if quota.NewMeter(nil, b.cat, nil).Metrics() != nil {
		t.Error("a meter of nothing has metrics")
	}
}
