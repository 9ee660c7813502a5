#!/usr/bin/env bash
# Formatting, vet, staticcheck, dead code, shellcheck, licences, known vulnerabilities, and generated
# documents that must match their source. scripts/setup.sh lint installs the tools.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export GOFLAGS=${GOFLAGS:--buildvcs=false}
# Less often than by default garbage is collected: that saves a fifth of the time. With 400 as in
# scripts/test.sh staticcheck would take more than 4 GB.
export GOGC=${GOGC:-200}
PATH=${SLIPWAY_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/slipway/tools}/bin:$PATH
for tool in staticcheck shellcheck govulncheck deadcode; do
	command -v "$tool" >/dev/null || { echo "$tool is not here: scripts/setup.sh lint" >&2; exit 1; }
done

# sources lists the files of the tree that git tracks or would add, one a line.
sources() { git ls-files -co --exclude-standard -- "$@" | while read -r f; do [ ! -f "$f" ] || echo "$f"; done; }

mapfile -t files < <(sources '*.go')
bad=$(gofmt -l "${files[@]}")
if [ -n "$bad" ]; then
	printf 'not formatted (gofmt -w):\n%s\n' "$bad" >&2
	exit 1
fi
go vet ./...
for module in integration bench; do
	(cd $module && go vet ./...)
done
# Checks the code that only a binary with librbd has, if that can be built.
if [ -e /usr/include/rbd/librbd.h ]; then
	CGO_ENABLED=1 go vet -tags 'ceph pacific' ./volume/... ./serve/... ./agent/... ./cmd/slipway/...
fi
# ST1005, about the form of error texts, is off: a text may end with the command or address that
# it names, and texts that a page shows are sentences.
staticcheck -checks inherit,-ST1005 ./...
for module in integration bench; do
	(cd $module && staticcheck -checks inherit,-ST1005 ./...)
done
scripts/deadcode.sh
# Scripts are recognised by their first line.
mapfile -t files < <(sources | xargs -d '\n' awk 'FNR == 1 && /^#!.*[ \/](ba)?sh$|^# shellcheck shell=/ { print FILENAME } { nextfile }')
shellcheck -x -S warning -P scripts "${files[@]}"
scripts/licences.sh
unchecked=
scripts/vulncheck.sh || { [ $? = 3 ] && unchecked='; vulnerabilities were NOT checked'; }
sh -n deploy/helm/slipway/files/node.sh
scripts/gen-docs.sh --check
scripts/gen-manifests.sh --check
go run ./scripts/dashboards -check
# Every direct dependency must be explained, at its version.
awk '$1 == "require" && $2 != "(" { print $2, $3, $4 $5 } $1 ~ /\./ && $2 ~ /^v[0-9]/ { print $1, $2, $3 $4 }' go.mod integration/go.mod bench/go.mod |
	while read -r module version comment; do
		if [ "$comment" != //indirect ] && [ "${module#example.org/slipway}" = "$module" ] && ! grep -Fq "| $module | $version |" docs/dependencies.md; then
			echo "docs/dependencies.md lacks $module $version" >&2
			exit 1
		fi
	done
echo "lint: clean$unchecked"
