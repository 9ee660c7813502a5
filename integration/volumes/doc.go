// Package volumes tests images as volumes from outside, on a real Ceph: a registry that
// builds them, and nodes whose containers read and write them, with containerd. Trees
// are compared with what overlayfs has of the same layers, and every byte that a
// container reads is checked by the container itself.
//
// One cluster serves all tests, each in namespaces of its own. What a test leaves in
// the cluster and on its nodes is counted: images, clones, watchers, mounts, loop
// devices. The binary must have the driver rbd: SLIPWAY_CEPH_BIN or SLIPWAY_BIN if it
// has, else one that is built here.
//
// Environment, beside that of package integration:
//
//	SLIPWAY_CEPH_BIN            binary with the driver rbd
//	SLIPWAY_VOLUMES_CHAOS_FOR   how long TestChaos goes on, default 15s
package volumes
