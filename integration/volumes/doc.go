// Package volumes tests images as volumes from outside, on a real Ceph: a registry that builds
// them, and nodes whose containers read and write them, with containerd. Trees are compared with
// overlayfs's trees of the same layers. The container itself checks every byte that it reads.
//
// One cluster serves all tests, each in its own namespaces. What a test leaves in the cluster and
// on its nodes is counted: images, clones, watchers, mounts, loop devices. The binary must have the
// rbd driver. It is SLIPWAY_CEPH_BIN, or SLIPWAY_BIN if that has the driver, or else one that is
// built here.
//
// Environment, beside that of package integration:
//
//	SLIPWAY_CEPH_BIN            binary with the driver rbd
//	SLIPWAY_VOLUMES_CHAOS_FOR   how long TestChaos goes on, default 15s
package volumes
