#!/usr/bin/env bash
# Measures Slipway as a mirror of another registry, compares it with Ociregistry if that is
# there, and checks the targets.
#
#   scripts/bench-mirrors.sh            everything; writes the results into
#                                       docs/bench-mirrors.md, the pictures into docs/img
#                                       and the raw figures into bin/bench-mirrors.json
#   scripts/bench-mirrors.sh FLAG...    what the flags say (-h lists them), printed; a
#                                       quick look: -quick -scenario load
#   scripts/bench-mirrors.sh -from bin/bench-mirrors.json -doc docs/bench-mirrors.md -img docs/img
#                                       writes the document again from raw figures
#
#   SLIPWAY_BIN                  binary to measure, default bin/slipway
#   SLIPWAY_BENCH_OCIREGISTRY    Ociregistry binary to compare with
#   SLIPWAY_BENCH_DISTRIBUTION   Distribution 3 binary for the upstream; without it that is
#                                docker-registry
#
# If only one scenario is measured with -out bin/bench-mirrors.json, the file keeps the results
# of the others. Everything takes 4 GB of disk. The exit status is 1 if something could not be
# measured, or if targets are checked and one is missed.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/benchmark.sh"
benchmark bench-mirrors mirrors bench-mirrors.json bench-mirrors.md "$@"
