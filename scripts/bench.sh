#!/usr/bin/env bash
# Measures Slipway and other servers, and checks Slipway against its targets.
#
#   scripts/bench.sh            everything; writes the results into docs/bench.md,
#                               the pictures into docs/img and the raw figures
#                               into bin/bench.jsonl
#   scripts/bench.sh FLAG...    what the flags say (-h lists them), printed; a
#                               quick look: -scenario pull -rounds 3
#   scripts/bench.sh -from bin/bench.jsonl -doc docs/bench.md -img docs/img
#                               writes the document again from raw figures
#
#   SLIPWAY_BIN                  binary to measure, default bin/slipway
#   SLIPWAY_BENCH_ZOT            zot binary to compare with
#   SLIPWAY_BENCH_DISTRIBUTION   Distribution 3 binary to compare with
#
# The exit status is 1 if something could not be measured, or if targets are checked and one is
# missed.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/benchmark.sh"
benchmark bench registry bench.jsonl bench.md "$@"
