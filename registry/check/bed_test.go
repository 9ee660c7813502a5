package check_test

import (
	"testing"

	"example.org/slipway/registry"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/registrytest"
)

type bed = registrytest.Bed

func newBed(t testing.TB, store objstore.Store, o registry.Options) *bed {
	t.Helper()
	return registrytest.New(t, store, o)
}

func newDiskBed(t testing.TB) *bed {
	t.Helper()
	return registrytest.NewOnDisk(t)
}
