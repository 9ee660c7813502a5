package registrytest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/check"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/fsstore"
	"example.org/slipway/registry/objstore/memstore"
)

// Shelf is a store in memory. A test can take parts of it away and put them back.
type Shelf struct {
	objstore.Store
	T testing.TB
	// Aside holds the objects that were taken away.
	Aside map[string][]byte
}

// NewShelf returns an empty shelf.
func NewShelf(t testing.TB) *Shelf {
	return &Shelf{Store: memstore.New(nil), T: t, Aside: map[string][]byte{}}
}

// Keys returns the keys of all objects.
func (s *Shelf) Keys() (keys []string) {
	for info, err := range s.List(s.T.Context(), "", "") {
		if err != nil {
			s.T.Fatal(err)
		}
		keys = append(keys, info.Key)
	}
	return keys
}

// Bytes returns an object.
func (s *Shelf) Bytes(key string) []byte {
	s.T.Helper()
	obj, err := s.Get(s.T.Context(), key, 0, -1)
	if err != nil {
		s.T.Fatal(err)
	}
	defer obj.Close()
	var b bytes.Buffer
	if _, err := obj.WriteTo(&b); err != nil {
		s.T.Fatal(err)
	}
	return b.Bytes()
}

// Take takes the chosen objects away, and puts other objects in their place.
func (s *Shelf) Take(chosen func(key string) bool, instead map[string][]byte) {
	s.T.Helper()
	for _, key := range s.Keys() {
		if chosen(key) {
			s.Aside[key] = s.Bytes(key)
			s.Must(s.Delete(s.T.Context(), key))
		}
	}
	for key, b := range instead {
		s.Must(s.Put(s.T.Context(), key, b, false))
	}
}

// PutBack restores the store to its state when Take was called, as mounting a disk does.
// What was written in between is gone.
func (s *Shelf) PutBack(chosen func(key string) bool) {
	s.T.Helper()
	for _, key := range s.Keys() {
		if chosen(key) {
			s.Must(s.Delete(s.T.Context(), key))
		}
	}
	for key, b := range s.Aside {
		s.Must(s.Put(s.T.Context(), key, b, false))
	}
	clear(s.Aside)
}

// Must fails the test if there is an error.
func (s *Shelf) Must(err error) {
	s.T.Helper()
	if err != nil {
		s.T.Fatal(err)
	}
}

// Restart closes the registry and opens another over the same catalogue and store.
func (b *Bed) Restart(t testing.TB) {
	t.Helper()
	reg, err := registry.New(t.Context(), b.Cat, b.Store, &registry.Options{Clock: b.Clock.Now, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	t.Cleanup(func() { reg.Close(context.Background()) })
	b.Registry = reg
}

// Clean checks the registry, and returns an error if problems remain.
func (b *Bed) Clean(o check.Options) error {
	rep, err := check.Run(b.T.Context(), b.Registry, o)
	if err == nil && !rep.Clean() {
		err = fmt.Errorf("problems remain: %v", Kinds(rep))
	}
	return err
}

// WantBlob expects a repository to have a blob with these bytes.
func (b *Bed) WantBlob(repo string, data []byte) {
	b.T.Helper()
	got, err := ReadBlob(b.T.Context(), b, repo, oci.SHA256(data))
	if err != nil || !bytes.Equal(got, data) {
		b.T.Errorf("blob of %d bytes of %s: got %d bytes, %v", len(data), repo, len(got), err)
	}
}

// BadSector is a store on a disk that cannot read one object.
type BadSector struct {
	*fsstore.Store
	Keys []string // keys of the file that holds the bad sector
	Late bool     // opening works, but reading fails
}

// Get implements objstore.Store.
func (s *BadSector) Get(ctx context.Context, key string, off, n int64) (objstore.Object, error) {
	if slices.Contains(s.Keys, key) && s.Late {
		o, err := s.Store.Get(ctx, key, off, n)
		return unreadable{o}, err
	}
	if slices.Contains(s.Keys, key) {
		return nil, fmt.Errorf("read object %s: %w", key, syscall.EIO)
	}
	return s.Store.Get(ctx, key, off, n)
}

// unreadable is an object that cannot be read.
type unreadable struct{ objstore.Object }

func (o unreadable) Read([]byte) (int, error) { return 0, syscall.EIO }

func (o unreadable) WriteTo(io.Writer) (int64, error) { return 0, syscall.EIO }

// NoError fails the test if there is an error.
func NoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Files lists a directory tree.
func Files(t testing.TB, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(dir, path)
			out = append(out, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
