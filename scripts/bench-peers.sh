#!/usr/bin/env bash
# Measures roll-outs in which nodes get an image from each other, with Slipway, with Spegel if
# that is there, and with containerd alone, and checks the targets. It needs root.
#
#   scripts/bench-peers.sh            everything; writes the results into
#                                     docs/bench-peers.md and the raw figures into
#                                     bin/bench-peers.json
#   scripts/bench-peers.sh FLAG...    what the flags say (-h lists them), printed; a quick
#                                     look: -quick -scenario together
#   scripts/bench-peers.sh -from bin/bench-peers.json -doc docs/bench-peers.md
#                                     writes the document again from raw figures
#
#   SLIPWAY_BIN            binary to measure, default bin/slipway
#   SLIPWAY_BENCH_SPEGEL   Spegel binary to compare with
#
# If only one scenario is measured with -out bin/bench-peers.json, the file keeps the results of
# the others. Each node takes the size of the image on disk with Slipway, and twice that with
# containerd, which keeps layers and files. The exit status is 1 if something could not be
# measured, or if targets are checked and one is missed.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/benchmark.sh"
benchmark bench-peers peers bench-peers.json bench-peers.md "$@"
