#!/usr/bin/env bash
# Shows Slipway at work with real clients, and fails if any of it does not work.
#
# It starts `bin/slipway serve` on an empty directory, makes an image from Debian
# packages, pushes it with skopeo, pulls and runs it with podman, pushes it again,
# converts it and writes its tree back from index and files, kills the registry with SIGKILL and starts it anew, checks every digest, and
# prints how long each step took. `make demo` builds bin/slipway and installs the
# clients (scripts/setup.sh demo) first.
#
# Root only, for podman. Ports are free loopback ports that the kernel chooses.
# Nothing is left behind, whether or not it succeeds.
#
#   SLIPWAY_DEMO_MIRROR   Debian mirror, default the one mmdebstrap knows
set -euo pipefail
exec </dev/null

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
slipway=$root/bin/slipway
mirror=${SLIPWAY_DEMO_MIRROR:-}
# Debian keeps daemons where an ordinary user's PATH does not look. Its own
# versions come first: what the demo says of podman holds for them.
PATH=/usr/sbin:/usr/bin:/sbin:/bin:$PATH
export LC_ALL=C
# Everything in the image bears this time, so that its digests depend on the
# packages alone.
export SOURCE_DATE_EPOCH=1700000000

work=
pid=
step=starting
began=$EPOCHREALTIME
table=()

bold= plain=
[ ! -t 1 ] || bold=$'\e[1m' plain=$'\e[0m'
say() { printf '\n%s== %s%s\n' "$bold" "$*" "$plain"; }
die() {
	printf 'demo: %s\n' "$*" >&2
	exit 1
}

# since TIME prints the seconds that have passed since $EPOCHREALTIME was TIME.
since() {
	local us=$((${EPOCHREALTIME/./} - ${1/./}))
	printf '%d.%02d' $((us / 1000000)) $((us % 1000000 / 10000))
}

# begin NAME opens a step; end TEXT [SECONDS] closes it and enters it into the
# table.
begin() {
	step=$1
	say "$1"
	started=$EPOCHREALTIME
}
end() { table+=("$(printf '%-40s %7s s   %s' "$step" "${2:-$(since "$started")}" "$1")"); }

cleanup() {
	local status=$? m
	set +e
	if [ $status -ne 0 ]; then
		printf '\ndemo: FAILED while: %s\n' "$step" >&2
		if [ -n "$work" ] && [ -s "$work/serve.log" ]; then
			echo "demo: the registry's log ends:" >&2
			tail -n 20 "$work/serve.log" >&2
		fi
	fi
	[ -z "$pid" ] || { kill -KILL "$pid"; wait "$pid"; } 2>/dev/null
	if [ -n "$work" ]; then
		[ ! -d "$work/podman" ] || podman_ rm -f -a -t 0 >/dev/null 2>&1
		# podman's mounts, innermost first; there are some only after a failure.
		awk -v d="$work/" 'index($5, d) == 1 { print $5 }' /proc/self/mountinfo | sort -r | while read -r m; do umount "$m"; done
		rm -rf "$work"
	fi
	exit $status
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# The clients get a home of their own, so that no configuration or credential of
# this machine plays a part.
clients() { HOME=$work/home XDG_CONFIG_HOME=$work/home/.config XDG_RUNTIME_DIR=$work/run REGISTRY_AUTH_FILE=$work/home/auth.json CONTAINERS_REGISTRIES_CONF=$work/home/registries.conf "$@"; }
skopeo_() { clients skopeo --policy "$work/home/.config/containers/policy.json" "$@"; }
# vfs works on every file system; runc, cgroupfs and the file log need no systemd.
podman_() {
	clients podman --root "$work/podman/root" --runroot "$work/podman/run" --tmpdir "$work/podman/tmp" --storage-driver vfs \
		--runtime runc --cgroup-manager cgroupfs --events-backend file "$@"
}

check_machine() {
	local c missing=()
	[ -x "$slipway" ] || die "bin/slipway is missing: run make build"
	[ "$(id -u)" = 0 ] || die "podman needs root here: run make demo as root"
	for c in mmdebstrap skopeo podman runc; do
		command -v "$c" >/dev/null || missing+=("$c")
	done
	[ ${#missing[@]} = 0 ] || die "not installed: ${missing[*]}; run scripts/setup.sh demo"
}

# start_registry begins to serve on the data directory and sets $pid and $addr.
start_registry() {
	local i
	: >"$work/serve.log"
	"$slipway" serve --root "$work/data" --addr 127.0.0.1:0 --debug-addr 127.0.0.1:0 >>"$work/access.log" 2>"$work/serve.log" &
	pid=$!
	for ((i = 0; i < 1000; i++)); do
		addr=$(sed -n 's/.* msg=serving addr=\([^ ]*\).*/\1/p' "$work/serve.log")
		[ -z "$addr" ] || return 0
		kill -0 "$pid" 2>/dev/null || break
		sleep 0.01
	done
	die "the registry did not start"
}

rss() { awk '$1 == "VmRSS:" { printf "%d", $2 / 1024 }' "/proc/$pid/status"; }
mib() { awk -v n="$1" 'BEGIN { printf "%.1f MiB", n / 1048576 }'; }

# blob FILE moves a file into the OCI layout under its digest and prints that.
blob() {
	local d
	d=$(sha256sum <"$1")
	d=${d%% *}
	mv "$1" "$layout/blobs/sha256/$d"
	printf '%s' "$d"
}
size_of() { stat -c %s "$layout/blobs/sha256/$1"; }

# make_image makes an OCI image of two layers from Debian packages: a Python that
# can run, and a program for it. Packages are unpacked and not configured, which
# needs no chroot and gives the same bytes every time.
make_image() {
	local base base_id app app_id config manifest arch created
	layout=$work/image
	mkdir -p "$layout/blobs/sha256" "$work/app/app"
	mmdebstrap --quiet --mode=root --variant=extract --skip=output/dev,chroot/mount \
		--include=busybox-static,python3.11-minimal \
		--customize-hook='rm -rf "$1"/etc/hostname "$1"/etc/resolv.conf "$1"/usr/share/doc "$1"/usr/share/man' \
		bookworm "$work/base.tar" ${mirror:+"$mirror"}
	cat >"$work/app/app/hello.py" <<-'PY'
		import os, sys
		files = sum(len(f) for d, _, f in os.walk("/") if not d.startswith(("/proc", "/sys", "/dev")))
		print(f"Hello from Python {sys.version.split()[0]} in a container of {files} files.")
	PY
	tar --create --file "$work/app.tar" --directory "$work/app" --sort=name --owner=0 --group=0 --numeric-owner \
		--mode=u=rwX,go=rX --mtime="@$SOURCE_DATE_EPOCH" app
	base_id=$(sha256sum <"$work/base.tar")
	app_id=$(sha256sum <"$work/app.tar")
	gzip -n "$work/base.tar" "$work/app.tar"
	base=$(blob "$work/base.tar.gz")
	app=$(blob "$work/app.tar.gz")
	arch=$(dpkg --print-architecture)
	created=$(date -u -d "@$SOURCE_DATE_EPOCH" +%FT%TZ)
	printf '{"created":"%s","architecture":"%s","os":"linux","config":{"Entrypoint":["/usr/bin/python3.11","/app/hello.py"],"Env":["PATH=/usr/bin:/bin"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s","sha256:%s"]},"history":[{"created":"%s","comment":"Debian packages"},{"created":"%s","comment":"program"}]}' \
		"$created" "$arch" "${base_id%% *}" "${app_id%% *}" "$created" "$created" >"$work/config.json"
	config=$(blob "$work/config.json")
	local descriptor='{"mediaType":"application/vnd.oci.image.%s","digest":"sha256:%s","size":%d}'
	# shellcheck disable=SC2059 # the formats are composed on purpose
	printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":'"$descriptor"',"layers":['"$descriptor,$descriptor"']}' \
		config.v1+json "$config" "$(size_of "$config")" layer.v1.tar+gzip "$base" "$(size_of "$base")" \
		layer.v1.tar+gzip "$app" "$(size_of "$app")" >"$work/manifest.json"
	manifest=$(blob "$work/manifest.json")
	# shellcheck disable=SC2059
	printf '{"schemaVersion":2,"manifests":['"${descriptor%\}}"',"annotations":{"org.opencontainers.image.ref.name":"1"}}]}' \
		manifest.v1+json "$manifest" "$(size_of "$manifest")" >"$layout/index.json"
	echo '{"imageLayoutVersion":"1.0.0"}' >"$layout/oci-layout"
	image_digest=sha256:$manifest
	image_bytes=$(($(size_of "$base") + $(size_of "$app") + $(size_of "$config") + $(size_of "$manifest")))
}

push() { skopeo_ copy --quiet --dest-tls-verify=false "oci:$layout:1" "docker://$ref"; }

check_machine
work=$(mktemp -d "${TMPDIR:-/tmp}/slipway-demo.XXXXXX")
mkdir -p "$work/home/.config/containers" "$work/run" "$work/podman"
echo '{"default":[{"type":"insecureAcceptAnything"}]}' >"$work/home/.config/containers/policy.json"
echo 'unqualified-search-registries = []' >"$work/home/registries.conf"
echo '{}' >"$work/home/auth.json"

begin "start the registry on an empty directory"
start_registry
ref=$addr/demo/hello:1
echo "slipway serve --root $work/data --addr $addr"
end "$addr, $(rss) MiB of memory"

begin "make an image from Debian packages"
make_image
echo "$image_digest"
end "2 layers, $(mib "$image_bytes")"

begin "push it with skopeo"
push
echo "docker://$ref"
end "$(skopeo --version)"

begin "pull it with podman"
podman_ pull --quiet --tls-verify=false "$ref"
end "$(podman --version)"

begin "run it"
output=$(podman_ run --rm --pull=never --network host --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 "$ref")
echo "$output"
[[ $output == "Hello from Python 3."* ]] || die "the container said something else"
end "$output"

begin "push it again"
push
took=$(since "$started")
# The access log shows what the client sent; it is written once a second.
for ((i = 0; i < 300; i++)); do
	[ "$(grep -c '"PUT /v2/demo/hello/manifests/1 ' "$work/access.log")" != 2 ] || break
	sleep 0.01
done
uploads=$(awk '/"PUT .*\/manifests\// { n++ } n == 1 && /"POST .*\/blobs\/uploads\// { u++ } END { print n ":" u + 0 }' "$work/access.log")
[ "$uploads" = 2:0 ] || die "skopeo uploaded what the registry has"
echo "no upload, because every blob is there"
end "no upload: the registry has every blob" "$took"

begin "convert it to a Gear image"
"$slipway" convert "$ref" | tee "$work/convert"
end "$(sed -n 's/.*, in a layer of \(.*\)/index of \1/p' "$work/convert")"

begin "write its tree back from the Gear image"
"$slipway" export "$ref-gear" "$work/tree"
output=$(chroot "$work/tree" /usr/bin/python3.11 /app/hello.py)
echo "$output"
[[ $output == "Hello from Python 3."* ]] || die "the program in the exported tree said something else"
end "$output"

begin "list its tags"
tags=$(skopeo_ list-tags --tls-verify=false "docker://${ref%:*}")
echo "$tags"
[ "$(tr -d ' \n' <<<"$tags")" = "{\"Repository\":\"${ref%:*}\",\"Tags\":[\"1\",\"1-gear\"]}" ] || die "the tags are others"
end "2 tags"

begin "kill -9 the registry and start it again"
{ kill -KILL "$pid" && ! wait "$pid"; } 2>/dev/null
start_registry
ref=$addr/demo/hello:1
digest=$(skopeo_ inspect --tls-verify=false --format '{{.Digest}}' "docker://$ref")
[ "$digest" = "$image_digest" ] || die "the tag has digest $digest, pushed was $image_digest"
end "the image is there: ${digest:0:19}..."

begin "check everything (slipway fsck)"
"$slipway" fsck --root "$work/data" | tee "$work/fsck"
end "$(sed -n 's/^checked \(.*\) in .*/clean: \1/p' "$work/fsck")"

begin "look for garbage (slipway gc --dry-run)"
"$slipway" gc --root "$work/data" --dry-run | tee "$work/gc"
grep -q '^would delete 0 contents' "$work/gc" || die "an image that was just pushed is taken for garbage"
end "none"

begin "stop the registry"
memory=$(rss)
kill -TERM "$pid"
wait "$pid" || die "the registry ended with status $?"
pid=
end "clean exit; it used $memory MiB of memory"

say "what happened"
printf '%s\n' "${table[@]}"
printf '%-40s %7s s\n' "all of it" "$(since "$began")"
