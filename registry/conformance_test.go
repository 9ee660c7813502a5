package registry_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"

	"example.org/slipway/oci"
	"example.org/slipway/oci/ocitest"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/fsstore"
	"example.org/slipway/registry/objstore/memstore"
)

func TestConformance(t *testing.T) {
	for name, store := range map[string]func(t *testing.T) objstore.Store{
		"memstore": func(*testing.T) objstore.Store { return memstore.New(nil) },
		"fsstore": func(t *testing.T) objstore.Store {
			s, err := fsstore.New(t.TempDir(), nil)
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if testing.Short() && name != "memstore" {
				t.Skip("heavy, and another store says as much about what happens at once")
			}
			ocitest.Run(t, func(t *testing.T) oci.Registry { return openPlain(t, store(t), nil) }, nil)
		})
	}
}

// openPlain makes a registry with its own catalogue that uses the system's clock. It closes store.
func openPlain(t testing.TB, store objstore.Store, o *registry.Options) *registry.Registry {
	t.Helper()
	var opts registry.Options
	if o != nil {
		opts = *o
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	cat, err := catalog.Open(t.Context(), filepath.Join(t.TempDir(), registry.CatalogFile), &catalog.Options{Grace: opts.Grace, Clock: opts.Clock})
	if err != nil {
		t.Fatal(err)
	}
	r, err := registry.New(t.Context(), cat, store, &opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, err := range []error{r.Close(context.Background()), cat.Close(), store.Close()} {
			if err != nil {
				t.Errorf("close: %v", err)
			}
		}
	})
	return r
}
