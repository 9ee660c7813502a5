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

// maxRefused is how many credentials a caller gets as replacements of refused ones before
// half of the lifetime of a credential is over.
const maxRefused = 3

// credentials has the credentials that were issued recently. A caller gets the same
// credential until half of its lifetime is over. So each credential is valid for at least
// the other half, and frequent requests do not create more credentials.
type credentials struct {
	mu     sync.Mutex
	issued map[caller]*issued
}

// caller identifies who asks, and for what.
type caller struct {
	name   string
	clones bool
}

// issued is the last credential of a caller.
type issued struct {
	mu      sync.Mutex // held while a credential is issued
	c       volref.Credential
	renew   time.Time // zero: there is none
	refused int
}

// lock returns the locked entry of a caller. The caller of lock unlocks it.
func (k *credentials) lock(who caller, now time.Time) *issued {
	for {
		e := k.of(who, now)
		e.mu.Lock()
		if k.of(who, now) == e { // nobody replaces it while it is locked
			return e
		}
		e.mu.Unlock()
	}
}

// of returns the current entry of a caller. Before it adds a new entry, it removes the
// expired entries that are not locked.
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

// Credential returns what a node needs to use the volumes of an image. A repository must
// show the image, and the image must be built. If clones is set, the node may also make
// clones. Credential returns the credential that the caller already has, if it is valid
// for long enough and the caller does not report that the storage refuses its user. If
// the storage has credentials, callers are distinguished by the name in ctx
// (oci.WithActor), and need one. Errors: MANIFEST_UNKNOWN, UNSUPPORTED, DENIED,
// UNAVAILABLE.
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
