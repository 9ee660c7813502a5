#!/usr/bin/env bash
# Gives the Go modules another path, such as that of the repository from which they can be
# fetched:
#
#   scripts/rename-module.sh github.com/somebody/slipway
#
# It replaces the path that go.mod has in all files, and changes nothing else.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() {
	printf 'rename-module: %s\n' "$*" >&2
	exit 1
}

[ $# = 1 ] || die "usage: scripts/rename-module.sh MODULE"
new=$1
old=$(awk '$1 == "module" { print $2 }' go.mod)
[[ $new =~ ^[a-z0-9][a-z0-9.-]*\.[a-z]+(/[A-Za-z0-9][A-Za-z0-9._-]*)+$ ]] || die "$new is no module path; write one such as github.com/somebody/slipway"
[ "$new" != "$old" ] || die "the module is called $old already"

# What git ignores, and the history, stay as they are.
mapfile -t files < <(grep -rIlF --exclude-dir=.git --exclude-dir=bin --exclude-dir=dist -- "$old" .)
sed -i "s,${old//./\\.}\\b,$new,g" "${files[@]}"
mapfile -t files < <(printf '%s\n' "${files[@]}" | grep '\.go$')
gofmt -w "${files[@]}" # the order of imports may be another
for module in . integration bench; do
	(cd $module && go list ./... >/dev/null) || die "the module in $module cannot be read any more"
done
printf 'rename-module: %s is %s now\n' "$old" "$new"
