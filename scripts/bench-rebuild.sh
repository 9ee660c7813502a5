#!/usr/bin/env bash
# Measures layers that are kept as recipes, and checks them against the targets.
#
#   scripts/bench-rebuild.sh            everything; writes the results into
#                                       docs/bench-rebuild.md and the raw figures into
#                                       bin/bench-rebuild.json
#   scripts/bench-rebuild.sh FLAG...    what the flags say (-h lists them), printed
#   scripts/bench-rebuild.sh -from bin/bench-rebuild.json -doc docs/bench-rebuild.md
#                                       writes the document again from raw figures
#
#   SLIPWAY_CORPUS   directory of OCI layouts SERIES/VERSION (needed)
#   SLIPWAY_BIN      binary to measure, default bin/slipway
#
# If only one scenario is measured with -out bin/bench-rebuild.json, the file keeps the
# results of the other. The exit status is 1 if something could not be measured, or if
# targets are checked and one is missed.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/benchmark.sh"
benchmark bench-rebuild rebuild bench-rebuild.json bench-rebuild.md "$@"
