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
)

// Upkeep is the view of a registry that maintenance has: what lies below it, the locks
// that keep maintenance apart from pushes and collections, and changes that RAM follows.
// Whoever needs both takes Freeze or Exclude first, and LockDigest then.
type Upkeep struct {
	Catalog *catalog.Catalog
	Store   objstore.Store
	Log     *slog.Logger
	// Options of the registry, with their defaults.
	Options Options
	r       *Registry
}

// Upkeep returns the view that maintenance has of the registry.
func (r *Registry) Upkeep() *Upkeep {
	return &Upkeep{Catalog: r.cat, Store: r.store, Log: r.log, Options: r.opts, r: r}
}

// Now is the time by which all replicas agree.
func (u *Upkeep) Now() time.Time { return u.r.now() }

// Shared reports whether replicas share the catalogue. Their pushes heed no lock of this
// process but the leases, and DeleteUnneeded.
func (u *Upkeep) Shared() bool { return u.r.replica != nil }

// Writable returns what a client is told whose request changes something, while nothing may
// be changed; else nil.
func (u *Upkeep) Writable() error { return u.r.writable() }

// StoreHere is [Registry.CheckStore] at the cost of one read, if all is right.
func (u *Upkeep) StoreHere(ctx context.Context) error { return u.r.storeHere(ctx) }

// Partial reports whether a repository is a copy of one in another registry, of which only
// what was asked for is here.
func (u *Upkeep) Partial(repo string) bool { return u.r.partial(repo) }

// BeginCheck is for the one check that may run at a time; ok is false while another one
// does.
func (u *Upkeep) BeginCheck() (end func(), ok bool) {
	if !u.r.collects.checking.TryLock() {
		return nil, false
	}
	return u.r.collects.checking.Unlock, true
}

// Freeze waits until no object is being deleted, and keeps it so until thaw is called.
func (u *Upkeep) Freeze(ctx context.Context) (thaw func(), err error) {
	if err := lockPatiently(ctx, u.r.collects.objects.TryRLock); err != nil {
		return nil, err
	}
	return u.r.collects.objects.RUnlock, nil
}

// Exclude waits until nobody who froze the objects needs them, and keeps others from both
// freezing and deleting them until release is called.
func (u *Upkeep) Exclude(ctx context.Context) (release func(), err error) {
	if err := lockPatiently(ctx, u.r.collects.objects.TryLock); err != nil {
		return nil, err
	}
	return u.r.collects.objects.Unlock, nil
}

// LockDigest keeps pushes of a content from publishing it, and collections from deleting it.
func (u *Upkeep) LockDigest(d oci.Digest) (unlock func()) { return u.r.digests.lock(d) }

// AloneSoon waits until no other replica does a job, and keeps it so until release is
// called. The job ends with held at the latest. as says what for, to whoever looks.
func (u *Upkeep) AloneSoon(ctx context.Context, lease, as string) (held context.Context, release func(), err error) {
	return u.r.aloneSoon(ctx, lease, as)
}

// Dropped makes RAM forget a row that was deleted: of a blob or manifest, and of a tag.
func (u *Upkeep) Dropped(repo string, d oci.Digest, tag string) {
	u.r.ram.Drop(blobKey(repo, d))
	u.r.ram.Drop(manifestKey(repo, string(d)))
	u.r.ram.Drop(tagKey(repo, tag))
}

// Corrected makes RAM follow a change of a content's row. done is false where there was
// none to change.
func (u *Upkeep) Corrected(d oci.Digest, s repair.Shown, err error) (done bool, _ error) {
	return u.r.corrected(d, s, err)
}

// Doubt makes a content suspect because of what the store said of it, so that the next push
// brings its bytes. It returns an error only if the store as a whole is away.
func (u *Upkeep) Doubt(ctx context.Context, d oci.Digest, why error) error {
	return u.r.doubt(ctx, d, why)
}

// Trust ends a content's being suspect: its bytes were just read and are right.
func (u *Upkeep) Trust(d oci.Digest) { u.r.healed(d) }

// RecordTag notes the store's tag of an object whose bytes were just read and are right.
func (u *Upkeep) RecordTag(ctx context.Context, d oci.Digest, info objstore.Info) {
	u.r.recordTag(ctx, d, info)
}

// DeleteUnneeded deletes the object of a content if the catalogue does not need it, and no
// replica is publishing it. It is for a shared catalogue.
func (u *Upkeep) DeleteUnneeded(ctx context.Context, d oci.Digest) (done bool, err error) {
	granted, err := u.r.tryDelete(ctx, []oci.Digest{d})
	return granted > 0, err
}

// Heal stores the bytes of a known content again, if they have its digest. done is false
// where the content is not known, or the bytes are others.
func (u *Upkeep) Heal(ctx context.Context, d oci.Digest, src io.Reader) (done bool, err error) {
	return u.r.heal(ctx, d, src)
}

// Relink shows a content that came back in every repository with a manifest that needs it.
func (u *Upkeep) Relink(ctx context.Context, d oci.Digest) error { return u.r.relink(ctx, d) }

// Deletable is Writable for whoever deletes.
func (u *Upkeep) Deletable() error { return u.r.deletable() }

// Alone begins a job that one replica does at a time; see AloneSoon. mine is false where
// another one does it.
func (u *Upkeep) Alone(ctx context.Context, lease, as string) (held context.Context, release func(), mine bool, err error) {
	return u.r.alone(ctx, lease, as)
}

// JudgingTime is the time by which ages are judged: a clock that was set ahead makes
// nothing older.
func (u *Upkeep) JudgingTime() time.Time { return u.r.judgingTime() }

// FlushPulls records the times of last pulls that are only in RAM.
func (u *Upkeep) FlushPulls(ctx context.Context) error { return u.r.flushPulls(ctx) }

// Emit tells of a change.
func (u *Upkeep) Emit(ctx context.Context, e Event) error { return u.r.emit(ctx, e) }

// Immutable reports whether a tag may not be moved or removed.
func (u *Upkeep) Immutable(repo, tag string) bool {
	return u.r.opts.Immutable != nil && u.r.opts.Immutable(repo, tag)
}

// Retire removes a tag and what only that kept, unless a client was told of it lately; with
// now in any case. Errors: catalog.ErrChanged, catalog.ErrInUse.
func (u *Upkeep) Retire(ctx context.Context, repo string, t catalog.TagInfo, now bool) (catalog.Retired, error) {
	return u.r.retireTag(ctx, repo, t, now)
}

// Rehearse looks what Retire would remove, and changes nothing.
func (u *Upkeep) Rehearse(ctx context.Context, repo string, now bool) *catalog.Rehearsal {
	return u.r.rehearse(ctx, repo, now)
}
