// Package snapshotter is containerd's snapshotter of a Slipway node. It keeps the root
// file systems of images and containers. A [Lower] can make some layers available without
// their blobs, and the snapshotter excludes these layers from the pull.
//
// In every other respect it behaves like containerd's own overlayfs snapshotter: an image
// without such layers gets the same directories, the same mounts and the same accounting.
// [Snapshotter.Serve] offers it to containerd as a proxy plugin.
//
// Terms. A snapshot is ordinary or claimed. An ordinary snapshot has its own directory
// with the files that it adds. A claimed snapshot is only a record. Its files, and the
// files of all layers below it, come from Lower, which knows them by the name of the
// chain (the digest that identifies a layer together with all layers below it). Layers
// are claimed from the bottom up. So a line of snapshots consists of ordinary snapshots,
// if any, over one claimed chain, if any.
//
// Mounts. For a line without a claimed chain, the snapshotter describes the mounts and
// containerd makes them. Over a claimed chain the snapshotter itself mounts one overlay
// for each snapshot and returns a bind mount of it. The reason is that containerd takes
// the directories of an overlay apart and does not know data-only layers. So the process
// must share its mounts with containerd's.
//
// Guarantees. After a crash at any moment, a snapshot is whole or absent. The next start
// removes what a crash left behind, and informs Lower. After a restart or a reboot,
// Mounts makes a mount again from what is on this machine alone. Nothing is deleted
// through a mount. DESIGN.md has the states and the table of crashes.
package snapshotter
