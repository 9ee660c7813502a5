package snapshotter

import "context"

// Lower provides the read-only tree below a container for chains of layers
// that it can make available without their blobs.
//
// All methods may run concurrently, for one chain too; but Claim and Drop of
// one chain never run at the same time. ctx is that of containerd's request
// and ends with it; only what is done after a start has the context of the
// Snapshotter's life.
type Lower interface {
	// Claim is asked for each layer of a pull from the bottom up, as long as
	// all below were claimed. True is a promise: Mount of this chain will
	// work from local state, now and after a restart. False has the layer
	// and all above it unpacked in the ordinary way. Claim is called again
	// for a chain that is claimed already, by each image that has it, and
	// what is in the Layer may then differ but for the digests.
	//
	// It must not fail a pull: an error is logged and taken for false. And it
	// should take seconds at most, by whatever bound: containerd keeps its
	// garbage collection waiting meanwhile.
	Claim(ctx context.Context, l Layer) (bool, error)

	// Mount makes the tree of a claimed chain available, if it is not, and
	// tells its directories. They stay valid until Drop, and stay the same
	// directories for as long as they work: other ones under the same names
	// make the overlays over them stale. Called for every mount of a
	// container, so it must be quick once the tree is there.
	Mount(ctx context.Context, chain string) (Layers, error)

	// Started is told when the root file system of a container is mounted and
	// before it is handed out, and again when it is handed out again or is
	// found mounted after a restart. What it waits for delays the container.
	// An error is logged, and the container starts all the same.
	Started(ctx context.Context, c Container) error

	// Stopped is told when the snapshot of a container, of which it gets the
	// key, was removed or
	// committed, at least once. An error is logged and Stopped told again at
	// the next cleaning.
	Stopped(ctx context.Context, container string) error

	// Usage is what a chain costs on this machine over the chain below it.
	Usage(ctx context.Context, chain string) (sizeBytes, inodes int64, err error)

	// Drop forgets a chain whose snapshot was removed. It is called at least
	// once, also for a chain that a crash kept from being claimed, and must
	// take an unknown chain for success. An error, for instance of a mount
	// that is still in use, is logged and Drop called again at the next
	// cleaning.
	Drop(ctx context.Context, chain string) error
}

// Container is a snapshot that a container is, or is about to be, started on.
type Container struct {
	// Key of its snapshot, which is unique while it exists.
	Key   string
	Chain string
	// Mount is where its overlay is mounted. It is unmounted before Stopped is
	// told, so nothing may be kept open there.
	Mount string
	// Running tells that the overlay was found mounted after a restart.
	Running bool
}

// Layer is a layer that a pull is about to unpack. Everything but Parent is
// said by containerd, which takes the labels from the manifest: a node must
// verify what it fetches by these digests before it believes them. ChainID
// has been checked against Parent and DiffID where DiffID is known.
type Layer struct {
	ChainID  string            // the layer and all below it
	Parent   string            // chain ID of the layer below, "" for the first
	DiffID   string            // digest of the uncompressed layer; "" before containerd 2.4
	Digest   string            // digest of the blob
	Manifest string            // digest of the manifest that is pulled
	ImageRef string            // the name that is pulled
	Layers   []string          // digests of this blob and those above it
	Labels   map[string]string // all labels, so also what the manifest says of the layer
}

// Layers are the directories of a chain, for an overlay.
type Layers struct {
	Lower    []string // ordinary lower directories, nearest first; at least one
	Data     []string // data-only directories, searched in this order
	Metacopy bool     // the overlay needs metacopy=on to follow the redirects to Data
}
