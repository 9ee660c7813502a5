#!/usr/bin/env bash
# Measures the tiers: memory and SSD in front of object stores, prefetching, crowds and
# large buckets; and checks the targets.
#
#   scripts/bench-tiers.sh            everything; writes the results into
#                                     docs/bench-tiers.md, the picture into docs/img and
#                                     the raw figures into bin/bench-tiers.json
#   scripts/bench-tiers.sh FLAG...    what the flags say (-h lists them), printed; a
#                                     quick look: -quick -scenario fig16,crowd
#   scripts/bench-tiers.sh -from bin/bench-tiers.json -doc docs/bench-tiers.md -img docs/img
#                                     writes the document again from raw figures
#
#   SLIPWAY_BIN       binary to measure, default bin/slipway
#   SLIPWAY_TOOLS     where scripts/setup.sh put versitygw
#   SLIPWAY_TRACES    directory of a real sample to simulate caches on, default
#                     ../shared/traces if there is one
#
# Swift, versitygw and nginx are needed, and Ceph to measure its gateway, too. If only one
# scenario is measured with -out bin/bench-tiers.json, the file keeps the results of the others.
# Everything takes 12 GB of disk. The exit status is 1 if something could not be measured, or if
# targets are checked and one is missed.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/benchmark.sh"
top=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
if [ -d "$top/../shared/traces" ]; then
	export SLIPWAY_TRACES=${SLIPWAY_TRACES:-$top/../shared/traces}
fi
benchmark bench-tiers tiers bench-tiers.json bench-tiers.md "$@"
