package workload

import (
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/workload/replay"
)

// serveMetrics creates the replay's metrics and serves them until stop is called.
func (f *replayFlags) serveMetrics() (stop func(), err error) {
	f.o.Metrics = replay.NewMetrics()
	reg := prometheus.NewRegistry()
	reg.MustRegister(f.o.Metrics.Collectors()...)
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	ln, err := net.Listen("tcp", f.metrics)
	if err != nil {
		return nil, command.Usagef("--metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(ln) // until it is closed; an error here must not end a replay
	}()
	return func() {
		_ = srv.Close()
		<-served
	}, nil
}
