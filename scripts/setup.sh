#!/usr/bin/env bash
# Installs what is needed to build, test and demonstrate Slipway on Debian 12.
#
#   scripts/setup.sh build   checks for Go, make and git; installs nothing
#   scripts/setup.sh lint    what `make lint` checks with
#   scripts/setup.sh test    real clients and tools of the integration tests
#   scripts/setup.sh kubernetes  Kubernetes and etcd, for `make test-kubernetes`; takes
#                            a quarter of an hour of two processors, once
#   scripts/setup.sh systemd what `make test-systemd` boots and runs
#   scripts/setup.sh demo    what `make demo` runs
#   scripts/setup.sh bench   the servers `make bench` compares with
#   scripts/setup.sh observe Prometheus, for `make observe`
#   scripts/setup.sh release what `make release` packs and checks with
#
# A rerun with everything in place takes well under a second and uses no
# network. Go-built clients go to ${SLIPWAY_TOOLS:-~/.cache/slipway/tools}/bin,
# Debian packages through apt-get (root only; no service is started).
#
# `test` continues if a tool cannot be installed, and says so at the end: the tests that need
# the tool are then skipped, which scripts/test.sh counts as a failure unless SLIPWAY_ALLOW_SKIP
# names the tool.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
tools=${SLIPWAY_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/slipway/tools}
bin=$tools/bin
export DEBIAN_FRONTEND=noninteractive
# Debian keeps daemons outside an ordinary user's PATH, and PostgreSQL's server outside every
# user's PATH.
PATH=$PATH:/usr/sbin:/sbin:/usr/lib/postgresql/15/bin

missing=()
work=
policy= # the file that keeps servers from being started, if it was made here
trap '[ -z "$work" ] || rm -rf "$work"; [ -z "$policy" ] || rm -f "$policy"' EXIT

say() { printf 'setup: %s\n' "$*"; }
warn() { printf 'setup: %s\n' "$*" >&2; }

usage() {
	echo "usage: scripts/setup.sh build|lint|test|kubernetes|systemd|demo|bench|observe|release" >&2
	exit 2
}

# check_go stops the script unless the Go toolchain is at least the version in go.mod. `go env
# GOVERSION` in the module prints the toolchain that would build it, so with GOTOOLCHAIN=auto an
# older Go fetches the right one here.
check_go() {
	local want have
	want=$(awk '$1 == "go" { print $2; exit }' "$root/go.mod")
	if ! command -v go >/dev/null; then
		warn "Go is not installed; Slipway needs Go $want or newer (https://go.dev/doc/install)"
		exit 1
	fi
	if ! have=$(cd "$root" && go env GOVERSION 2>&1); then
		warn "Go $want or newer is needed: $have"
		exit 1
	fi
	have=${have#go}
	have=${have%%[- ]*}
	if [ "$(printf '%s\n' "$want" "$have" | sort -V | head -n 1)" != "$want" ]; then
		warn "Go $want or newer is needed, found $have; install a newer Go or set GOTOOLCHAIN=auto"
		exit 1
	fi
}

check_build() {
	local c
	check_go
	for c in make git; do
		if ! command -v "$c" >/dev/null; then
			warn "$c is not installed: apt-get install $c"
			exit 1
		fi
	done
}

# apt_need takes COMMAND:PACKAGE pairs and installs the packages whose command is absent. The
# package lists are refreshed only if the first try fails, because the machine has no lists or
# old ones.
apt_need() {
	local pair packages=()
	for pair; do
		command -v "${pair%%:*}" >/dev/null || [[ " ${packages[*]} " == *" ${pair#*:} "* ]] || packages+=("${pair#*:}")
	done
	apt_install "${packages[@]}"
	for pair; do
		command -v "${pair%%:*}" >/dev/null || missing+=("${pair%%:*}")
	done
}

apt_install() {
	[ $# -gt 0 ] || return 0
	if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
		warn "not installed, and only root on Debian can install them here: $*"
		return 0
	fi
	say "installing $*"
	if ! apt-get install -y -qq --no-install-recommends "$@" </dev/null >/dev/null 2>&1; then
		say "refreshing the package lists"
		apt-get update -qq </dev/null || warn "apt-get update failed"
		apt-get install -y -qq --no-install-recommends "$@" </dev/null >/dev/null ||
			warn "apt-get install $* failed"
	fi
}

# apt_quiet does the same as apt_need for servers, and keeps their packages from starting them.
# One of them would use Slipway's port.
apt_quiet() {
	local file=/usr/sbin/policy-rc.d
	if [ "$(id -u)" = 0 ] && [ ! -e $file ]; then
		policy=$file
		printf '#!/bin/sh\nexit 101\n' >$file
		chmod 755 $file
	fi
	apt_need "$@"
	[ -z "$policy" ] || rm -f "$policy"
	policy=
}

# installed NAME PACKAGE VERSION TAGS reports whether $bin/NAME is that program at that version
# with those build tags. It reads what the linker recorded in the binary, which cannot disagree
# with the binary as a stamp file could.
installed() {
	local name=$1 package=$2 version=$3 tags=$4 info
	[ -x "$bin/$name" ] || return 1
	info=$(go version -m "$bin/$name" 2>/dev/null) || return 1
	grep -Fqx "	path	$package" <<<"$info" || return 1
	grep -q "^	mod	[^	]*	$version\(	\|\$\)" <<<"$info" || return 1
	[ -z "$tags" ] || grep -Fqx "	build	-tags=$tags" <<<"$info"
}

# go_tool NAME PACKAGE VERSION [CGO_ENABLED [TAGS]] installs one Go program. It builds beside
# $bin and then renames the program, so that an interrupted build leaves no incomplete one.
go_tool() {
	local name=$1 package=$2 version=$3 cgo=${4:-0} tags=${5:-} started=$SECONDS
	installed "$name" "$package" "$version" "$tags" && return 0
	say "building $name $version"
	mkdir -p "$bin"
	work=$(mktemp -d "$tools/build.XXXXXX")
	if (cd "$work" && CGO_ENABLED=$cgo GOBIN=$work GOFLAGS=-buildvcs=false \
		go install ${tags:+-tags "$tags"} "$package@$version" </dev/null) >"$work/log" 2>&1; then
		mv -f "$work/$name" "$bin/$name"
		say "built $name in $((SECONDS - started)) s"
	else
		warn "building $name $version failed:"
		tail -n 20 "$work/log" >&2
		missing+=("$name")
	fi
	rm -rf "$work"
}

# module_tool NAME MODULE PACKAGE VERSION [LDFLAGS] does the same as go_tool for a module that go
# install refuses because it replaces other modules by directories of its repository. The modules below
# staging are published at the same version, as v0.
module_tool() {
	local name=$1 module=$2 package=$3 version=$4 ldflags=${5:-} started=$SECONDS staged
	installed "$name" "$package" "$version" "" && return 0
	say "building $name $version"
	mkdir -p "$bin"
	work=$(mktemp -d "$tools/build.XXXXXX")
	if (
		cd "$work"
		export CGO_ENABLED=0 GOFLAGS=-buildvcs=false
		go mod init tools.invalid/build
		go mod edit -require "$module@$version"
		mod=$(go mod download -json "$module@$version" | awk -F'"' '$2 == "GoMod" { print $4 }')
		awk '$2 == "=>" && $3 ~ /^\.\/staging\// { print $1 }' "$mod" | while read -r staged; do
			go mod edit -replace "$staged=$staged@v0.${version#v*.}"
		done
		go build -mod=mod -trimpath -ldflags "-s -w $ldflags" -o "$name" "$package"
	) </dev/null >"$work/log" 2>&1; then
		mv -f "$work/$name" "$bin/$name"
		say "built $name in $((SECONDS - started)) s"
	else
		warn "building $name $version failed:"
		tail -n 20 "$work/log" >&2
		missing+=("$name")
	fi
	rm -rf "$work"
}

# npm_file PACKAGE VERSION FILE puts one file of an npm package at $tools/PACKAGE-VERSION/FILE. npm
# compares the package with its checksum, and runs nothing of it.
npm_file() {
	local package=$1 version=$2 file=$3 dir=$tools/$1-$2
	[ ! -e "$dir/$file" ] || return 0
	say "fetching $package $version"
	mkdir -p "$tools"
	work=$(mktemp -d "$tools/build.XXXXXX")
	if (cd "$work" && npm pack --silent "$package@$version" </dev/null >log 2>&1 &&
		tar -xzf "$package-$version.tgz" "package/$file"); then
		mkdir -p "$dir"
		mv -f "$work/package/$file" "$dir/$file"
	else
		warn "fetching $package $version failed:"
		[ ! -e "$work/log" ] || tail -n 20 "$work/log" >&2
		missing+=("$package")
	fi
	rm -rf "$work"
}

# jib VERSION makes $tools/jib-VERSION, once: a local repository of Maven with jib's plugin and what
# Maven needs to run it. It builds an image, so that Maven fetches all of that.
jib() {
	local version=$1 dir=$tools/jib-$1
	[ ! -e "$dir" ] || return 0
	say "fetching jib $version"
	mkdir -p "$tools"
	work=$(mktemp -d "$tools/build.XXXXXX")
	echo '<project><modelVersion>4.0.0</modelVersion><groupId>test</groupId><artifactId>image</artifactId><version>1</version></project>' >"$work/pom.xml"
	mkdir -p "$work/files" "$work/target/classes" # where jib expects compiled classes
	if (cd "$work" && mvn -q -B "-Dmaven.repo.local=$work/repository" "com.google.cloud.tools:jib-maven-plugin:$version:buildTar" \
		-Djib.from.image=scratch -Djib.to.image=image -Djib.extraDirectories.paths=files -Djib.container.entrypoint=/hello \
		-Djib.disableUpdateChecks=true </dev/null) >"$work/log" 2>&1; then
		mv -f "$work/repository" "$dir"
	else
		warn "fetching jib $version failed:"
		tail -n 20 "$work/log" >&2
		missing+=("jib-$version")
	fi
	rm -rf "$work"
}

# debian_tar NAME PACKAGES makes $tools/NAME.tar, once. It holds a minimal system like this one
# with PACKAGES, which are separated by commas.
debian_tar() {
	local suite archive=$tools/$1.tar
	[ ! -e "$archive" ] || return 0
	if [ "$(id -u)" != 0 ] || ! command -v mmdebstrap >/dev/null; then
		missing+=("$1.tar")
		return 0
	fi
	suite=$(debian_suite)
	say "making a Debian system with $2"
	mkdir -p "$tools"
	# shellcheck disable=SC2016 # mmdebstrap fills in $1
	if mmdebstrap --quiet --variant=minbase --include="$2" \
		--customize-hook='rm -rf "$1"/usr/share/locale/* "$1"/var/lib/apt/lists/*' \
		"$suite" "$archive.part.tar" </dev/null; then
		mv -f "$archive.part.tar" "$archive"
	else
		warn "mmdebstrap failed"
		missing+=("$1.tar")
	fi
}

debian_suite() {
	# shellcheck source=/dev/null
	(. /etc/os-release && echo "${VERSION_CODENAME:-bookworm}")
}

# containerd_tools installs containerd and what it needs to run containers.
containerd_tools() {
	pkg-config --exists libseccomp 2>/dev/null || apt_install libseccomp-dev
	go_tool containerd github.com/containerd/containerd/v2/cmd/containerd v2.4.2
	go_tool containerd-shim-runc-v2 github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2 v2.4.2
	go_tool ctr github.com/containerd/containerd/v2/cmd/ctr v2.4.2
	# moby's containerd store needs runc 1.2 or newer; Debian 12 has 1.1.
	go_tool runc github.com/opencontainers/runc v1.5.2 1 seccomp
}

# oldest_containerd is the oldest version with which images start lazily.
oldest_containerd=2.1.9

# systemd_tar makes the system that systemd boots in tests.
systemd_tar() {
	debian_tar "systemd-$(debian_suite)" systemd,systemd-sysv,dbus,procps,iproute2,adduser
}

# setup_systemd installs what is needed to boot a Debian with systemd, and what runs there.
setup_systemd() {
	check_build
	apt_need systemd-nspawn:systemd-container mmdebstrap:mmdebstrap dpkg-deb:dpkg nsenter:util-linux \
		skopeo:skopeo busybox:busybox-static curl:curl gcc:gcc pkg-config:pkg-config
	systemd_tar
	containerd_tools
	if [ ${#missing[@]} -gt 0 ]; then
		warn "NOT INSTALLED: ${missing[*]}; make test-systemd needs them"
		return 1
	fi
	say "everything for make test-systemd is in place"
}

setup_test() {
	check_build
	apt_need dockerd:docker.io docker:docker.io podman:podman catatonit:catatonit skopeo:skopeo \
		buildah:buildah umoci:umoci runc:runc mkfs.ext4:e2fsprogs mkfs.xfs:xfsprogs \
		mount:mount gcc:gcc pkg-config:pkg-config fsck.erofs:erofs-utils chromium:chromium
	[ -e /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf ] || apt_install fonts-dejavu-core
	# The documentation's commands use these, too.
	apt_need busybox:busybox-static htpasswd:apache2-utils curl:curl pigz:pigz python3:python3
	# These are servers: a registry to compare with, the stores on which drivers are tested,
	# the catalogue's database, load balancers in front of several replicas, and a directory of
	# users.
	apt_quiet docker-registry:docker-registry initdb:postgresql-15 \
		ceph-mon:ceph-mon ceph-osd:ceph-osd ceph:ceph-common rbd:ceph-common radosgw:radosgw radosgw-admin:radosgw \
		swift-proxy-server:swift-proxy swift-account-server:swift-account \
		swift-container-server:swift-container swift-object-server:swift-object \
		memcached:memcached swift:python3-swiftclient haproxy:haproxy nginx:nginx-light \
		prometheus:prometheus promtool:prometheus slapd:slapd ldapadd:ldap-utils
	# Headers of librbd, for the driver of volumes.
	[ -e /usr/include/rbd/librbd.h ] || apt_install librbd-dev librados-dev
	[ -e /usr/include/rbd/librbd.h ] || missing+=(librbd-dev)

	# The system in which packages are installed and upgraded.
	apt_need mmdebstrap:mmdebstrap dpkg-deb:dpkg nsenter:util-linux
	debian_tar "debian-$(debian_suite)" adduser

	# The release from which the drill of docs/drill.md upgrades.
	old_release 0.1.0 a5c7ab084adf

	go_tool crane github.com/google/go-containerregistry/cmd/crane v0.22.1
	go_tool regctl github.com/regclient/regclient/cmd/regctl v0.11.7
	containerd_tools
	old_containerd $oldest_containerd
	# The network of pods.
	go_tool bridge github.com/containernetworking/plugins/plugins/main/bridge v1.9.1
	go_tool loopback github.com/containernetworking/plugins/plugins/main/loopback v1.9.1
	go_tool host-local github.com/containernetworking/plugins/plugins/ipam/host-local v1.9.1
	# The btrfs graph driver is the only part of dockerd that needs cgo.
	go_tool dockerd github.com/moby/moby/v2/cmd/dockerd v2.0.0-beta.24 0 exclude_graphdriver_btrfs
	go_tool helm helm.sh/helm/v3/cmd/helm v3.22.0
	# What checks that pages are accessible.
	apt_need npm:npm
	npm_file axe-core 4.14.1 axe.min.js
	# What builds images of Java programs.
	apt_need mvn:maven
	jib 3.5.2
	# The conformance suite of the distribution specification, at a commit of its
	# development.
	go_tool conformance github.com/opencontainers/distribution-spec/conformance v0.0.0-20260831232431-97274622c111
	go_tool versitygw github.com/versity/versitygw/cmd/versitygw v1.8.0

	if [ ${#missing[@]} -gt 0 ]; then
		warn "NOT INSTALLED: ${missing[*]}; the tests that need them will be reported as failures"
		return 0
	fi
	say "everything for make test is in place"
}

# old_containerd VERSION builds an older containerd, with its shim and its client, in a directory of
# their own: the shim has the same name in all versions. go install refuses version 2.1, whose go.mod
# excludes versions of other modules.
old_containerd() {
	local version=$1 bin=$tools/containerd-$1 c
	for c in containerd containerd-shim-runc-v2 ctr; do
		module_tool $c github.com/containerd/containerd/v2 github.com/containerd/containerd/v2/cmd/$c "v$version"
	done
}

# old_release VERSION COMMIT makes $tools/slipway-VERSION, once: the program and the chart of a release,
# from its commit in this repository.
old_release() {
	local version=$1 commit=$2 dir=$tools/slipway-$1 started=$SECONDS
	[ ! -e "$dir" ] || return 0
	say "building slipway $version"
	mkdir -p "$tools"
	work=$(mktemp -d "$tools/build.XXXXXX")
	if (
		mkdir "$work/source" "$work/made" &&
			git -C "$root" archive "$commit" | tar -x -C "$work/source" &&
			cd "$work/source" &&
			CGO_ENABLED=0 GOFLAGS=-buildvcs=false go build -trimpath -ldflags "-s -w -X main.version=$version" -o ../made/slipway ./cmd/slipway &&
			mv deploy/helm/slipway ../made/chart
	) </dev/null >"$work/log" 2>&1; then
		mv -f "$work/made" "$dir"
		say "built slipway $version in $((SECONDS - started)) s"
	else
		warn "building slipway $version failed; it needs the history of the repository:"
		tail -n 20 "$work/log" >&2
		missing+=("slipway-$version")
	fi
	rm -rf "$work"
}

# setup_kubernetes builds a cluster's programs. Their version is set, because Helm needs to know
# the release.
setup_kubernetes() {
	local c version=v1.36.3
	check_build
	apt_need ip:iproute2 iptables:iptables busybox:busybox-static systemd-nspawn:systemd-container mmdebstrap:mmdebstrap nsenter:util-linux
	systemd_tar
	for c in kubelet kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubectl; do
		module_tool $c k8s.io/kubernetes k8s.io/kubernetes/cmd/$c $version "-X k8s.io/component-base/version.gitVersion=$version"
	done
	module_tool etcd go.etcd.io/etcd/server/v3 go.etcd.io/etcd/server/v3 v3.6.16
	go_tool coredns github.com/coredns/coredns v1.15.0
	for c in $oldest_containerd 2.2.9 2.3.7; do
		old_containerd "$c"
	done
	old_release 0.1.0 a5c7ab084adf
	if [ ${#missing[@]} -gt 0 ]; then
		warn "NOT INSTALLED: ${missing[*]}; make test-kubernetes needs them"
		return 1
	fi
}

# setup_lint installs the programs that check the sources.
setup_lint() {
	check_build
	apt_need shellcheck:shellcheck
	go_tool staticcheck honnef.co/go/tools/cmd/staticcheck v0.8.2
	go_tool govulncheck golang.org/x/vuln/cmd/govulncheck v1.9.0
	go_tool deadcode golang.org/x/tools/cmd/deadcode v0.52.0
	if [ ${#missing[@]} -gt 0 ]; then
		warn "NOT INSTALLED: ${missing[*]}; make lint needs them"
		return 1
	fi
}

setup_demo() {
	check_build
	apt_need mmdebstrap:mmdebstrap skopeo:skopeo podman:podman runc:runc ip:iproute2
	if [ ${#missing[@]} -gt 0 ]; then
		warn "NOT INSTALLED: ${missing[*]}; make demo needs them"
		return 1
	fi
	say "everything for make demo is in place"
}

# setup_bench installs the servers for which there are packages. The benchmark reports the
# others as not measured.
setup_bench() {
	check_build
	apt_quiet nginx:nginx-light docker-registry:docker-registry
	# A server that the image corpus lacks, and the program that measures it.
	apt_need mmdebstrap:mmdebstrap memcaslap:libmemcached-tools
	debian_tar memcached memcached
}

# setup_release installs the programs that make and check packages.
setup_release() {
	check_build
	apt_need dpkg-deb:dpkg xz:xz-utils lintian:lintian rpm:rpm
	go_tool helm helm.sh/helm/v3/cmd/helm v3.22.0
	if [ ${#missing[@]} -gt 0 ]; then
		warn "NOT INSTALLED: ${missing[*]}; make release needs them"
		return 1
	fi
}

setup_observe() {
	apt_quiet prometheus:prometheus
	if [ ${#missing[@]} -gt 0 ]; then
		warn "NOT INSTALLED: ${missing[*]}; make observe needs them"
		return 1
	fi
}

[ $# = 1 ] || usage
case $1 in
build) check_build ;;
lint) setup_lint ;;
test) setup_test ;;
kubernetes) setup_kubernetes ;;
systemd) setup_systemd ;;
demo) setup_demo ;;
bench) setup_bench ;;
observe) setup_observe ;;
release) setup_release ;;
*) usage ;;
esac
