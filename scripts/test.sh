#!/usr/bin/env bash
# Runs every test of the project and ends with the line
#
#   N passed, N failed, N skipped
#
# First all of the product's own tests, which also tell how much of the code they run
# (bin/coverage, for scripts/coverage.sh). Then those again that are about what happens at
# once, under the race detector: with -short, which leaves out models, formats and sizes
# that one goroutine goes through, and that take several times as long there, and without
# the inputs of fuzzers.
# Beside both the tests of the driver rbd, the integration tests against binaries built from
# the same sources, and the tests of the benchmarks, which run each suite on a small scale:
# they wait most of the time. It fails if a test fails, or if no run runs it for a reason
# that integration/expected-skips.txt does not list. scripts/setup.sh test installs what the
# integration tests run.
#
# Up to five tests that failed are run once more, each package alone. What passes then is
# listed as FLAKY and does not fail the run; bin/flaky.txt has what it printed when it failed.
# bin/test.txt has all that this prints.
#
#   scripts/test.sh                             everything
#   scripts/test.sh again KIND PACKAGE PATTERN  the second run of a package's failed tests
#
#   GOTEST_FLAGS          more flags for all runs of go test, such as -failfast
#   SLIPWAY_ALLOW_SKIP    tools whose absence is accepted, such as "helm dockerd"
#   SLIPWAY_KILL_ROUNDS, SLIPWAY_POWERCUT_ROUNDS, SLIPWAY_GEARKILL_ROUNDS,
#   SLIPWAY_GEARCUT_ROUNDS, SLIPWAY_LYINGDISK_ROUNDS, SLIPWAY_REPLICAS_FOR, SLIPWAY_SEAMS,
#   SLIPWAY_SEAMS_RANDOM  longer fault tests; they need
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

# The race detector watches everything but SQLite, which is C turned into Go and takes
# most of the time of a test that has a catalogue otherwise. No more may be left out:
# what the linker takes of a generic type, as of sync.Map, may be of any package.
unwatched=(-gcflags 'modernc.org/sqlite/lib=-race=false')

# Nobody looks at these programs with a debugger, and without its tables they link faster.
small=(-ldflags '-s -w')

# tests KIND ARGUMENT... runs go test as tests of a kind are run, and prints its events
# between the lines that cmd/testsum tells runs apart by. Without vet, which scripts/lint.sh
# runs once: each kind would vet all packages anew. The product's own tests yield to those
# that run beside them and have more to do with time.
tests() {
	local kind=$1 status=0
	shift
	printf '{"Action":"begin","Output":"%s"}\n' "$kind"
	# shellcheck disable=SC2086 # the flags are words
	case $kind in
	plain)
		(scratch "$scratch" && nice -n 5 go test -json -vet=off -cover "${small[@]}" -timeout 25m ${GOTEST_FLAGS:-} "$@") || status=$?
		;;
	race)
		(scratch "$scratch" && nice -n 5 go test -json -vet=off -race "${unwatched[@]}" "${small[@]}" -short -skip '^Fuzz' -timeout 25m ${GOTEST_FLAGS:-} "$@") || status=$?
		;;
	ceph) # Not with -race: it would build C and Go anew for a few packages.
		CGO_ENABLED=1 go test -json -vet=off "${small[@]}" -tags 'ceph pacific' -timeout 10m ${GOTEST_FLAGS:-} "$@" || status=$?
		;;
	integration | bench) # A result kept from an earlier run would not have met this binary.
		(cd "$kind" && go test -json -vet=off "${small[@]}" -count 1 -timeout "${SLIPWAY_TEST_TIMEOUT:-15m}" ${GOTEST_FLAGS:-} "$@") || status=$?
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
# Without librbd the tests that need it say so, each.
ceph=0
if [ -e /usr/include/rbd/librbd.h ]; then
	ceph=1
	CGO_ENABLED=1 go build -tags 'ceph pacific' -o "$work/slipway-ceph" ./cmd/slipway
	export SLIPWAY_CEPH_BIN=$work/slipway-ceph
fi

# concurrent lists the packages of which a file names goroutines, locks, servers or
# processes. In the others there is nothing for the race detector.
concurrent() {
	git grep --untracked -lE '\<go (func|[a-z][A-Za-z.]*\()|\.Go\(|"(sync|sync/atomic|net|net/http.*|os/exec|testing/synctest)"|t\.Parallel' -- '*.go' ':!integration' ':!bench' |
		xargs -n 1 dirname | sed 's,^,./,' | sort -u | grep -v /testdata
}

# Families are packages whose tests are also those of the packages below them: what these
# have run counts for the whole family.
families='registry/catalog registry/server registry/auth cmd/slipway config gear/rebuild gear/filestore workload/trace'

# unit runs the product's own tests. The longest come first, so that at the end several
# packages are left for the cores.
unit() {
	local packages family part=$work/coverage
	mapfile -t packages < <(go list ./... | sed 's,^example.org/slipway,.,' | grep -Ev "^\./(${families// /|})(/|$)")
	tests plain -p 3 -coverprofile "$root/bin/coverage" ./serve ./registry "${packages[@]}"
	for family in $families; do
		tests plain -p 3 -coverprofile "$part" -coverpkg "./$family/..." "./$family/..."
		if [ -s "$part" ]; then
			tail -n +2 "$part" >>"$root/bin/coverage"
			rm "$part"
		fi
	done
	mapfile -t packages < <(concurrent)
	tests race -p 4 ./serve ./registry ./node/gearfs ./registry/mirror ./registry/catalog ./registry/objstore/swiftstore "${packages[@]}"
}

# beside runs what mostly waits, for servers and for time.
beside() {
	local others
	if [ $ceph = 1 ]; then
		tests ceph ./volume/rbd
		# Of these the other tests have been run by unit.
		tests ceph -run Ceph ./volume/node ./agent
	fi
	# Two packages at a time, the longest first, as each has daemons, directories and ports of
	# its own. Clusters are for scripts/test-kubernetes.sh, systemd for scripts/test-systemd.sh.
	mapfile -t others < <(cd integration && go list . ./agent ./volumes ./snapshotter ./... | grep -Ev "$alone|(/kubernetes/cluster|/systemd)$")
	tests integration -p 2 "${others[@]}"
	tests bench -p 2 ./...
}

# Those that measure for how long an answer may be out of date have the machine for themselves.
alone='/integration/(mirrors|replicas)$'

# all runs the tests of all modules, whatever fails. unit and beside run at once: as the two
# ends of a pipe, of which an interrupt reaches both. testsum reads one after the other.
all() {
	{ beside >"$work/beside"; } | { unit </dev/null; } || true
	cat "$work/beside"
	tests integration -p 1 ./mirrors ./replicas
}

mkdir -p bin
rm -f bin/flaky.txt bin/test.txt bin/coverage
all | "$work/testsum" -expected-skips integration/expected-skips.txt -flaky bin/flaky.txt scripts/test.sh again | tee bin/test.txt
