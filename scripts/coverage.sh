#!/usr/bin/env bash
# Tells how much of the product its own tests run, by package and in all, and fails if that
# is less than scripts/coverage-floor says, in percent of statements. Each package counts
# with its own tests only, the short ones. It is a run of its own and not that of the race
# detector: the counters are atomic there, so that goroutines which run the same statement
# look synchronised, and races between them are not seen.
#
# Whether tests pass is scripts/test.sh's to say; here they are only named.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export GOFLAGS=${GOFLAGS:--buildvcs=false}
work=$(mktemp -d) scratch=$(mktemp -d)
. scripts/scratch.sh
trap 'unscratch "$scratch"; rm -rf "$work"' EXIT

status=0
scratch "$scratch"
go test -vet=off -short -cover -coverprofile "$work/profile" -p 4 -timeout 10m ./... >"$work/log" 2>&1 </dev/null || status=$?
# What has no statements, or tests of its own only in integration, has no line.
awk '$1 == "FAIL" && NF > 1 { print "coverage: tests fail in", $2 }
	/coverage: [0-9]/ { name = $1 == "ok" ? $2 : $1; sub(/.*coverage: /, ""); printf "%6s  %s\n", $1, name }' "$work/log" | sort -k 2
if [ ! -s "$work/profile" ]; then
	tail -n 30 "$work/log" >&2
	exit 1
fi
[ $status = 0 ] || grep -E '^(--- FAIL|FAIL|panic|# )' "$work/log" | head -n 30 >&2
floor=$(cat scripts/coverage-floor)
total=$(go tool cover -func "$work/profile" | awk 'END { sub(/%/, "", $NF); print $NF }')
echo "coverage: $total % of statements; the floor is $floor %"
awk -v total="$total" -v floor="$floor" 'BEGIN { exit !(total + 0 >= floor + 0) }' || {
	echo "coverage: write tests for what is new" >&2
	exit 1
}
