package engine

import (
	"context"
	"database/sql"
	"errors"
	"time"
	"unicode/utf8"
)

// ErrLeased says that somebody else has the lease.
var ErrLeased = NewVerdict("another process is doing this")

// ErrLeaseLost is the cause with which a held lease ends if it could not be prolonged.
var ErrLeaseLost = errors.New("the lease could not be prolonged")

// releaseWithin bounds how long the release of a lease takes. If the release fails, the
// lease ends by itself.
const releaseWithin = 5 * time.Second

// Hold takes a lease and prolongs it until release is called or ctx ends. held is a
// context that ends before anybody else can get the lease, if all clocks run equally
// fast. It ends a sixth of d earlier than the lease, so that work under the lease has
// time to end. Errors: ErrLeased.
func (db *DB) Hold(ctx context.Context, name, owner string, d time.Duration) (held context.Context, release func(), err error) {
	began := time.Now()
	ok, err := db.Lease(ctx, name, owner, d)
	if err != nil {
		return nil, nil, err
	}
	if !ok {
		return nil, nil, ErrLeased
	}
	held, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		db.prolong(held, cancel, name, owner, d, began)
	}()
	return held, func() {
		cancel(nil)
		<-done
		end, stop := context.WithTimeout(context.WithoutCancel(ctx), releaseWithin)
		defer stop()
		_ = db.Unlease(end, name, owner) // it ends by itself
	}, nil
}

// prolong prolongs a lease. good is a time that is not later than the start of the lease.
func (db *DB) prolong(held context.Context, cancel context.CancelCauseFunc, name, owner string, d time.Duration, good time.Time) {
	tick := time.NewTicker(d / 4)
	defer tick.Stop()
	for {
		end := time.NewTimer(time.Until(good.Add(d - d/6)))
		select {
		case <-held.Done():
			end.Stop()
			return
		case <-end.C:
			cancel(ErrLeaseLost)
			return
		case <-tick.C:
			end.Stop()
		}
		asked := time.Now()
		try, stop := context.WithDeadline(held, good.Add(d-d/6))
		ok, err := db.Lease(try, name, owner, d)
		stop()
		switch {
		case err == nil && ok:
			good = asked
		case err == nil:
			cancel(ErrLeaseLost)
			return
		}
	}
}

// Lease takes or prolongs a lease. Only the owner of the lease may do the job of that
// name. The lease ends by itself after d, by the catalogue's clock. The owner must count
// d from before the call. ok is false while somebody else has the lease.
func (db *DB) Lease(ctx context.Context, name, owner string, d time.Duration) (ok bool, err error) {
	err = db.Write(ctx, func(t *Tx) error {
		now := t.Now()
		n, err := t.Exec(`INSERT INTO leases (name, owner, until) VALUES (?, ?, ?)
			ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, until = excluded.until
			WHERE leases.owner = excluded.owner OR leases.until <= ?`, name, owner, now+d.Milliseconds(), now)
		ok = n > 0
		return err
	})
	return ok && err == nil, err
}

// Unlease ends a lease if the owner still has it.
func (db *DB) Unlease(ctx context.Context, name, owner string) error {
	return db.Write(ctx, func(t *Tx) error {
		_, err := t.Exec(`DELETE FROM leases WHERE name = ? AND owner = ?`, name, owner)
		return err
	})
}

// Leases returns the owners of the current leases whose names begin with prefix, by name.
func (db *DB) Leases(ctx context.Context, prefix string) (map[string]string, error) {
	now, err := db.Now(ctx)
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	err = db.Rows(ctx, `SELECT name, owner FROM leases WHERE substr(name, 1, ?) = ? AND until > ?`,
		[]any{utf8.RuneCountInString(prefix), prefix, now.UnixMilli()}, func(r *sql.Rows) error {
			var name, owner string
			if err := r.Scan(&name, &owner); err != nil {
				return err
			}
			found[name] = owner
			return nil
		})
	if err != nil {
		return nil, err
	}
	return found, nil
}
