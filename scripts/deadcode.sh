#!/usr/bin/env bash
# Names functions that nothing reaches, and fails if there are any. Code of the product has to
# be reached from a program: what only tests call belongs to the tests. Test support, which is
# in packages named for it, and the modules integration and bench have to be reached from tests.
#
# scripts/setup.sh lint installs the tool.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export GOFLAGS=${GOFLAGS:--buildvcs=false}
PATH=${SLIPWAY_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/slipway/tools}/bin:$PATH

# support are the packages of the product that only tests import.
support='^([a-z]+/)*[a-z]+test/|^internal/cephseed/'
# explained are functions of the product that only tests of other packages call.
explained=(
	'gear/rootfs/limits.go:.* Defaults$'              # a test of serve compares the configuration with them
	'internal/dashboard/dashboard.go:.* Substitute$' # integration/dashboards asks Prometheus each query of the boards
)
tags=()
if [ -e /usr/include/rbd/librbd.h ]; then
	export CGO_ENABLED=1
	tags=(-tags 'ceph pacific')
else
	explained+=('^volume/rbd/') # most of the package is not built without librbd
fi

# without PATTERN... drops the lines that match one of the patterns.
without() { grep -vE "$(IFS='|' && echo "$*")" || true; }

found=$(
	deadcode -test=false "${tags[@]}" ./... | without "$support" "${explained[@]}"
	for module in integration bench; do
		(cd $module && deadcode -test ./...) | sed "s,^,$module/,"
	done
)
if [ -n "$found" ]; then
	printf 'reached by nothing:\n%s\n' "$found" >&2
	exit 1
fi
