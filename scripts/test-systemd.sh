#!/usr/bin/env bash
# Takes the Debian package through its life in a Debian that systemd boots, in a container
# of systemd-nspawn (integration/systemd), and prints how long each part took.
#
#   scripts/test-systemd.sh [FLAG...]   more flags of go test
#
#   SLIPWAY_UPGRADE_FROM                a package of other sources to begin with
#   SLIPWAY_TEST_TIMEOUT                limit, default 20m
#
# Root only; scripts/setup.sh systemd installs what is needed.
set -euo pipefail
exec </dev/null

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export GOFLAGS=${GOFLAGS:--buildvcs=false} CGO_ENABLED=0

if [ "$(id -u)" != 0 ]; then
	echo "test-systemd: only root can boot a container" >&2
	exit 1
fi
cd "$root"
go build -o "$work/slipway" ./cmd/slipway
export SLIPWAY_BIN=$work/slipway
cd integration
go test -v -count 1 -timeout "${SLIPWAY_TEST_TIMEOUT:-20m}" "$@" ./systemd | tee "$work/log"
if grep -q -e '--- SKIP' "$work/log"; then
	echo "test-systemd: what is skipped is not passed" >&2
	exit 1
fi
