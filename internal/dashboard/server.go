package dashboard

// serverBoard shows the registry as its clients see it, and the process.
func serverBoard() *Board {
	l := newBoard("slipway-server", "Slipway server", "What clients ask of the registry, how fast it answers, and how the process is.",
		jobChoice("instance", "Registry", serverJob))
	serverSummary(l)
	serverPulls(l)
	serverAnswers(l)
	serverStorage(l)
	serverProcess(l)
	return l.done()
}

func serverSummary(l *builder) {
	l.number("Requests", "Requests of all kinds", perSecond, rate("registry_http_requests_total{@server}"))
	l.number("Pulls", "Manifests and blobs given to clients", perSecond, rate("slipway_server_pulls_total{@server}"))
	l.number("Sent", "Bytes of bodies", bytesPerSec, rate("registry_http_response_bytes_total{@server}"))
	l.number("Failed", "Share of the requests that were answered by 5xx", inPercent,
		over(rate(`registry_http_requests_total{@server,code=~"5.."}`), rate("registry_http_requests_total{@server}")))
	l.number("Under way", "Requests being served", plain, sum("registry_http_in_flight_requests{@server}"))
	l.number("Free space", "Of the data directory's file system, where there is least", inBytes, "min(slipway_storage_free_bytes{@server})")
}

func serverPulls(l *builder) {
	l.row("Pulls and pushes")
	l.stack("Pulls by kind", "Manifests and blobs given to clients", perSecond,
		query{rate("slipway_server_pulls_total{@server}", "kind"), "{{kind}}"})
	l.stack("Pulls by namespace", "The ten most pulled; of mirrored images the namespace is the upstream", perSecond,
		query{"topk(10, " + rate("slipway_server_pulls_total{@server}", "namespace") + ")", "{{namespace}}"})
	l.graph("Requests by endpoint", "Of all methods", perSecond,
		query{rate("registry_http_requests_total{@server}", "handler"), "{{handler}}"})
	l.graph("Bytes sent", "Bodies of answers, by endpoint", bytesPerSec,
		query{rate("registry_http_response_bytes_total{@server}", "handler"), "{{handler}}"})
	l.graph("Bytes received", "Bodies of requests, by endpoint", bytesPerSec,
		query{rate("registry_http_request_bytes_total{@server}", "handler"), "{{handler}}"})
	l.graph("Uploads and requests under way", "Unfinished uploads that are known in RAM, requests being served", plain,
		query{sum("slipway_registry_uploads_in_memory{@server}"), "uploads"},
		query{sum("registry_http_in_flight_requests{@server}"), "requests"})
}

func serverAnswers(l *builder) {
	const duration = "registry_http_request_duration_seconds_bucket{@server"
	l.row("Answers")
	l.graph("Time of reads, median", "GET and HEAD, with the body", inSeconds,
		query{quantile("0.5", duration+`,method=~"get|head"}`, "handler"), "{{handler}}"})
	l.graph("Time of reads, 99th percentile", "GET and HEAD, with the body", inSeconds,
		query{quantile("0.99", duration+`,method=~"get|head"}`, "handler"), "{{handler}}"})
	l.graph("Time of writes, 99th percentile", "POST, PATCH, PUT and DELETE, with the body", inSeconds,
		query{quantile("0.99", duration+`,method=~"post|patch|put|delete"}`, "handler"), "{{handler}}"})
	l.stack("Answers by status", "", perSecond,
		query{rate("registry_http_requests_total{@server}", "code"), "{{code}}"})
	l.graph("API errors", "What clients were told, by code; the eight most frequent", perSecond,
		query{"topk(8, " + rate("slipway_server_errors_total{@server}", "code") + ")", "{{code}}"})
	l.graph("Notifications", "Events that wait for webhooks, and those lost or refused in the last hour; 0 without webhooks", plain,
		query{orZero(sum("registry_notifications_pending_total{@server}")), "waiting"},
		query{orZero(`sum(increase(registry_notifications_events_total{@server,type=~"Failures|Errors|Dropped"}[1h]))`), "failures"})
}

func serverStorage(l *builder) {
	l.row("Storage")
	l.graph("Free space", "Of the data directory's file system", inBytes,
		query{"slipway_storage_free_bytes{@server}", "{{instance}}"})
	l.graph("Stored", "What the namespaces of storage.namespaces hold, each content once", inBytes,
		query{"max by (namespace) (slipway_stored_bytes{@server})", "{{namespace}}"})
	l.graph("Since the last backup", "Time since a backup was completed; nothing before the first", inSeconds,
		query{"time() - max(slipway_backup_last_success_timestamp_seconds{@server} > 0)", "age"})
	l.graph("Garbage collected", "Bytes of contents that were deleted, in an hour", inBytes,
		query{"sum by (instance) (increase(slipway_registry_gc_deleted_bytes_total{@server}[1h]))", "{{instance}}"})
	l.graph("Since the last collection", "Time since garbage was last collected without an error", inSeconds,
		query{"time() - (slipway_registry_gc_last_success_timestamp_seconds{@server} > 0) or 0 * process_start_time_seconds{@server}", "{{instance}}"})
	l.graph("Collections", "Runs in an hour, by result", plain,
		query{orZero(`sum by (result) (increase(slipway_registry_gc_runs_total{@server}[1h]))`), "{{result}}"})
	l.graph("Time of collections", "Of each, on average", inSeconds,
		query{over("sum(increase(slipway_registry_gc_duration_seconds_sum{@server}[1h]))", "sum(increase(slipway_registry_gc_duration_seconds_count{@server}[1h]))"), "mean"})
	l.graph("Catalogue and manifests in RAM", "Look-ups answered from RAM, and not", perSecond,
		query{rate("slipway_cache_ram_hits_total{@server}"), "hits"},
		query{rate("slipway_cache_ram_misses_total{@server}"), "misses"},
		query{rate("slipway_cache_ram_evictions_total{@server}"), "evictions"})
}

// serverProcess adds panels about Go's runtime and what the kernel says of the process.
func serverProcess(l *builder) {
	l.row("Process and Go runtime")
	l.graph("CPU", "Cores in use", plain,
		query{"rate(process_cpu_seconds_total{@server}[$__rate_interval])", "{{instance}}"})
	l.graph("Memory", "Resident, and what Go has from the kernel", inBytes,
		query{"process_resident_memory_bytes{@server}", "{{instance}} resident"},
		query{"go_memory_classes_total_bytes{@server} - go_memory_classes_heap_released_bytes{@server}", "{{instance}} Go"})
	l.stack("Memory classes", "What Go's memory is used for, of all instances", inBytes,
		query{sum("go_memory_classes_heap_objects_bytes{@server}"), "heap: objects"},
		query{sum("go_memory_classes_heap_unused_bytes{@server}"), "heap: unused"},
		query{sum("go_memory_classes_heap_free_bytes{@server}"), "heap: free"},
		query{sum("go_memory_classes_heap_stacks_bytes{@server}"), "stacks"},
		query{sum("go_memory_classes_metadata_mspan_inuse_bytes{@server} + go_memory_classes_metadata_other_bytes{@server} + go_memory_classes_other_bytes{@server}"), "metadata and other"})
	l.graph("Heap objects", "Objects that are allocated", plain,
		query{"go_memstats_heap_objects{@server}", "{{instance}}"})
	l.graph("Allocations", "Bytes allocated", bytesPerSec,
		query{"rate(go_memstats_alloc_bytes_total{@server}[$__rate_interval])", "{{instance}}"})
	l.graph("Goroutines and threads", "", plain,
		query{"go_goroutines{@server}", "{{instance}} goroutines"},
		query{"go_threads{@server}", "{{instance}} threads"})
	l.graph("GC cycles", "Of Go's memory", perSecond,
		query{"rate(go_gc_duration_seconds_count{@server}[$__rate_interval])", "{{instance}}"})
	l.graph("GC pauses", "Share of the time in which everything stood still", inPercent,
		query{"rate(go_gc_duration_seconds_sum{@server}[$__rate_interval])", "{{instance}}"})
	l.graph("Waiting for mutexes", "Seconds that goroutines waited, of all together, in a second", inSeconds,
		query{"rate(go_sync_mutex_wait_total_seconds_total{@server}[$__rate_interval])", "{{instance}}"})
	l.graph("Network", "Bytes of the process' network namespace", bytesPerSec,
		query{"rate(process_network_receive_bytes_total{@server}[$__rate_interval])", "{{instance}} received"},
		query{"rate(process_network_transmit_bytes_total{@server}[$__rate_interval])", "{{instance}} sent"})
	l.graph("File descriptors", "Open, and how many there may be", plain,
		query{"process_open_fds{@server}", "{{instance}} open"},
		query{"process_max_fds{@server}", "{{instance}} limit"})
	l.graph("Uptime", "", inSeconds, query{"time() - process_start_time_seconds{@server}", "{{instance}}"})
}
