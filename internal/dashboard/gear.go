package dashboard

// gearBoard shows the conversion to Gear at the registry, and the agents that start
// containers from Gear images.
func gearBoard() *Board {
	l := newBoard("slipway-gear", "Slipway Gear and agents", "Layers converted at the registry, and the nodes that start containers from them.",
		jobChoice("instance", "Registry", serverJob), jobChoice("node", "Node", agentJob))
	gearConversion(l)
	agentWork(l)
	agentFetches(l)
	agentPeers(l)
	agentCache(l)
	agentProcess(l)
	return l.done()
}

func gearConversion(l *builder) {
	l.row("Conversion at the registry")
	l.graph("Layers", "Converted, and attempts that failed", perSecond,
		query{rate("slipway_gear_conversions_total{@server}"), "converted"},
		query{rate("slipway_gear_conversion_failures_total{@server}"), "failed"})
	l.graph("Being converted", "", plain, query{sum("slipway_gear_conversions_active{@server}", "instance"), "{{instance}}"})
	l.graph("Time of a conversion", "From the layer's first byte to its index", inSeconds,
		query{quantile("0.5", "slipway_gear_conversion_seconds_bucket{@server}"), "median"},
		query{quantile("0.99", "slipway_gear_conversion_seconds_bucket{@server}"), "99th percentile"})
	l.graph("Bytes converted", "Uncompressed, and those of files that no layer held before", bytesPerSec,
		query{rate("slipway_gear_converted_bytes_total{@server}"), "converted"},
		query{rate("slipway_gear_new_bytes_total{@server}"), "new"})
	l.share("Found in other layers", "Share of the bytes converted that were there already, since the start",
		query{over("(sum(slipway_gear_converted_bytes_total{@server}) - sum(slipway_gear_new_bytes_total{@server}))", "sum(slipway_gear_converted_bytes_total{@server})"), "share"})
	l.graph("Settled", "Bytes of the packs that settling replaced", bytesPerSec,
		query{rate("slipway_gear_settled_bytes_total{@server}"), "settled"})
}

func agentWork(l *builder) {
	l.row("Nodes: containers and what they wait for")
	l.graph("Images", "Images that are known, by whether all their files are on the node", plain,
		query{sum("slipway_agent_images{@agent}", "instance", "state"), "{{instance}} {{state}}"})
	l.graph("Containers", "Containers whose root file system comes from an index", plain,
		query{sum("slipway_agent_containers{@agent}", "instance"), "{{instance}}"})
	l.graph("Waiting now", "Callers and opens", plain,
		query{sum("slipway_agent_waiting{@agent}", "instance"), "{{instance}} callers"},
		query{sum("slipway_agent_pool_waiting_opens{@agent}", "instance"), "{{instance}} opens"})
	l.graph("Time that opens wait", "Seconds in a second, of all together", inSeconds,
		query{rate("slipway_agent_stalled_seconds_total{@agent}", "instance"), "{{instance}}"})
	l.graph("Opens that wait a millisecond or more", "", perSecond,
		query{rate("slipway_agent_stalls_total{@agent}", "instance"), "{{instance}}"})
	l.graph("Opens of files that were not in the cache", "By outcome", perSecond,
		query{rate("slipway_agent_pool_opens_total{@agent}", "instance", "outcome"), "{{instance}} {{outcome}}"})
	l.graph("Failed opens", "", perSecond,
		query{rate("slipway_agent_open_errors_total{@agent}", "instance"), "{{instance}}"})
	l.graph("Reads answered by the agent", "", perSecond,
		query{rate("slipway_agent_pool_reads_total{@agent}", "instance"), "{{instance}}"})
	l.graph("Bytes of these reads", "", bytesPerSec,
		query{rate("slipway_agent_pool_read_bytes_total{@agent}", "instance"), "{{instance}}"})
}

func agentFetches(l *builder) {
	l.row("Nodes: fetches from registries")
	l.graph("Fetched bytes", "Content, by why", bytesPerSec,
		query{rate("slipway_agent_fetched_bytes_total{@agent}", "instance", "priority"), "{{instance}} {{priority}}"})
	l.graph("Fetched files", "By why", perSecond,
		query{rate("slipway_agent_fetched_files_total{@agent}", "instance", "priority"), "{{instance}} {{priority}}"})
	l.graph("Requests to registries", "Under way, and those that wait", plain,
		query{sum("slipway_agent_running_requests{@agent}", "instance", "priority"), "{{instance}} running {{priority}}"},
		query{sum("slipway_agent_queued_requests{@agent}", "instance", "priority"), "{{instance}} queued {{priority}}"})
	l.graph("Registries that fail", "Sources that are not asked for now", plain,
		query{sum("slipway_agent_sources_failing{@agent}", "instance"), "{{instance}}"})
	l.graph("Images ordered ahead", "By state of the order", plain,
		query{sum("slipway_agent_warm_orders{@agent}", "instance", "state"), "{{instance}} {{state}}"})
	l.graph("Wrong contents", "From registries, in an hour", plain,
		query{"sum by (instance) (increase(slipway_agent_source_lies_total{@agent}[1h]))", "{{instance}}"})
}

func agentPeers(l *builder) {
	l.row("Nodes: files from other nodes")
	l.graph("Received", "Content of images that other nodes use", bytesPerSec,
		query{rate("slipway_agent_peers_received_bytes_total{@agent}", "instance", "from"), "{{instance}} from {{from}}"})
	l.share("Spared the registry", "Share of these bytes that came from other nodes, since the agents began",
		query{over(`sum(slipway_agent_peers_received_bytes_total{@agent,from="peers"})`, "sum(slipway_agent_peers_received_bytes_total{@agent})"), "share"})
	l.graph("Sent to other nodes", "", bytesPerSec,
		query{rate("slipway_agent_peers_sent_bytes_total{@agent}", "instance"), "{{instance}}"})
	l.graph("Other nodes in use", "", plain,
		query{sum("slipway_agent_peers_known{@agent}", "instance"), "{{instance}}"})
	l.graph("Nodes left out", "As they lied, stalled or were away, in an hour", plain,
		query{"sum by (instance) (increase(slipway_agent_peers_bans_total{@agent}[1h]))", "{{instance}}"})
	l.graph("Refused requests", "Of other nodes without a valid grant", perSecond,
		query{rate("slipway_agent_peers_refused_requests_total{@agent}", "instance"), "{{instance}}"})
	l.graph("Introduced by registries", "Images of nodes that other nodes are told of", plain,
		query{sum("slipway_peers_announced_images{@server}", "instance"), "{{instance}}"})
	l.graph("Announcements", "At registries, by outcome", perSecond,
		query{rate("slipway_peers_announcements_total{@server}", "instance", "outcome"), "{{instance}} {{outcome}}"})
}

func agentCache(l *builder) {
	l.row("Nodes: cache")
	l.graph("Disk space", "By what it is for, and the budget; 0 is none", inBytes,
		query{sum("slipway_agent_cache_bytes{@agent}", "instance", "kind"), "{{instance}} {{kind}}"},
		query{sum("slipway_agent_cache_limit_bytes{@agent}", "instance"), "{{instance}} limit"})
	l.graph("Files", "Complete ones", plain, query{sum("slipway_agent_cache_files{@agent}", "instance"), "{{instance}}"})
	l.graph("Evicted bytes", "", bytesPerSec,
		query{rate("slipway_agent_cache_evicted_bytes_total{@agent}", "instance"), "{{instance}}"})
	l.graph("Evicted files", "", perSecond,
		query{rate("slipway_agent_cache_evicted_files_total{@agent}", "instance"), "{{instance}}"})
	l.graph("Damaged files", "Removed as their bytes had changed on disk, in an hour", plain,
		query{"sum by (instance) (increase(slipway_agent_cache_damaged_files_total{@agent}[1h]))", "{{instance}}"})
}

func agentProcess(l *builder) {
	l.row("Nodes: the agent itself")
	l.graph("CPU", "Cores in use", plain, query{"rate(process_cpu_seconds_total{@agent}[$__rate_interval])", "{{instance}}"})
	l.graph("Memory", "Resident", inBytes, query{"process_resident_memory_bytes{@agent}", "{{instance}}"})
	l.graph("Age of the worker", "", inSeconds, query{"time() - slipway_agent_start_time_seconds{@agent}", "{{instance}}"})
}
