// Package replica represents one process among those that share a catalogue. It has the
// time on which all of them agree, and the jobs that only one of them may do at a time. A
// process that has the catalogue to itself is a replica without others.
// registry/DESIGN.md, "Several replicas", describes the protocol.
package replica

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"sync/atomic"
	"time"

	"example.org/slipway/registry/catalog/engine"
)

// These are the names of leases. One replica at a time does each job.
const (
	LeaseCollect = "gc" // also held for other jobs that would disturb a collection
	LeaseRetain  = "retention"
	LeaseUploads = "uploads"
)

// Options are the options of New.
type Options struct {
	// Name begins Owner, so that operators recognise the process. It may be empty.
	Name string
	// Lease is how long a claim or lease lasts without being renewed.
	Lease time.Duration
	// Clock tells the time. Steady returns the time since an arbitrary moment, and is
	// never set.
	Clock  func() time.Time
	Steady func() time.Duration
}

// Replica is this process.
type Replica struct {
	// Owner names this process in claims and leases. No other process ever has the same
	// name.
	Owner string
	// Lease is how long a claim or lease lasts without being renewed.
	Lease time.Duration
	// Steady returns the time since an arbitrary moment. It is never set.
	Steady func() time.Duration
	// Shared says that other processes may change the catalogue too.
	Shared bool

	db    *engine.DB
	clock func() time.Time
	// ahead is by how many nanoseconds the catalogue's clock is ahead of Steady.
	ahead atomic.Int64
}

// New returns this process as a replica of those that use the database.
func New(ctx context.Context, db *engine.DB, o Options) (*Replica, error) {
	var id [8]byte
	rand.Read(id[:]) // never fails
	p := &Replica{Owner: hex.EncodeToString(id[:]), Lease: o.Lease, Steady: o.Steady, Shared: db.Shared(), db: db, clock: o.Clock}
	if o.Name != "" {
		p.Owner = o.Name + "/" + p.Owner
	}
	return p, p.ReadClock(ctx)
}

// Now returns the time by the catalogue's clock, if it is shared. Everything that replicas
// agree on is judged by that clock. Only the speed of this machine's clock matters.
func (p *Replica) Now() time.Time {
	if !p.Shared {
		return p.clock()
	}
	return time.Unix(0, p.ahead.Load()+int64(p.Steady()))
}

// ReadClock compares the catalogue's clock with the steady clock, if the catalogue is
// shared. The catalogue read its time before the answer arrived, so the result is late
// rather than early.
func (p *Replica) ReadClock(ctx context.Context) error {
	if !p.Shared {
		return nil
	}
	at, err := p.db.Now(ctx)
	if err == nil {
		p.ahead.Store(at.UnixNano() - int64(p.Steady()))
	}
	return err
}

// Alone begins a job that only one replica may do at a time. mine is false if another
// replica is doing it. Otherwise the job ends when release is called, and at the latest
// when held ends. The argument named as tells operators what the job is.
func (p *Replica) Alone(ctx context.Context, lease, as string) (held context.Context, release func(), mine bool, err error) {
	if !p.Shared {
		return ctx, func() {}, true, nil
	}
	held, release, err = p.db.Hold(ctx, lease, p.Owner+"/"+as, p.Lease)
	if errors.Is(err, engine.ErrLeased) {
		return ctx, func() {}, false, nil
	}
	if err != nil {
		return ctx, func() {}, false, err
	}
	return held, release, true, nil
}

// AloneSoon is like Alone, but waits until no other replica does the job.
func (p *Replica) AloneSoon(ctx context.Context, lease, as string) (held context.Context, release func(), err error) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		held, release, mine, err := p.Alone(ctx, lease, as)
		if mine || err != nil {
			return held, release, err
		}
		select {
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-tick.C:
		}
	}
}

// LeaseError returns err. If the only cause of err is that a lease was lost, it returns
// an error that says so.
func LeaseError(held context.Context, err error) error {
	if cause := context.Cause(held); err != nil && errors.Is(cause, engine.ErrLeaseLost) {
		return cause
	}
	return err
}
