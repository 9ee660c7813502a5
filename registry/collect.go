package registry

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/cache"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/replica"
	"example.org/slipway/registry/storage"
)

// CollectOptions are the options of [Registry.Collect]. The zero value collects what is
// due.
type CollectOptions struct {
	// DryRun reports what would be removed and changes nothing.
	DryRun bool
	// Now also removes content whose grace period has not ended. It is safe only while
	// nobody pushes.
	Now bool
	// Untagged removes manifests that nothing points at, whatever the policy says. It
	// looks at all manifests to find those that are not in the queue.
	Untagged bool
	// Progress, if not nil, is called after each step.
	Progress func(CollectReport)
}

// CollectReport is what a collection did, or would do.
type CollectReport struct {
	// Examined counts the candidates that were looked at.
	Examined int `json:"examined"`
	// Manifests and Blobs count what was removed from repositories.
	Manifests int `json:"manifests"`
	Blobs     int `json:"blobs"`
	// Contents counts the contents deleted from the catalogue and the object store, and
	// Bytes is their size.
	Contents int   `json:"contents"`
	Bytes    int64 `json:"bytes"`
	// Digests lists the deleted contents. Only a dry run sets it.
	Digests []oci.Digest `json:"digests,omitempty"`
	// The Freed fields are set only in a dry run. They count what nothing needs any more
	// once the rest is removed. A later run removes it, after another grace period. With
	// Now the same run removes it, and it counts above instead.
	FreedManifests int   `json:"freed_manifests,omitempty"`
	FreedBlobs     int   `json:"freed_blobs,omitempty"`
	FreedContents  int   `json:"freed_contents,omitempty"`
	FreedBytes     int64 `json:"freed_bytes,omitempty"`
	// AtLeast says that a dry run did not follow everything that would be freed.
	AtLeast bool `json:"at_least,omitempty"`
	// Elsewhere says that another replica was collecting, and this one did nothing.
	Elsewhere bool          `json:"elsewhere,omitempty"`
	Took      time.Duration `json:"took"`
}

// collector lets one collection run at a time.
type collector struct {
	// objects is held for reading while a backup needs every object to stay, perhaps for
	// hours. It is locked before all other locks.
	objects sync.RWMutex
	mu      sync.Mutex
	// left says that Forget has left objects for deletion.
	left atomic.Bool
	// queued says that manifests without a tag were looked for once. mu guards it.
	queued bool
	// condemning is held from the first keepOrCondemn of a step until settle. Otherwise
	// settle would settle what another step condemned.
	condemning sync.Mutex
	// checking is held by the check that runs. There is at most one.
	checking sync.Mutex
}

// Collect removes what nothing needs any more, while pushes and pulls go on. Its cost
// grows with what has changed since the last run, not with the size of the store. It may
// be interrupted at any point, and the next run continues it.
func (r *Registry) Collect(ctx context.Context, o CollectOptions) (CollectReport, error) {
	start := time.Now()
	var rep CollectReport
	if !o.DryRun {
		if err := r.storage.Check(ctx); err != nil {
			return rep, err
		}
		if err := storage.LockPatiently(ctx, r.collects.objects.TryLock); err != nil {
			return rep, fmt.Errorf("wait for a backup, repair or collection to end: %w", err)
		}
		defer r.collects.objects.Unlock()
	}
	if err := storage.LockPatiently(ctx, r.collects.mu.TryLock); err != nil {
		return rep, fmt.Errorf("wait for another collection to end: %w", err)
	}
	defer r.collects.mu.Unlock()
	if o.DryRun {
		err := r.collect(ctx, o, &rep)
		rep.Took = time.Since(start)
		return rep, err
	}
	held, release, mine, err := r.replica.Alone(ctx, replica.LeaseCollect, "gc")
	if !mine || err != nil {
		rep.Elsewhere = err == nil
		return rep, err
	}
	defer release()
	err = replica.LeaseError(held, r.collect(held, o, &rep))
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
	// The policy may have been switched on after manifests lost their tags.
	policy := r.opts.DeleteUntagged && !r.collects.queued
	if (o.Untagged || policy) && !o.DryRun {
		r.collects.queued = true
		if err := r.cat.Garbage.QueueUntagged(ctx); err != nil {
			return fmt.Errorf("find untagged manifests: %w", err)
		}
	}
	// The whole run uses one time. Otherwise what one step postpones could be due in the
	// next, and the run would never end.
	now := r.judgingTime()
	step := r.collectStep(o, policy, now)
	for context.Cause(ctx) == nil {
		if away := r.storage.Away(); away != nil && !o.DryRun {
			return away
		}
		if o.Now { // this also includes what this run queues
			step.Before = r.replica.Now().Add(r.opts.Grace + time.Second)
		}
		out, last, err := r.step(ctx, step)
		switch {
		case storage.IsFull(err) && step.Max > 1 && !o.DryRun:
			step.Max /= 2 // a smaller change needs less disk space
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
		} else if _, err := r.storage.Delete(ctx, digestsOf(out.Objects)...); err != nil {
			return err
		}
		if o.Progress != nil {
			o.Progress(*rep)
		}
	}
	return context.Cause(ctx)
}

// collected finishes a collection that found nothing more to do.
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

// collectStep returns the options for each step of a collection.
func (r *Registry) collectStep(o CollectOptions, policy bool, now time.Time) catalog.CollectOptions {
	step := catalog.CollectOptions{Max: mostAtOnce, Before: now, Untagged: o.Untagged || r.opts.DeleteUntagged, KeepUntagged: r.opts.Partial, DryRun: o.DryRun}
	if o.DryRun {
		step.Max = dryStep
	}
	switch {
	case o.Now:
	case r.replica.Shared && policy && !o.DryRun:
		// Some manifests that are due were not in the queue until a moment ago. Until then
		// clients of other replicas may have learnt that they exist. They get the same
		// grace period as others.
		step.Keep = func(string, oci.Digest) (time.Time, bool) { return r.replica.Now().Add(r.opts.Grace), true }
	case o.DryRun:
		step.Keep = func(repo string, d oci.Digest) (time.Time, bool) { return r.keep(repo, d, now) }
	default:
		step.Keep = func(repo string, d oci.Digest) (time.Time, bool) { return r.keepOrCondemn(repo, d, now) }
	}
	return step
}

// mostAtOnce is the largest number of candidates in a step.
const mostAtOnce = 256

// dryStep is how many candidates a dry run looks at in one transaction, with what they
// free. A larger number shows more of what is freed, but pushes wait meanwhile, for about
// half a second.
const dryStep = 4096

// addFreed counts what a step of a dry run frees. now says that a real run would remove
// it too.
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

// keep returns until when to keep content that a client learnt of within the grace
// period. After a crash the last minute of this knowledge is missing, so nothing is
// removed until a grace period after the start.
func (r *Registry) keep(repo string, d oci.Digest, now time.Time) (time.Time, bool) {
	if r.holdBack.After(now) {
		return r.holdBack, true
	}
	return r.seen.until(seenKey{repo, d}, now, r.opts.Grace)
}

// keepOrCondemn is like keep, for a step of the collector that removes the content unless keep
// is true. From its answer until settle, no client is told that the content exists.
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

// step performs one step in the catalogue and drops from RAM what the step removed. The caller
// deletes the objects.
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

// dropUnlinked drops from RAM what the catalogue no longer shows.
func (r *Registry) dropUnlinked(list []catalog.Unlinked) {
	for _, u := range list {
		if u.Manifest {
			r.ram.Drop(cache.Key{Kind: kindManifest, Repo: u.Repo, Ref: string(u.Digest)})
		} else {
			r.ram.Drop(blobKey(u.Repo, u.Digest))
		}
	}
}

// finishDeleting continues deletions that an earlier run, or process, began.
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
		granted, err := r.storage.Delete(ctx, digestsOf(left)...)
		if err != nil {
			return err
		}
		if granted == 0 { // other replicas have them
			return nil
		}
	}
}

func digestsOf(blobs []catalog.Blob) []oci.Digest {
	digests := make([]oci.Digest, len(blobs))
	for i, b := range blobs {
		digests[i] = b.Digest
	}
	return digests
}
