// Package ceph runs a Ceph cluster of one monitor and one OSD. Its data lies in a directory, so it
// survives what a test does to the daemons. The package also reports what the cluster holds:
// images, clones, watchers, users, and the bytes that were read.
//
// It serves tests and benchmarks alike, so it returns errors. The address may be that of a bridge,
// for clients in other network namespaces. The cluster is up in about five seconds. Without a
// manager it has no statistics, so the stored bytes come from the OSD itself.
package ceph
