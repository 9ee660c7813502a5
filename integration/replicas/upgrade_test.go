package replicas

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/wire"
)

// TestRollingUpgrade checks what happens when the first replica of the next version has changed the
// schema. The other replicas continue, and may be restarted. They refuse a schema that is no longer
// theirs, and say why. There is no next version yet, so the test itself makes the schema changes
// that such a version would make.
func TestRollingUpgrade(t *testing.T) {
	b := newBed(t, 2, 4, "")
	clients := b.clients()
	sql := func(statements string) string { return b.postgres.SQL(t, b.database, statements) }
	known, err := strconv.Atoi(sql("SELECT max(version_id) FROM goose_db_version"))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	both := func(what string) {
		t.Helper()
		n++
		if err := pushPull(t, clients, fmt.Sprintf("upgrade/n%d", n)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	both("before")

	version := func(v int) { // in the way that goose records it
		sql(fmt.Sprintf("INSERT INTO goose_db_version (version_id, is_applied) VALUES (%d, true)", v))
	}
	version(known + 1)
	sql(`ALTER TABLE tags ADD COLUMN of_the_next BIGINT NOT NULL DEFAULT 7;
		ALTER TABLE blobs ADD COLUMN of_the_next TEXT NOT NULL DEFAULT '';
		CREATE TABLE of_the_next (id BIGINT PRIMARY KEY);`)
	both("after the next version's changes")
	old := b.replicas[0]
	restart := func() {
		t.Helper()
		old.mu.Lock()
		starts := old.starts
		old.mu.Unlock()
		old.signal(syscall.SIGTERM)
		proc.Poll(t, 30*time.Second, "the replica is started again", func() bool {
			old.mu.Lock()
			defer old.mu.Unlock()
			return old.starts > starts
		})
	}
	restart()
	b.waitReady()
	both("after a restart in the middle of the upgrade")

	refused := func(what string) {
		t.Helper()
		before := strings.Count(tail(old.logFile(), 1<<20), "made by a newer slipway")
		restart()
		proc.Poll(t, 30*time.Second, what+": it is refused", func() bool {
			return strings.Count(tail(old.logFile(), 1<<20), "made by a newer slipway") > before
		})
		if err := pushPull(t, clients[1:], fmt.Sprintf("upgrade/refused%d", before)); err != nil {
			t.Errorf("%s: the replica that runs: %v", what, err)
		}
	}
	version(known + 2)
	refused("two versions ahead")
	sql(fmt.Sprintf("DELETE FROM goose_db_version WHERE version_id = %d", known+2))
	b.waitReady() // its service manager keeps restarting it
	sql(fmt.Sprintf("UPDATE settings SET value = '%d' WHERE name = 'min_reader'", known+1))
	refused("a version that the old ones cannot go on with")
	sql(fmt.Sprintf("UPDATE settings SET value = '%d' WHERE name = 'min_reader'", known))
	b.waitReady()
	both("after all")
}

// pushPull pushes a tag through the first client. It reads the tag and everything below it through
// all clients.
func pushPull(t *testing.T, clients []*wire.Client, repo string) error {
	t.Helper()
	var doc wire.Document
	doc.SchemaVersion, doc.MediaType = 2, manifestType
	for i, size := range []int{100, 50_000} {
		data := content(uint64(i)+uint64(len(repo)), size)
		digest, err := clients[0].PushBlob(t.Context(), repo, data)
		if err != nil {
			return err
		}
		d := wire.Descriptor{MediaType: layerType, Digest: digest, Size: int64(size)}
		if i == 0 {
			doc.Config = &d
		} else {
			doc.Layers = append(doc.Layers, d)
		}
	}
	if _, err := clients[0].PutManifest(t.Context(), repo, "v1", manifestType, marshal(t, doc)); err != nil {
		return err
	}
	for i, c := range clients {
		if _, err := c.CheckImage(t.Context(), repo, "v1"); err != nil {
			return fmt.Errorf("at replica %d: %w", i, err)
		}
	}
	return nil
}
