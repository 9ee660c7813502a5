#!/usr/bin/env bash
# Measures slipway trace: import, analysis, synthetic traces, replay, comparison of
# registries and simulation; and checks the targets.
#
#   scripts/bench-trace.sh            everything; writes the results into
#                                     docs/bench-trace.md, the picture into docs/img,
#                                     the raw figures into bin/bench-trace.json and the
#                                     comparison's page into
#                                     bin/bench-trace-compare.html
#   scripts/bench-trace.sh FLAG...    what the flags say (-h lists them), printed; a
#                                     quick look: -quick -scenario import,timely
#   scripts/bench-trace.sh -from bin/bench-trace.json -doc docs/bench-trace.md -img docs/img
#                                     writes the document again from raw figures
#
#   SLIPWAY_BIN                  binary to measure, default bin/slipway
#   SLIPWAY_BENCH_ZOT            zot binary to replay to
#   SLIPWAY_BENCH_DISTRIBUTION   Distribution 3 binary to replay to
#   SLIPWAY_TRACES               directory of a real sample to simulate caches on,
#                                default ../shared/traces if there is one
#   SLIPWAY_PUBLISHED            published figures, default docs/synthetic-traces.md
#
# If only one scenario is measured with -out bin/bench-trace.json, the file keeps the results of
# the others. Everything takes 6 GB of disk, with -full 25. The exit status is 1 if something
# could not be measured, or if targets are checked and one is missed.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/benchmark.sh"
top=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
export SLIPWAY_PUBLISHED=${SLIPWAY_PUBLISHED:-$top/docs/synthetic-traces.md}
if [ -d "$top/../shared/traces" ]; then
	export SLIPWAY_TRACES=${SLIPWAY_TRACES:-$top/../shared/traces}
fi
benchmark bench-trace trace bench-trace.json bench-trace.md "$@"
