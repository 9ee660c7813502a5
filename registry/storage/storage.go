// Package storage is the object store of a registry: under which keys contents lie, which
// registry the store belongs to, whether a content is what its digest says, and what the
// store's failures mean to a client.
//
// Nothing is sent to its end, or promised to a client, before this process has compared it with
// its digest, or has seen that it did not change since such a comparison. What turns out to be
// damaged is made suspect in the catalogue, so that the next push brings its bytes.
package storage

import (
	"context"
	"log/slog"
	"sync"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/replica"
)

// Facts are what the catalogue records about objects of the store.
type Facts interface {
	// Sample returns the keys of some objects that the store must have: up to n contents,
	// and up to n packs.
	Sample(ctx context.Context, n int) (keys []string, err error)
	// MarkSuspect records that a content is damaged, and updates RAM. marked is false if that
	// was known.
	MarkSuspect(ctx context.Context, d oci.Digest) (marked bool, err error)
	// ClearSuspect records that a content is in order.
	ClearSuspect(ctx context.Context, d oci.Digest) error
	// ObjectTag returns the store's tag of an object, or "" if it was not recorded.
	ObjectTag(ctx context.Context, d oci.Digest) (string, error)
	SetObjectTag(ctx context.Context, d oci.Digest, tag string) error
}

// Options are the options of New.
type Options struct {
	Logger *slog.Logger
	Facts  Facts
	// ReadOnly makes Writable return UNSUPPORTED, and leaves the store's identity as it is.
	ReadOnly bool
	// Anonymous says that the store has no identity, like a backup's store.
	Anonymous bool
	// Forget makes RAM forget what it knows of a blob of a repository.
	Forget func(repo string, d oci.Digest)
	// Recover settles what the last run left in the store. It is called once, as soon as
	// the store is the right one.
	Recover func(ctx context.Context) error
}

// Storage is the object store of a registry. All methods may run concurrently.
type Storage struct {
	// Locks serialise publishing and deleting the object of a digest.
	Locks Locks

	cat     *catalog.Catalog
	store   objstore.Store
	replica *replica.Replica
	opts    Options
	log     *slog.Logger
	// distant says that each request to the store goes to another machine.
	distant bool
	// opener is store if it has that ability, and otherwise nil.
	opener objstore.Opener

	trust    trust
	checks   checks
	identity storeWatch

	background sync.WaitGroup
	stop       chan struct{}
}

// New returns the storage that the catalogue describes and the store holds.
func New(cat *catalog.Catalog, store objstore.Store, p *replica.Replica, o Options) *Storage {
	s := &Storage{cat: cat, store: store, replica: p, opts: o, log: o.Logger, stop: make(chan struct{})}
	s.identity.s = s
	_, s.distant = objstore.As[objstore.Distant](store)
	s.opener, _ = objstore.As[objstore.Opener](store)
	return s
}

// Watch begins to check the store's identity from time to time, so that it is noticed
// without a request if the store goes away or comes back.
func (s *Storage) Watch() {
	s.background.Add(1)
	go s.watch()
}

// Close ends the background work. It must be called once.
func (s *Storage) Close() {
	close(s.stop)
	s.background.Wait()
}

// Reset forgets what was seen of objects.
func (s *Storage) Reset() {
	s.trust.mu.Lock()
	defer s.trust.mu.Unlock()
	s.trust.now, s.trust.past = nil, nil
}
