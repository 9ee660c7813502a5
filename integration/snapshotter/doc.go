// Package snapshotter tests the node's snapshotter with the programs that use
// it: containerd's own test suite for snapshotters, a containerd with ctr, and
// a dockerd on that containerd. Whatever an image holds must be the same as on
// containerd's overlayfs snapshotter, be its layers unpacked or claimed.
package snapshotter
