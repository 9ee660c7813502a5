#!/usr/bin/env bash
# Measures images as volumes on a Ceph that it starts, compares them with the plain pull and
# Gear, and checks the targets.
#
#   scripts/bench-cider.sh            everything, several hours; writes the results into
#                                     docs/bench-cider.md, the pictures into docs/img
#                                     and the raw figures into bin/bench-cider.json
#   scripts/bench-cider.sh FLAG...    what the flags say (-h lists them), printed; a
#                                     quick look: -quick -scenario single,node10
#   scripts/bench-cider.sh -from bin/bench-cider.json -doc docs/bench-cider.md -img docs/img
#                                     writes the document again from raw figures
#
#   SLIPWAY_CORPUS   directory of OCI layouts SERIES/VERSION (needed)
#   SLIPWAY_BIN      binary to measure, with the driver rbd; default bin/slipway-ceph
#
# Root only. Ceph, the registry, namespaces, mounts and processes are removed at the end, also
# after an interrupt. If only one scenario is measured with -out bin/bench-cider.json, the file
# keeps the results of the others. The exit status is 1 if something could not be measured, or
# if targets are checked and one is missed.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export SLIPWAY_BIN=${SLIPWAY_BIN:-$here/../bin/slipway-ceph}
if [ ! -x "$SLIPWAY_BIN" ]; then
	echo "bench-cider: $SLIPWAY_BIN is not there: make build-ceph" >&2
	exit 1
fi
. "$here/benchmark.sh"
benchmark bench-cider cider bench-cider.json bench-cider.md "$@"
