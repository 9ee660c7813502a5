// Package snapshotter tests the node's snapshotter with the programs that use it: containerd's own
// test suite for snapshotters, a containerd with ctr, and a dockerd on that containerd. Whatever an
// image holds must be the same as with containerd's overlayfs snapshotter, whether its layers are
// unpacked or claimed.
package snapshotter
