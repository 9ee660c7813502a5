// Package snapshotter is containerd's snapshotter of a Slipway node: it keeps
// the root file systems of images and containers, and takes the layers that a
// [Lower] can make available without their blobs out of the pull.
//
// To everything else it is containerd's own overlayfs snapshotter: an image
// without such layers gets the same directories, the same mounts and the same
// accounting. [Snapshotter.Serve] offers it to containerd as a proxy plugin.
//
// Terms. A snapshot is ordinary or claimed. An ordinary one has a directory
// of its own with the files that it adds. A claimed one is a record only: its
// files, and those of all layers below it, come from Lower by the name of its
// chain (the digest that identifies a layer together with those under it).
// Layers are claimed from the bottom up, so a line of snapshots is some
// ordinary ones, possibly none, over one claimed chain, possibly none.
//
// What is mounted. A line without a claimed chain is described to containerd,
// which mounts it. Over a claimed chain the snapshotter itself mounts one
// overlay for each snapshot and answers with a bind mount of it: containerd
// takes the directories of an overlay apart, and data-only layers are none
// that it knows. So the process must share its mounts with containerd's.
//
// Promises. A snapshot is whole or absent after a crash at any moment; what a
// crash left is cleared at the next start, and told to Lower. Mounts makes a
// mount again after a restart or a reboot from what is on this machine alone.
// Nothing is deleted through a mount. DESIGN.md has the states and the table
// of crashes.
package snapshotter
