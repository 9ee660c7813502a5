package quota_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

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
	const want = `# HELP slipway_stored_bytes What the repositories of a namespace hold, each content once, by the last count.
# TYPE slipway_stored_bytes gauge
slipway_stored_bytes{namespace="**"} 5370
slipway_stored_bytes{namespace="nothing/**"} 0
slipway_stored_bytes{namespace="team/**"} 5000
`
	var err error
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if err = testutil.GatherAndCompare(reg, strings.NewReader(want), "slipway_stored_bytes"); err == nil {
			break
		}
	}
	if err != nil {
		t.Error(err)
	}
	cancel()
	<-done
	if quota.NewMeter(nil, b.cat, nil).Metrics() != nil {
		t.Error("a meter of nothing has metrics")
	}
}
