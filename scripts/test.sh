#!/usr/bin/env bash
# Runs every test of the project and ends with the line
#
#   N passed, N failed, N skipped
#
# First come all of the product's own tests, which also measure how much of the code they run
# (bin/coverage, for scripts/coverage.sh). Then the tests of concurrent code run again under the
# race detector, with -short and without the inputs of fuzzers. -short leaves out models,
# formats and sizes that a single goroutine goes through, and that would take several times as
# long. SLIPWAY_RACE_FOLLOWS leaves out of the first run what is only about what happens at once.
# At the same time run the tests of the driver rbd, the integration tests against binaries
# built from the same sources, and the tests of the benchmarks, which run each suite on a small
# scale; these wait most of the time. The script fails if a test fails, or if a test is skipped
# in all runs for a reason that integration/expected-skips.txt does not list. scripts/setup.sh
# test installs what the integration tests need.
#
# Up to five tests that failed are run once more, each package alone. A test that passes then is
# listed as FLAKY and does not fail the run; bin/flaky.txt has what it printed when it failed.
# bin/test.txt has the whole output of this script.
#
#   scripts/test.sh                             everything
#   scripts/test.sh again KIND PACKAGE PATTERN  the second run of a package's failed tests
#
#   GOTEST_FLAGS          more flags for all runs of go test, such as -failfast
#   SLIPWAY_ALLOW_SKIP    tools whose absence is accepted, such as "helm dockerd"
#   SLIPWAY_KILL_ROUNDS, SLIPWAY_POWERCUT_ROUNDS, SLIPWAY_GEARKILL_ROUNDS,
#   SLIPWAY_GEARCUT_ROUNDS, SLIPWAY_CHURNKILL_KILLS, SLIPWAY_CHURNCUT_ROUNDS,
#   SLIPWAY_LYINGDISK_ROUNDS, SLIPWAY_REPLICAS_FOR, SLIPWAY_SEAMS,
#   SLIPWAY_SEAMS_RANDOM, SLIPWAY_BIG_LAYER_MIB  longer fault tests; they need
#   SLIPWAY_TEST_TIMEOUT  limit of each integration package, default 15m
set -euo pipefail
exec </dev/null

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d) scratch=$(mktemp -d)
# shellcheck source=scripts/scratch.sh
. "$root/scripts/scratch.sh"
trap 'unscratch "$scratch"; rm -rf "$work"' EXIT
export GOFLAGS=${GOFLAGS:--buildvcs=false}
# A process that exits would wait a second for the race detector's reports.
export GORACE=atexit_sleep_ms=0
cd "$root"

# The race detector watches everything but SQLite, which is C translated to Go, and would
# otherwise take most of the time of a test that has a catalogue. No other package may be left
# out, because the linker may take the code of a generic type, such as sync.Map, from any
# package.
unwatched=(-gcflags 'modernc.org/sqlite/lib=-race=false')

# The compiler and the linker collect garbage seldom, which costs memory and saves processor time.
# The tests collect it as usual, because some measure memory.
export GOGC=${GOGC:-400}
plainly=(-exec 'env -u GOGC')

# Nobody debugs these programs, and they link faster without the tables for debuggers.
small=(-ldflags '-s -w')

# tests KIND ARGUMENT... runs go test for tests of a kind, and prints its events between the
# lines by which cmd/testsum distinguishes runs. It does not vet, because scripts/lint.sh does
# so once, and each kind would vet all packages again. The product's own tests have a lower
# priority than the tests beside them, which depend more on time.
tests() {
	local kind=$1 status=0
	shift
	printf '{"Action":"begin","Output":"%s"}\n' "$kind"
	# shellcheck disable=SC2086 # the flags are words
	case $kind in
	plain)
		(scratch "$scratch" && SLIPWAY_RACE_FOLLOWS=1 nice -n 5 go test -json -vet=off -cover "${plainly[@]}" "${small[@]}" -timeout 25m ${GOTEST_FLAGS:-} "$@") || status=$?
		;;
	race)
		(scratch "$scratch" && nice -n 5 go test -json -vet=off -race "${unwatched[@]}" "${plainly[@]}" "${small[@]}" -short -skip '^Fuzz' -timeout 25m ${GOTEST_FLAGS:-} "$@") || status=$?
		;;
	ceph) # Not with -race, which would build C and Go again for a few packages.
		CGO_ENABLED=1 go test -json -vet=off "${plainly[@]}" "${small[@]}" -tags 'ceph pacific' -timeout 10m ${GOTEST_FLAGS:-} "$@" || status=$?
		;;
	integration | bench) # A cached result would be of an earlier binary.
		(cd "$kind" && go test -json -vet=off "${plainly[@]}" "${small[@]}" -count 1 -timeout "${SLIPWAY_TEST_TIMEOUT:-15m}" ${GOTEST_FLAGS:-} "$@") || status=$?
		;;
	esac
	printf '{"Action":"end","Output":"%s"}\n' "$status"
}

if [ "${1:-}" = again ]; then
	tests "$2" -count 1 -run "$4" "$3"
	exit
fi

# With -trimpath as in the Makefile, so that what make build has compiled is used.
CGO_ENABLED=0 go build -trimpath -o "$work/slipway" ./cmd/slipway
(cd integration && go build -o "$work/testsum" ./cmd/testsum)
export SLIPWAY_BIN=$work/slipway
# Without librbd, each test that needs it says so.
ceph=0
if [ -e /usr/include/rbd/librbd.h ]; then
	ceph=1
	CGO_ENABLED=1 go build -tags 'ceph pacific' -o "$work/slipway-ceph" ./cmd/slipway
	export SLIPWAY_CEPH_BIN=$work/slipway-ceph
fi

# concurrent lists the packages with a file that uses goroutines, locks, HTTP handlers or parallel
# tests. The race detector would find nothing in the others.
concurrent() {
	git grep --untracked -lE '\<go (func|[a-z][A-Za-z.]*\()|\.Go\(|"(sync|sync/atomic|testing/synctest)"|http\.(Handler|ResponseWriter)|t\.Parallel' -- '*.go' ':!integration' ':!bench' |
		xargs -n 1 dirname | sed 's,^,./,' | sort -u | grep -v /testdata
}

# In a family, the tests of a package also test the packages below it, so the code that they run
# counts for the whole family.
families='serve registry/mirror registry/catalog registry/server registry/auth cmd/slipway config gear/rebuild gear/filestore workload/trace'

# add_coverage adds a profile to that of all tests, and removes it.
add_coverage() {
	if [ -s "$1" ]; then
		tail -n +2 "$1" >>"$root/bin/coverage"
		rm "$1"
	fi
}

# unit runs the product's own tests. The longest packages come first, so that at the end there
# are still several packages for the cores.
unit() {
	local packages family part=$work/coverage
	mapfile -t packages < <(go list ./... | sed 's,^example.org/slipway,.,' | grep -Ev "^\./((${families// /|})(/|$)|registry(/replica|/storage|/upload)?$)")
	# What the registry's tests run of its rooms counts for these.
	tests plain -coverprofile "$root/bin/coverage" -coverpkg ./registry,./registry/replica,./registry/storage,./registry/upload ./registry ./registry/storage
	tests plain -p 3 -coverprofile "$part" "${packages[@]}"
	add_coverage "$part"
	for family in $families; do
		tests plain -p 3 -coverprofile "$part" -coverpkg "./$family/..." "./$family/..."
		add_coverage "$part"
	done
	mapfile -t packages < <(concurrent)
	tests race -p 4 ./serve ./serve/admin ./registry ./node/gearfs ./registry/mirror ./registry/catalog ./registry/objstore/swiftstore "${packages[@]}"
}

# beside runs the tests that mostly wait for servers and for time.
beside() {
	local others
	if [ $ceph = 1 ]; then
		tests ceph ./volume/rbd
		# unit has run the other tests of these packages.
		tests ceph -run Ceph ./volume/node ./agent
	fi
	# Two packages at a time, the longest first, as each has daemons, directories and ports of
	# its own. scripts/test-kubernetes.sh tests clusters, and scripts/test-systemd.sh tests
	# systemd.
	mapfile -t others < <(cd integration && go list . ./agent ./volumes ./snapshotter ./... | grep -Ev "$alone|(/kubernetes/cluster|/systemd)$")
	tests integration -p 2 "${others[@]}"
	tests bench -p 2 ./...
}

# Tests that measure for how long an answer may be out of date have the machine for themselves.
# Together they still leave half of it idle.
alone='/integration/(mirrors|replicas)$'

# all runs the tests of all modules, even if some fail. unit and beside run at the same time, as
# the two ends of a pipe, so that an interrupt reaches both. testsum reads their outputs one
# after the other.
all() {
	{ beside >"$work/beside"; } | { unit </dev/null; } || true
	cat "$work/beside"
	tests integration -p 2 ./replicas ./mirrors
}

mkdir -p bin
rm -f bin/flaky.txt bin/test.txt bin/coverage
all | "$work/testsum" -expected-skips integration/expected-skips.txt -flaky bin/flaky.txt scripts/test.sh again | tee bin/test.txt
