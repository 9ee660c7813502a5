#!/usr/bin/env bash
# Shows Slipway at work with real clients, and fails if any of it does not work.
#
# It starts `bin/slipway serve` on an empty directory, makes an image from Debian
# packages, pushes it with skopeo, pulls and runs it with podman, pushes it again,
# converts it and writes its tree back from index and files, kills the registry
# with SIGKILL and starts it anew, and checks every digest. Then it shows the start
# of a container on a new node side by side, with a plain pull and with the node
# agent, over a link of 100 Mbit/s if this machine can have one. At the end it
# prints how long each step took. `make demo` builds bin/slipway and installs the
# clients (scripts/setup.sh demo) first.
#
# Root only, for podman and mounts. Ports are free loopback ports that the kernel
# chooses, and port 5000 in a network namespace of its own.
# Nothing is left behind, whether or not it succeeds.
#
#   SLIPWAY_DEMO_MIRROR   Debian mirror, default the one mmdebstrap knows
#   SLIPWAY_BIN           binary to show, default bin/slipway
set -euo pipefail
exec </dev/null

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
slipway=${SLIPWAY_BIN:-$root/bin/slipway}
mirror=${SLIPWAY_DEMO_MIRROR:-}
# Debian keeps daemons outside an ordinary user's PATH. Debian's versions come first, because
# what the demo says about podman is true of them.
PATH=/usr/sbin:/usr/bin:/sbin:/bin:$PATH
export LC_ALL=C
# Everything in the image has this time, so that its digests depend only on the packages.
export SOURCE_DATE_EPOCH=1700000000

work=
pid=
agent=
why=
link= # the network namespace of the shaped link, once there is one
step=starting
began=$EPOCHREALTIME
table=()

bold='' plain=''
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
		if [ -n "$work" ] && [ -s "$work/agent.log" ]; then
			echo "demo: the agent's log ends:" >&2
			tail -n 20 "$work/agent.log" >&2
		fi
	fi
	stop_agent
	[ -z "$pid" ] || { kill -KILL "$pid"; wait "$pid"; } 2>/dev/null
	if [ -n "$work" ]; then
		for m in podman plain; do
			store=$m
			[ ! -d "$work/$m" ] || podman_ rm -f -a -t 0 >/dev/null 2>&1
		done
		# podman's mounts, innermost first; there are some only after a failure.
		awk -v d="$work/" 'index($5, d) == 1 { print $5 }' /proc/self/mountinfo | sort -r | while read -r m; do umount "$m"; done
		rm -rf "$work"
	fi
	if [ -n "$link" ]; then
		ip link del "$near" 2>/dev/null
		ip netns del "$link"
	fi
	exit $status
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# The clients get a new home directory, so that they find no configuration or credential of this
# machine.
clients() { HOME=$work/home XDG_CONFIG_HOME=$work/home/.config XDG_RUNTIME_DIR=$work/run REGISTRY_AUTH_FILE=$work/home/auth.json CONTAINERS_REGISTRIES_CONF=$work/home/registries.conf "$@"; }
skopeo_() { clients skopeo --policy "$work/home/.config/containers/policy.json" "$@"; }
# runc, cgroupfs and the file log need no systemd. $store is a storage of podman, and $driver is
# how it keeps layers: vfs works on every file system.
store=podman
driver=vfs
podman_() {
	clients podman --root "$work/$store/root" --runroot "$work/$store/run" --tmpdir "$work/$store/tmp" --storage-driver "$driver" \
		--runtime runc --cgroup-manager cgroupfs --events-backend file "$@"
}

check_machine() {
	local c missing=()
	[ -x "$slipway" ] || die "$slipway is missing: run make build"
	[ "$(id -u)" = 0 ] || die "podman and mounts need root: run make demo as root"
	for c in mmdebstrap skopeo podman runc; do
		command -v "$c" >/dev/null || missing+=("$c")
	done
	[ ${#missing[@]} = 0 ] || die "not installed: ${missing[*]}; run scripts/setup.sh demo"
}

# start_registry starts a registry on the data directory and sets $pid and $addr. If there is a
# link, the registry runs at its far end.
start_registry() {
	local i
	: >"$work/serve.log"
	if [ -n "$link" ]; then
		printf 'version: 0.1\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: "%s", insecure_open_to_network: true}\n' \
			"$work/data" "$far_addr:5000" >"$work/registry.yml"
		# ip ends in the program it starts, so $! is the registry.
		ip netns exec "$link" "$slipway" serve --config "$work/registry.yml" >>"$work/access.log" 2>"$work/serve.log" &
	else
		"$slipway" serve --root "$work/data" --addr 127.0.0.1:0 --debug-addr 127.0.0.1:0 >>"$work/access.log" 2>"$work/serve.log" &
	fi
	pid=$!
	for ((i = 0; i < 1000; i++)); do
		addr=$(sed -n 's/.* msg=serving addr=\([^ ]*\).*/\1/p' "$work/serve.log")
		[ -z "$addr" ] || return 0
		kill -0 "$pid" 2>/dev/null || break
		sleep 0.01
	done
	die "the registry did not start"
}

stop_registry() {
	kill -TERM "$pid"
	wait "$pid" || die "the registry ended with status $?"
	pid=
}

# make_link makes a namespace behind a veth that carries 100 Mbit/s in both directions, and sets
# $link to it; if that is not possible, it says why and returns false.
make_link() {
	local id=$(($$ % 65000)) rate="tbf rate 100mbit burst 64kb latency 400ms"
	local ns=slipway-demo-$id far=swd${id}f net=10.214.$((id / 256)).$((id % 256 / 4 * 4))
	near=swd${id}n near_addr=${net%.*}.$((${net##*.} + 1)) far_addr=${net%.*}.$((${net##*.} + 2))
	command -v ip >/dev/null && command -v tc >/dev/null || { why="ip and tc are not installed" && return 1; }
	# shellcheck disable=SC2086 # words
	if ! why=$(ip netns add "$ns" 2>&1) || ! link=$ns ||
		! why=$(ip link add "$near" type veth peer name "$far" netns "$ns" 2>&1) ||
		! why=$(ip addr add "$near_addr/30" dev "$near" 2>&1 && ip link set "$near" up 2>&1) ||
		! why=$(ip -n "$ns" addr add "$far_addr/30" dev "$far" 2>&1 && ip -n "$ns" link set "$far" up 2>&1 && ip -n "$ns" link set lo up 2>&1) ||
		! why=$(tc qdisc replace dev "$near" root $rate 2>&1 && tc -n "$ns" qdisc replace dev "$far" root $rate 2>&1); then
		[ -z "$link" ] || { ip link del "$near"; ip netns del "$link"; } 2>/dev/null
		link=
		why=${why%%$'\n'*}
		return 1
	fi
}

# came prints how many bytes have come over the link, including network headers.
came() { if [ -n "$link" ]; then cat "/sys/class/net/$near/statistics/rx_bytes"; else echo 0; fi; }

# over N prints how many bytes have come since came printed N.
over() { if [ -n "$link" ]; then printf '%s over the link; ' "$(mib $(($(came) - $1)))"; fi; }

# lazy COMMAND... runs a command that uses the agent of the demo's node.
lazy() { clients "$slipway" "$@" --config "$work/agent.yml"; }

# start_agent starts an agent on an empty directory and sets $agent to its process.
start_agent() {
	local i
	mkdir -p "$work/node"
	printf 'root: %s\nregistries:\n  - {host: "%s", urls: ["http://%s"], insecure_allow_plaintext: true}\n' \
		"$work/node" "$addr" "$addr" >"$work/agent.yml"
	# A function would run in a shell, and $agent would be the shell's process.
	HOME=$work/home DOCKER_CONFIG=$work/home "$slipway" agent --config "$work/agent.yml" 2>"$work/agent.log" >&2 &
	agent=$!
	for ((i = 0; i < 1000; i++)); do
		! grep -q 'msg="agent is ready"' "$work/agent.log" || return 0
		kill -0 "$agent" 2>/dev/null || break
		sleep 0.01
	done
	die "the agent did not start"
}

# stop_agent ends the agent, if one runs. The agent then removes its mounts.
stop_agent() {
	local i
	[ -n "$agent" ] || return 0
	kill -TERM "$agent" 2>/dev/null || :
	for ((i = 0; i < 1000; i++)); do
		kill -0 "$agent" 2>/dev/null || break
		[ $i != 300 ] || kill -TERM "$agent" # a second signal, if something still uses its files
		sleep 0.01
	done
	kill -KILL "$agent" 2>/dev/null || :
	wait "$agent" 2>/dev/null || :
	agent=
}

# stop_node ends the agent and removes everything from its node.
stop_node() {
	stop_agent
	! grep -q " $work/" /proc/self/mountinfo || die "the agent left mounts: $(awk -v d="$work/" 'index($5, d) == 1 { print $5 }' /proc/self/mountinfo)"
	rm -rf "$work/node"
}

# cached prints how much the node has.
cached() { lazy agent status | sed -n 's/^cache: \([0-9]* files of [^,]*\).*/\1 on the node/p'; }

# start_lazily NAME starts a container of the image with the agent, as a step.
start_lazily() {
	begin "$1"
	before=$(came)
	output=$(lazy run --host-network "$ref")
	local took
	took=$(since "$started")
	echo "$output"
	[[ $output == "Hello from Python 3."* ]] || die "the container said something else"
	end "$(over "$before")$(cached)" "$took"
}

rss() { awk '$1 == "VmRSS:" { printf "%d", $2 / 1024 }' "/proc/$pid/status"; }
mib() { awk -v n="$1" 'BEGIN { printf "%.1f MiB", n / 1048576 }'; }

# blob FILE moves a file into the OCI layout under its digest and prints the digest.
blob() {
	local d
	d=$(sha256sum <"$1")
	d=${d%% *}
	mv "$1" "$layout/blobs/sha256/$d"
	printf '%s' "$d"
}
size_of() { stat -c %s "$layout/blobs/sha256/$1"; }

# make_image makes an OCI image of two layers from Debian packages: a Python that can run, and a
# program for it. The packages are unpacked but not configured, so that no chroot is needed and
# the bytes are always the same.
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
stop_registry
end "clean exit; it used $memory MiB of memory"

begin "put a link before the registry"
if make_link; then
	speed="100 Mbit/s"
else
	speed="loopback"
	echo "there is no shaped link here ($why): what follows goes over loopback"
fi
start_registry
ref=$addr/demo/hello:1
end "$speed${why:+: $why}"

begin "plain: pull and run with podman"
store=plain driver=overlay
mkdir -p "$work/plain"
podman_ info >/dev/null 2>&1 || driver=vfs
started=$EPOCHREALTIME
before=$(came)
podman_ pull --quiet --tls-verify=false "$ref" >/dev/null
output=$(podman_ run --rm --pull=never --network host --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 "$ref")
took=$(since "$started")
echo "$output"
[[ $output == "Hello from Python 3."* ]] || die "the container said something else"
end "$(over "$before")storage driver $driver" "$took"

begin "start the node agent"
start_agent
tier=$(lazy agent status | sed -n 's/.*in the way "\(.*\)"$/\1/p')
end "images are mounted in the way \"$tier\""

if [ "$tier" = plain ]; then
	echo "this kernel or file system cannot mount images without their contents (docs/nodes.md): no lazy start"
	table+=("lazy starts are left out: the way \"plain\" has none")
	stop_node
else
	start_lazily "lazy: run with nothing on the node"
	begin "record the start-up profile"
	lazy profile record --host-network "$ref" 2>&1 | tee "$work/profile"
	end "$(sed -n 's/^profile: //p' "$work/profile")"
	start_lazily "lazy: run again"
	stop_node
	start_agent
	start_lazily "lazy: run on a new node, with profile"
	begin "stop the agent"
	stop_node
	end "no mounts left"
fi
stop_registry

say "what happened"
printf '%s\n' "${table[@]}"
printf '%-40s %7s s\n' "all of it" "$(since "$began")"
