package serve

import (
	"regexp"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// processMetrics returns the metrics of the process and of Go's runtime. In addition to
// the collectors' defaults there are the classes of memory, which tell live memory from
// the memory that the kernel sees. There is also the time that goroutines waited for
// mutexes: under load, a lock that all requests take shows there first.
func processMetrics() []prometheus.Collector {
	return []prometheus.Collector{
		collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(collectors.MetricsMemory,
			collectors.GoRuntimeMetricsRule{Matcher: regexp.MustCompile(`^/sync/mutex/wait/total:seconds$`)})),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	}
}
