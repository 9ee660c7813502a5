package registry

import (
	"context"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
)

// rehearse returns a rehearsal, which finds out what retireTag would do and changes
// nothing.
func (r *Registry) rehearse(ctx context.Context, repo string, now bool) *catalog.Rehearsal {
	o := catalog.RetireOptions{Immutable: r.immutableIn(repo)}
	if !now {
		at := r.judgingTime()
		o.Keep = func(m oci.Digest) bool {
			_, keep := r.keep(repo, m, at)
			return keep
		}
	}
	return r.cat.Retention.Rehearse(ctx, repo, o)
}

// retireTag removes a tag and what only that tag kept, unless a client was told of it
// recently. Meanwhile no client is told that the removed content is there.
func (r *Registry) retireTag(ctx context.Context, repo string, t catalog.TagInfo, now bool) (catalog.Retired, error) {
	o := catalog.RetireOptions{Immutable: r.immutableIn(repo)}
	if !now {
		r.collects.condemning.Lock()
		defer r.collects.condemning.Unlock()
		defer r.seen.settle()
		at := r.judgingTime()
		o.Keep = func(m oci.Digest) bool {
			_, keep := r.keepOrCondemn(repo, m, at)
			return keep
		}
	}
	went, err := r.cat.Retention.RetireTag(ctx, repo, t, o)
	if err != nil {
		return went, err
	}
	for _, t := range went.Tags {
		r.ram.Drop(tagKey(repo, t.Name))
	}
	for _, m := range went.Manifests {
		r.ram.Drop(manifestKey(repo, string(m)))
	}
	return went, nil
}
