package catalog

import (
	"context"
	"strconv"
	"time"

	"example.org/slipway/oci"
)

// runningSetting holds the boot id of the machine while a process uses the
// catalogue, and is absent after it ended in an orderly way.
const runningSetting = "running"

// Begin notes that a process uses the catalogue from now on, on a machine with
// the given boot id. crashed tells that the process before did not End;
// rebooted, that the machine went down under it, so that bytes it had not synced
// may be lost.
func (c *Catalog) Begin(ctx context.Context, bootID string) (crashed, rebooted bool, err error) {
	err = c.db.write(ctx, func(t *tx) error {
		var before string
		switch err := t.row(`SELECT value FROM settings WHERE name = ?`, []any{runningSetting}, &before); err {
		case nil:
			crashed, rebooted = true, before != bootID
		case ErrNotFound:
			crashed, rebooted = false, false
		default:
			return err
		}
		_, err := t.exec(`INSERT INTO settings (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value`, runningSetting, bootID)
		return err
	})
	return crashed, rebooted, err
}

// End notes that the process ends in an orderly way.
func (c *Catalog) End(ctx context.Context) error {
	return c.db.write(ctx, func(t *tx) error {
		_, err := t.exec(`DELETE FROM settings WHERE name = ?`, runningSetting)
		return err
	})
}

// clockSetting holds the latest time that NoteClock believed, in Unix milliseconds.
const clockSetting = "clock"

// Clock returns the latest time that NoteClock believed, in Unix milliseconds; 0: none.
func (c *Catalog) Clock(ctx context.Context) (ms int64, err error) {
	err = c.db.row(ctx, `SELECT CAST(value AS BIGINT) FROM settings WHERE name = ?`, []any{clockSetting}, &ms)
	if err == ErrNotFound {
		err = nil
	}
	return ms, err
}

// NoteClock notes what time it is, unless that is more than a step after the time noted
// last, or before it. A step of 0 believes every time.
func (c *Catalog) NoteClock(ctx context.Context, now time.Time, step time.Duration) error {
	return c.db.write(ctx, func(t *tx) error {
		_, err := t.exec(`INSERT INTO settings (name, value) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = excluded.value
			WHERE CAST(?4 AS BIGINT) = 0 OR CAST(?3 AS BIGINT) BETWEEN CAST(settings.value AS BIGINT) AND CAST(settings.value AS BIGINT) + CAST(?4 AS BIGINT)`,
			clockSetting, strconv.FormatInt(now.UnixMilli(), 10), now.UnixMilli(), step.Milliseconds())
		return err
	})
}

// Postponed is content that the collector must not take before a time.
type Postponed struct {
	Repo   string
	Digest oci.Digest
	Until  time.Time
}

// Postpone moves candidates of the collector to a later time. What is not queued
// is passed over. Like SaveUploads it need not survive a power cut.
func (c *Catalog) Postpone(ctx context.Context, list []Postponed) error {
	return c.db.writeLazy(ctx, func(t *tx) error {
		for _, p := range list {
			_, err := t.exec(`UPDATE gc_queue SET due_at = ?1 WHERE due_at < ?1
				AND repo_id = (SELECT id FROM repositories WHERE name = ?2) AND blob_id = (SELECT id FROM blobs WHERE digest = ?3)
				AND kind IN (0, 1, 2)`, p.Until.UnixMilli(), p.Repo, string(p.Digest))
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// DropStoredUploads forgets all uploads whose bytes are in the object store and
// returns them.
func (c *Catalog) DropStoredUploads(ctx context.Context) ([]Upload, error) {
	list, err := c.uploads(ctx, `SELECT `+uploadColumns+` FROM uploads WHERE state <> ''`)
	if err != nil {
		return nil, err
	}
	return list, c.db.write(ctx, func(t *tx) error {
		_, err := t.exec(`DELETE FROM uploads WHERE state <> ''`)
		return err
	})
}
