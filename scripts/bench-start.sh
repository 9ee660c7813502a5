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
#   scripts/bench-start.sh -scenario start -profiles both -rates 100,20 -rtts 20
#                                     starts of new versions, of which the registry knows
#                                     only profiles of the versions before, beside starts
#                                     with profiles of their own
#   scripts/bench-start.sh -scenario touch -rates 100
#                                     tasks that read a portion of an image
#   scripts/bench-start.sh -from bin/bench-start.json -doc docs/bench-start.md -img docs/img
#                                     writes the document again from raw figures
#
#   SLIPWAY_CORPUS         directory of OCI layouts SERIES/VERSION (needed)
#   SLIPWAY_BIN            binary to measure, default bin/slipway
#   SLIPWAY_BENCH_STARGZ   directory of containerd-stargz-grpc and ctr-remote
#
# Root only. Namespaces, mounts and processes are removed at the end, also after an interrupt.
# Images that were pushed, and optimised for stargz, are kept in the user's cache (-prepared)
# for the next run. The exit status is 1 if something could not be measured, or if targets are
# checked and one is missed.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/benchmark.sh"
benchmark bench-start start bench-start.json bench-start.md "$@"
