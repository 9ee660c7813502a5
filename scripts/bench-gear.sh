#!/usr/bin/env bash
# Measures the Gear side of Slipway on a set of images, and checks it against its
# targets.
#
#   scripts/bench-gear.sh            everything; writes the results into
#                                    docs/bench-gear.md, the pictures into docs/img
#                                    and the raw figures into bin/bench-gear.json
#   scripts/bench-gear.sh FLAG...    what the flags say (-h lists them), printed; a
#                                    quick look: -quick -scenario storage,oracle
#   scripts/bench-gear.sh -from bin/bench-gear.json -doc docs/bench-gear.md -img docs/img
#                                    writes the document again from raw figures
#
#   SLIPWAY_CORPUS   directory of OCI layouts SERIES/VERSION; without it a small
#                    set is generated, on which savings and rates mean little
#   SLIPWAY_BIN      binary to measure, default bin/slipway
#
# If only one scenario is measured with -out bin/bench-gear.json, the file keeps the results of
# the others. The oracle needs root and umoci, serving nginx. The exit status is 1 if something
# could not be measured, or if targets are checked and one is missed.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/benchmark.sh"
benchmark bench-gear gear bench-gear.json bench-gear.md "$@"
