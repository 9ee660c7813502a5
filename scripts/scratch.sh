# shellcheck shell=bash
# Sourced by what runs the product's own tests. They write little, forget it at once and
# wait for the disk to have it most of the time.

# scratch DIR sets TMPDIR to a tmpfs at the directory DIR, which the caller removes with
# unscratch, where this user may mount one and there is memory for it. At first DIR is empty. Servers of other
# users work in it, so no directory above DIR may be the caller's alone.
scratch() {
	local free
	free=$(awk '$1 == "MemAvailable:" { print int($2 / 1024) }' /proc/meminfo 2>/dev/null || echo 0)
	if mountpoint -q "$1" || { [ "${free:-0}" -ge 8192 ] && mount -t tmpfs -o "size=$((free / 2))m,mode=1777" slipway-test "$1" 2>/dev/null; }; then
		# What go builds lies where it would lie otherwise, and what cannot be on a tmpfs.
		export SLIPWAY_TEST_DISK=${TMPDIR:-/tmp}
		export GOTMPDIR=${GOTMPDIR:-$SLIPWAY_TEST_DISK} TMPDIR=$1
	fi
}

# unscratch DIR takes both away, with whatever tests have left in it.
unscratch() {
	if mountpoint -q "$1"; then
		umount -R "$1" 2>/dev/null || umount -R -l "$1"
	fi
	rmdir "$1"
}
