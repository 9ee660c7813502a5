#!/usr/bin/env bash
# Checks the licences of everything that is linked into slipway. With a file as its argument it
# writes their names, versions and texts into that file, for a release.
set -euo pipefail
[ $# -le 1 ] || { echo "usage: scripts/licences.sh [FILE]" >&2; exit 2; }
out=${1:+$(realpath -m -- "$1")}
cd "$(dirname "${BASH_SOURCE[0]}")/../integration"
export GOFLAGS=${GOFLAGS:--buildvcs=false}
printf 'licences: '
go run ./cmd/licences -root .. -out "$out"
