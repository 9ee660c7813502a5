package replay_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"example.org/slipway/workload/replay"
	"example.org/slipway/workload/replay/plan"
)

// TestMetrics checks that Prometheus gets the same figures as the result.
func TestMetrics(t *testing.T) {
	url, _ := newRegistry(t, nil)
	o := options(t, plan.L2, url) // L2 has sessions, which are not requests
	o.Metrics = replay.NewMetrics()
	s, all := run(t, newStore(t, images()), o)

	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(o.Metrics.Collectors()...)
	list, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	families := map[string]*dto.MetricFamily{}
	for _, f := range list {
		families[strings.TrimPrefix(f.GetName(), "slipway_replay_")] = f
	}
	got, want := map[string]float64{}, map[string]float64{"warm-up": float64(s.WarmUp.Requests)}
	for _, m := range families["requests_total"].GetMetric() {
		for _, l := range m.GetLabel() {
			if l.GetName() == "phase" {
				got[l.GetValue()] += m.GetCounter().GetValue()
			}
			if l.GetName() == "target" && l.GetValue() != o.Targets[0].Name {
				t.Errorf("target %q, want %q", l.GetValue(), o.Targets[0].Name)
			}
		}
	}
	var bytes, wantBytes float64
	for _, sm := range all {
		if !sm.IsSession() {
			want["replay"]++
			wantBytes += float64(sm.Bytes)
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("requests by phase (-want +got):\n%s", d)
	}
	for _, m := range families["bytes_total"].GetMetric() {
		if m.GetLabel()[0].GetValue() == "replay" {
			bytes += m.GetCounter().GetValue()
		}
	}
	if bytes != wantBytes || bytes == 0 {
		t.Errorf("%v bytes, want %v", bytes, wantBytes)
	}
	for _, name := range []string{"latency_seconds", "service_seconds", "lag_seconds"} {
		if n := families[name].GetMetric()[0].GetHistogram().GetSampleCount(); float64(n) != want["replay"] {
			t.Errorf("%s has %d requests, want %v", name, n, want["replay"])
		}
	}
	if n := families["done"].GetMetric()[0].GetGauge().GetValue(); n == 0 {
		t.Error("nothing is done at the end")
	}
}
