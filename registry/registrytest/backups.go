package registrytest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"example.org/slipway/oci"
	"example.org/slipway/registry/backup"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/objtest"
	"example.org/slipway/registry/storage"
)

// BadSectors makes reads of objects fail until the objects are written again.
type BadSectors struct {
	mu  sync.Mutex
	bad map[string]bool
}

// Set sets whether reads of an object fail.
func (s *BadSectors) Set(key string, bad bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bad == nil {
		s.bad = map[string]bool{}
	}
	s.bad[key] = bad
}

// Faults returns the faults of the store.
func (s *BadSectors) Faults() objtest.Faults {
	return objtest.Faults{
		Before: func(op, key string) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			if op == objtest.OpRead && s.bad[key] {
				return fmt.Errorf("read %s: %w", key, syscall.EIO)
			}
			return nil
		},
		After: func(op, key string) error {
			if op == objtest.OpCommit || op == objtest.OpPut || op == objtest.OpAdopt {
				s.Set(key, false)
			}
			return nil
		},
	}
}

// Hooked is a store that calls a function once, before it reads a blob.
type Hooked struct {
	objstore.Store
	OnGet atomic.Pointer[func()]
}

// Get implements objstore.Store.
func (s *Hooked) Get(ctx context.Context, key string, off, n int64) (objstore.Object, error) {
	if strings.HasSuffix(key, "/data") {
		if f := s.OnGet.Swap(nil); f != nil {
			(*f)()
		}
	}
	return s.Store.Get(ctx, key, off, n)
}

// ReadBackup returns everything in a backup.
func ReadBackup(t testing.TB, dir string) map[string]string {
	t.Helper()
	r, done, err := backup.Open(t.Context(), dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	got := Reachable(t, r)
	if _, err := r.PushBlob(t.Context(), "a", oci.SHA256(nil), 0, bytes.NewReader(nil)); !oci.HasCode(err, oci.CodeUnsupported) {
		t.Errorf("a push into a backup: %v", err)
	}
	if err := done(context.Background()); err != nil {
		t.Errorf("close the backup: %v", err)
	}
	return got
}

// NewPack returns a pack of one file, and the key of its object.
func NewPack(content string, id byte) (key string, p gearfacts.NewPack) {
	digest := sha256.Sum256([]byte(content))
	return storage.PackPrefix + hex.EncodeToString(digest[:]), gearfacts.NewPack{Digest: digest, Size: int64(len(content)), Bytes: 1,
		Files: []gearfacts.File{{Name: gearfacts.Name{id}, Size: 1, Stored: 1}}}
}

// PutPack stores a pack and makes the catalogue name it.
func (b *Bed) PutPack(content string, id byte) (key string) {
	b.T.Helper()
	key, p := NewPack(content, id)
	err := errors.Join(b.Store.Put(b.T.Context(), key, []byte(content), true),
		gearfacts.NewFiles(b.Cat.DB).Record(b.T.Context(), gearfacts.Record{Packs: []gearfacts.NewPack{p}}))
	if err != nil {
		b.T.Fatal(err)
	}
	return key
}
