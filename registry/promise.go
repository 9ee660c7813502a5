package registry

import (
	"context"
	"sync"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/storage"
)

// promises remembers contents that clients of this replica recently learnt are there. The
// catalogue has confirmed these promises.
type promises struct {
	mu sync.Mutex
	// now and past hold when the catalogue was asked, on the steady clock.
	now, past map[promise]time.Duration
	turned    time.Duration
}

type promise struct {
	seenKey
	manifest bool
}

// fresh reports whether a promise was confirmed within the given time. The argument named
// at is a time of the steady clock.
func (p *promises) fresh(k promise, at, within time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	asked, ok := p.now[k]
	if !ok {
		asked, ok = p.past[k]
	}
	return ok && at-asked < within
}

// confirm notes a promise. It forgets promises that are older than within. It forgets
// them earlier if there are too many, which costs another question for each.
func (p *promises) confirm(k promise, at, within time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now == nil || at-p.turned >= within || len(p.now) >= maxSeen {
		p.past, p.now, p.turned = p.now, map[promise]time.Duration{}, at
	}
	p.now[k] = at
}

// promiseTries bounds how often a content that the collector seems about to remove is
// looked up again.
const promiseTries = 5

// promiseShared makes sure, before a client is told that content is there, that no
// replica's collector removes it for half a grace period. Content that is not queued now
// is not due before a grace period from now. Content that is due within three quarters of
// a grace period is postponed in the catalogue before the answer. This stays true for a
// quarter of a grace period, so the catalogue is asked only once in that time.
// promiseShared returns false if the content is not there, which RAM may not know yet.
func (r *Registry) promiseShared(ctx context.Context, k promise) (here bool, err error) {
	p, grace := r.replica, r.opts.Grace
	if r.promised.fresh(k, p.Steady(), grace/4) {
		return true, nil
	}
	for range promiseTries {
		asked := p.Steady() // taken before the catalogue is asked
		here, due, err := r.cat.Garbage.Due(ctx, k.repo, k.digest, k.manifest)
		if err != nil {
			return false, storage.ClientError("look up what is promised", err)
		}
		if !here {
			r.forgetGone(k)
			return false, nil
		}
		now := r.replica.Now()
		if due.IsZero() || due.After(now.Add(grace-grace/4)) {
			r.promised.confirm(k, asked, grace/4)
			return true, nil
		}
		// The collector may be faster, so look again.
		if err := r.cat.Garbage.Postpone(ctx, []catalog.Postponed{{Repo: k.repo, Digest: k.digest, Until: now.Add(grace)}}); err != nil {
			return false, storage.ClientError("keep what is promised", err)
		}
	}
	return false, &oci.Error{Code: oci.CodeUnavailable, Message: "the content is being changed all the time; ask again"}
}

// forgetGone drops from RAM what another replica has removed.
func (r *Registry) forgetGone(k promise) {
	if k.manifest {
		r.ram.Drop(manifestKey(k.repo, string(k.digest)))
	} else {
		r.ram.Drop(blobKey(k.repo, k.digest))
	}
}
