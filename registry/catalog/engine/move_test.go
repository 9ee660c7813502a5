package engine

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/registry/catalog/catalogtest"
)

// rowsOf returns all rows of all tables as text.
func (c *DB) rowsOf(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for _, table := range storedTables() {
		query := `SELECT ` + strings.Join(table.columns, ", ") + ` FROM ` + table.name + ` ORDER BY ` + strings.Join(table.columns[:table.keys], ", ")
		n := newTally(len(table.columns))
		err := c.Rows(t.Context(), query, nil, func(r *sql.Rows) error {
			row, err := n.scan(r)
			out[table.name] = append(out[table.name], fmt.Sprintf("%#v", row))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// filled returns a database with rows in every table, with NULL where that may be.
func filled(t *testing.T, base *catalogtest.Bed) *DB {
	t.Helper()
	db := open(t, base, nil)
	columns := map[string]func(row int) any{}
	err := openTest(t, nil).Rows(t.Context(), `SELECT m.name || '.' || c.name, c.type, c."notnull" = 0 AND c.pk = 0 FROM sqlite_master m JOIN pragma_table_info(m.name) c
		WHERE m.type = 'table'`, nil, func(r *sql.Rows) error {
		var name, kind string
		var optional bool
		err := r.Scan(&name, &kind, &optional)
		columns[name] = func(row int) any {
			switch {
			case optional && row == 1:
				return nil
			case kind == "TEXT":
				return fmt.Sprintf("%s %d", name, row)
			case kind == "BLOB":
				return bytes.Repeat([]byte{byte(row)}, row-1) // the first one is empty
			}
			return row
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	err = db.Write(t.Context(), func(t *Tx) error {
		for _, table := range storedTables() {
			for row := 1; row <= 3; row++ {
				var args []any
				for _, c := range table.columns {
					args = append(args, columns[table.name+"."+c](row))
				}
				_, err := t.Exec(`INSERT INTO `+table.name+` (`+strings.Join(table.columns, ", ")+`) VALUES (`+Marks("?", len(args))+`)`, args...)
				if err != nil {
					return fmt.Errorf("table %s: %w", table.name, err)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// TestMove checks that a catalogue moved to PostgreSQL and back is the same, and continues with new
// IDs.
func TestMove(t *testing.T) {
	lite := &catalogtest.Bed{Path: filepath.Join(t.TempDir(), "from.db")}
	from := filled(t, lite)
	to := open(t, servers.Bed(t), nil)
	var last Moved
	if err := Move(t.Context(), from, to, func(m Moved) { last = m }); err != nil {
		t.Fatal(err)
	}
	if !last.Checking || last.Table != "volume_uses" {
		t.Errorf("the last that was told: %+v", last)
	}
	want := from.rowsOf(t)
	if diff := cmp.Diff(want, to.rowsOf(t)); diff != "" {
		t.Errorf("moved (-want +got):\n%s", diff)
	}
	back := open(t, &catalogtest.Bed{Path: filepath.Join(t.TempDir(), "back.db")}, nil)
	if err := Move(t.Context(), to, back, nil); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, back.rowsOf(t)); diff != "" {
		t.Errorf("moved back (-want +got):\n%s", diff)
	}
	if err := Move(t.Context(), from, to, nil); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("to a catalogue that is not empty: %v", err)
	}
	err := to.Write(t.Context(), func(x *Tx) error { // IDs continue after the moved ones
		id, err := x.Insert(`INSERT INTO repositories (name, created_at) VALUES ('next', 0) RETURNING id`)
		if err == nil && id != 4 {
			t.Errorf("the next ID is %d, want 4", id)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestMoveTables checks that Move knows all columns of all tables.
func TestMoveTables(t *testing.T) {
	c := openTest(t, nil)
	got := map[string][]string{}
	err := c.Rows(t.Context(), `SELECT m.name, c.name FROM sqlite_master m JOIN pragma_table_info(m.name) c
		WHERE m.type = 'table' AND m.name NOT IN ('leases', 'writers', 'goose_db_version', 'sqlite_sequence')`, nil, func(r *sql.Rows) error {
		var table, column string
		err := r.Scan(&table, &column)
		got[table] = append(got[table], column)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{}
	for _, table := range storedTables() {
		want[table.name] = slices.Sorted(slices.Values(table.columns))
		slices.Sort(got[table.name])
	}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("tables and what Move knows (-schema +move):\n%s", diff)
	}
}

// TestMoveCutOff checks that nothing is left of a cancelled move, and that the next one succeeds.
func TestMoveCutOff(t *testing.T) {
	from := filled(t, &catalogtest.Bed{Path: filepath.Join(t.TempDir(), "from.db")})
	to := open(t, servers.Bed(t), nil)
	ctx, cancel := context.WithCancel(t.Context())
	err := Move(ctx, from, to, func(m Moved) {
		if m.Table == "tags" {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("a move that was given up: %v", err)
	}
	for table, rows := range to.rowsOf(t) {
		if table != "settings" && len(rows) > 0 {
			t.Errorf("left in table %s: %q", table, rows)
		}
	}
	if err := Move(t.Context(), from, to, nil); err != nil {
		t.Errorf("the next move: %v", err)
	}
}

// TestBackupPostgres checks that a backup of PostgreSQL is a catalogue that can be moved back.
func TestBackupPostgres(t *testing.T) {
	c := filled(t, servers.Bed(t))
	path := filepath.Join(t.TempDir(), "backup.db")
	if err := c.Backup(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	if err := c.Backup(t.Context(), path); !errors.Is(err, fs.ErrExist) {
		t.Errorf("over a file that is there: %v", err)
	}
	fi, err := os.Stat(path)
	if err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v, %v", fi, err)
	}
	if _, err := os.Stat(path + "-wal"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is a log beside it: %v", err)
	}
	restored := open(t, servers.Bed(t), nil)
	if err := Move(t.Context(), open(t, &catalogtest.Bed{Path: path}, nil), restored, nil); err != nil {
		t.Fatal(err)
	}
	want, got := c.rowsOf(t), restored.rowsOf(t)
	for _, table := range notInBackups {
		delete(want, table)
		if rows := got[table]; table != "writers" && len(rows) > 0 {
			t.Errorf("table %s is in the backup: %q", table, rows)
		}
		delete(got, table)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("restored (-want +got):\n%s", diff)
	}
}
