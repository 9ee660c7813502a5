package engine

import (
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/pressly/goose/v3"
)

// TestMigrationKeepsOld checks that a migration is reported and leaves a copy of the file as it was,
// that the copy replaces an older one, and that a start without a migration does neither.
func TestMigrationKeepsOld(t *testing.T) {
	ctx, path := t.Context(), filepath.Join(t.TempDir(), "catalog.db")
	var told []Migration
	o := &Options{OnMigrate: func(m Migration) { told = append(told, m) }}
	start := func() {
		t.Helper()
		db, err := Open(ctx, path, o)
		if err != nil {
			t.Fatal(err)
		}
		err = db.Write(ctx, func(t *Tx) error {
			_, err := t.Exec(`INSERT INTO settings (name, value) VALUES ('kept', 'yes') ON CONFLICT DO NOTHING`)
			return err
		})
		if err = errors.Join(err, db.Close()); err != nil {
			t.Fatal(err)
		}
	}
	start()
	if len(told) != 0 {
		t.Fatalf("a new catalogue is reported as migrated: %+v", told)
	}
	var before int64
	for range 2 { // the second migration begins one version earlier
		raw, err := sql.Open("sqlite", dsn(path))
		if err != nil {
			t.Fatal(err)
		}
		p, newest, err := migrator(goose.DialectSQLite3, "sqlite", raw)
		if err != nil {
			t.Fatal(err)
		}
		if before != 0 {
			if _, err := p.DownTo(ctx, before); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := p.Down(ctx); err != nil {
			t.Fatal(err)
		}
		if before, err = p.GetDBVersion(ctx); err != nil || before >= newest {
			t.Fatalf("the schema is version %d of %d, %v", before, newest, err)
		}
		if err := raw.Close(); err != nil {
			t.Fatal(err)
		}
		start()
		start()
		if len(told) != 1 || told[0].From != before || told[0].To != newest || told[0].Err != nil {
			t.Fatalf("told %+v, want one migration from %d to %d", told, before, newest)
		}
		checkOld(t, told[0].Copy, before)
		if copies, err := filepath.Glob(path + OldSuffix + "*"); err != nil || len(copies) != 1 {
			t.Errorf("the copies are %v, %v", copies, err)
		}
		told = nil
	}
}

func checkOld(t *testing.T, path string, version int64) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the copy is %v, %v", info, err)
	}
	db, err := sql.Open("sqlite", "file:"+path+"?mode=ro&immutable=1")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var have int64
	var kept string
	if err := db.QueryRowContext(t.Context(), `SELECT MAX(version_id), (SELECT value FROM settings WHERE name = 'kept') FROM goose_db_version`).Scan(&have, &kept); err != nil || have != version || kept != "yes" {
		t.Errorf("the copy has version %d and %q, %v, want version %d", have, kept, err, version)
	}
}
