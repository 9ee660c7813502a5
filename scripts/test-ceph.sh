#!/usr/bin/env bash
# Runs the suites of volumes against a Ceph that they start in temporary directories and stop
# again: the tests of the driver, and containers on nodes (integration/volumes).
#
#   scripts/test-ceph.sh [FLAG...]   flags of go test, such as -v or -run NAME
#
#   SLIPWAY_TEST_TIMEOUT             limit of each package, default 20m
#
# Root only; scripts/setup.sh test installs what is needed.
set -euo pipefail
exec </dev/null

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export GOFLAGS=${GOFLAGS:--buildvcs=false} CGO_ENABLED=1

cd "$root"
go build -tags 'ceph pacific' -o "$work/slipway-ceph" ./cmd/slipway
export SLIPWAY_CEPH_BIN=$work/slipway-ceph
status=0
go test -count 1 -tags 'ceph pacific' -timeout "${SLIPWAY_TEST_TIMEOUT:-20m}" "$@" ./volume/rbd || status=1
go test -count 1 -tags 'ceph pacific' -timeout "${SLIPWAY_TEST_TIMEOUT:-20m}" -run Ceph "$@" ./volume/node ./agent || status=1
(cd integration && CGO_ENABLED=0 go test -count 1 -timeout "${SLIPWAY_TEST_TIMEOUT:-20m}" "$@" ./volumes) || status=1
exit $status
