#!/bin/sh
# Installs the node agent on the machine below $HOST as a service of its systemd, or removes it:
#
#   node.sh installed | removed     with /slipway, /agent/agent.yml and the unit beside this
#   node.sh log                     follows the agent's log
#
# It runs in a container, with the machine's own shell and tools. A run that changes nothing
# restarts nothing. If a run fails, the next one does the rest. With PULL_SECRETS=true kubelet pulls
# through the agent. With RESTART=true containerd and kubelet are restarted; removing the agent
# always restarts them.
set -eu
host=${HOST:-/host}
here=$(dirname "$0")
home=/opt/slipway # on the machine: the binary, and the files with which services were last started
config=/etc/slipway/agent.yml
unit=/etc/systemd/system/slipway-agent.service
state=/var/lib/slipway-agent
# The files that slipway agent setup writes, which containerd and kubelet read at their start.
containerd_file=/etc/containerd/conf.d/slipway.toml
kubelet_file=/etc/systemd/system/kubelet.service.d/10-slipway.conf
kubelet_args=/etc/slipway/kubelet.env

on_host() { chroot "$host" /usr/bin/env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin SYSTEMD_IGNORE_CHROOT=1 "$@"; }
fail() { echo "$*" >&2; exit 1; }

# put FILE MODE PATH replaces PATH on the machine by FILE in one step.
put() {
	mkdir -p "$host${3%/*}"
	[ -e "$host$3" ] && [ "$(sum "$host$3")" = "$(sum "$1")" ] && return 0
	cp "$1" "$host$3.new"
	chmod "$2" "$host$3.new"
	mv -f "$host$3.new" "$host$3"
	echo "wrote $3"
}
sum() { cat "$@" 2>/dev/null | b2sum; }

# changed NAME FILE... reports whether these files of the machine differ from those at the last
# call of started NAME.
changed() {
	name=$1; shift
	[ "$(in_host "$@")" != "$(cat "$host$home/$name.started" 2>/dev/null)" ]
}
started() {
	name=$1; shift
	in_host "$@" >"$host$home/$name.started"
}
in_host() (cd "$host" && for f; do sum ".$f"; done)

target() { [ "${PULL_SECRETS:-false}" = true ] && echo --kubernetes || echo --containerd; }

# restart_others [true] restarts containerd and kubelet, if RESTART or the argument says so.
# Neither restart ends a container.
restart_others() {
	changed others "$containerd_file" "$kubelet_file" "$kubelet_args" || return 0
	on_host systemctl daemon-reload
	if [ "${1:-${RESTART:-true}}" != true ]; then
		echo "restart containerd and kubelet of this machine: their settings have changed"
		return 0
	fi
	# This comes first, because a restart of kubelet may end this script.
	started others "$containerd_file" "$kubelet_file" "$kubelet_args"
	echo "restarting containerd and kubelet"
	on_host systemctl restart containerd || { rm -f "$host$home/others.started"; fail "containerd does not start again: journalctl -u containerd on this machine says why"; }
	on_host systemctl try-restart --no-block kubelet
}

# keep saves the files with which the agent was last started, and go_back restores them. Without
# an agent a machine starts no pods, not even the pod that would repair it.
keep() {
	mkdir -p "$host$home/before"
	cp -p "$host$home/bin/slipway" "$host$config" "$host$unit" "$host$home/before/"
}
go_back() {
	why="the agent does not start: journalctl -u slipway-agent on this machine says why"
	[ -e "$host$home/before/slipway" ] || fail "$why"
	mv -f "$host$home/before/slipway" "$host$home/bin/slipway"
	mv -f "$host$home/before/agent.yml" "$host$config"
	mv -f "$host$home/before/slipway-agent.service" "$host$unit"
	on_host systemctl daemon-reload
	on_host systemctl restart slipway-agent || fail "$why; nor does the one before it"
	fail "$why; the one before it runs again"
}

install() {
	on_host systemctl --version >/dev/null || fail "this machine has no systemd: install the agent as docs/nodes.md says"
	on_host sh -c 'command -v containerd' >/dev/null || fail "this machine has no containerd in its PATH (for k3s and RKE2, which bring their own, install the agent as docs/kubernetes.md says)"
	changed agent $home/bin/slipway $config $unit || keep
	put /slipway 0755 $home/bin/slipway
	put /agent/agent.yml 0600 $config
	put "$here/slipway-agent.service" 0644 $unit
	# The agent must work before containerd and kubelet are set up to use it.
	on_host systemctl daemon-reload
	on_host systemctl enable --quiet slipway-agent
	if changed agent $home/bin/slipway $config $unit || ! on_host systemctl is-active --quiet slipway-agent; then
		echo "starting the agent"
		on_host systemctl restart slipway-agent || go_back
		started agent $home/bin/slipway $config $unit
	fi
	on_host $home/bin/slipway agent setup "$(target)" --apply --config $config
	on_host containerd config dump | grep -q 'proxy_plugins.*slipway' ||
		fail "containerd of this machine does not read $containerd_file: write imports = [\"/etc/containerd/conf.d/*.toml\"] near the top of /etc/containerd/config.toml"
	restart_others
	echo "the agent is installed: $(on_host $home/bin/slipway version)"
}

# users prints how many processes have files of the agent mounted. Those of this pod do not count:
# the pod was made with the agent, but reads the machine's own files. A process that sees the
# machine's mounts has those of all containers, where containerd and the agent put them.
users() {
	own=$(readlink /proc/self/ns/ipc) n=0
	for p in "$host"/proc/[0-9]*; do
		[ "$(readlink "$p/ns/ipc")" != "$own" ] || continue
		if grep "^overlay .*[=:,]$state/" "$p/mounts" 2>/dev/null | grep -qv "^overlay [^ ]*\(/containerd/\|$state/\)"; then
			n=$((n + 1))
		fi
	done
	echo $n
}

remove() {
	if [ ! -e "$host$home/bin/slipway" ]; then
		echo "the agent is not here"
		return 0
	fi
	[ ! -e "$host$config" ] || on_host $home/bin/slipway agent setup "$(target)" --undo --config $config
	restart_others true
	users=$(users)
	[ "$users" = 0 ] || fail "$users processes in containers of this machine use the agent, which stays until they are gone: kubectl drain, and restart the machine or its DaemonSets"
	on_host systemctl disable --now --quiet slipway-agent
	rm -f "$host$unit" "$host$config"
	on_host systemctl daemon-reload
	rm -rf "${host:?}$home"
	echo "the agent is removed; its cache is left in $state"
}

case ${1:-} in
installed) install ;;
removed) remove ;;
log)
	# The agent may have been removed on purpose. Then there is no log to follow, but this
	# must not end.
	exec chroot "$host" /usr/bin/env SYSTEMD_IGNORE_CHROOT=1 journalctl --follow --lines 100 --output cat --unit slipway-agent
	;;
*) fail "usage: node.sh installed|removed|log" ;;
esac
