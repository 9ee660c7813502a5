package catalog

import (
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
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/oci"
)

// rowsOf returns all rows of all tables as text.
func (c *Catalog) rowsOf(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for _, table := range storedTables() {
		query := `SELECT ` + strings.Join(table.columns, ", ") + ` FROM ` + table.name + ` ORDER BY ` + strings.Join(table.columns[:table.keys], ", ")
		n := newTally(len(table.columns))
		err := c.db.rows(t.Context(), query, nil, func(r *sql.Rows) error {
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

// filled returns a catalogue with rows in every table.
func filled(t *testing.T, base *bed) *Catalog {
	t.Helper()
	s := &script{t: t, now: time.UnixMilli(1_700_000_000_000)}
	s.c = base.open(t, &Options{Clock: func() time.Time { return s.now }})
	s.push()
	s.gear()
	ctx := t.Context()
	for _, err := range []error{
		s.c.putBlob(ctx, "repo/0", Blob{Digest: oci.SHA256(nil), Content: []byte{}}, ""),
		s.c.SaveUploads(ctx, Upload{ID: "u", Repo: "r", Hash: []byte{}, Content: nil, State: "x"}),
		s.c.QueueAppend(ctx, "q", []byte("payload")),
		s.c.IntendGear(ctx, "writer", GearName{77}),
		putVolumes(ctx, s.c),
		refuseAny(ctx, s.c),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.c.Begin(ctx, "boot", time.UnixMilli(1), time.Hour, time.Hour); err != nil {
		t.Fatal(err)
	}
	for table, rows := range s.c.rowsOf(t) {
		if len(rows) == 0 {
			t.Errorf("nothing in table %s", table)
		}
	}
	return s.c
}

// TestMove checks that a catalogue moved to PostgreSQL and back is the same, and continues with new
// IDs.
func TestMove(t *testing.T) {
	lite := &bed{path: filepath.Join(t.TempDir(), "from.db")}
	from := filled(t, lite)
	to := postgresBed(t).open(t, nil)
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
	back := (&bed{path: filepath.Join(t.TempDir(), "back.db")}).open(t, nil)
	if err := Move(t.Context(), to, back, nil); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, back.rowsOf(t)); diff != "" {
		t.Errorf("moved back (-want +got):\n%s", diff)
	}
	if err := Move(t.Context(), from, to, nil); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("to a catalogue that is not empty: %v", err)
	}
	s := &script{t: t, c: to}
	s.push() // IDs continue after the moved ones
	if slices.ContainsFunc(s.out, func(line string) bool { return strings.Contains(line, "SQLSTATE") }) {
		t.Errorf("pushes after the move: %q", s.out)
	}
}

// TestMoveTables checks that Move knows all columns of all tables.
func TestMoveTables(t *testing.T) {
	c := openTest(t, nil)
	got := map[string][]string{}
	err := c.db.rows(t.Context(), `SELECT m.name, c.name FROM sqlite_master m JOIN pragma_table_info(m.name) c
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
	from := filled(t, &bed{path: filepath.Join(t.TempDir(), "from.db")})
	to := postgresBed(t).open(t, nil)
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
	c := filled(t, postgresBed(t))
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
	want := c.rowsOf(t)
	delete(want, "uploads")
	restored := postgresBed(t).open(t, nil)
	if err := Move(t.Context(), (&bed{path: path}).open(t, nil), restored, nil); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, restored.rowsOf(t)); diff != "" {
		t.Errorf("restored (-want +got):\n%s", diff)
	}
}
