// Package ceph runs a Ceph cluster of one monitor and one OSD with its data in a
// directory, so that it survives what a test does to its daemons, and tells what
// is in it: images, clones, watchers, users, and the bytes that were read.
//
// It belongs to tests and benchmarks alike, so it returns errors. Addresses may be
// those of a bridge, for clients in other network namespaces. The cluster is there in
// some five seconds; without a manager it has no statistics, so what it stores is
// taken from the OSD itself.
package ceph
