package agent

import (
	"context"
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"example.org/slipway/oci/warm"
)

// collector exports the agent's state as metrics on each scrape. No label has values from
// outside: images and files appear in the status and not here.
type collector struct{ a *Agent }

// family describes one metric.
func family(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("slipway_agent_"+name, help, labels, nil)
}

var descs = struct {
	images, containers, waiting                            *prometheus.Desc
	poolOpens, poolReads, poolReadBytes, poolWaiting       *prometheus.Desc
	fetchedFiles, fetchedBytes, stalls, stalled, openError *prometheus.Desc
	queued, running, sourceFailed, sourceLies              *prometheus.Desc
	cacheFiles, cacheBytes, cacheLimit, cacheEvicted       *prometheus.Desc
	cacheEvictedBytes, cacheDamaged, started               *prometheus.Desc
	volumes, volumeSteps, volumeStepSeconds                *prometheus.Desc
	volumeRead, volumeWritten, volumeErrors, volumeFailed  *prometheus.Desc
	warm                                                   *prometheus.Desc
}{
	warm:              family("warm_orders", "Orders of registries that this node has images, by state.", "state"),
	images:            family("images", "Images that are known, by how complete their files are.", "state"),
	containers:        family("containers", "Containers whose root file system comes from an index."),
	waiting:           family("waiting", "Callers that wait for a file now."),
	poolOpens:         family("pool_opens_total", "Opens of files that were not in the cache, by outcome.", "outcome"),
	poolReads:         family("pool_reads_total", "Reads answered by the agent itself."),
	poolReadBytes:     family("pool_read_bytes_total", "Bytes of those reads."),
	poolWaiting:       family("pool_waiting_opens", "Opens that wait now."),
	fetchedFiles:      family("fetched_files_total", "Files fetched from registries, by why.", "priority"),
	fetchedBytes:      family("fetched_bytes_total", "Bytes of content fetched from registries, by why.", "priority"),
	stalls:            family("stalls_total", "Opens that waited a millisecond or more."),
	stalled:           family("stalled_seconds_total", "How long they waited together."),
	openError:         family("open_errors_total", "Opens that failed."),
	queued:            family("queued_requests", "Requests to registries that wait, by why.", "priority"),
	running:           family("running_requests", "Requests to registries under way, by why.", "priority"),
	sourceFailed:      family("sources_failing", "Sources that are not asked for now, as they failed."),
	sourceLies:        family("source_lies_total", "Contents from registries that were not what their name says."),
	cacheFiles:        family("cache_files", "Complete files in the cache."),
	cacheBytes:        family("cache_bytes", "Disk space of the cache, by what it is for.", "kind"),
	cacheLimit:        family("cache_limit_bytes", "Budget of the cache; 0 is none."),
	cacheEvicted:      family("cache_evicted_files_total", "Files evicted from the cache."),
	cacheEvictedBytes: family("cache_evicted_bytes_total", "Bytes of those."),
	cacheDamaged:      family("cache_damaged_files_total", "Files removed as their bytes had changed on disk."),
	volumes:           family("volumes", "Images and containers' clones that are volumes, by state.", "state"),
	volumeSteps:       family("volume_steps_total", "Steps of mapping, mounting and taking away volumes.", "step"),
	volumeStepSeconds: family("volume_step_seconds_total", "How long these steps took together.", "step"),
	volumeRead:        family("volume_read_bytes_total", "Bytes read from the storage of volumes."),
	volumeWritten:     family("volume_written_bytes_total", "Bytes written to it."),
	volumeErrors:      family("volume_errors_total", "Attempts to read or write volumes that the storage failed or did not answer; most are made again."),
	volumeFailed:      family("volume_failed_total", "Reads and writes that ended in an error, after the outage that is waited for."),
	started:           family("start_time_seconds", "When this worker started, in seconds since the epoch."),
}

// Describe implements prometheus.Collector. The set of metrics is fixed.
func (c collector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	s, complete := c.a.files.Summary()
	opensFailed, stalls := int64(0), int64(0)
	var stalled time.Duration
	var files, bytes [3]int64
	for i := range s.Images {
		img := &s.Images[i]
		opensFailed, stalls, stalled = opensFailed+img.Errors, stalls+img.Stalls, stalled+img.Stalled
		for k, n := range [3]int64{img.DemandFiles, img.ProfileFiles, img.BackgroundFiles} {
			files[k] += n
		}
		for k, n := range [3]int64{img.DemandBytes, img.ProfileBytes, img.BackgroundBytes} {
			bytes[k] += n
		}
	}
	gauge(descs.images, float64(complete), "complete")
	gauge(descs.images, float64(len(s.Images)-complete), "partial")
	gauge(descs.containers, float64(len(s.Containers)))
	gauge(descs.waiting, float64(s.Waiting))
	for k, priority := range []string{"demand", "profile", "background"} {
		count(descs.fetchedFiles, float64(files[k]), priority)
		count(descs.fetchedBytes, float64(bytes[k]), priority)
		gauge(descs.queued, float64(s.Queued[k]), priority)
		gauge(descs.running, float64(s.Running[k]), priority)
	}
	count(descs.stalls, float64(stalls))
	count(descs.stalled, stalled.Seconds())
	count(descs.openError, float64(opensFailed))
	failing, lies := 0, 0
	for i := range s.Sources {
		lies += s.Sources[i].Lies
		if time.Now().Before(s.Sources[i].Until) {
			failing++
		}
	}
	gauge(descs.sourceFailed, float64(failing))
	count(descs.sourceLies, float64(lies))
	gauge(descs.cacheFiles, float64(s.Cache.Files))
	gauge(descs.cacheBytes, float64(s.Cache.Bytes), "complete")
	gauge(descs.cacheBytes, float64(s.Cache.PartialBytes), "partial")
	gauge(descs.cacheBytes, float64(s.Cache.ReservedBytes), "reserved")
	gauge(descs.cacheBytes, float64(s.Cache.LateBytes), "late")
	gauge(descs.cacheLimit, float64(s.Cache.MaxBytes))
	count(descs.cacheEvicted, float64(s.Cache.Evicted))
	count(descs.cacheEvictedBytes, float64(s.Cache.EvictedBytes))
	count(descs.cacheDamaged, float64(s.Cache.Damaged))
	p := c.a.poolStats()
	count(descs.poolOpens, float64(p.OpensPassthrough), "passthrough")
	count(descs.poolOpens, float64(p.OpensCached), "cached")
	count(descs.poolOpens, float64(p.OpensFailed), "failed")
	count(descs.poolReads, float64(p.Reads))
	count(descs.poolReadBytes, float64(p.ReadBytes))
	gauge(descs.poolWaiting, float64(p.Waiting))
	gauge(descs.started, float64(c.a.began.Unix()))
	var orders map[warm.State]int
	if c.a.warm != nil {
		orders = c.a.warm.states()
	}
	for _, state := range []warm.State{warm.Waiting, warm.Running, warm.Done, warm.Failed} {
		gauge(descs.warm, float64(orders[state]), string(state))
	}
	c.collectVolumes(gauge, count)
}

// collectVolumes exports the metrics of volumes. All are 0 if there are no volumes.
func (c collector) collectVolumes(gauge, count func(*prometheus.Desc, float64, ...string)) {
	states := map[string]int{}
	if s := c.a.images.VolumeStatus(context.Background()); s != nil { // it limits its own time
		for i := range s.Volumes {
			states[s.Volumes[i].State]++
		}
	}
	for _, state := range []string{"mounted", "unmounted", "busy", "leaving"} {
		gauge(descs.volumes, float64(states[state]), state)
	}
	w := c.a.images.VolumeWork()
	for _, s := range w.Steps {
		count(descs.volumeSteps, float64(s.Count), s.Step)
		count(descs.volumeStepSeconds, s.Took.Seconds(), s.Step)
	}
	count(descs.volumeRead, float64(w.Read))
	count(descs.volumeWritten, float64(w.Written))
	count(descs.volumeErrors, float64(w.Errors))
	count(descs.volumeFailed, float64(w.Failed))
}

func (a *Agent) metricsHandler() http.Handler {
	reg := prometheus.NewRegistry()
	build := prometheus.NewGauge(prometheus.GaugeOpts{Name: "slipway_agent_build_info", Help: "1. The labels have the version of the program and of Go.",
		ConstLabels: prometheus.Labels{"version": Version, "goversion": runtime.Version()}})
	build.Set(1)
	reg.MustRegister(collector{a}, build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if a.peers != nil {
		reg.MustRegister(a.peers.Metrics()...)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	return mux
}
