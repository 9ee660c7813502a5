#!/usr/bin/env bash
# Runs Prometheus with deploy/prometheus on loopback until Ctrl-C: it scrapes a slipway
# serve, a slipway agent and a slipway trace replay of this machine, at the addresses in
# deploy/prometheus/prometheus.yml, and evaluates the rules and alerts.
#
#   SLIPWAY_PROMETHEUS_ADDR   where it listens, default 127.0.0.1:9090
#   SLIPWAY_PROMETHEUS_DATA   directory of its data; default one that goes when it ends
set -euo pipefail
data=${SLIPWAY_PROMETHEUS_DATA:-}
case $data in
'' | /*) ;;
*) data=$PWD/$data ;; # a relative path begins at the current directory
esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."

addr=${SLIPWAY_PROMETHEUS_ADDR:-127.0.0.1:9090}
PATH=$PATH:/usr/sbin:/sbin
if ! command -v prometheus >/dev/null; then
	echo "observe: Prometheus is not installed: apt-get install prometheus" >&2
	exit 1
fi
temporary=
if [ -z "$data" ]; then
	temporary=$(mktemp -d)
	data=$temporary
fi

pid=
# end stops Prometheus and waits until it has ended. Ctrl-C calls it, too.
end() {
	trap '' INT TERM
	if [ -n "$pid" ]; then
		kill "$pid" 2>/dev/null || true
		wait "$pid" 2>/dev/null || true
	fi
	[ -z "$temporary" ] || rm -rf "$temporary"
}
trap end EXIT
trap 'exit 0' INT TERM

prometheus --config.file=deploy/prometheus/prometheus.yml --storage.tsdb.path="$data" \
	--web.listen-address="$addr" --log.level=warn &
pid=$!
cat <<-TEXT
	observe: Prometheus is at http://$addr: graphs at /graph, what it scrapes at /targets, alerts at /alerts
	observe: boards for a Grafana that has it as a data source are in deploy/grafana
	observe: Ctrl-C ends it
TEXT
wait "$pid"
