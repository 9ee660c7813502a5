package catalog

import (
	"context"
	"strconv"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/engine"
)

// Settings are facts about the registry as a whole. All methods may run concurrently.
type Settings struct{ DB *engine.DB }

const (
	// runningSetting holds the boot id of the machine while a process uses the catalogue.
	// It is absent after a process has ended in an orderly way.
	runningSetting = "running"
	// seenSetting holds the time that a process last recorded, in Unix milliseconds. The
	// time may be wrong.
	seenSetting = "clock_seen"
	// holdSetting holds the time until which the collector removes nothing, in Unix
	// milliseconds.
	holdSetting = "gc_hold"
)

// Begun is what a process finds when it begins to use the catalogue.
type Begun struct {
	// Crashed says that the previous process did not call End. Rebooted says that the
	// machine also went down, so that bytes that the process had not synced may be lost.
	Crashed, Rebooted bool
	// Idle is how long before now a process last recorded the time. It is 0 if none did.
	Idle time.Duration
	// HoldBack is the time until which the collector removes nothing. It is a grace
	// period from now if the previous process crashed. It is also a grace period from now
	// if Idle exceeds maxIdle, because the clock may have been set ahead meanwhile.
	// Otherwise it is what an earlier process has determined.
	HoldBack time.Time
}

// Begin records that a process uses the catalogue from now on, on a machine with the
// given boot id.
func (c *Settings) Begin(ctx context.Context, bootID string, now time.Time, grace, maxIdle time.Duration) (b Begun, err error) {
	err = c.DB.Write(ctx, func(t *engine.Tx) error {
		before, err := settings(t, runningSetting, seenSetting, holdSetting)
		if err != nil {
			return err
		}
		running, crashed := before[runningSetting]
		b = Begun{Crashed: crashed, Rebooted: crashed && running != bootID}
		if seen, err := strconv.ParseInt(before[seenSetting], 10, 64); err == nil {
			b.Idle = now.Sub(time.UnixMilli(seen))
		}
		latest := now.Add(grace)
		if hold, err := strconv.ParseInt(before[holdSetting], 10, 64); err == nil && hold < latest.UnixMilli() {
			b.HoldBack = time.UnixMilli(hold)
		}
		if crashed || b.Idle > maxIdle {
			b.HoldBack = latest
		}
		values := map[string]string{runningSetting: bootID, seenSetting: strconv.FormatInt(now.UnixMilli(), 10)}
		if b.HoldBack.After(now) {
			values[holdSetting] = strconv.FormatInt(b.HoldBack.UnixMilli(), 10)
		}
		for name, value := range values {
			if err := set(t, name, value); err != nil {
				return err
			}
		}
		return nil
	})
	return b, err
}

// settings returns the values of the named settings that have one.
func settings(t *engine.Tx, names ...string) (map[string]string, error) {
	values := map[string]string{}
	for _, name := range names {
		var v string
		switch err := t.Row(`SELECT value FROM settings WHERE name = ?`, []any{name}, &v); err {
		case nil:
			values[name] = v
		case ErrNotFound:
		default:
			return nil, err
		}
	}
	return values, nil
}

func set(t *engine.Tx, name, value string) error {
	_, err := t.Exec(`INSERT INTO settings (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value`, name, value)
	return err
}

// End records that the process ends in an orderly way.
func (c *Settings) End(ctx context.Context, now time.Time) error {
	return c.DB.Write(ctx, func(t *engine.Tx) error {
		if err := set(t, seenSetting, strconv.FormatInt(now.UnixMilli(), 10)); err != nil {
			return err
		}
		_, err := t.Exec(`DELETE FROM settings WHERE name = ?`, runningSetting)
		return err
	})
}

// clockSetting holds the latest time that NoteClock accepted, in Unix milliseconds.
const clockSetting = "clock"

// Clock returns the latest time that NoteClock accepted, in Unix milliseconds, or 0 if
// there is none.
func (c *Settings) Clock(ctx context.Context) (ms int64, err error) {
	err = c.DB.Row(ctx, `SELECT CAST(value AS BIGINT) FROM settings WHERE name = ?`, []any{clockSetting}, &ms)
	if err == ErrNotFound {
		err = nil
	}
	return ms, err
}

// NoteClock records now as the time, unless it is before the last recorded time or more
// than a step after it. A step of 0 accepts every time. In any case, the next process
// computes Begun.Idle from now.
func (c *Settings) NoteClock(ctx context.Context, now time.Time, step time.Duration) error {
	return c.DB.Write(ctx, func(t *engine.Tx) error {
		if err := set(t, seenSetting, strconv.FormatInt(now.UnixMilli(), 10)); err != nil {
			return err
		}
		_, err := t.Exec(`INSERT INTO settings (name, value) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = excluded.value
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

// Postpone moves candidates of the collector to a later time. It skips contents that are
// not queued. Like Uploads.Save it need not survive a power cut.
func (c *Garbage) Postpone(ctx context.Context, list []Postponed) error {
	return c.DB.WriteLazy(ctx, func(t *engine.Tx) error {
		for _, p := range list {
			_, err := t.Exec(`UPDATE gc_queue SET due_at = ?1 WHERE due_at < ?1
				AND repo_id = (SELECT id FROM repositories WHERE name = ?2) AND blob_id = (SELECT id FROM blobs WHERE digest = ?3)
				AND kind IN (0, 1, 2)`, p.Until.UnixMilli(), p.Repo, string(p.Digest))
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// DropStored forgets all uploads whose bytes are in the object store and
// returns them.
func (c *Uploads) DropStored(ctx context.Context) ([]Upload, error) {
	list, err := c.list(ctx, `SELECT `+uploadColumns+` FROM uploads WHERE state <> ''`)
	if err != nil {
		return nil, err
	}
	return list, c.DB.Write(ctx, func(t *engine.Tx) error {
		_, err := t.Exec(`DELETE FROM uploads WHERE state <> ''`)
		return err
	})
}
