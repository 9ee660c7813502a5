#!/usr/bin/env bash
# Looks for known vulnerabilities in the code that slipway calls, in its modules and in Go
# itself.
#
# SLIPWAY_VULNDB names a database to use instead of the Go project's: file:///DIR or a URL, in
# the form of https://go.dev/security/vuln/database#api.
#
# The exit status is 0 if there are none, 1 if there are, and 3 if the database cannot be
# reached, so that nothing was checked.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export GOFLAGS=${GOFLAGS:--buildvcs=false}
PATH=${SLIPWAY_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/slipway/tools}/bin:$PATH
command -v govulncheck >/dev/null || { echo "govulncheck is not here: scripts/setup.sh lint" >&2; exit 1; }

db=()
[ -z "${SLIPWAY_VULNDB:-}" ] || db=(-db "$SLIPWAY_VULNDB")
status=0
out=$(CGO_ENABLED=0 timeout 300 govulncheck "${db[@]}" ./cmd/slipway 2>&1) || status=$?
case $status in
0) echo "vulncheck: no known vulnerability is reached, in $(go env GOVERSION) or in a module" ;;
3) # found
	printf '%s\n' "$out" >&2
	exit 1
	;;
*)
	if [ $status != 124 ] && ! grep -q 'fetching vulnerabilities' <<<"$out"; then
		printf '%s\n' "$out" >&2
		exit 1
	fi
	printf '%s\n' "$out" | tail -n 3 >&2
	echo "vulncheck: NOT CHECKED: the database of vulnerabilities cannot be reached; SLIPWAY_VULNDB=file:///DIR names a copy of it" >&2
	exit 3
	;;
esac
