package registry

import (
	"context"
)

// CatalogFile is the name of the catalogue in a data root and in a backup. It lies beside
// the directories of the objects.
const CatalogFile = "catalog.db"

// LockFile is a file in a data root that a program locks while it uses the data root.
const LockFile = "slipway.lock"

// CheckStore returns nil if the object store is the one that the catalogue describes, and
// a [*storage.StoreError] if it is not; see [storage.Storage.Check].
func (r *Registry) CheckStore(ctx context.Context) error { return r.storage.Check(ctx) }

// StoreAway returns what the last check found wrong with the object store, or nil.
func (r *Registry) StoreAway() error { return r.storage.Away() }

// AdoptStore makes the object store belong to this registry, although the store lacks the
// registry's id and contents. It refuses a store that belongs to another registry.
func (r *Registry) AdoptStore(ctx context.Context) error { return r.storage.Adopt(ctx) }

// Continue records that this registry, which was empty, has received all images of a
// backup of the registry with the given id. Its own backups may then replace that backup.
func (r *Registry) Continue(ctx context.Context, id string) error {
	return r.cat.Settings.Continue(ctx, id)
}
