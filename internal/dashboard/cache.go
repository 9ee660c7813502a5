package dashboard

// cacheBoard shows the tiers of the blob cache, prefetching, and the object store behind
// them.
func cacheBoard() *Board {
	l := newBoard("slipway-cache", "Slipway cache and prefetch", "The caches of blobs in RAM and on SSD, layers fetched ahead, and the object store behind them.",
		jobChoice("instance", "Registry", serverJob))
	cacheTiers(l)
	cacheSSD(l)
	cachePrefetch(l)
	cacheStore(l)
	return l.done()
}

// hitShare returns which share of the requests that reached a tier was answered by it.
func hitShare(tier string) string {
	hits := rate(`slipway_cache_tier_hits_total{@server,tier="` + tier + `"}`)
	return over(hits, "("+hits+" + "+rate(`slipway_cache_tier_misses_total{@server,tier="`+tier+`"}`)+")")
}

// allHits returns the part of all requests that a tier answered: a request that RAM does
// not answer is counted once more on the SSD.
func allHits() string {
	hits := rate("slipway_cache_tier_hits_total{@server}")
	return over(hits, "("+hits+" + "+rate(`slipway_cache_tier_misses_total{@server,tier="ssd"}`)+")")
}

func cacheTiers(l *builder) {
	l.number("Hits", "Share of the requests for blobs that RAM or SSD answered", inPercent, allHits())
	l.number("Served from cache", "Sizes of the blobs that were asked for and in a tier", bytesPerSec, rate("slipway_cache_tier_hit_bytes_total{@server}"))
	l.number("In RAM", "Bytes of blobs", inBytes, sum(`slipway_cache_tier_bytes{@server,tier="ram"}`))
	l.number("On SSD", "Bytes of blobs", inBytes, sum(`slipway_cache_tier_bytes{@server,tier="ssd"}`))
	l.number("Fetched ahead", "Share of the layers fetched ahead that were asked for, since the start", inPercent, "avg(slipway_prefetch_precision_ratio{@server})")
	l.number("Fetches that failed", "In an hour", plain, "sum(increase(slipway_cache_fill_errors_total{@server}[1h]))")
	l.row("Tiers")
	l.share("Hit ratio", "Of the requests that came to a tier", query{hitShare("ram"), "RAM"}, query{hitShare("ssd"), "SSD"}, query{allHits(), "both"})
	l.graph("Hits and misses", "A miss in RAM may be a hit on the SSD", perSecond,
		query{rate("slipway_cache_tier_hits_total{@server}", "tier"), "{{tier}} hits"},
		query{rate("slipway_cache_tier_misses_total{@server}", "tier"), "{{tier}} misses"})
	l.graph("Bytes served", "Sizes of the blobs that were asked for and there", bytesPerSec,
		query{rate("slipway_cache_tier_hit_bytes_total{@server}", "tier"), "{{tier}}"})
	l.graph("RAM", "Bytes of blobs, in use with those on their way, pinned, and how many there may be", inBytes, tierBytes("ram")...)
	l.graph("SSD", "Bytes of blobs, in use with those on their way, pinned, and how many there may be", inBytes, tierBytes("ssd")...)
	l.graph("Objects", "In each tier", plain, query{sum("slipway_cache_tier_objects{@server}", "tier"), "{{tier}}"})
	l.graph("Evictions", "Objects given up to make room", perSecond,
		query{rate("slipway_cache_tier_evictions_total{@server}", "tier"), "{{tier}}"})
	l.graph("Fetches", "Objects fetched, and requests that joined a fetch under way", perSecond,
		query{rate("slipway_cache_fills_total{@server}"), "fetched"},
		query{rate("slipway_cache_shared_total{@server}"), "joined"},
		query{rate("slipway_cache_fill_errors_total{@server}"), "failed"})
	l.graph("On the way", "Objects being fetched, and on their way between RAM and SSD", plain,
		query{sum("slipway_cache_fills{@server}"), "fetched"},
		query{sum("slipway_cache_demotions_queued{@server}"), "to the SSD"},
		query{sum("slipway_cache_promotions_queued{@server}"), "to RAM"})
}

func tierBytes(tier string) []query {
	of := func(metric string) string {
		return sum("slipway_cache_tier_" + metric + `_bytes{@server,tier="` + tier + `"}`)
	}
	return []query{{sum(`slipway_cache_tier_bytes{@server,tier="` + tier + `"}`), "blobs"}, {of("taken"), "in use"}, {of("pinned"), "pinned"}, {of("limit"), "limit"}}
}

func cacheSSD(l *builder) {
	l.row("What was not kept, and the SSD")
	l.graph("Not kept", "Fetched and not taken in, lost for want of room or by a slow SSD, or damaged on it", perSecond,
		query{rate("slipway_cache_bypassed_total{@server}"), "not taken in"},
		query{rate("slipway_cache_dropped_total{@server}"), "lost"},
		query{rate("slipway_cache_damaged_total{@server}"), "damaged"})
	l.graph("Written to the SSD", "", bytesPerSec,
		query{"rate(slipway_cache_ssd_written_bytes_total{@server}[$__rate_interval])", "{{instance}}"})
	l.graph("State of the SSD", "1 while it is in use; failures in an hour; -1 bytes of the budget are no limit", plain,
		query{"slipway_cache_ssd_usable{@server}", "{{instance}} in use"},
		query{"increase(slipway_cache_ssd_errors_total{@server}[1h])", "{{instance}} failures"},
		query{"slipway_cache_ssd_budget_bytes{@server}", "{{instance}} budget"})
}

func cachePrefetch(l *builder) {
	l.row("Prefetch")
	l.stack("Layers fetched ahead", "By what became of them", perSecond,
		query{rate("slipway_prefetch_layers_total{@server}", "outcome"), "{{outcome}}"})
	l.share("Precision and recall", "Share of the layers fetched ahead that were asked for, and of the requests that were for one, since the start",
		query{"slipway_prefetch_precision_ratio{@server}", "{{instance}} precision"},
		query{"slipway_prefetch_recall_ratio{@server}", "{{instance}} recall"})
	l.graph("Bytes fetched ahead", "And those that nobody asked for in time", bytesPerSec,
		query{rate("slipway_prefetch_bytes_total{@server}"), "fetched"},
		query{rate("slipway_prefetch_wasted_bytes_total{@server}"), "wasted"})
	l.graph("Requests for blobs", "And those for a layer that was fetched ahead", perSecond,
		query{rate("slipway_prefetch_requests_total{@server}"), "requests"},
		query{rate("slipway_prefetch_hits_total{@server}"), "fetched ahead"})
	l.graph("Time won", "By which layers were ahead of their first request, of those used", inSeconds,
		query{over(rate("slipway_prefetch_saved_seconds_total{@server}"), rate("slipway_prefetch_used_total{@server}")), "mean"})
	l.graph("Nothing to fetch", "Why nothing, or less, was fetched: clients had the manifest, asked for no layer, the budget was used up, the repository rests", perSecond,
		query{rate("slipway_prefetch_known_total{@server}"), "known"},
		query{rate("slipway_prefetch_abandoned_total{@server}"), "abandoned"},
		query{rate("slipway_prefetch_over_budget_total{@server}"), "over budget"},
		query{rate("slipway_prefetch_resting_total{@server}"), "resting"})
}

func cacheStore(l *builder) {
	l.row("Object store (s3 and swift)")
	l.graph("Operations", "By what they do", perSecond,
		query{rate("registry_storage_action_seconds_count{@server}", "action"), "{{action}}"})
	l.graph("Time of operations, 99th percentile", "With their repetitions; of reads until the first byte", inSeconds,
		query{quantile("0.99", "registry_storage_action_seconds_bucket{@server}", "action"), "{{action}}"})
	l.graph("Bytes", "Read from the store and written to it", bytesPerSec,
		query{rate("registry_storage_bytes_total{@server}", "direction"), "{{direction}}"})
	l.graph("Repeated and failed", "Operations that were repeated, that failed in the end, and reads that went on after a break", perSecond,
		query{orZero(rate("registry_storage_retries_total{@server}")), "repeated"},
		query{orZero(rate(`registry_storage_errors_total{@server,kind!~"missing|exists|cancelled"}`)), "failed"},
		query{rate("registry_storage_resumed_reads_total{@server}"), "resumed reads"})
	l.graph("Late reads", "Sent a second time as the first byte was late, and those the second won", perSecond,
		query{rate("registry_storage_hedges_total{@server}", "result"), "{{result}}"})
	l.graph("Under way", "Operations, and the repetitions that are left", plain,
		query{sum("registry_storage_inflight{@server}"), "operations"},
		query{"min(registry_storage_retry_budget{@server})", "repetitions left"})
	l.graph("Clients sent to the store", "Requests for blobs by where they were served; 0 without redirects", perSecond,
		query{orZero(rate(`slipway_server_redirects_total{@server,outcome="sent"}`)), "sent to the store"},
		query{orZero(rate(`slipway_server_redirects_total{@server,outcome="kept"}`)), "served here"},
		query{orZero(rate(`slipway_server_redirects_total{@server,outcome="failed"}`)), "no address"})
	l.graph("Redirected bytes", "Sizes of the blobs for which clients were sent to the store", bytesPerSec,
		query{orZero(rate("slipway_server_redirected_bytes_total{@server}")), "redirected"})
}
