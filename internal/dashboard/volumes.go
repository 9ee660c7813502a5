package dashboard

// volumesBoard shows images as volumes: how they are built at the registry, and how nodes use
// them.
func volumesBoard() *Board {
	l := newBoard("slipway-volumes", "Slipway volumes", "Images as block volumes in shared storage: built at the registry, mapped and read by nodes.",
		jobChoice("instance", "Registry", serverJob), jobChoice("node", "Node", agentJob))
	volumeBuilds(l)
	nodeVolumes(l)
	return l.done()
}

func nodeVolumes(l *builder) {
	l.row("Nodes: volumes in use")
	l.graph("Volumes", "Images, and clones of containers, by state", plain,
		query{sum("slipway_agent_volumes{@agent}", "instance", "state"), "{{instance}} {{state}}"})
	l.graph("Read from the storage", "", bytesPerSec,
		query{rate("slipway_agent_volume_read_bytes_total{@agent}", "instance"), "{{instance}}"})
	l.graph("Written to the storage", "By containers with clones", bytesPerSec,
		query{rate("slipway_agent_volume_written_bytes_total{@agent}", "instance"), "{{instance}}"})
	l.row("Nodes: start of containers from volumes")
	l.graph("Steps", "Credentials, clones, maps, mounts and what takes them away", perSecond,
		query{rate("slipway_agent_volume_steps_total{@agent}", "step"), "{{step}}"})
	l.graph("Time of a step", "Mean", inSeconds,
		query{over(rate("slipway_agent_volume_step_seconds_total{@agent}", "step"), rate("slipway_agent_volume_steps_total{@agent}", "step")), "{{step}}"})
	l.row("Nodes: storage that fails")
	l.graph("Failed tries", "Reads and writes that the storage did not answer or failed; they are made again", perSecond,
		query{rate("slipway_agent_volume_errors_total{@agent}", "instance"), "{{instance}}"})
	l.graph("Errors that containers saw", "After the outage that is waited for", perSecond,
		query{rate("slipway_agent_volume_failed_total{@agent}", "instance"), "{{instance}}"})
}

// volumeBuilds adds panels about builds. They show 0 if a registry builds nothing.
func volumeBuilds(l *builder) {
	l.row("Builds at the registry")
	l.graph("Images built", "And attempts that failed", perSecond,
		query{orZero(rate("slipway_volumes_builds_total{@server}")), "built"},
		query{orZero(rate("slipway_volumes_build_failures_total{@server}")), "failed"})
	l.graph("Being built", "", plain, query{orZero(sum("slipway_volumes_builds_active{@server}")), "builds"})
	l.graph("Time of a build", "Mean", inSeconds,
		query{over(rate("slipway_volumes_build_seconds_sum{@server}"), rate("slipway_volumes_build_seconds_count{@server}")), "mean"})
	l.graph("Volumes removed", "Which nothing needed", perSecond, query{orZero(rate("slipway_volumes_removed_total{@server}")), "removed"})
	l.graph("Credentials given to nodes", "", perSecond, query{orZero(rate("slipway_volumes_credentials_total{@server}")), "credentials"})
}
