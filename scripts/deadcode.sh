#!/usr/bin/env bash
# Names functions that nothing reaches, and fails if there are any. Code of the product has to
# be reached from a program: what only tests call belongs to the tests. Test support, which is
# in packages whose names end in test, and the modules integration and bench have to be reached
# from tests or programs.
#
# scripts/setup.sh lint installs the tool.
set -euo pipefail
shopt -s inherit_errexit # a tool that fails must not look like one that finds nothing
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export GOFLAGS=${GOFLAGS:--buildvcs=false}
PATH=${SLIPWAY_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/slipway/tools}/bin:$PATH

# support are the packages that only tests import.
support='^([a-z]+/)*[a-z]+test/|^internal/cephseed/'
# explained are functions of the product that only tests of other packages call.
explained=(
	'gear/rootfs/limits.go:.* Defaults$'              # a test of serve compares the configuration with them
	'workload/analyze/paper.go:.* (Published|PlotOf)$' # the report of bench/reproduce sets these beside ours
	'internal/dashboard/dashboard.go:.* Substitute$' # integration/dashboards asks Prometheus each query of the boards
)
tags=() unbuilt=('^$')
if [ -e /usr/include/rbd/librbd.h ]; then
	export CGO_ENABLED=1
	tags=(-tags 'ceph pacific')
else
	unbuilt=('^volume/rbd/') # what uses most of the package is not built without librbd
fi

# without PATTERN... drops the lines that match one of the patterns.
without() { grep -vE "$(IFS='|' && echo "$*")" || true; }

# The tests of a module may be all that reaches test support of another, so that all are looked at
# together. The tool does not know that examples are run.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd "$work" && GOWORK='' go work init "$OLDPWD" "$OLDPWD/integration" "$OLDPWD/bench")
found=$(
	deadcode -test=false "${tags[@]}" ./... | without "$support" "${explained[@]}" "${unbuilt[@]}"
	GOWORK=$work/go.work deadcode -test "${tags[@]}" -filter '^example\.org/slipway(/|$)' ./... ./integration/... ./bench/... | without '_test\.go:.* Example' "${unbuilt[@]}"
)
if [ -n "$found" ]; then
	printf 'reached by nothing:\n%s\n' "$found" >&2
	exit 1
fi
