# shellcheck shell=bash
# Sourced by the scripts that run the product's own tests. The tests write
# little and delete it at once, but would spend most of their time waiting for the disk.

# scratch DIR sets TMPDIR to a tmpfs at the directory DIR, if this user may mount one and there is
# memory for it. The caller removes it with unscratch. At first DIR is empty. Servers of other users
# work in it, so all users must be able to reach DIR.
scratch() {
	local free
	free=$(awk '$1 == "MemAvailable:" { print int($2 / 1024) }' /proc/meminfo 2>/dev/null || echo 0)
	if mountpoint -q "$1" || { [ "${free:-0}" -ge 8192 ] && mount -t tmpfs -o "size=$((free / 2))m,mode=1777" slipway-test "$1" 2>/dev/null; }; then
		# The build cache of go stays in its usual place, and so do files that cannot be
		# on a tmpfs.
		export SLIPWAY_TEST_DISK=${TMPDIR:-/tmp}
		export GOTMPDIR=${GOTMPDIR:-$SLIPWAY_TEST_DISK} TMPDIR=$1
	fi
}

# unscratch DIR removes the tmpfs and the directory, with everything that tests have left there.
unscratch() {
	if mountpoint -q "$1"; then
		umount -R "$1" 2>/dev/null || umount -R -l "$1"
	fi
	rmdir "$1"
}
