package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
)

const (
	// pullStreams is how many indexes are fetched at the same time.
	pullStreams = 8
	// pullKeep is how long a fetched index is kept until its layer is requested.
	pullKeep = time.Minute
	// noGearFor is how long a registry without Gear is not asked again.
	noGearFor = time.Minute
)

// pulls fetches the indexes of layers. containerd requests one layer after the other; the
// indexes of all layers of an image are fetched with the first.
type pulls struct {
	limits *gear.Limits
	// convertWait is how long to wait for a layer that is being converted.
	convertWait time.Duration
	log         *slog.Logger
	observe     func(registry string, rtt time.Duration, bytes int64, took time.Duration)

	ctx   context.Context
	work  *sync.WaitGroup
	slots chan struct{}

	mu   sync.Mutex
	all  map[pullKey]*pull
	none map[string]time.Time // registries without Gear, and until when
}

type pullKey struct {
	reg    *registry // one for each credential
	repo   string
	digest oci.Digest
}

// fetched is what a registry returned for a layer.
type fetched struct {
	x      *gear.Index // nil if there is none
	why    string      // why there is no index, and what helps
	diffID string      // "" if the registry does not say
}

// pull is an index being fetched.
type pull struct {
	done chan struct{}
	fetched
	err error
	// expire forgets the pull if nobody requests it.
	expire *time.Timer
}

func newPulls(ctx context.Context, work *sync.WaitGroup, convertWait time.Duration, limits *gear.Limits, log *slog.Logger,
	observe func(string, time.Duration, int64, time.Duration)) *pulls {
	return &pulls{limits: limits, convertWait: convertWait, log: log, observe: observe, ctx: ctx, work: work,
		slots: make(chan struct{}, pullStreams), all: map[pullKey]*pull{}, none: map[string]time.Time{}}
}

// begin starts to fetch an index unless a fetch is in progress.
func (p *pulls) begin(reg *registry, ref reference, d oci.Digest) *pull {
	key := pullKey{reg, ref.repo, d}
	p.mu.Lock()
	defer p.mu.Unlock()
	if had := p.all[key]; had != nil {
		return had
	}
	q := &pull{done: make(chan struct{})}
	p.all[key] = q
	p.work.Add(1)
	go func() {
		defer p.work.Done()
		p.fetch(reg, ref, d, q)
		q.expire = time.AfterFunc(pullKeep, func() { p.forget(key, q) })
		close(q.done)
	}()
	return q
}

// ahead requests what a start of the image needs besides its indexes, at the same time as
// the indexes: its profile and the capabilities of the registry. That saves the start two
// round trips.
func (p *pulls) ahead(reg *registry, ref reference, manifest oci.Digest) {
	if len(reg.places) == 0 || p.without(reg) {
		return
	}
	at := reg.places[0]
	key := profileKey{reg.repo(ref.repo), manifest}
	e := at.early.begin(key)
	if e == nil {
		return
	}
	p.work.Add(2)
	go func() {
		defer p.work.Done()
		_ = at.gear.Check(p.ctx) // an error shows again when the answer is needed
	}()
	go func() {
		defer p.work.Done()
		e.profile, e.err = at.reg.GearProfile(p.ctx, key.repo, key.manifest)
		close(e.done)
		time.AfterFunc(pullKeep, func() { at.early.forget(key, e) })
	}()
}

// without reports whether a registry is known not to have Gear.
func (p *pulls) without(reg *registry) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Now().Before(p.none[reg.host])
}

func (p *pulls) forget(key pullKey, q *pull) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all[key] == q {
		delete(p.all, key)
	}
}

// wait returns the index of a layer, or why the registry has none. It also returns the
// diff ID of the layer from which the index was made, if the registry says.
func (p *pulls) wait(ctx context.Context, reg *registry, ref reference, d oci.Digest) (fetched, error) {
	q := p.begin(reg, ref, d)
	select {
	case <-q.done:
		q.expire.Stop() // the timer would keep the index until it fires
		p.forget(pullKey{reg, ref.repo, d}, q)
		return q.fetched, q.err
	case <-ctx.Done():
		return fetched{}, ctx.Err()
	}
}

func (p *pulls) fetch(reg *registry, ref reference, d oci.Digest, q *pull) {
	if p.without(reg) {
		q.why = noGear(reg)
		return
	}
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-p.ctx.Done():
		q.err = p.ctx.Err()
		return
	}
	q.err = reg.try(p.ctx, func(at *place) (err error) {
		q.fetched, err = p.layer(at, reg.repo(ref.repo), d)
		return err
	})
	switch { // another kind of registry, whose images are unpacked
	case oci.HasCode(q.err, oci.CodeUnsupported):
		p.mu.Lock()
		p.none[reg.host] = time.Now().Add(noGearFor)
		p.mu.Unlock()
		q.why, q.err = noGear(reg), nil
	case oci.HasCode(q.err, oci.CodeNameUnknown):
		q.why, q.err = noGear(reg), nil
	}
}

// noGear returns a reason that says that a registry has no indexes at all.
func noGear(reg *registry) string {
	return fmt.Sprintf("registry %s does not offer Gear, or not for this repository: use one that does, such as Slipway with gear.convert, or its mirror", reg.host)
}

// unconverted returns why a layer has no index, as far as the registry says.
func unconverted(at *place, e *client.GearPendingError) string {
	if e.RetryAfter > 0 {
		return fmt.Sprintf("%s is still converting it: pull again later, or raise fetch.convert_timeout", at.url)
	}
	return fmt.Sprintf("%s could not convert it (%s): build the layer without that, or raise the limit that is named", at.url, e.Reason)
}

// layer reads the index of a layer at one place.
func (p *pulls) layer(at *place, repo string, d oci.Digest) (got fetched, err error) {
	began := time.Now()
	for {
		asked := time.Now()
		r, l, err := at.reg.GearLayer(p.ctx, repo, d)
		var pending *client.GearPendingError
		switch {
		case errors.As(err, &pending) && pending.RetryAfter > 0 && time.Since(began) < p.convertWait:
			select {
			case <-time.After(min(pending.RetryAfter, p.convertWait)):
				continue
			case <-p.ctx.Done():
				return got, p.ctx.Err()
			}
		case errors.As(err, &pending):
			p.log.Info("a layer is unpacked, as the registry has not converted it", "layer", d, "repository", repo, "reason", pending)
			return fetched{why: unconverted(at, pending)}, nil
		case oci.HasCode(err, oci.CodeBlobUnknown):
			return fetched{why: fmt.Sprintf("%s has no index for it and makes none: have it convert the image with slipway convert", at.url)}, nil
		case err != nil:
			return got, err
		}
		rtt := time.Since(asked)
		got.x, err = gear.Decode(r, p.limits)
		if err = errors.Join(err, r.Close()); err != nil {
			return fetched{}, fmt.Errorf("index of layer %s from %s: %w", d, at.url, err)
		}
		p.observe(at.url, rtt, r.Descriptor().Size, time.Since(asked)-rtt)
		if l.DiffID != ([32]byte{}) {
			got.diffID = fmt.Sprintf("sha256:%x", l.DiffID)
		}
		return got, nil
	}
}
