#!/usr/bin/env bash
# Runs the suites of Kubernetes: the agent behind containerd's runtime interface, then
# clusters that are started in a temporary directory and network namespaces, and stopped.
#
#   scripts/test-kubernetes.sh [FLAG...]   flags of go test, such as -v or -run TestOneNode
#
#   SLIPWAY_TEST_TIMEOUT                   limit of each package, default 90m; all clusters take an hour
#   SLIPWAY_CONTAINERDS                    "all", the default, takes pods through their life with each
#                                          version of containerd that works; make test takes two
#
# Root only; scripts/setup.sh test and scripts/setup.sh kubernetes install what is needed.
set -euo pipefail
exec </dev/null

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export GOFLAGS=${GOFLAGS:--buildvcs=false} CGO_ENABLED=0

cd "$root"
go build -o "$work/slipway" ./cmd/slipway
(cd integration && go build -o "$work/testsum" ./cmd/testsum)
export SLIPWAY_BIN=$work/slipway SLIPWAY_CONTAINERDS=${SLIPWAY_CONTAINERDS-all}
# A test that is skipped has not run, so the summary counts it as a failure.
(cd integration && go test -json -count 1 -p 1 -timeout "${SLIPWAY_TEST_TIMEOUT:-90m}" "$@" ./kubernetes/...) | "$work/testsum"
