#!/usr/bin/env bash
# Runs every test of the project and ends with the line
#
#   N passed, N failed, N skipped
#
# First the product's own tests under the race detector, then those of the driver rbd,
# then the integration tests against binaries built from the same sources. It fails if a
# test fails or skips for a reason that integration/expected-skips.txt does not list.
# scripts/setup.sh test installs what the integration tests run.
#
#   GOTEST_FLAGS          more flags for both runs of go test, such as -short
#   SLIPWAY_ALLOW_SKIP    tools whose absence is accepted, such as "helm dockerd"
#   SLIPWAY_KILL_ROUNDS, SLIPWAY_POWERCUT_ROUNDS, SLIPWAY_GEARKILL_ROUNDS,
#   SLIPWAY_GEARCUT_ROUNDS, SLIPWAY_LYINGDISK_ROUNDS, SLIPWAY_REPLICAS_FOR, SLIPWAY_SEAMS,
#   SLIPWAY_SEAMS_RANDOM  longer fault tests; they need
#   SLIPWAY_TEST_TIMEOUT  limit of each integration package, default 10m
set -euo pipefail
exec </dev/null

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d) scratch=$(mktemp -d)
# shellcheck source=scripts/scratch.sh
. "$root/scripts/scratch.sh"
trap 'unscratch "$scratch"; rm -rf "$work"' EXIT
export GOFLAGS=${GOFLAGS:--buildvcs=false}

cd "$root"
CGO_ENABLED=0 go build -o "$work/slipway" ./cmd/slipway
(cd integration && CGO_ENABLED=0 go build -o "$work/testsum" ./cmd/testsum)
# A process that exits would wait a second for the race detector's reports.
export SLIPWAY_BIN=$work/slipway GORACE=atexit_sleep_ms=0
# Without librbd the tests that need it say so, each.
ceph=0
if [ -e /usr/include/rbd/librbd.h ]; then
	ceph=1
	CGO_ENABLED=1 go build -tags 'ceph pacific' -o "$work/slipway-ceph" ./cmd/slipway
	export SLIPWAY_CEPH_BIN=$work/slipway-ceph
fi

# The race detector watches everything but SQLite, which is C turned into Go and takes
# most of the time of a test that has a catalogue otherwise. No more may be left out:
# what the linker takes of a generic type, as of sync.Map, may be of any package.
unwatched=(-gcflags 'modernc.org/sqlite/lib=-race=false')

# all runs the tests of both modules; the second runs even if the first fails.
all() {
	local status=0
	# shellcheck disable=SC2086 # the flags are words
	(scratch "$scratch" && go test -json -race "${unwatched[@]}" -p 3 -timeout 15m ${GOTEST_FLAGS:-} ./...) || status=1
	# What needs librbd. Not with -race: it would build C and Go anew for one package.
	if [ $ceph = 1 ]; then
		# shellcheck disable=SC2086
		CGO_ENABLED=1 go test -json -tags 'ceph pacific' -timeout 10m ${GOTEST_FLAGS:-} ./volume/rbd || status=1
		# Of these the other tests have been run above.
		# shellcheck disable=SC2086
		CGO_ENABLED=1 go test -json -tags 'ceph pacific' -timeout 10m ${GOTEST_FLAGS:-} -run Ceph ./volume/node ./agent || status=1
	fi
	# A result kept from an earlier run would not have met this binary. Two packages at a
	# time only where there is no daemon that others would have to wait for.
	(
		cd integration
		heavy='/integration(/agent|/mirrors|/replicas|/snapshotter|/suite|/volumes)?$'
		mapfile -t light < <(go list ./... | grep -Ev "$heavy")
		mapfile -t alone < <(go list ./... | grep -E "$heavy")
		# shellcheck disable=SC2086
		go test -json -count 1 -p 2 -timeout "${SLIPWAY_TEST_TIMEOUT:-10m}" ${GOTEST_FLAGS:-} "${light[@]}" || status=1
		# shellcheck disable=SC2086
		go test -json -count 1 -p 1 -timeout "${SLIPWAY_TEST_TIMEOUT:-10m}" ${GOTEST_FLAGS:-} "${alone[@]}" || status=1
		exit $status
	) || status=1
	return $status
}

all | "$work/testsum" -expected-skips integration/expected-skips.txt
