// Package passwords checks users' passwords: Logins decides which passwords are checked
// at all, and File checks them against an htpasswd file.
//
// No log line and no error contains a password or a hash. Checking the password takes as
// long for a user who is not in the file as for a user who is.
package passwords

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"sync/atomic"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/auth/recent"
)

const (
	// RememberFor is how long a correct password is remembered, so that it need not be
	// checked again.
	RememberFor = 5 * time.Minute
	// RememberMost bounds the number of remembered passwords, which take about 1 MB.
	RememberMost = 10_000
	// queue is how many logins may wait for each login that is being checked.
	queue = 64
)

// ErrWrong is the error for unknown users and for wrong passwords.
var ErrWrong = errors.New("wrong user name or password")

// Logins decides which passwords are checked. It limits how many an address may try and how
// many are checked at once, and makes the keys under which correct passwords are remembered.
// It is safe for concurrent use.
type Logins struct {
	failures *recent.Failures
	clock    func() time.Time
	secret   [32]byte      // keys the hashes of remembered passwords; only in RAM
	slots    chan struct{} // one element per check under way
	waiting  atomic.Int64
}

// NewLogins returns Logins that check at most the given number of passwords at once. Wrong
// passwords count in failures, which may be those of other Logins too.
func NewLogins(atOnce int, failures *recent.Failures, clock func() time.Time) *Logins {
	l := &Logins{failures: failures, clock: clock, slots: make(chan struct{}, max(atOnce, 1))}
	_, _ = rand.Read(l.secret[:]) // never fails: the program ends first
	return l
}

// Do checks a password with check, unless remembered reports that it was checked a short
// time ago. The error is the error of check, or an *oci.Error TOOMANYREQUESTS with a
// *RetryError. The latter means that addr has failed too often or that too many logins
// are waiting. An error ErrWrong of check counts as a failure of addr.
func (l *Logins) Do(ctx context.Context, addr netip.Addr, remembered func() bool, check func() error) error {
	if remembered() {
		return nil
	}
	if err := l.checkBlocked(addr); err != nil {
		return err
	}
	if err := l.acquire(ctx); err != nil {
		return err
	}
	defer func() { <-l.slots }()
	// Two things may have changed while this login was waiting. The same credentials may
	// have been verified for a parallel request, or the address may have used up its
	// attempts.
	if remembered() {
		return nil
	}
	if err := l.checkBlocked(addr); err != nil {
		return err
	}
	err := check()
	if errors.Is(err, ErrWrong) {
		l.failures.Add(addr, l.clock())
	}
	return err
}

func (l *Logins) checkBlocked(addr netip.Addr) error {
	wait := l.failures.Blocked(addr, l.clock())
	if wait == 0 {
		return nil
	}
	return &oci.Error{
		Code:    oci.CodeTooManyRequests,
		Message: "too many wrong passwords from your address; wait a minute",
		Err:     &RetryError{After: wait},
	}
}

// acquire waits until one password may be checked.
func (l *Logins) acquire(ctx context.Context) error {
	if l.waiting.Add(1) > int64(cap(l.slots)*queue) {
		l.waiting.Add(-1)
		return &oci.Error{
			Code:    oci.CodeTooManyRequests,
			Message: "too many logins at once; try again",
			Err:     &RetryError{After: time.Second},
		}
	}
	defer l.waiting.Add(-1)
	select {
	case l.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return &oci.Error{Code: oci.CodeUnavailable, Message: "the login was given up", Err: context.Cause(ctx)}
	}
}

// Key returns the key under which a verified password is remembered.
func (l *Logins) Key(name, password string) recent.Key {
	mac := hmac.New(sha256.New, l.secret[:])
	var n [8]byte
	binary.LittleEndian.PutUint64(n[:], uint64(len(name)))
	mac.Write(n[:])
	io.WriteString(mac, name)
	io.WriteString(mac, password)
	return recent.Key(mac.Sum(nil))
}

// RetryError is the cause of a TOOMANYREQUESTS error.
type RetryError struct {
	// After is how long the client should wait. It becomes the Retry-After header.
	After time.Duration
}

// Error implements error.
func (e *RetryError) Error() string { return "retry after " + e.After.String() }
