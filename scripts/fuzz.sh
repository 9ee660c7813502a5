#!/usr/bin/env bash
# Runs every fuzzer of the module, one after the other.
#   scripts/fuzz.sh [TIME]   time for each, default 60s, or a number of runs: 500x
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export GOFLAGS=${GOFLAGS:--buildvcs=false}
time=${1:-60s}
while read -r file name; do
	echo "fuzz: $name in $(dirname "$file")"
	# Inputs of code with goroutines never cover the same twice, so without a bound
	# all the time goes into minimising them.
	go test "./$(dirname "$file")" -run '^$' -fuzz "^$name\$" -fuzztime "$time" -fuzzminimizetime 10x
done < <(git grep -E '^func Fuzz[A-Za-z0-9_]+\(' -- '*_test.go' ':!integration' | sed -E 's/^([^:]+):func (Fuzz[A-Za-z0-9_]+).*/\1 \2/')
