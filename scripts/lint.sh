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
# What only a binary with librbd has, where it can be built.
if [ -e /usr/include/rbd/librbd.h ]; then
	CGO_ENABLED=1 go vet -tags 'ceph pacific' ./block/... ./serve ./agent ./cmd/slipway
fi
for f in scripts/*.sh .ci/run; do bash -n "$f"; done
scripts/gen-docs.sh --check
go run ./scripts/dashboards -check
# Every direct dependency is explained, at its version.
awk '$1 == "require" && $2 != "(" { print $2, $3, $4 $5 } $1 ~ /\./ && $2 ~ /^v[0-9]/ { print $1, $2, $3 $4 }' go.mod integration/go.mod |
	while read -r module version comment; do
		if [ "$comment" != //indirect ] && [ "$module" != example.org/slipway ] && ! grep -Fq "| $module | $version |" docs/dependencies.md; then
			echo "docs/dependencies.md lacks $module $version" >&2
			exit 1
		fi
	done
echo "lint: clean"
