package catalog_test

import (
	"context"
	"testing"

	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/catalogtest"
)

// servers are the servers that the tests of this package share.
var servers catalogtest.Servers

func TestMain(m *testing.M) { servers.Main(m) }

// try opens the catalogue. The caller closes it.
func try(t testing.TB, b *catalogtest.Bed, o *catalog.Options) (*catalog.Catalog, error) {
	if b.DSN != "" {
		return catalog.OpenPostgres(t.Context(), b.DSN, o)
	}
	return catalog.Open(t.Context(), b.Path, o)
}

// open opens the catalogue until the test ends.
func open(t testing.TB, b *catalogtest.Bed, o *catalog.Options) *catalog.Catalog {
	t.Helper()
	c, err := try(t, b, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return c
}

// openTest opens a SQLite catalogue.
func openTest(t testing.TB, o *catalog.Options) *catalog.Catalog {
	t.Helper()
	return open(t, catalogtest.SQLite(t), o)
}

// putBlob is like PutBlob, for tests that ignore its result.
func putBlob(ctx context.Context, c *catalog.Catalog, repo string, b catalog.Blob, uploadID string) error {
	_, err := c.PutBlob(ctx, repo, b, uploadID)
	return err
}
