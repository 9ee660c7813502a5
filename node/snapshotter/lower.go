package snapshotter

import "context"

// Lower provides the read-only tree below a container, for chains of layers that it can
// make available without their blobs.
//
// All methods may run concurrently, also for the same chain, except that Claim and Drop
// of one chain never run at the same time. ctx is the context of containerd's request and
// ends with it. Only work after a start has the context of the Snapshotter's life.
type Lower interface {
	// Claim is called for each layer of a pull from the bottom up, as long as all layers
	// below were claimed. Returning true is a promise: Mount of this chain will work from
	// local state, now and after a restart. If Claim returns false, the layer and all
	// above it are unpacked in the ordinary way. Claim is called again for a chain that
	// is already claimed, for each image that has the chain. The Layer may then differ,
	// except for the digests.
	//
	// Claim must not fail a pull: an error is logged and treated as false. Claim must be
	// bounded to seconds, because containerd's garbage collection waits meanwhile.
	Claim(ctx context.Context, l Layer) (bool, error)

	// Mount makes the tree of a claimed chain available, unless it is, and returns its
	// directories. They stay valid until Drop. They also stay the same directories as
	// long as they work, because other directories under the same names would make the
	// overlays over them stale. Mount is called for every mount of a container, so it
	// must be fast once the tree exists.
	Mount(ctx context.Context, chain string) (Layers, error)

	// Started is called after the root file system of a container is mounted and before
	// the mount is returned. It is called again when the mount is returned again or found
	// after a restart. Whatever Started waits for delays the container. An error is
	// logged, and the container starts anyway.
	Started(ctx context.Context, c Container) error

	// Stopped is called at least once after the snapshot of a container was removed or
	// committed. container is the snapshot's key. An error is logged, and Stopped is
	// called again at the next cleaning.
	Stopped(ctx context.Context, container string) error

	// Usage returns the disk usage of a chain on this machine, without the chain below
	// it.
	Usage(ctx context.Context, chain string) (sizeBytes, inodes int64, err error)

	// Drop forgets a chain whose snapshot was removed. It is called at least once, also
	// for a chain that was not claimed because of a crash. It must succeed for an unknown
	// chain. An error, for example because a mount is still in use, is logged, and Drop
	// is called again at the next cleaning.
	Drop(ctx context.Context, chain string) error
}

// Container is a snapshot on which a container is, or is about to be, started.
type Container struct {
	// Key is the key of its snapshot. It is unique while the snapshot exists.
	Key   string
	Chain string
	// Mount is where its overlay is mounted. The overlay is unmounted before Stopped is
	// called, so no file may be kept open there.
	Mount string
	// Running says that the overlay was found mounted after a restart.
	Running bool
}

// Layer is a layer that a pull is about to unpack. Everything but Parent comes from
// containerd, which takes the labels from the manifest. A node must verify what it
// fetches by these digests before it trusts them. ChainID was checked against Parent and
// DiffID if DiffID is known.
type Layer struct {
	ChainID  string            // identifies the layer and all layers below it
	Parent   string            // chain ID of the layer below, "" for the first
	DiffID   string            // digest of the uncompressed layer; "" before containerd 2.4
	Digest   string            // digest of the blob
	Manifest string            // digest of the manifest that is pulled
	ImageRef string            // the name that is pulled
	Layers   []string          // digests of this blob and of the blobs above it
	Labels   map[string]string // all labels, including those that the manifest gives the layer
}

// Layers are the directories of a chain, for use in an overlay.
type Layers struct {
	Lower    []string // ordinary lower directories, nearest first; at least one
	Data     []string // data-only directories, searched in this order
	Metacopy bool     // the overlay needs metacopy=on to follow the redirects to Data
}
