#!/usr/bin/env bash
# Builds what a release consists of into dist/: tarballs, Debian packages, rpm packages, the container
# image, the Helm chart, bills of material, licences, and SHA256SUMS of all that.
#
#   scripts/release.sh              everything
#   scripts/release.sh KIND...      of tarball, deb, rpm, image, sbom, chart; no list of sums,
#                                   unless "sums" is named, too: then RELEASE_DIR is made anew
#   scripts/release.sh check        everything but the chart, for one architecture, twice
#                                   in two directories; compares the sums, and runs
#                                   lintian over the Debian package
#
#   VERSION            default: what git describe says of the commit
#   SOURCE_DATE_EPOCH  time of everything in it, default that of the commit
#   RELEASE_ARCH       default "amd64 arm64"
#   RELEASE_DIR        default dist; made anew for everything, added to for some kinds. One
#                      that holds what is not of a release is not made anew
#   RELEASE_DIRTY=1    builds although files differ from the commit
#   RELEASE_BINARIES   directory with slipway-ARCH built already, as tests have them
#   RELEASE_QUICK=1    compresses little, for tests
#   RELEASE_KEY        file with a private key (EC, PEM): SHA256SUMS is signed, in the form of
#                      cosign sign-blob, which openssl verifies, too
#
# The same commit, toolchain and dpkg give the same bytes, in any directory.
set -euo pipefail
exec </dev/null

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
out=$(realpath -m "${RELEASE_DIR:-$root/dist}")
cd "$root"
PATH=${SLIPWAY_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/slipway/tools}/bin:$PATH
export LC_ALL=C CGO_ENABLED=0 GOFLAGS='-trimpath -buildvcs=false' GOAMD64=v1 GOARM64=v8.0

say() { printf 'release: %s\n' "$*"; }
die() {
	printf 'release: %s\n' "$*" >&2
	exit 1
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# source_state sets VERSION, revision and SOURCE_DATE_EPOCH from the commit.
source_state() {
	revision=
	if git rev-parse -q --verify HEAD >/dev/null 2>&1; then
		revision=$(git rev-parse HEAD)
		SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
		if [ -n "$(git status --porcelain)" ]; then
			[ "${RELEASE_DIRTY:-}" = 1 ] ||
				die "files differ from the commit (git status): commit them, or say RELEASE_DIRTY=1"
			VERSION=${VERSION:-$(git describe --tags --always)-dirty}
		fi
		VERSION=${VERSION:-$(git describe --tags --always)}
	elif [ -z "${VERSION:-}" ] || [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
		die "no git repository: say VERSION and SOURCE_DATE_EPOCH"
	fi
	VERSION=${VERSION#v}
	export VERSION SOURCE_DATE_EPOCH
}

# build makes the binary of an architecture. arm64 needs no other compiler: there is no C.
build() {
	say "building slipway $VERSION for linux/$1"
	local command=example.org/slipway/cmd/slipway/command
	GOOS=linux GOARCH=$1 go build -ldflags "-s -w -buildid= -X $command.Version=$VERSION -X $command.commit=$revision" -o "$work/bin/slipway-$1" ./cmd/slipway
}

# extras writes manual pages and completions, which the program prints itself, and the licences
# of everything that is linked.
extras() {
	local program=$work/bin/slipway-$host
	mkdir -p "$work/extras/man" "$work/extras/completions"
	[ -x "$program" ] || build "$host"
	"$program" completion bash >"$work/extras/completions/slipway.bash"
	"$program" completion fish >"$work/extras/completions/slipway.fish"
	"$program" completion zsh >"$work/extras/completions/_slipway"
	"$program" man "$work/extras/man"
	# It lists the modules of the host's program, because both architectures link the same.
	scripts/licences.sh "$work/extras/licences.txt" || die "scripts/licences.sh failed"
}

# only_releases refuses to empty a directory that has anything but releases in it, because
# somebody may have named the wrong directory.
only_releases() {
	local other
	[ -d "$out" ] || return 0
	other=$(find "$out" -mindepth 1 -maxdepth 1 ! \( -type f \( -name 'slipway[-_]*' -o -name 'SHA256SUMS*' \) \) -print -quit)
	[ -z "$other" ] || die "RELEASE_DIR is to be made anew, but has $other, which is of no release: remove it, or name another directory"
}

# chart makes the chart's archive with helm. Its version is SemVer: the version of a commit
# without a tag sorts before all others.
chart() {
	local version=$VERSION
	[ -d deploy/helm/slipway ] || die "there is no chart in deploy/helm/slipway"
	command -v helm >/dev/null || die "helm is not here: scripts/setup.sh release"
	[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+([-+].*)?$ ]] || version=0.0.0-$version
	helm package deploy/helm/slipway --version "$version" --app-version "$VERSION" -d "$work/chart" >/dev/null
	echo "$work/chart/slipway-$version.tgz"
}

# make_release KIND... makes these kinds of package.
make_release() {
	local kinds=("$@") flags=() arch archive anew=
	if [[ " ${kinds[*]} " == *" sums "* ]]; then
		[ ${#kinds[@]} -gt 1 ] || die "sums alone would be of nothing, as RELEASE_DIR is made anew: name what to build, too"
		anew=1
		only_releases
	fi
	mkdir -p "$work/bin"
	for arch in $arches; do
		if [ -n "${RELEASE_BINARIES:-}" ]; then
			cp "$RELEASE_BINARIES/slipway-$arch" "$work/bin/"
		else
			build "$arch"
		fi
	done
	extras
	if [[ " ${kinds[*]} " == *" chart "* ]]; then
		archive=$(chart)
		flags+=(-chart "$archive")
	fi
	[ "${RELEASE_QUICK:-}" != 1 ] || flags+=(-quick)
	mkdir -p "$out"
	if [ -n "$anew" ]; then
		find "$out" -mindepth 1 -maxdepth 1 -type f \( -name 'slipway[-_]*' -o -name 'SHA256SUMS*' \) -delete
		cp "$work/extras/licences.txt" "$out/slipway-$VERSION-licences.txt"
	fi
	GOFLAGS=-buildvcs=false go run ./scripts/package -version "$VERSION" -revision "$revision" -epoch "$SOURCE_DATE_EPOCH" \
		-arch "${arches// /,}" -binaries "$work/bin" -extras "$work/extras" -out "$out" "${flags[@]}" "${kinds[@]}"
	[ -z "$anew" ] || [ -z "${RELEASE_KEY:-}" ] || sign
}

# sign signs the list of sums. The signature is the same kind as cosign's: ECDSA over SHA-256, in
# base64.
sign() {
	openssl dgst -sha256 -sign "$RELEASE_KEY" "$out/SHA256SUMS" | openssl base64 -A >"$out/SHA256SUMS.sig"
	openssl pkey -in "$RELEASE_KEY" -pubout >"$work/key.pub"
	openssl base64 -d -A -in "$out/SHA256SUMS.sig" >"$work/signature"
	openssl dgst -sha256 -verify "$work/key.pub" -signature "$work/signature" "$out/SHA256SUMS" >/dev/null ||
		die "the signature that was made does not verify"
	say "signed SHA256SUMS"
}

# check builds twice, the second time in a copy of the tree elsewhere.
check() {
	local copy=$work/elsewhere/slipway
	mkdir -p "$copy"
	tar -c --exclude=./.git --exclude=./bin --exclude=./dist --exclude=./slipway-data . | tar -x -C "$copy"
	export RELEASE_ARCH=$host
	RELEASE_DIRTY=1 RELEASE_DIR=$work/first scripts/release.sh tarball deb rpm image sbom sums
	RELEASE_DIRTY=1 RELEASE_DIR=$work/second RELEASE_REVISION=$revision "$copy/scripts/release.sh" tarball deb rpm image sbom sums
	diff "$work/first/SHA256SUMS" "$work/second/SHA256SUMS" || die "two builds of the same sources differ"
	say "two builds in two directories are equal:"
	cat "$work/first/SHA256SUMS"
	lintian --allow-root --fail-on error "$work"/first/*.deb || die "lintian finds errors in the Debian package"
}

host=$(go env GOHOSTARCH)
arches=${RELEASE_ARCH:-amd64 arm64}
source_state
revision=${RELEASE_REVISION:-$revision}
case "${1:-}" in
check) check ;;
"")
	make_release tarball deb rpm image sbom chart sums
	say "slipway $VERSION is in $out"
	;;
*) make_release "$@" ;;
esac
