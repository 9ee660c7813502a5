# shellcheck shell=bash
# Common functions of the scripts that measure. To be sourced.

# benchmark LABEL SUITE RESULTS DOCUMENT FLAG... builds the program of the module bench
# and runs a suite of it with the flags. Without flags it measures everything as `make LABEL`,
# checks the targets, and writes bin/RESULTS, docs/DOCUMENT and the pictures.
benchmark() {
	local label=$1 suite=$2 results=$3 document=$4 root here=$PWD commit
	shift 4
	root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
	work=$(mktemp -d) # not local: the trap outlives this function
	trap 'rm -rf "$work"' EXIT
	export GOFLAGS=${GOFLAGS:--buildvcs=false}
	export SLIPWAY_BIN=${SLIPWAY_BIN:-$root/bin/slipway}
	if [ ! -x "$SLIPWAY_BIN" ]; then
		echo "$label: $SLIPWAY_BIN is not there: make build" >&2
		exit 1
	fi
	(cd "$root/bench" && CGO_ENABLED=0 go build -o "$work/bench" .)
	cd "$here" || return
	if [ $# -eq 0 ]; then
		cd "$root" || return
		mkdir -p bin
		set -- -check -command "make $label" -out "bin/$results" -doc "docs/$document" -img docs/img
	fi
	commit=$(git -C "$root" describe --always --dirty --exclude '*' 2>/dev/null || echo unknown)
	# The program does not run in the background or by exec, so that an interrupt of the
	# terminal reaches first the program, which cleans up, and then this script.
	"$work/bench" "$suite" -commit "$commit" "$@"
}
