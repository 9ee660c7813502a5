package prefetch

import (
	"context"
	"time"

	"example.org/slipway/internal/policy"
	"example.org/slipway/oci"
)

// state is the progress of the fetch of a layer.
type state uint8

const (
	queued state = iota
	running
	fetched // in the cache because of the fetch
	settled // nothing to gain: was cached, was overtaken by a request, or failed
)

// job is a layer to be fetched. It exists as long as the policy counts the layer as
// fetched ahead. Prefetcher.mu guards all fields but the first three.
type job struct {
	layer  policy.Layer
	digest oci.Digest
	key    string

	state state
	used  bool
	// dropped says that the policy no longer counts it.
	dropped bool
	began   time.Time
	took    time.Duration
	cancel  context.CancelFunc // while it is running
}

// fetch queues layers to be fetched in this order. mu is held.
func (p *Prefetcher) fetch(layers []policy.Layer, digest func(policy.Key) (oci.Digest, bool)) {
	for _, l := range layers {
		d, ok := digest(l.Key)
		if !ok { // its name was forgotten, because there are too many
			continue
		}
		j := &job{layer: l, digest: d, key: p.o.Key(d)}
		p.jobs[l.Key] = j
		p.stats.Planned++
		select {
		case p.work <- j:
		default:
			j.state = settled
			p.stats.Refused++
		}
	}
}

// fetchAll fetches until ctx ends.
func (p *Prefetcher) fetchAll(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case j := <-p.work:
			p.run(ctx, j)
		}
	}
}

// run fetches one layer.
func (p *Prefetcher) run(ctx context.Context, j *job) {
	if p.limit != nil {
		n := int(min(j.layer.Size, int64(p.limit.Burst())))
		if p.limit.WaitN(ctx, n) != nil {
			return // ctx has ended
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if !p.begin(j, cancel) {
		return
	}
	p.end(ctx, j, p.cache.Warm(ctx, j.key, j.layer.Size))
}

// begin reports whether a layer still has to be fetched.
func (p *Prefetcher) begin(j *job, cancel context.CancelFunc) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if j.state != queued {
		return false
	}
	if p.cache.Holds(j.key) != policy.Nowhere {
		j.state = settled
		p.stats.Held++
		return false
	}
	j.state, j.began, j.cancel = running, p.o.Clock(), cancel
	p.stats.Started++
	return true
}

// end notes the result of a fetch.
func (p *Prefetcher) end(ctx context.Context, j *job, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	j.cancel = nil
	j.took = p.o.Clock().Sub(j.began)
	switch {
	case err == nil:
		j.state = fetched
		p.stats.Fetched++
		p.stats.Bytes += j.layer.Size
		if j.dropped && !j.used {
			p.stats.WastedBytes += j.layer.Size
		}
	case ctx.Err() != nil:
		j.state = settled
		p.stats.Cancelled++
	default:
		j.state = settled
		p.stats.Failed++
		if !j.dropped { // so that it is tried again for the next client that will want it
			p.fetched.Drop(j.layer.Key)
		}
		p.log.Debug("fetch a layer ahead", "digest", j.digest, "bytes", j.layer.Size, "err", err)
	}
}

// taken notes that a layer was requested. A layer without a job was not fetched ahead. mu
// is held.
func (p *Prefetcher) taken(j *job, now time.Time) {
	if j == nil {
		return
	}
	switch j.state {
	case queued: // the request itself fetches the layer
		j.state = settled
		p.stats.Overtaken++
		return
	case settled:
		return
	}
	p.stats.Hits++
	if j.used {
		return
	}
	j.used = true
	p.stats.Used++
	p.stats.UsedBytes += j.layer.Size
	saved := j.took
	if j.state == running {
		saved = now.Sub(j.began)
	}
	p.stats.Saved += max(0, saved)
}

// dropped is called by the policy for a layer that it no longer counts as fetched ahead.
// It ends the layer's fetch if no request has used the layer. mu is held.
func (p *Prefetcher) dropped(l policy.Layer, used bool) {
	j := p.jobs[l.Key]
	if j == nil {
		return
	}
	delete(p.jobs, l.Key)
	j.dropped = true
	switch j.state {
	case queued:
		j.state = settled
		p.stats.Cancelled++
	case running:
		if !used {
			j.cancel()
		}
	case fetched:
		if !j.used {
			p.stats.WastedBytes += j.layer.Size
		}
	}
}
