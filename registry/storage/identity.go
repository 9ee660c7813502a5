package storage

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"example.org/slipway/registry/objstore"
)

// The identity of a store is the registry's id. Two objects hold it: one beside this
// program's other objects, and one beside the blobs, since a disk may be mounted for the
// blobs alone. The catalogue has the same id. If an object is missing or holds another
// id, the store is not the one that the catalogue describes.
const (
	ownIDKey   = "slipway/registry"
	blobsIDKey = BlobPrefix + "sha256/slipway-registry"
)

var idKeys = [...]string{ownIDKey, blobsIDKey}

// storeID is what an identity object holds, as JSON.
type storeID struct {
	Registry string `json:"registry"`
}

// StoreError says that the object store is not the one that the catalogue describes.
type StoreError struct {
	// Other says that the store belongs to another registry. Otherwise the store is
	// empty, or was put there in place of the right one.
	Other bool
	// What describes what was found, and what to do about it.
	What string
}

// Error implements error.
func (e *StoreError) Error() string { return e.What }

// storeWatch holds what is known about the store's identity.
type storeWatch struct {
	s *Storage
	// away is nil while the store is the right one.
	away atomic.Pointer[StoreError]
	// id is the registry's id once catalogue and store agree on it.
	id atomic.Pointer[string]

	mu sync.Mutex // held during a check; guards what follows
	// recovered says that what the last run left in the store is settled.
	recovered bool
	// unwritten says that a failure to write the identity has been logged.
	unwritten bool
}

// watchEvery is how often the store's identity is checked while no request checks it.
const watchEvery = 5 * time.Second

// sampled is how many contents, and how many packs, are looked for if the identity is
// missing.
const sampled = 16

// Check returns nil if the object store is the one that the catalogue describes, and
// a *StoreError if it is not. Any other error says that this cannot be determined now.
// Until the next check, requests follow the result of this one.
func (s *Storage) Check(ctx context.Context) error {
	if s.opts.Anonymous {
		return nil
	}
	w := &s.identity
	if err := LockPatiently(ctx, w.mu.TryLock); err != nil { // a store may take long to answer
		return fmt.Errorf("wait for a look at the object store: %w", err)
	}
	defer w.mu.Unlock()
	err := w.identify(ctx)
	var away *StoreError
	if errors.As(err, &away) {
		if w.away.Swap(away) == nil {
			s.log.Error("the object store is not this registry's; requests that need it are answered 503", "err", away)
		}
		return away
	}
	if err != nil {
		return fmt.Errorf("reach the object store: %w", err)
	}
	if !w.recovered {
		if err := s.opts.Recover(ctx); err != nil {
			return fmt.Errorf("recover after the last run: %w", err)
		}
		w.recovered = true
	}
	if w.away.Swap(nil) != nil {
		s.log.Info("the object store is back")
	}
	return nil
}

// Away returns what the last check found wrong with the object store, or nil.
func (s *Storage) Away() error {
	if away := s.identity.away.Load(); away != nil {
		return away
	}
	return nil
}

// Here is like Check, and quick in the common case that all is well. It is as cheap as one read
// of a small object. Callers that share nothing do not wait for each other.
func (s *Storage) Here(ctx context.Context) error {
	if id := s.identity.id.Load(); id != nil && s.identity.away.Load() == nil {
		if got, err := readID(ctx, s.store, blobsIDKey); err == nil && got == *id {
			return nil
		}
	}
	return s.Check(ctx)
}

// UnlessAway returns the error for a client whose request needs the object store while
// the store is away. Otherwise it returns nil. It is called after a failure: if the
// store is away, nothing is lost yet.
func (s *Storage) UnlessAway(ctx context.Context) error {
	away := s.identity.away.Load()
	if away == nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), watchEvery)
		defer cancel()
		if !errors.As(s.Here(ctx), &away) {
			return nil
		}
	}
	return storeAway(away)
}

func storeAway(err error) error {
	return unavailable("the registry's object store is away", defaultRetry, "use the object store", err)
}

// watch checks the store from time to time, so that it is noticed without a request if
// the store goes away or comes back.
func (s *Storage) watch() {
	defer s.background.Done()
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			_ = s.Check(ctx) // it logs changes, and readiness reports the rest
			cancel()
		}
	}
}

// identify compares the identity of the store with the catalogue's. If the store lacks
// the identity, the objects that the catalogue names decide. If they are there, the store
// gets the identity, as in the first run, or after a copy that left it out.
func (w *storeWatch) identify(ctx context.Context) error {
	id, settled, err := w.registryID(ctx)
	if err != nil {
		return err
	}
	var lacking []string
	for _, key := range idKeys {
		got, err := readID(ctx, w.s.store, key)
		switch {
		case err != nil:
			return err
		case got == "":
			lacking = append(lacking, key)
		case id == "":
			return &StoreError{Other: true, What: fmt.Sprintf("the object store belongs to registry %s, and the catalogue is new: name the catalogue that belongs to the store, "+
				"or restore a backup (slipway restore)", got)}
		case got != id:
			return &StoreError{Other: true, What: fmt.Sprintf("the object store belongs to registry %s, and the catalogue to %s: name the store that belongs to the catalogue, "+
				"or the catalogue that belongs to the store", got, id)}
		}
	}
	if settled && len(lacking) == 0 {
		w.id.Store(&id)
		return nil
	}
	asked, here, err := w.sample(ctx)
	if err != nil {
		return err
	}
	if settled && (asked == 0 || here < asked) || here == 0 && asked > 0 {
		return &StoreError{What: fmt.Sprintf("the object store is empty or not this registry's: it lacks %s, and %d of %d objects that were looked for; "+
			"mount its disk, or name the right store; if nothing else is left of it, accept it as it is with slipway fsck --adopt-store", lacking[0], asked-here, asked)}
	}
	return w.mark(ctx, lacking)
}

// registryID asks the catalogue for the id until the id is settled, which means that it
// will not change.
func (w *storeWatch) registryID(ctx context.Context) (id string, settled bool, err error) {
	if known := w.id.Load(); known != nil {
		return *known, true, nil
	}
	return w.s.cat.Settings.RegistryID(ctx)
}

// sample looks for some of the objects that the catalogue names: contents, and packs,
// which may be on a separate disk.
func (w *storeWatch) sample(ctx context.Context) (asked, here int, err error) {
	keys, err := w.s.opts.Facts.Sample(ctx, sampled)
	if err != nil {
		return 0, 0, err
	}
	for _, key := range keys {
		_, err := w.s.store.Stat(ctx, key)
		if err == nil || errors.Is(err, objstore.ErrCorrupt) {
			here++
		} else if !errors.Is(err, objstore.ErrNotExist) {
			return 0, 0, err
		}
	}
	return len(keys), here, nil
}

// mark writes this registry's id into the store. If the process crashes halfway, the id
// is only proposed, and the next start goes on with it. If the identity cannot be
// written, for example because the disk is full, the registry serves all the same.
func (w *storeWatch) mark(ctx context.Context, lacking []string) error {
	if w.s.opts.ReadOnly {
		return nil
	}
	id, err := w.s.cat.Settings.ProposeRegistryID(ctx, newRegistryID())
	if err == nil {
		err = WriteID(ctx, w.s.store, id, lacking...)
	}
	if err == nil {
		err = w.s.cat.Settings.SettleRegistryID(ctx, id)
	}
	var other *StoreError
	switch {
	case err == nil:
		w.id.Store(&id)
	case errors.As(err, &other):
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	case !w.unwritten:
		w.unwritten = true
		w.s.log.Warn("write the registry's id into the object store; it is tried again", "err", err)
	}
	return nil
}

// Adopt makes the object store belong to this registry, although the store lacks the
// registry's id and contents. It refuses a store that belongs to another registry.
func (s *Storage) Adopt(ctx context.Context) error {
	if err := s.Check(ctx); err == nil {
		return nil
	} else if away := (*StoreError)(nil); !errors.As(err, &away) || away.Other {
		return err
	}
	id, err := s.cat.Settings.ProposeRegistryID(ctx, newRegistryID())
	if err == nil {
		err = WriteID(ctx, s.store, id)
	}
	if err == nil {
		err = s.cat.Settings.SettleRegistryID(ctx, id)
	}
	if err != nil {
		return fmt.Errorf("adopt the object store: %w", err)
	}
	return s.Check(ctx)
}

func newRegistryID() string {
	b := make([]byte, 16)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// WriteID writes a registry's id into a store, unless the store has another id.
// Without keys it writes the whole identity. Errors: *StoreError.
func WriteID(ctx context.Context, store objstore.Store, id string, keys ...string) error {
	if len(keys) == 0 {
		keys = idKeys[:]
	}
	b, err := json.Marshal(storeID{id})
	if err != nil {
		return err
	}
	for _, key := range keys {
		err := store.Put(ctx, key, append(b, '\n'), true)
		if errors.Is(err, objstore.ErrExist) {
			var got string
			switch got, err = readID(ctx, store, key); {
			case err == nil && got == "": // damaged
				err = store.Put(ctx, key, append(b, '\n'), false)
			case err == nil && got != id:
				return &StoreError{Other: true, What: fmt.Sprintf("the object store belongs to registry %s, and the catalogue to %s", got, id)}
			}
		}
		if err != nil {
			return fmt.Errorf("write %s: %w", key, err)
		}
	}
	return nil
}

// IDKeys returns the names of the objects that hold a store's identity.
func IDKeys() string { return ownIDKey + " and " + blobsIDKey }

// Owner returns the id of the registry that a store belongs to, or "" if it has
// none.
func Owner(ctx context.Context, store objstore.Store) (id string, err error) {
	for _, key := range idKeys {
		if id, err = readID(ctx, store, key); err != nil || id != "" {
			break
		}
	}
	return id, err
}

// HasID reports whether a directory contains the objects of a registry.
func HasID(dir string) bool {
	for _, key := range idKeys {
		if _, err := os.Lstat(filepath.Join(dir, key)); err == nil {
			return true
		}
	}
	return false
}

// readID reads an identity object. The result is empty if the object is missing or does
// not hold an identity.
func readID(ctx context.Context, store objstore.Store, key string) (string, error) {
	const most = 4 << 10
	obj, err := store.Get(ctx, key, 0, most)
	if errors.Is(err, objstore.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer obj.Close()
	var id storeID
	if err := json.NewDecoder(obj).Decode(&id); err != nil {
		var syntax *json.SyntaxError
		var kind *json.UnmarshalTypeError
		if !errors.As(err, &syntax) && !errors.As(err, &kind) && obj.Info().Size > 0 {
			return "", err
		}
		return "", nil
	}
	return id.Registry, nil
}
