package registries

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/node/gearfs"
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

// Indexes fetches the indexes of layers. containerd requests one layer after the other; the
// indexes of all layers of an image are fetched with the first.
type Indexes struct {
	convertWait time.Duration
	log         *slog.Logger
	observe     func(registry string, rtt time.Duration, bytes int64, took time.Duration)
	pack        func(src gearfs.SourceRef, host string)

	ctx        context.Context
	background func(func())
	slots      chan struct{}

	mu   sync.Mutex
	all  map[pullKey]*pull
	none map[string]time.Time // registries without Gear, and until when
}

type pullKey struct {
	reg    *Registry // one for each credential
	repo   string
	digest oci.Digest
}

// Layer is what a registry returned for a layer.
type Layer struct {
	Index  *gear.Index // nil if there is none
	Bytes  []byte      // Index as the registry encoded it
	Why    string      // why there is no index, and what helps
	DiffID string      // of the layer from which the index was made; "" if the registry does not say
}

// pull is an index being fetched.
type pull struct {
	done  chan struct{}
	layer Layer
	err   error
	// expire forgets the pull if nobody requests it.
	expire *time.Timer
}

// NewIndexes returns Indexes that fetch until ctx ends. background runs a function for
// which the caller does not wait. convertWait is how long to wait for a layer that is
// being converted. observe is told how fast a registry answered. pack requests the files of
// the profile of an image that is about to start, if the node needs them.
func NewIndexes(ctx context.Context, background func(func()), convertWait time.Duration, log *slog.Logger,
	observe func(registry string, rtt time.Duration, bytes int64, took time.Duration), pack func(src gearfs.SourceRef, host string)) *Indexes {
	return &Indexes{convertWait: convertWait, log: log, observe: observe, pack: pack, ctx: ctx, background: background,
		slots: make(chan struct{}, pullStreams), all: map[pullKey]*pull{}, none: map[string]time.Time{}}
}

// begin starts to fetch an index unless a fetch is in progress.
func (p *Indexes) begin(reg *Registry, ref Reference, d oci.Digest) *pull {
	key := pullKey{reg, ref.Repo, d}
	p.mu.Lock()
	defer p.mu.Unlock()
	if had := p.all[key]; had != nil {
		return had
	}
	q := &pull{done: make(chan struct{})}
	p.all[key] = q
	p.background(func() {
		p.fetch(reg, ref, d, q)
		q.expire = time.AfterFunc(pullKeep, func() { p.forget(key, q) })
		close(q.done)
	})
	return q
}

// Ahead requests the indexes of layers, and at the same time what else a start of the image
// needs: its profile, the capabilities of the registry, and if it starts now the files of
// the profile. That saves the start three round trips.
func (p *Indexes) Ahead(reg *Registry, ref Reference, manifest oci.Digest, layers []string, starts bool) {
	for _, d := range layers {
		p.begin(reg, ref, oci.Digest(d))
	}
	if len(reg.places) == 0 || p.without(reg) {
		return
	}
	at := reg.places[0]
	key := profileKey{reg.repo(ref.Repo), manifest}
	e := at.early.begin(key)
	if e == nil {
		return
	}
	p.background(func() {
		_ = at.gear.Check(p.ctx) // an error shows again when the answer is needed
	})
	if starts {
		p.pack(reg.Sources(ref, string(manifest))[0], ref.Host)
	}
	p.background(func() {
		e.profile, e.err = at.reg.GearProfile(p.ctx, key.repo, key.manifest)
		close(e.done)
		time.AfterFunc(pullKeep, func() { at.early.forget(key, e) })
	})
}

// without reports whether a registry is known not to have Gear.
func (p *Indexes) without(reg *Registry) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Now().Before(p.none[reg.Host])
}

func (p *Indexes) forget(key pullKey, q *pull) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all[key] == q {
		delete(p.all, key)
	}
}

// Wait returns the index of a layer, or why the registry has none.
func (p *Indexes) Wait(ctx context.Context, reg *Registry, ref Reference, d oci.Digest) (Layer, error) {
	q := p.begin(reg, ref, d)
	select {
	case <-q.done:
		q.expire.Stop() // the timer would keep the index until it fires
		p.forget(pullKey{reg, ref.Repo, d}, q)
		return q.layer, q.err
	case <-ctx.Done():
		return Layer{}, ctx.Err()
	}
}

func (p *Indexes) fetch(reg *Registry, ref Reference, d oci.Digest, q *pull) {
	if p.without(reg) {
		q.layer.Why = noGear(reg)
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
		q.layer, err = p.layer(at, reg.repo(ref.Repo), d)
		return err
	})
	switch { // another kind of registry, whose images are unpacked
	case oci.HasCode(q.err, oci.CodeUnsupported):
		p.mu.Lock()
		p.none[reg.Host] = time.Now().Add(noGearFor)
		p.mu.Unlock()
		q.layer.Why, q.err = noGear(reg), nil
	case oci.HasCode(q.err, oci.CodeNameUnknown):
		q.layer.Why, q.err = noGear(reg), nil
	}
}

// noGear returns a reason that says that a registry has no indexes at all.
func noGear(reg *Registry) string {
	return fmt.Sprintf("registry %s does not offer Gear, or not for this repository: use one that does, such as Slipway with gear.convert, or its mirror", reg.Host)
}

// unconverted returns why a layer has no index, as far as the registry says.
func unconverted(at *place, e *client.GearPendingError) string {
	if e.RetryAfter > 0 {
		return fmt.Sprintf("%s is still converting it: pull again later, or raise fetch.convert_timeout", at.url)
	}
	return fmt.Sprintf("%s could not convert it (%s): build the layer without that, or raise the limit that is named", at.url, e.Reason)
}

// layer reads the index of a layer at one place.
func (p *Indexes) layer(at *place, repo string, d oci.Digest) (got Layer, err error) {
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
			return Layer{Why: unconverted(at, pending)}, nil
		case oci.HasCode(err, oci.CodeBlobUnknown):
			return Layer{Why: fmt.Sprintf("%s has no index for it and makes none: have it convert the image with slipway convert", at.url)}, nil
		case err != nil:
			return got, err
		}
		rtt := time.Since(asked)
		var raw bytes.Buffer
		got.Index, err = gear.Decode(io.TeeReader(r, &raw), nil)
		got.Bytes = raw.Bytes()
		if err = errors.Join(err, r.Close()); err != nil {
			return Layer{}, fmt.Errorf("index of layer %s from %s: %w", d, at.url, err)
		}
		p.observe(at.url, rtt, r.Descriptor().Size, time.Since(asked)-rtt)
		if l.DiffID != ([32]byte{}) {
			got.DiffID = fmt.Sprintf("sha256:%x", l.DiffID)
		}
		return got, nil
	}
}
