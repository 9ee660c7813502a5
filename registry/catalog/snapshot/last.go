package snapshot

import (
	"context"
	"errors"
	"time"

	"example.org/slipway/registry/catalog/engine"
)

// lastBackup is the setting that holds when the last backup was completed.
const lastBackup = "last_backup"

// NoteLast records in a catalogue that a backup of it was completed.
func NoteLast(ctx context.Context, db *engine.DB, at time.Time) error {
	return db.Write(ctx, func(t *engine.Tx) error {
		_, err := t.Exec(`INSERT INTO settings (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value`,
			lastBackup, at.UTC().Format(time.RFC3339Nano))
		return err
	})
}

// Last returns when the last backup of a catalogue was completed. It returns the zero time
// if none was.
func Last(ctx context.Context, db *engine.DB) (time.Time, error) {
	var value string
	err := db.Row(ctx, `SELECT value FROM settings WHERE name = ?`, []any{lastBackup}, &value)
	if errors.Is(err, engine.ErrNotFound) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	return time.Parse(time.RFC3339Nano, value)
}
