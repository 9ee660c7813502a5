package catalog

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"example.org/slipway/internal/backendtest"
)

// servers are the servers that the tests of this package share.
var servers backendtest.Shared

func TestMain(m *testing.M) {
	code := m.Run()
	servers.Close()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// bed is one empty database of either kind.
type bed struct {
	path string // of SQLite
	dsn  string // of PostgreSQL
}

// onBoth runs a test on SQLite and on PostgreSQL.
func onBoth(t *testing.T, test func(*testing.T, *bed)) {
	t.Run("sqlite", func(t *testing.T) { test(t, &bed{path: filepath.Join(t.TempDir(), "catalog.db")}) })
	t.Run("postgres", func(t *testing.T) { test(t, postgresBed(t)) })
}

func postgresBed(t testing.TB) *bed {
	t.Helper()
	s := servers.Postgres(t)
	return &bed{dsn: s.DSN(s.CreateDatabase(t))}
}

// try opens the catalogue. The caller closes it.
func (b *bed) try(t testing.TB, o *Options) (*Catalog, error) {
	if b.dsn != "" {
		return OpenPostgres(t.Context(), b.dsn, o)
	}
	return Open(t.Context(), b.path, o)
}

// open opens the catalogue until the test ends.
func (b *bed) open(t testing.TB, o *Options) *Catalog {
	t.Helper()
	c, err := b.try(t, o)
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
func openTest(t testing.TB, o *Options) *Catalog {
	t.Helper()
	b := bed{path: filepath.Join(t.TempDir(), "catalog.db")}
	return b.open(t, o)
}

// putBlob is PutBlob for tests that ignore its result.
func (c *Catalog) putBlob(ctx context.Context, repo string, b Blob, uploadID string) error {
	_, err := c.PutBlob(ctx, repo, b, uploadID)
	return err
}
