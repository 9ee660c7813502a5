package serve

import (
	"regexp"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// processMetrics are those of the process and of Go's runtime. Beyond the collectors'
// defaults there are the classes of memory, so that what the kernel sees can be told
// from what is live, and the time that goroutines waited for mutexes: under load a
// lock that all requests take shows there first.
func processMetrics() []prometheus.Collector {
	return []prometheus.Collector{
		collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(collectors.MetricsMemory,
			collectors.GoRuntimeMetricsRule{Matcher: regexp.MustCompile(`^/sync/mutex/wait/total:seconds$`)})),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	}
}
