#!/usr/bin/env bash
# Makes the manifests of deploy/kubernetes from the chart.
#
#   scripts/gen-manifests.sh           writes them
#   scripts/gen-manifests.sh --check   fails if they or the chart's unit are not what it would write
#
# It needs helm; without it --check says so and succeeds, as integration/charts checks the same.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH=${SLIPWAY_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/slipway/tools}/bin:$PATH
chart=deploy/helm/slipway
image=registry.example.com/slipway
check=
[ "${1:-}" != --check ] || check=1
if ! command -v helm >/dev/null; then
	echo "gen-manifests: helm is not installed (scripts/setup.sh test)" >&2
	[ -n "$check" ] || exit 1
	exit 0
fi
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# The node's unit is the unit of deploy/systemd with another path of the binary, because a node's
# /usr may be read-only.
{
	echo "# Made by scripts/gen-manifests.sh of deploy/systemd/slipway-agent.service."
	sed 's|/usr/local/bin/slipway|/opt/slipway/bin/slipway|' deploy/systemd/slipway-agent.service
} >"$out/slipway-agent.service"

# manifest NAME FLAG... writes one file, without the parts that only Helm uses.
manifest() {
	local name=$1 change=$2
	shift 2
	{
		echo "# Made by scripts/gen-manifests.sh from $chart."
		echo "# Before use, change $change. docs/kubernetes.md explains it."
		cat <<-'Y'
			apiVersion: v1
			kind: Namespace
			metadata:
			  name: slipway
		Y
		[ "$name" != agent ] || printf '  labels:\n    pod-security.kubernetes.io/enforce: privileged\n'
		helm template slipway "$chart" --namespace slipway --skip-tests --set image.repository="$image" --set persistence.keep=false "$@" |
			sed -e '/^# Source: /d' -e '/ helm\.sh\/chart: /d' -e '/ app\.kubernetes\.io\/managed-by: /d'
	} >"$out/$name.yaml"
}

if [ -z "$check" ]; then
	cp "$out/slipway-agent.service" $chart/files/slipway-agent.service
fi
manifest server "the image, and the size of the volume" --set htpasswd.existingSecret=slipway-users
manifest replicas "the image, and the bucket in config.yml" --set replicas=3 --set htpasswd.existingSecret=slipway-users \
	--set s3.existingSecret=slipway-s3 --set postgres.existingSecret=slipway-postgres --set cluster.existingSecret=slipway-cluster \
	--set config.storage.s3.bucket=images --set config.storage.s3.region=eu-central-1
manifest agent "the image, and the registries in agent.yml" --set server.enabled=false --set agent.enabled=true

status=0
for f in server replicas agent; do
	if [ -z "$check" ]; then
		cp "$out/$f.yaml" "deploy/kubernetes/$f.yaml"
	elif ! diff -u "deploy/kubernetes/$f.yaml" "$out/$f.yaml" >&2; then
		status=1
	fi
done
[ -z "$check" ] || diff -u $chart/files/slipway-agent.service "$out/slipway-agent.service" >&2 || status=1
[ $status = 0 ] || echo "gen-manifests: run scripts/gen-manifests.sh" >&2
exit $status
