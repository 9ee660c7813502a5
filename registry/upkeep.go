package registry

import (
	"context"
	"io"
	"log/slog"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/repair"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/replica"
	"example.org/slipway/registry/storage"
)

// Upkeep is the view that maintenance has of a registry. It gives access to what lies
// below the registry, to the locks that keep maintenance apart from pushes and
// collections, and to changes of rows that also update RAM. A caller that needs Freeze or
// Exclude and also the lock of a digest takes the lock of the digest last. The pushes of
// other replicas respect no lock of this process, but only leases and Storage.Delete.
type Upkeep struct {
	Catalog *catalog.Catalog
	Store   objstore.Store
	// Storage is what the registry knows about Store, and Replica is what it knows about the
	// processes that share the catalogue.
	Storage *storage.Storage
	Replica *replica.Replica
	Log     *slog.Logger
	// Options are the options of the registry, with their defaults.
	Options Options
	r       *Registry
}

// Upkeep returns the view that maintenance has of the registry.
func (r *Registry) Upkeep() *Upkeep {
	return &Upkeep{Catalog: r.cat, Store: r.store, Storage: r.storage, Replica: r.replica, Log: r.log, Options: r.opts, r: r}
}

// Partial reports whether a repository is a copy of a repository in another registry, and
// has only what was requested.
func (u *Upkeep) Partial(repo string) bool { return u.r.partial(repo) }

// BeginCheck begins a check. Only one check may run at a time, and ok is false while
// another one runs.
func (u *Upkeep) BeginCheck() (end func(), ok bool) {
	if !u.r.collects.checking.TryLock() {
		return nil, false
	}
	return u.r.collects.checking.Unlock, true
}

// Freeze waits until no object is being deleted, and prevents deletions until thaw is
// called.
func (u *Upkeep) Freeze(ctx context.Context) (thaw func(), err error) {
	if err := storage.LockPatiently(ctx, u.r.collects.objects.TryRLock); err != nil {
		return nil, err
	}
	return u.r.collects.objects.RUnlock, nil
}

// Exclude waits until nobody who froze the objects needs them any more. Until release is
// called, others can neither freeze nor delete objects.
func (u *Upkeep) Exclude(ctx context.Context) (release func(), err error) {
	if err := storage.LockPatiently(ctx, u.r.collects.objects.TryLock); err != nil {
		return nil, err
	}
	return u.r.collects.objects.Unlock, nil
}

// Dropped makes RAM forget a deleted row: the row of a blob or manifest, and the row of a
// tag.
func (u *Upkeep) Dropped(repo string, d oci.Digest, tag string) {
	u.r.ram.Drop(blobKey(repo, d))
	u.r.ram.Drop(manifestKey(repo, string(d)))
	u.r.ram.Drop(tagKey(repo, tag))
}

// Corrected updates RAM after a change of a content's row. done is false if there was no row to
// change.
func (u *Upkeep) Corrected(d oci.Digest, s repair.Shown, err error) (done bool, _ error) {
	return u.r.corrected(d, s, err)
}

// Heal stores the bytes of a known content again if they have its digest. done is false
// if the content is not known, or the bytes have another digest.
func (u *Upkeep) Heal(ctx context.Context, d oci.Digest, src io.Reader) (done bool, err error) {
	return u.r.heal(ctx, d, src)
}

// Relink makes a restored content visible in every repository with a manifest that needs
// it.
func (u *Upkeep) Relink(ctx context.Context, d oci.Digest) error { return u.r.relink(ctx, d) }

// Deletable is Writable for callers that delete.
func (u *Upkeep) Deletable() error { return u.r.deletable() }

// JudgingTime returns the time by which ages are judged. Setting the clock ahead makes
// nothing older.
func (u *Upkeep) JudgingTime() time.Time { return u.r.judgingTime() }

// FlushPulls records the times of last pulls that are only in RAM.
func (u *Upkeep) FlushPulls(ctx context.Context) error { return u.r.flushPulls(ctx) }

// Emit sends the event of a change.
func (u *Upkeep) Emit(ctx context.Context, e Event) error { return u.r.emit(ctx, e) }

// Immutable reports whether a tag may not be moved or removed.
func (u *Upkeep) Immutable(repo, tag string) bool {
	return u.r.opts.Immutable != nil && u.r.opts.Immutable(repo, tag)
}

// Retire removes a tag and what only that tag kept, unless a client was told of it
// recently. If now is set, it does so in any case. Errors: catalog.ErrChanged,
// catalog.ErrInUse.
func (u *Upkeep) Retire(ctx context.Context, repo string, t catalog.TagInfo, now bool) (catalog.Retired, error) {
	return u.r.retireTag(ctx, repo, t, now)
}

// Rehearse returns a rehearsal, which finds out what Retire would remove and changes
// nothing.
func (u *Upkeep) Rehearse(ctx context.Context, repo string, now bool) *catalog.Rehearsal {
	return u.r.rehearse(ctx, repo, now)
}
