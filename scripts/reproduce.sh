#!/usr/bin/env bash
# Reproduces the tables and figures of the four papers that Slipway grows from, and writes
# docs/reproduction.md, its pictures, and bin/reproduction.html.
#
#   scripts/reproduce.sh              all parts, one after the other: several hours
#   ONLY=traces,caches scripts/reproduce.sh
#                                     these parts; the report keeps what is known of the others
#   ONLY=report scripts/reproduce.sh  nothing is measured; the report is written again
#   scripts/reproduce.sh FLAG...      what the flags say (-h lists them and the parts), printed
#
#   SLIPWAY_BIN       binary to measure, default bin/slipway
#   SLIPWAY_CEPH_BIN  binary with the driver rbd, default bin/slipway-ceph (make build-ceph)
#   SLIPWAY_CORPUS    directory of OCI layouts SERIES/VERSION, for the parts with real images
#   SLIPWAY_TRACES    directory of a real sample to simulate caches on, default ../shared/traces if
#                     there is one
#
# The raw figures of each suite are in bin. What the report shows of them is kept in
# docs/reproduction, one file for each part, to be committed with the report. A part that cannot run here is named at the end, and
# does not keep the others from running.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/benchmark.sh"
top=$(realpath "$here/..")
export SLIPWAY_CEPH_BIN=${SLIPWAY_CEPH_BIN:-$top/bin/slipway-ceph}
if [ -d "$top/../shared/traces" ]; then
	export SLIPWAY_TRACES=${SLIPWAY_TRACES:-$top/../shared/traces}
fi
if [ $# -eq 0 ]; then
	mkdir -p "$top/bin"
	set -- -only "${ONLY:-}" -raw "$top/bin" -figures "$top/docs/reproduction" -doc "$top/docs/reproduction.md" -img "$top/docs/img" -html "$top/bin/reproduction.html"
fi
benchmark reproduce reproduce '' '' "$@"
