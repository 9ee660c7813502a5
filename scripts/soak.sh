#!/usr/bin/env bash
# Runs the fault tests in turn for as long as FOR says, and writes docs/reliability.md.
#
#   FOR=45m scripts/soak.sh
#   FOR=20m SLIPWAY_SOAK_ONLY='^(kill -9|power cut)$' scripts/soak.sh    # only these faults
#
# Only the part of the document after the line "<!-- from here on" is replaced.
#
# Each turn appends one line to SLIPWAY_SOAK_DIR/figures.tsv (default dist/soak): when, which
# commit, which fault, how often it struck, pass or fail, seconds. The document is made from all
# lines of that file, so a second run adds to the first; remove the file to start again. The
# output of a turn that failed is kept beside the file. The exit status is 1 if any turn of this
# run failed.
#
# The integration tests need root, loop devices and what scripts/setup.sh test installs. A turn
# whose test is skipped does not count.
set -euo pipefail
exec </dev/null

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
dir=${SLIPWAY_SOAK_DIR:-$root/dist/soak}
mkdir -p "$dir/failed"
dir=$(cd "$dir" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export GOFLAGS=${GOFLAGS:--buildvcs=false}
cd "$root"

# seconds turns 45m, 2h or 90s into seconds.
seconds() {
	case $1 in
	*h) echo $((${1%h} * 3600)) ;;
	*m) echo $((${1%m} * 60)) ;;
	*s) echo "${1%s}" ;;
	*) echo "soak: FOR=$1 is no time such as 45m" >&2 && exit 2 ;;
	esac
}

for_how_long=${FOR:-45m}
span=$(seconds "$for_how_long")
commit=$(git rev-parse --short HEAD)
if ! git diff --quiet HEAD; then commit=$commit-dirty; fi
failures=0
turns=0

CGO_ENABLED=0 go build -o "$work/slipway" ./cmd/slipway
export SLIPWAY_BIN=$work/slipway
for package in serve/admin registry volume/file node/snapshotter registry/objstore/s3store registry/objstore/swiftstore; do
	go test -c -o "$work/${package//\//-}.test" "./$package"
done
for package in . replicas; do
	(cd integration && go test -c -o "$work/integration-${package/./all}.test" "./$package")
done
deadline=$((SECONDS + span))

# turn NAME BINARY DIRECTORY TESTS COUNTED [VARIABLE=VALUE...] runs tests of a binary in its
# package's directory. Each line of their output that contains COUNTED counts one fault. With
# sum:TEXT, the numbers that precede TEXT are added up instead.
turn() {
	local name=$1 binary=$2 where=$3 tests=$4 counted=$5 began=$SECONDS log=$work/log verdict=pass count
	shift 5
	[ "$SECONDS" -lt "$deadline" ] && [[ $name =~ ${SLIPWAY_SOAK_ONLY:-.} ]] || return 0
	turns=$((turns + 1))
	if ! (cd "$where" && env "$@" timeout --kill-after 10 $((deadline - SECONDS + 240)) "$work/$binary.test" -test.v -test.run "$tests" -test.timeout 20m) >"$log" 2>&1; then
		verdict=fail
		failures=$((failures + 1))
		cp "$log" "$dir/failed/$(date -u +%Y%m%dT%H%M%SZ)-${name// /-}.log"
	fi
	case $counted in
	sum:*) count=$(sed -nE "s/.*[^0-9]([0-9]+) ${counted#sum:}.*/\1/p" "$log" | awk '{ n += $1 } END { print n + 0 }') ;;
	*) count=$(grep -cE -e "$counted" "$log" || true) ;;
	esac
	printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$(date -u +%Y-%m-%dT%H:%MZ)" "$commit" "$name" "$count" "$verdict" $((SECONDS - began)) >>"$dir/figures.tsv"
	printf 'soak: %-28s %6s %s, %ss; %ss left\n' "$name" "$count" "$verdict" $((SECONDS - began)) $((deadline - SECONDS))
}

while [ "$SECONDS" -lt "$deadline" ]; do
	turn 'kill -9' integration-all integration '^TestKill$' 'round [0-9]+:' SLIPWAY_KILL_ROUNDS=150
	turn 'power cut' integration-all integration '^TestPowerCut$' 'round [0-9]+:' SLIPWAY_POWERCUT_ROUNDS=25
	turn 'sequence of operations' serve-admin serve/admin '^TestSeams$' 'sum:sequences in' SLIPWAY_SEAMS_RANDOM=200 SLIPWAY_SEAMS_SEED="$(date +%s)"
	turn 'kill -9 while converting' integration-all integration '^TestGearKill$' 'round [0-9]+:' SLIPWAY_GEARKILL_ROUNDS=10
	turn 'power cut while converting' integration-all integration '^TestGearPowerCut$' 'round [0-9]+:' SLIPWAY_GEARCUT_ROUNDS=5
	turn 'kill -9 while dropping' integration-all integration '^TestChurnKill$' 'sum:kills' SLIPWAY_CHURNKILL_KILLS=100
	turn 'power cut while dropping' integration-all integration '^TestChurnPowerCut$' 'cut [0-9]+:' SLIPWAY_CHURNCUT_ROUNDS=15
	turn 'kill -9' integration-all integration '^TestKill$' 'round [0-9]+:' SLIPWAY_KILL_ROUNDS=150
	turn 'power cut, lying disk' integration-all integration '^TestDiskThatLies$' 'round [0-9]+:' SLIPWAY_LYINGDISK_ROUNDS=12
	turn 'failing disk' integration-all integration '^TestIOFaults' '^ *--- PASS: TestIOFaults[^/]*/'
	turn 'power cut' integration-all integration '^TestPowerCut$' 'round [0-9]+:' SLIPWAY_POWERCUT_ROUNDS=25
	turn 'replicas with faults' integration-replicas integration/replicas '^TestReplicas$' '^--- PASS' SLIPWAY_REPLICAS_FOR=30s
	turn 'collector against writers' registry registry 'CollectOracle' '^ *--- PASS' SLIPWAY_GC_SECONDS=10
	turn 'lost or damaged object' registry registry '^(TestAcknowledgedIsReadable|TestStoreAwayLosesNothing|TestRetentionModel)$' '^ *--- PASS' SLIPWAY_ALL_CASES=1
	turn 'cut-off publication' registry registry 'Kill|LostAnswers|Fault' '^ *--- PASS'
	turn 'kill -9 of a volume' volume-file volume/file 'Kill' '^ *--- PASS'
	turn 'kill -9 of a snapshotter' node-snapshotter node/snapshotter '^TestKill$' '^ *--- PASS'
	turn 'failing object store' registry-objstore-s3store registry/objstore/s3store 'Fault|Cut|Lost' '^ *--- PASS'
	turn 'failing object store' registry-objstore-swiftstore registry/objstore/swiftstore 'Fault|Crash|Lost' '^ *--- PASS'
done

# document prints docs/reliability.md: its head, which is written by hand, and the rest, which
# is made from the figures.
document() {
	sed '/^<!-- from here on/q' docs/reliability.md
	cat <<'END'

## Figures

| fault | struck | turns | turns failed |
|-|-:|-:|-:|
END
	awk -F'\t' '{ if (!($3 in turns)) order[++n] = $3; turns[$3]++; struck[$3] += $4; if ($5 == "fail") failed[$3]++ }
		END { for (i = 1; i <= n; i++) printf "| %s | %d | %d | %d |\n", order[i], struck[order[i]], turns[order[i]], failed[order[i]] }' "$dir/figures.tsv"
	cat <<'END'

What is counted:

- **kill -9**: clients push to a server, which is killed at a random moment and started
  again. All that was acknowledged must be there, and `slipway fsck` must find nothing.
- **power cut**: the block device is copied while clients push, with a random part of
  what was not synced. A server on the copy must have all that was acknowledged.
- **power cut, lying disk**: a simulated disk keeps a random part of the pages, sectors and
  names that were not synced. All that was acknowledged must be there.
- **while converting**: the same while layers are converted to Gear form.
- **while dropping**: the same while layers are dropped, pulled, stored again, settled and scrubbed. At every other
  check a random pack was lost or damaged before.
- **sequence of operations**: pushes, deletions, damage, a store that is away, a full
  store, kills and the maintenance commands in random order, against a model that knows
  what clients were told and where each good copy is. `go test ./serve/admin -run
  TestSeams -seams LIST` repeats one.
- **failing disk**, **failing object store**: requests to the disk or to the store fail,
  hang, or are carried out and answered with an error.
- **replicas with faults**: several servers on PostgreSQL and S3 while servers, network
  and stores fail; one history of requests is judged each time.
- **collector against writers**, **lost or damaged object**, **cut-off publication**,
  **kill -9 of a volume** and **of a snapshotter**: tests that passed, each of which
  strikes many times.

The runs:

| last turn | commit | turns | minutes |
|-|-|-:|-:|
END
	awk -F'\t' '{ if (!($2 in turns)) order[++n] = $2; last[$2] = $1; turns[$2]++; s[$2] += $6 }
		END { for (i = 1; i <= n; i++) printf "| %s | %s | %d | %d |\n", last[order[i]], order[i], turns[order[i]], s[order[i]] / 60 }' "$dir/figures.tsv"
}

document >"$work/reliability.md"
cp "$work/reliability.md" docs/reliability.md
echo "soak: $turns turns, $failures failed; docs/reliability.md is written"
[ "$failures" = 0 ]
