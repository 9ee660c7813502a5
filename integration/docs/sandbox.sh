# shellcheck shell=bash
# Runs a page's script where it can do no harm, as the first process there.
#
#   unshare --mount --pid --net --ipc --uts --fork --kill-child bash sandbox.sh DIR SLIPWAY TOOLS
#
# DIR is a directory for this run alone, with the script page.sh in it. The machine's
# tree is seen through an overlay whose changes are in memory; /tmp, /run, /var/lib and
# /page, where the script runs, are directories in DIR. SLIPWAY is the program under test
# and TOOLS a directory of others. Programs of releases, slipway-VERSION, are beside TOOLS. When this process ends, so does all that the script left.
set -eu
dir=$1 slipway=$2 tools=$3
new=$dir/root
mount --make-rprivate /
mkdir "$dir/over" "$new" "$dir/tmp" "$dir/lib" "$dir/run" "$dir/page"
mount -t tmpfs -o size=256m tmpfs "$dir/over"
mkdir "$dir/over/upper" "$dir/over/work"
mount -t overlay -o "lowerdir=/,upperdir=$dir/over/upper,workdir=$dir/over/work" overlay "$new"
mkdir -p "$new/page" "$new/script" "$new/opt/tools"
mount -t proc proc "$new/proc"
mount --rbind /sys "$new/sys"
mount --rbind /dev "$new/dev"
chmod 1777 "$dir/tmp"
mount --bind "$dir/tmp" "$new/tmp"
mount --bind "$dir/run" "$new/run"
mount --bind "$dir/lib" "$new/var/lib"
mount --bind "$dir/page" "$new/page"
mount --bind "$dir/script" "$new/script"
mount --bind "$tools" "$new/opt/tools"
rm -f "$new/usr/local/bin/slipway"
touch "$new/usr/local/bin/slipway"
mount --bind "$slipway" "$new/usr/local/bin/slipway"
for release in "$tools"/../slipway-*/slipway; do
	[ -e "$release" ] || continue
	name=$new/usr/local/bin/$(basename "$(dirname "$release")")
	touch "$name"
	mount --bind "$release" "$name"
done
ip link set lo up
cd "$new"
pivot_root . mnt
umount -l /mnt
mkdir /tmp/home
cd /page
env -i HOME=/tmp/home LANG=C.UTF-8 TERM=dumb \
	PATH=/usr/local/sbin:/usr/local/bin:/opt/tools:/usr/sbin:/usr/bin:/sbin:/bin \
	bash /script/page.sh </dev/null
