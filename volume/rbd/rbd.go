// Package rbd keeps volumes as RBD images of a Ceph pool.
//
// A volume is an image of the same name in the namespace of the store. A complete volume
// has the protected snapshot "slipway", and image metadata "slipway.state" that says so.
// Readers read the snapshot, and clones depend on it. The metadata is set last when a
// volume is committed, and changed first when it is removed. So a volume counts as
// incomplete if either was interrupted. Clones are of version 2. They may be in another
// namespace than their parent, where they leave only a line in the header of the parent.
// The clones of containers, whose names begin with volref.ClonePrefix, are in a separate
// namespace, so that a node that may only read volumes can still clone them.
//
// librbd does not report readers. So everybody who has a volume open holds a lease on it:
// a lock that RADOS drops if it is not renewed in time. Leases are in a third namespace,
// in which every node may write (LeaseNamespace). A reader whose lease has lapsed answers
// no read until it has a new lease and has seen that the volume is still complete,
// because the blocks of an image that was removed meanwhile would read as zeros. Leases
// of processes of this machine that have died are broken at once. A writer also holds
// librbd's exclusive lock. A writer that takes over from a dead one makes the cluster
// block the dead one's address, so that no late write arrives.
//
// The driver needs librbd and so a C compiler. Only binaries that were built with the
// tags ceph and pacific have it (Available).
package rbd

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"example.org/slipway/oci/volref"
)

// Driver is the name of this driver in a volref.Place.
const Driver = "rbd"

// Options say which cluster to use, as which user, and which pool and namespaces in it.
type Options struct {
	// Conf is a configuration file of Ceph. If it is empty, none is read. The fields
	// below take precedence over it.
	Conf string
	// Monitors are the addresses of the cluster's monitors, as in mon_host.
	Monitors string
	// User is the user's name without "client."; empty: admin.
	User string
	// Key is the user's key, Keyring the file with it. If both are empty, Conf applies.
	Key, Keyring string

	// Pool must exist; "rbd" if empty. Namespace is the namespace of the volumes,
	// "slipway" if empty. Clones is the namespace of the containers' clones; if it is
	// empty, this store has no clones. Namespaces are made if this user may make them.
	Pool, Namespace, Clones string

	// Cluster is the fsid that the cluster must have. If it is empty, any cluster is
	// accepted.
	Cluster string

	// ObjectSize is the unit in which storage is allocated, and copied when a clone is
	// written to: a power of two from 4 KiB to 32 MiB; 0 means 256 KiB.
	ObjectSize int64

	// Timeout is how long the cluster may stay silent; 0 means 15 s.
	Timeout time.Duration
	// LeaseTime is how long a volume stays in use after the machine that had it open has
	// died; 0 means 60 s. It must be the same for all users of the volumes, and longer
	// than Timeout.
	LeaseTime time.Duration

	// Log gets the cluster's name for this connection, which errors and rbd status use.
	// nil discards it.
	Log *slog.Logger `json:"-"`
}

//lint:ignore U1000 the driver needs it, which is built with the tag ceph
func (o *Options) normalize() error {
	o.User = cmp.Or(strings.TrimPrefix(o.User, "client."), "admin")
	o.Pool, o.Namespace = cmp.Or(o.Pool, "rbd"), cmp.Or(o.Namespace, "slipway")
	o.ObjectSize = cmp.Or(o.ObjectSize, 256<<10)
	o.Timeout, o.LeaseTime = cmp.Or(o.Timeout, 15*time.Second), cmp.Or(o.LeaseTime, time.Minute)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	switch {
	case o.ObjectSize&(o.ObjectSize-1) != 0 || o.ObjectSize < 4<<10 || o.ObjectSize > 32<<20:
		return fmt.Errorf("object size %d is not a power of two from 4 KiB to 32 MiB", o.ObjectSize)
	case o.Clones == o.Namespace:
		return fmt.Errorf("volumes and clones are both in namespace %q: whoever may clone could change volumes", o.Clones)
	case LeaseNamespace(o.Namespace) == o.Clones:
		return fmt.Errorf("namespace %q is reserved for leases", o.Clones)
	case o.Timeout < 0 || o.LeaseTime <= o.Timeout:
		return fmt.Errorf("leases of %s are not longer than the timeout of %s", o.LeaseTime, o.Timeout)
	}
	return nil
}

// Connect returns the options for using the volumes of a place with a credential.
func Connect(p volref.Place, c volref.Credential) Options {
	return Options{
		Monitors: c.Monitors, User: c.User, Key: c.Key,
		Pool: p.Pool, Namespace: p.Namespace, Clones: c.Clones, Cluster: p.Cluster,
	}
}

// LeaseNamespace returns the RADOS namespace of the leases on the volumes of a namespace.
// Everybody who opens volumes must be allowed to write to it.
func LeaseNamespace(namespace string) string { return namespace + "-leases" }

// Issuer is the additional ability of a store whose own user may create users.
type Issuer interface {
	// Credential creates a user who may read volumes for ttl, and make clones if the
	// store has a namespace for them. ReadCredential creates a user who may only read.
	Credential(ctx context.Context, ttl time.Duration) (volref.Credential, error)
	ReadCredential(ctx context.Context, ttl time.Duration) (volref.Credential, error)
	// Expire removes expired users, and returns how many. A client that is connected
	// stays so until the cluster asks for a new ticket, an hour by default. New
	// connections fail.
	Expire(ctx context.Context) (int, error)
}
