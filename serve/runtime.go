package serve

import (
	"regexp"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// processMetrics returns the metrics of the process and of Go's runtime, and the version of
// the program. In addition to
// the collectors' defaults there are the classes of memory, which tell live memory from
// the memory that the kernel sees. There is also the time that goroutines waited for
// mutexes: under load, a lock that all requests take shows there first.
func processMetrics(version string) []prometheus.Collector {
	build := prometheus.NewGauge(prometheus.GaugeOpts{Name: "slipway_build_info",
		Help:        "1. The labels have the version of the program and of Go.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version()}})
	build.Set(1)
	return []prometheus.Collector{
		collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(collectors.MetricsMemory,
			collectors.GoRuntimeMetricsRule{Matcher: regexp.MustCompile(`^/sync/mutex/wait/total:seconds$`)})),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), build,
	}
}
