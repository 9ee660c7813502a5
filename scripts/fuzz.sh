#!/usr/bin/env bash
# Runs every fuzzer of the module, in two packages at a time.
#   scripts/fuzz.sh [TIME]   time for each, default 60s, or a number of runs: 500x
# A number of runs is for a quick check: the fuzzers are then not guided by coverage, because
# that would need all packages compiled again. Inputs that failed are in testdata/fuzz of the
# package.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export GOFLAGS=${GOFLAGS:--buildvcs=false}
export time=${1:-60s} root=$PWD
work=$(mktemp -d)
instrument='-fuzz .'
[[ $time != *x ]] || instrument=
export work instrument
trap 'rm -rf "$work"' EXIT

# fuzz PACKAGE FUZZER... builds a package's tests once and runs its fuzzers.
fuzz() {
	local package=$1 name program
	shift
	program=$work/${package//\//-}
	# shellcheck disable=SC2086 # a flag and its value, or neither
	GOGC=400 go test -c -ldflags "-s -w" $instrument -o "$program" "./$package"
	cd "$root/$package"
	for name; do
		# In code with goroutines an input never covers the same code twice, so without
		# a bound all the time goes into minimising inputs.
		if ! "$program" -test.run '^$' -test.fuzz "^$name\$" -test.fuzztime "$time" -test.fuzzminimizetime 10x \
			-test.fuzzcachedir "$work/cache/$package/$name" >"$program.$name.log" 2>&1; then
			printf 'fuzz: %s in %s failed:\n' "$name" "$package"
			cat "$program.$name.log"
			return 1
		fi
		printf 'fuzz: %s in %s: %s\n' "$name" "$package" "$(grep -c '^fuzz: elapsed' "$program.$name.log" >/dev/null && grep '^fuzz: elapsed' "$program.$name.log" | tail -n 1 | sed 's/^fuzz: //')"
	done
	rm -f "$program"
}
export -f fuzz

git grep -E '^func Fuzz[A-Za-z0-9_]+\(' -- '*_test.go' ':!integration' ':!bench' |
	sed -E 's,/[^/]+:func (Fuzz[A-Za-z0-9_]+).*, \1,' | sort |
	awk '$1 != last { printf "%s%s", (last == "" ? "" : "\n"), $1; last = $1 } { printf " %s", $2 } END { print "" }' |
	xargs -P 2 -I '{}' bash -c 'set -euo pipefail; fuzz {}'
