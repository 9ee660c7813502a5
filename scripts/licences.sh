#!/usr/bin/env bash
# Checks the licences of everything that is linked into slipway, and with a file as its
# argument writes them there: names, versions and texts, for a release.
set -euo pipefail
[ $# -le 1 ] || { echo "usage: scripts/licences.sh [FILE]" >&2; exit 2; }
out=${1:+$(realpath -m -- "$1")}
cd "$(dirname "${BASH_SOURCE[0]}")/../integration"
export GOFLAGS=${GOFLAGS:--buildvcs=false}
printf 'licences: '
go run ./cmd/licences -root .. -out "$out"
