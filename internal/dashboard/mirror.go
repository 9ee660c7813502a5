package dashboard

// mirrorBoard shows the upstreams that the registry mirrors.
func mirrorBoard() *Board {
	l := newBoard("slipway-mirrors", "Slipway mirrors", "What is pulled through from other registries, and how they answer.",
		jobChoice("instance", "Registry", serverJob),
		choice("upstream", "Upstream", `registry_proxy_requests_total{job="slipway"}`, "upstream"))
	mirrorSummary(l)
	mirrorPulls(l)
	mirrorDownloads(l)
	mirrorUpstreams(l)
	return l.done()
}

// proxied returns a sum of the requests for mirrored content with some results. The
// results hit and stale are cached; together with miss they are all requests that were
// answered with content.
func proxied(results string, by ...string) string {
	return rate(`registry_proxy_requests_total{@mirror,result=~"`+results+`"}`, by...)
}

func mirrorSummary(l *builder) {
	l.number("Requests", "For mirrored content", perSecond, rate("registry_proxy_requests_total{@mirror}"))
	l.number("From the cache", "Share of the requests answered with content that were answered from here", inPercent,
		over(proxied("hit|stale"), proxied("hit|stale|miss")))
	l.number("To clients", "Bytes of mirrored content", bytesPerSec, rate(`registry_proxy_bytes_total{@mirror,direction="pushed"}`))
	l.number("From upstreams", "Bytes", bytesPerSec, rate(`registry_proxy_bytes_total{@mirror,direction="pulled"}`))
	l.number("Saved", "Bytes given to clients and not fetched, since the start", inBytes,
		`clamp_min(sum(registry_proxy_bytes_total{@mirror,direction="pushed"}) - sum(registry_proxy_bytes_total{@mirror,direction="pulled"}), 0)`)
	l.number("Stale", "Answers of the last hour that an upstream could not confirm", plain,
		`sum(increase(registry_proxy_requests_total{@mirror,result="stale"}[1h]))`)
}

func mirrorPulls(l *builder) {
	l.row("Pulls")
	l.stack("Cached or upstream", "Requests answered with content, by whether it was here", perSecond,
		query{proxied("hit"), "cached"}, query{proxied("stale"), "cached, not confirmed"}, query{proxied("miss"), "upstream"})
	l.stack("By upstream", "Requests of all kinds", perSecond,
		query{rate("registry_proxy_requests_total{@mirror}", "upstream", "type"), "{{upstream}} {{type}}"})
	l.share("Hit ratio", "Share of the requests answered with content that were answered from here",
		query{proxied("hit|stale", "upstream") + " / (" + proxied("hit|stale|miss", "upstream") + " > 0)", "{{upstream}}"})
	l.graph("Bytes", "From upstreams, and given to clients", bytesPerSec,
		query{rate(`registry_proxy_bytes_total{@mirror,direction="pulled"}`, "upstream"), "{{upstream}} fetched"},
		query{rate(`registry_proxy_bytes_total{@mirror,direction="pushed"}`, "upstream"), "{{upstream}} given"})
	l.graph("Misses", "Requests that the upstream had to answer", perSecond,
		query{proxied("miss", "upstream", "type"), "{{upstream}} {{type}}"})
	l.graph("Answered with an error, or stale", "Not there, denied by upstream or rules, not here while offline, upstream failed; stale: served though the upstream failed", perSecond,
		query{proxied("stale|negative|denied|offline|error", "upstream", "result"), "{{upstream}} {{result}}"})
}

func mirrorDownloads(l *builder) {
	l.row("Downloads")
	l.graph("Under way", "Blobs that are being fetched", plain,
		query{sum("registry_proxy_fills{@server}", "instance"), "{{instance}}"})
	l.graph("Memory", "Bytes of blobs in RAM that are being fetched or stored", inBytes,
		query{sum("registry_proxy_fill_memory_bytes{@server}", "instance"), "{{instance}}"})
	l.graph("Breaks", "Downloads that went on after a break, and answers that broke off or stood still", perSecond,
		query{rate("registry_proxy_resumed_total{@mirror}", "upstream"), "{{upstream}} resumed"},
		query{rate("slipway_upstream_broken_answers_total{@mirror}", "upstream"), "{{upstream}} broken"})
	l.graph("Time to fetch, median", "Of a manifest or a blob, or to ask whether a tag has moved", inSeconds,
		query{quantile("0.5", "registry_proxy_fetch_seconds_bucket{@mirror}", "upstream", "type"), "{{upstream}} {{type}}"})
	l.graph("Time to fetch, 99th percentile", "Of a manifest or a blob, or to ask whether a tag has moved", inSeconds,
		query{quantile("0.99", "registry_proxy_fetch_seconds_bucket{@mirror}", "upstream", "type"), "{{upstream}} {{type}}"})
	l.graph("Fetched", "Manifests and blobs, and tags that were asked for again", perSecond,
		query{rate("registry_proxy_fetch_seconds_count{@mirror}", "upstream", "type"), "{{upstream}} {{type}}"})
}

func mirrorUpstreams(l *builder) {
	l.row("Upstreams")
	l.stack("Requests to upstreams", "By how they answered", perSecond,
		query{rate("slipway_upstream_requests_total{@mirror}", "upstream", "result"), "{{upstream}} {{result}}"})
	l.graph("Time to answer", "Until an answer begins, with the token and the redirects it takes", inSeconds,
		query{quantile("0.5", "slipway_upstream_request_seconds_bucket{@mirror}", "upstream"), "{{upstream}} median"},
		query{quantile("0.99", "slipway_upstream_request_seconds_bucket{@mirror}", "upstream"), "{{upstream}} 99th percentile"})
	l.graph("Received", "Bytes of bodies", bytesPerSec,
		query{rate("slipway_upstream_received_bytes_total{@mirror}", "upstream"), "{{upstream}}"})
	l.graph("Limit", "Requests that the upstream still allows, and how many it allows in its window; -1: it has not said", plain,
		query{"min by (upstream) (slipway_upstream_limit_remaining{@mirror})", "{{upstream}} left"},
		query{"max by (upstream) (slipway_upstream_limit{@mirror})", "{{upstream}} limit"})
	l.graph("Back-off", "How long an endpoint wants to be left alone yet", inSeconds,
		query{"max by (upstream, endpoint) (slipway_upstream_backoff_seconds{@mirror})", "{{upstream}} {{endpoint}}"})
	l.graph("Endpoints", "1 where one is asked in its turn, 0 where it is asked after the others, as it fails", plain,
		query{"min by (upstream, endpoint) (slipway_upstream_endpoint_healthy{@mirror})", "{{upstream}} {{endpoint}}"})
	l.graph("Requests under way", "Bodies included", plain,
		query{sum("slipway_upstream_active_requests{@mirror}", "upstream"), "{{upstream}}"})
	l.graph("Tokens", "Asked of the upstreams' token services, by what came of it", perSecond,
		query{rate("slipway_upstream_token_requests_total{@mirror}", "upstream", "result"), "{{upstream}} {{result}}"})
}
