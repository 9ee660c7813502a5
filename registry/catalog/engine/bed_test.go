package engine

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"example.org/slipway/registry/catalog/catalogtest"
)

// servers are the servers that the tests of this package share.
var servers catalogtest.Servers

// Servers returns them to the tests outside of this package.
func Servers() *catalogtest.Servers { return &servers }

func TestMain(m *testing.M) { servers.Main(m) }

// try opens the catalogue. The caller closes it.
func try(t testing.TB, b *catalogtest.Bed, o *Options) (*DB, error) {
	if b.DSN != "" {
		return OpenPostgres(t.Context(), b.DSN, o)
	}
	return Open(t.Context(), b.Path, o)
}

// open opens the catalogue until the test ends.
func open(t testing.TB, b *catalogtest.Bed, o *Options) *DB {
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
func openTest(t testing.TB, o *Options) *DB {
	t.Helper()
	return open(t, catalogtest.SQLite(t), o)
}

// replicas returns the databases of two processes if the database allows that, and otherwise the
// same one twice.
func replicas(t *testing.T, base *catalogtest.Bed, o *Options) [2]*DB {
	t.Helper()
	a := open(t, base, o)
	if base.DSN == "" {
		return [2]*DB{a, a}
	}
	return [2]*DB{a, open(t, base, o)}
}

// count increments a number in the catalogue by reading and writing it.
func count(t *Tx) error {
	var n int
	err := t.Row(`SELECT CAST(value AS INTEGER) FROM settings WHERE name = 'count'`, nil, &n)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	_, err = t.Exec(`INSERT INTO settings (name, value) VALUES ('count', ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value`, fmt.Sprint(n+1))
	return err
}

func counted(t *testing.T, c *DB) (n int) {
	t.Helper()
	if err := c.Row(t.Context(), `SELECT CAST(value AS INTEGER) FROM settings WHERE name = 'count'`, nil, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestInParts checks that every element is returned, in parts of few sizes.
func TestInParts(t *testing.T) {
	for _, n := range []int{0, 1, 3, 255, 256, 257, 1000} {
		list := make([]int, n)
		for i := range list {
			list[i] = i
		}
		var got []int
		err := InParts(list, func(part []int) error {
			if k := len(part); k > MaxNames || k&(k-1) != 0 {
				t.Errorf("a part of %d", k)
			}
			got = append(got, part...)
			return nil
		})
		if got = slices.Compact(got); err != nil || !slices.Equal(got, list) {
			t.Errorf("of %d elements came %v, %v", n, got, err)
		}
	}
}
