package dashboard

// replayBoard shows a running slipway trace replay.
func replayBoard() *Board {
	l := newBoard("slipway-replay", "Slipway replay", "A trace that is replayed: what is sent, how it is answered, and whether the generator keeps up. The result's files have the exact figures.",
		jobChoice("instance", "Replay", replayJob))
	replaySummary(l)
	replayRequests(l)
	replayTimes(l)
	return l.done()
}

const (
	replayed = `slipway_replay_requests_total{@replay,phase="replay"`
	unsent   = `outcome=~"dropped|lost|dependency"`
)

func replaySummary(l *builder) {
	l.number("Requests", "", perSecond, rate("slipway_replay_requests_total{@replay}"))
	l.number("Done", "Share of the phase's requests; 0 where their number is not known", inPercent,
		over("sum(slipway_replay_done{@replay})", "sum(slipway_replay_planned{@replay})"))
	l.number("Left", "Until the last request is to be sent; 0 where that is not known", inSeconds,
		"clamp_min(max(slipway_replay_length_seconds{@replay} - slipway_replay_position_seconds{@replay}), 0)")
	l.number("Failed", "Requests of the whole run that were answered by a wrong status or content, or not at all", plain,
		orZero("sum("+replayed+`,outcome=~"status|broken|timeout|wrong"})`))
	l.number("Not sent", "Requests of the whole run", plain, orZero("sum("+replayed+","+unsent+"})"))
	l.number("Lag", "By how much the generator is late, 99th percentile: above 10 ms the run is not valid", inSeconds,
		quantile("0.99", "slipway_replay_lag_seconds_bucket{@replay}"))
}

func replayRequests(l *builder) {
	l.row("Requests")
	l.stack("By outcome", "Of all phases", perSecond,
		query{rate("slipway_replay_requests_total{@replay}", "outcome"), "{{outcome}}"})
	l.stack("By what they are for", "Of all phases", perSecond,
		query{rate("slipway_replay_requests_total{@replay}", "method", "object"), "{{method}} {{object}}"})
	l.graph("By target and phase", "", perSecond,
		query{rate("slipway_replay_requests_total{@replay}", "target", "phase"), "{{target}} {{phase}}"})
	l.graph("Bytes", "Bodies sent and received", bytesPerSec,
		query{rate("slipway_replay_bytes_total{@replay}", "target", "phase"), "{{target}} {{phase}}"})
	l.graph("Progress", "Time of the run up to which requests were sent, and its length", inSeconds,
		query{"slipway_replay_position_seconds{@replay}", "{{instance}} position"},
		query{"slipway_replay_length_seconds{@replay}", "{{instance}} length"})
	l.graph("Phase", "Which one the replay is in, and samples that could not be written", plain,
		query{"slipway_replay_phase{@replay}", "{{instance}} {{phase}}"},
		query{"slipway_replay_unwritten_samples{@replay}", "{{instance}} unwritten"})
}

func replayTimes(l *builder) {
	l.row("Times")
	l.graph("Latency, median", "From when a request was to be sent to the end of the answer", inSeconds,
		query{quantile("0.5", "slipway_replay_latency_seconds_bucket{@replay}", "target"), "{{target}}"})
	l.graph("Latency, 99th percentile", "From when a request was to be sent to the end of the answer", inSeconds,
		query{quantile("0.99", "slipway_replay_latency_seconds_bucket{@replay}", "target"), "{{target}}"})
	l.graph("Service time, 99th percentile", "From when a request was sent to the end of the answer", inSeconds,
		query{quantile("0.99", "slipway_replay_service_seconds_bucket{@replay}", "target"), "{{target}}"})
	l.graph("Lag of the generator", "By how much it sent requests late", inSeconds,
		query{quantile("0.5", "slipway_replay_lag_seconds_bucket{@replay}"), "median"},
		query{quantile("0.99", "slipway_replay_lag_seconds_bucket{@replay}"), "99th percentile"})
	l.graph("CPU of the generator", "Cores in use", plain,
		query{"rate(process_cpu_seconds_total{@replay}[$__rate_interval])", "{{instance}}"})
	l.graph("Memory of the generator", "Resident", inBytes, query{"process_resident_memory_bytes{@replay}", "{{instance}}"})
}
