package registry_test

import (
	"testing"

	"example.org/slipway/registry"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/registrytest"
)

// bed is a registry under test, with what the tests of this package do with it.
type bed struct{ *registrytest.Bed }

func newBed(t testing.TB, store objstore.Store, o registry.Options) *bed {
	t.Helper()
	return &bed{registrytest.New(t, store, o)}
}

func newDiskBed(t testing.TB) *bed {
	t.Helper()
	return &bed{registrytest.NewOnDisk(t)}
}

func openDiskBed(t testing.TB, root string) *bed {
	t.Helper()
	return &bed{registrytest.OpenOnDisk(t, root)}
}
