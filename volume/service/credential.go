package service

import (
	"context"
	"errors"
	"sync"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/block"
)

// maxRefused is how many credentials a caller gets in place of one that the storage
// refused, before half of the time of a credential is over.
const maxRefused = 3

// credentials are those that were issued lately. A caller gets the same one until
// half of its time is over, so that it is always good for the other half, and so
// that asking often makes no more of them.
type credentials struct {
	mu     sync.Mutex
	issued map[caller]*issued
}

// caller is who asks, and what for.
type caller struct {
	name   string
	clones bool
}

// issued is the last credential of a caller.
type issued struct {
	mu      sync.Mutex // held while one is issued
	c       volref.Credential
	renew   time.Time // zero: there is none
	refused int
}

// lock returns the entry of a caller, which the caller of lock unlocks.
func (k *credentials) lock(who caller, now time.Time) *issued {
	for {
		e := k.of(who, now)
		e.mu.Lock()
		if k.of(who, now) == e { // and stays it while it is locked
			return e
		}
		e.mu.Unlock()
	}
}

// of returns the entry of a caller as it is at the moment. For a new one it makes
// room: it forgets those that are over and not locked.
func (k *credentials) of(who caller, now time.Time) *issued {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e := k.issued[who]; e != nil {
		return e
	}
	for other, e := range k.issued {
		if e.mu.TryLock() {
			if !now.Before(e.renew) {
				delete(k.issued, other)
			}
			e.mu.Unlock()
		}
	}
	if k.issued == nil {
		k.issued = map[caller]*issued{}
	}
	e := &issued{}
	k.issued[who] = e
	return e
}

// Credential returns what a node needs to use the volumes of an image, which a
// repository shows and which is built; with clones it may make clones. It is the one
// that the caller has already, if that is good for a while and its user is not
// refused, by what the caller says of the storage. Where the storage has credentials,
// callers are told apart by the name in ctx (oci.WithActor), and need one. Errors:
// MANIFEST_UNKNOWN, UNSUPPORTED, DENIED, UNAVAILABLE.
func (s *Service) Credential(ctx context.Context, repo string, d oci.Digest, clones bool, refused string) (volref.Credential, error) {
	st, err := s.Image(ctx, repo, d)
	if err != nil {
		return volref.Credential{}, err
	}
	if len(st.Records) == 0 {
		return volref.Credential{}, oci.Errorf(oci.CodeManifestUnknown, "manifest %s of %s has no volumes that can be used", d, repo)
	}
	store, err := s.storage.soon(ctx)
	if err != nil {
		return volref.Credential{}, unavailable(err)
	}
	is, ok := store.(Issuer)
	if !ok {
		return volref.Credential{}, nil
	}
	a := oci.ActorFrom(ctx)
	if a == nil || a.Name == "" {
		return volref.Credential{}, oci.Errorf(oci.CodeDenied, "credentials for the storage of volumes are given to users only, by a rule in auth.access for the action volume")
	}
	now := s.opts.Clock()
	e := s.credentials.lock(caller{a.Name, clones}, now)
	defer e.mu.Unlock()
	lost := refused != "" && refused == e.c.User && e.refused < maxRefused
	if now.Before(e.renew) && !lost {
		return e.c, nil
	}
	c, err := s.issue(ctx, is, clones)
	if err != nil {
		return volref.Credential{}, err
	}
	if lost && now.Before(e.renew) {
		e.refused++
	} else {
		e.refused, e.renew = 0, now.Add(s.opts.CredentialTTL/2)
	}
	e.c = c
	return c, nil
}

// issue makes a credential.
func (s *Service) issue(ctx context.Context, is Issuer, clones bool) (volref.Credential, error) {
	issue := is.ReadCredential
	if clones {
		issue = is.Credential
	}
	c, err := issue(ctx, s.opts.CredentialTTL)
	if errors.Is(err, block.ErrDenied) {
		return volref.Credential{}, &oci.Error{Code: oci.CodeUnavailable, RetryAfter: openAgain, Message: "the storage of volumes does not let the registry make credentials for nodes", Err: err}
	}
	if err != nil {
		return volref.Credential{}, unavailable(err)
	}
	if clones && c.Clones == "" {
		return volref.Credential{}, &oci.Error{Code: oci.CodeUnsupported, Message: "this registry names no namespace for containers' clones (volumes.rbd.clones_namespace)"}
	}
	s.metrics.credentials.Inc()
	return c, nil
}
