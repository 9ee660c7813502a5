#!/usr/bin/env bash
# Formatting, vet, and generated documents that must match their source.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export GOFLAGS=${GOFLAGS:--buildvcs=false}
bad=$(gofmt -l $(git ls-files '*.go'))
if [ -n "$bad" ]; then
	printf 'not formatted (gofmt -w):\n%s\n' "$bad" >&2
	exit 1
fi
go vet ./...
(cd integration && go vet ./...)
for f in scripts/*.sh .ci/run; do bash -n "$f"; done
echo "lint: clean"
