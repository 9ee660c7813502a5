#!/usr/bin/env bash
# Prints how much of the product its own tests run, by package and in all, in percent of
# statements. It fails if the total is less than scripts/coverage-floor says. Only a package's
# own tests count for it.
#
#   scripts/coverage.sh          runs the tests for it
#   scripts/coverage.sh PROFILE  reads what scripts/test.sh has left in bin/coverage
#
# The counters come from a run without the race detector. With it the counters are atomic, so
# goroutines that run the same statement look synchronised, and races between them are not seen.
# This script only names tests that fail; scripts/test.sh decides whether the tests pass.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export GOFLAGS=${GOFLAGS:--buildvcs=false}
work=$(mktemp -d) scratch=$(mktemp -d)
. scripts/scratch.sh
trap 'unscratch "$scratch"; rm -rf "$work"' EXIT

profile=${1:-$work/profile}
if [ $# = 0 ]; then
	scratch "$scratch"
	go test -vet=off -cover -coverprofile "$profile" -p 4 -timeout 15m ./... >"$work/log" 2>&1 </dev/null ||
		grep -E '^(--- FAIL|FAIL|panic|# )' "$work/log" | head -n 30 >&2 || true
	[ -s "$profile" ] || tail -n 30 "$work/log" >&2
fi
if [ ! -s "$profile" ]; then
	echo "coverage: there is no profile of a test run" >&2
	exit 1
fi
# Each line describes some statements: FILE:FROM,TO STATEMENTS RUNS. Several runs may have lines
# for the same statements.
awk 'NR > 1 { count[$1] = $(NF - 1); if ($NF > 0) ran[$1] = 1 }
	END { for (at in count) { name = at; sub(/\/[^\/]*$/, "", name); all[name] += count[at]; if (at in ran) run[name] += count[at] }
		for (name in all) printf "%5.1f%%  %s\n", 100 * run[name] / all[name], name }' "$profile" | sort -k 2
floor=$(cat scripts/coverage-floor)
total=$(go tool cover -func "$profile" | awk 'END { sub(/%/, "", $NF); print $NF }')
echo "coverage: $total % of statements; the floor is $floor %"
awk -v total="$total" -v floor="$floor" 'BEGIN { exit !(total + 0 >= floor + 0) }' || {
	echo "coverage: write tests for what is new" >&2
	exit 1
}
