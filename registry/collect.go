package registry

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/cache"
	"example.org/slipway/registry/catalog"
)

// CollectOptions of [Registry.Collect]. The zero value collects what is due.
type CollectOptions struct {
	// DryRun reports what would go and changes nothing.
	DryRun bool
	// Now also takes what has not yet waited out its grace period. It is safe
	// only while nobody pushes.
	Now bool
	// Untagged takes manifests nothing points at, whatever the policy says, and
	// looks at all manifests to find those the queue does not name.
	Untagged bool
	// Progress, if not nil, is called after each step.
	Progress func(CollectReport)
}

// CollectReport is what a collection did, or would do.
type CollectReport struct {
	// Examined candidates.
	Examined int `json:"examined"`
	// Manifests and Blobs taken out of repositories.
	Manifests int `json:"manifests"`
	Blobs     int `json:"blobs"`
	// Contents deleted from the catalogue and the object store, and their bytes.
	Contents int   `json:"contents"`
	Bytes    int64 `json:"bytes"`
	// Digests of the contents that went, only in a dry run.
	Digests []oci.Digest `json:"digests,omitempty"`
	// Freed, only in a dry run, is what nothing needs any more once the rest has
	// gone, and what goes a grace period later. With Now it goes in the same run,
	// and is counted above instead.
	FreedManifests int   `json:"freed_manifests,omitempty"`
	FreedBlobs     int   `json:"freed_blobs,omitempty"`
	FreedContents  int   `json:"freed_contents,omitempty"`
	FreedBytes     int64 `json:"freed_bytes,omitempty"`
	// AtLeast tells that a dry run did not follow all that would be freed.
	AtLeast bool `json:"at_least,omitempty"`
	// Elsewhere tells that another replica was collecting, and this one did nothing.
	Elsewhere bool          `json:"elsewhere,omitempty"`
	Took      time.Duration `json:"took"`
}

// collector lets one collection run at a time.
type collector struct {
	// objects is held for reading while a backup needs every object to stay,
	// perhaps for hours. It is taken before all others.
	objects sync.RWMutex
	mu      sync.Mutex
	// left says that Forget has left objects to be deleted.
	left atomic.Bool
	// queued says that manifests without a tag were looked for once; under mu.
	queued bool
	// condemning is held from the first keepOrCondemn of a step until settle,
	// which would else settle what another step condemned.
	condemning sync.Mutex
	// checking is held by the one check there may be.
	checking sync.Mutex
}

// lockPatiently takes a lock that may be held for minutes, unless ctx ends.
func lockPatiently(ctx context.Context, try func() bool) error {
	if err := ctx.Err(); err != nil || try() {
		return err
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !try() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
	return nil
}

// Collect removes what nothing needs any more, while pushes and pulls go on.
// Its cost grows with what has changed since the last run, not with the store.
// It may be cut off at any point and is continued by the next run.
func (r *Registry) Collect(ctx context.Context, o CollectOptions) (CollectReport, error) {
	start := time.Now()
	var rep CollectReport
	if !o.DryRun {
		if err := r.CheckStore(ctx); err != nil {
			return rep, err
		}
		if err := lockPatiently(ctx, r.collects.objects.TryLock); err != nil {
			return rep, fmt.Errorf("wait for a backup, repair or collection to end: %w", err)
		}
		defer r.collects.objects.Unlock()
	}
	if err := lockPatiently(ctx, r.collects.mu.TryLock); err != nil {
		return rep, fmt.Errorf("wait for another collection to end: %w", err)
	}
	defer r.collects.mu.Unlock()
	if o.DryRun {
		err := r.collect(ctx, o, &rep)
		rep.Took = time.Since(start)
		return rep, err
	}
	held, release, mine, err := r.alone(ctx, LeaseCollect, "gc")
	if !mine || err != nil {
		rep.Elsewhere = err == nil
		return rep, err
	}
	defer release()
	err = LeaseError(held, r.collect(held, o, &rep))
	rep.Took = time.Since(start)
	r.metrics.collected(rep, err)
	return rep, err
}

func (r *Registry) collect(ctx context.Context, o CollectOptions, rep *CollectReport) error {
	if err := r.deletable(); err != nil && !o.DryRun {
		return err
	}
	if !o.DryRun {
		if err := r.finishDeleting(ctx, rep); err != nil {
			return err
		}
	}
	// The policy may have been switched on since manifests lost their tags.
	policy := r.opts.DeleteUntagged && !r.collects.queued
	if (o.Untagged || policy) && !o.DryRun {
		r.collects.queued = true
		if err := r.cat.Garbage.QueueUntagged(ctx); err != nil {
			return fmt.Errorf("find untagged manifests: %w", err)
		}
	}
	// One time for the whole run: what a step postpones must not be due in the
	// next, which would never end.
	now := r.judgingTime()
	step := r.collectStep(o, policy, now)
	for context.Cause(ctx) == nil {
		if away := r.StoreAway(); away != nil && !o.DryRun {
			return away
		}
		if o.Now { // also what this run queues
			step.Before = r.now().Add(r.opts.Grace + time.Second)
		}
		out, last, err := r.step(ctx, step)
		switch {
		case isFull(err) && step.Max > 1 && !o.DryRun:
			step.Max /= 2 // a smaller change needs less of the disk
			continue
		case err != nil:
			return fmt.Errorf("collect garbage: %w", err)
		case !o.DryRun:
			step.Max = min(2*step.Max, mostAtOnce)
		}
		if out.Examined == 0 {
			return r.collected(ctx, o, rep)
		}
		rep.add(out, o.DryRun)
		if o.DryRun {
			rep.addFreed(out, o.Now)
			step.After = last
		} else if _, err := r.deleteObjects(ctx, out.Objects); err != nil {
			return err
		}
		if o.Progress != nil {
			o.Progress(*rep)
		}
	}
	return context.Cause(ctx)
}

// collected ends a collection that found nothing more.
func (r *Registry) collected(ctx context.Context, o CollectOptions, rep *CollectReport) error {
	if o.DryRun {
		return nil
	}
	if err := r.cat.DB.Shrink(ctx); err != nil {
		r.log.Warn("give free pages of the catalogue back to the disk; the next collection tries again", "err", err)
	}
	if r.collects.left.Swap(false) {
		return r.finishDeleting(ctx, rep)
	}
	return nil
}

// collectStep returns what each step of a collection is asked for.
func (r *Registry) collectStep(o CollectOptions, policy bool, now time.Time) catalog.CollectOptions {
	step := catalog.CollectOptions{Max: mostAtOnce, Before: now, Untagged: o.Untagged || r.opts.DeleteUntagged, KeepUntagged: r.opts.Partial, DryRun: o.DryRun}
	if o.DryRun {
		step.Max = dryStep
	}
	switch {
	case o.Now:
	case r.replica != nil && policy && !o.DryRun:
		// Manifests are due that were not queued a moment ago, when clients of other
		// replicas may have been told of them. They get the time that others have.
		step.Keep = func(string, oci.Digest) (time.Time, bool) { return r.now().Add(r.opts.Grace), true }
	case o.DryRun:
		step.Keep = func(repo string, d oci.Digest) (time.Time, bool) { return r.keep(repo, d, now) }
	default:
		step.Keep = func(repo string, d oci.Digest) (time.Time, bool) { return r.keepOrCondemn(repo, d, now) }
	}
	return step
}

// mostAtOnce is how many candidates a step takes at most.
const mostAtOnce = 256

// dryStep is how many candidates a dry run looks at in one transaction, with what
// they free: more of them show more of that, but pushes wait meanwhile, for about
// half a second.
const dryStep = 4096

// addFreed counts what a step of a dry run frees; now says that a real run would
// take it too.
func (rep *CollectReport) addFreed(out catalog.Collected, now bool) {
	rep.AtLeast = rep.AtLeast || out.Cut
	if out.Freed == nil {
		return
	}
	if now {
		rep.add(*out.Freed, true)
		return
	}
	var freed CollectReport
	freed.add(*out.Freed, false)
	rep.FreedManifests += freed.Manifests
	rep.FreedBlobs += freed.Blobs
	rep.FreedContents += freed.Contents
	rep.FreedBytes += freed.Bytes
}

// keep holds back what a client was told is there within the grace period. After
// a crash the last minute of that is not known, so nothing is taken until a
// grace period after the start.
func (r *Registry) keep(repo string, d oci.Digest, now time.Time) (time.Time, bool) {
	if r.holdBack.After(now) {
		return r.holdBack, true
	}
	return r.seen.until(seenKey{repo, d}, now, r.opts.Grace)
}

// keepOrCondemn is keep for a step that takes what it does not keep. From its
// answer until settle nobody is told that the content is there.
func (r *Registry) keepOrCondemn(repo string, d oci.Digest, now time.Time) (time.Time, bool) {
	if r.holdBack.After(now) {
		return r.holdBack, true
	}
	return r.seen.untilOrCondemn(seenKey{repo, d}, now, r.opts.Grace)
}

func (rep *CollectReport) add(out catalog.Collected, dryRun bool) {
	rep.Examined += out.Examined
	for _, u := range out.Unlinked {
		if u.Manifest {
			rep.Manifests++
		} else {
			rep.Blobs++
		}
	}
	for _, list := range [][]catalog.Blob{out.Dropped, out.Objects} {
		for _, b := range list {
			rep.Contents++
			rep.Bytes += b.Size
			if dryRun {
				rep.Digests = append(rep.Digests, b.Digest)
			}
		}
	}
}

// step takes one step in the catalogue and makes RAM follow what it removed.
// The objects are left to the caller.
func (r *Registry) step(ctx context.Context, o catalog.CollectOptions) (catalog.Collected, *catalog.Candidate, error) {
	r.collects.condemning.Lock()
	defer r.collects.condemning.Unlock()
	defer r.seen.settle()
	out, last, err := r.cat.Garbage.Collect(ctx, o)
	if err != nil || o.DryRun {
		return out, last, err
	}
	r.dropUnlinked(out.Unlinked)
	return out, last, nil
}

// dropUnlinked makes RAM follow what the catalogue does not show any more.
func (r *Registry) dropUnlinked(list []catalog.Unlinked) {
	for _, u := range list {
		if u.Manifest {
			r.ram.Drop(cache.Key{Kind: kindManifest, Repo: u.Repo, Ref: string(u.Digest)})
		} else {
			r.ram.Drop(blobKey(u.Repo, u.Digest))
		}
	}
}

// finishDeleting goes on with deletions that an earlier run, or process, began.
func (r *Registry) finishDeleting(ctx context.Context, rep *CollectReport) error {
	for {
		left, err := r.cat.Garbage.Deleting(ctx, 256)
		if err != nil {
			return fmt.Errorf("look for unfinished deletions: %w", err)
		}
		if len(left) == 0 {
			return nil
		}
		rep.add(catalog.Collected{Objects: left}, false)
		granted, err := r.deleteObjects(ctx, left)
		if err != nil {
			return err
		}
		if granted == 0 { // other replicas have them
			return nil
		}
	}
}

// deleteObjects deletes contents marked as being deleted. A push of the same
// content either finds the mark gone, or brings the content back: then it is
// left alone. The locks make the two exclude each other, and where replicas share
// the catalogue its rows. granted is how many of them were this one's to delete.
func (r *Registry) deleteObjects(ctx context.Context, blobs []catalog.Blob) (granted int, err error) {
	digests := make([]oci.Digest, len(blobs))
	for i, b := range blobs {
		digests[i] = b.Digest
	}
	if r.replica != nil {
		return r.tryDelete(ctx, digests)
	}
	return len(digests), r.deleteAlone(ctx, digests)
}

func (r *Registry) deleteAlone(ctx context.Context, digests []oci.Digest) error {
	if len(digests) == 0 {
		return nil
	}
	defer r.digests.lockAll(digests)()
	var gone []oci.Digest
	var errs []error
	for _, d := range digests {
		deleting, err := r.cat.Garbage.IsDeleting(ctx, d)
		if err != nil {
			return fmt.Errorf("check %s before it is deleted: %w", d, err)
		}
		if !deleting {
			continue
		}
		if !oci.ValidDigest(d) { // of a damaged catalogue; there is no such object
			r.log.Warn("dropped a content whose digest is none", "digest", d)
			gone = append(gone, d)
			continue
		}
		if err := r.store.Delete(ctx, BlobKey(d)); err != nil {
			errs = append(errs, err)
			continue // stays marked; the next run tries again
		}
		gone = append(gone, d)
	}
	if len(gone) > 0 {
		errs = append(errs, r.cat.Garbage.Forget(ctx, gone...))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("delete objects: %w", err)
	}
	return nil
}
