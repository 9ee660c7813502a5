#!/usr/bin/env bash
# Measures how containers start with a plain pull, with the stargz snapshotter and
# with Slipway's node agent, over links of several rates, and checks the targets.
#
#   scripts/bench-start.sh            everything, four hours or more; writes the
#                                     results into docs/bench-start.md, the pictures
#                                     into docs/img and the raw figures into
#                                     bin/bench-start.json
#   scripts/bench-start.sh FLAG...    what the flags say (-h lists them), printed;
#                                     -quick takes 25 minutes, -estimate tells how
#                                     long it would take
#   scripts/bench-start.sh -from bin/bench-start.json -doc docs/bench-start.md -img docs/img
#                                     writes the document again from raw figures
#
#   SLIPWAY_CORPUS         directory of OCI layouts SERIES/VERSION (needed)
#   SLIPWAY_BIN            binary to measure, default bin/slipway
#   SLIPWAY_BENCH_STARGZ   directory of containerd-stargz-grpc and ctr-remote
#
# Root only. Namespaces, mounts and processes are removed at the end, also after
# an interrupt. Images that were pushed, and optimised for stargz, are kept in
# the user's cache (-prepared) for the next run. The exit status is 1 if something
# could not be measured or, where targets are checked, if one is missed.
set -euo pipefail

here=$PWD
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export GOFLAGS=${GOFLAGS:--buildvcs=false}
export SLIPWAY_BIN=${SLIPWAY_BIN:-$root/bin/slipway}

if [ ! -x "$SLIPWAY_BIN" ]; then
	echo "bench-start: $SLIPWAY_BIN is not there: make build" >&2
	exit 1
fi
(cd "$root/integration" && CGO_ENABLED=0 go build -o "$work/startbench" ./cmd/startbench)

cd "$here"
if [ $# -eq 0 ]; then
	cd "$root"
	mkdir -p bin
	set -- -check -command "make bench-start" -out bin/bench-start.json -doc docs/bench-start.md -img docs/img
fi
commit=$(git -C "$root" describe --always --dirty 2>/dev/null || echo unknown)
# Not in the background and not by exec: an interrupt of the terminal reaches the
# program, which cleans up, and then this script.
"$work/startbench" -commit "$commit" "$@"
