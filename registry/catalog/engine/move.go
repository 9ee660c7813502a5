package engine

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"example.org/slipway/registry/catalog/engine/pg"
)

// storedTable is a table of the schema with what Move must know about it.
type storedTable struct {
	name string
	// columns begins with the columns of the primary key. keys is their number.
	columns []string
	keys    int
	// numbered says that the key is an id that the database assigns.
	numbered bool
}

// storedTables returns all tables but leases and writers, which are of running processes.
func storedTables() []storedTable {
	table := func(name string, keys int, columns string) storedTable {
		list := strings.Fields(columns)
		return storedTable{name: name, columns: list, keys: keys, numbered: list[0] == "id" && name != "uploads"}
	}
	return []storedTable{
		table("repositories", 1, "id name created_at"),
		table("blobs", 1, "id digest size state content created_at owner deadline suspect tag"),
		table("links", 2, "repo_id blob_id created_at"),
		table("manifests", 1, "id repo_id blob_id media_type artifact_type subject annotations created_at pulled_at"),
		table("refs", 3, "repo_id blob_id manifest_id"),
		table("tags", 2, "repo_id name manifest_id updated_at pulled_at"),
		table("tag_history", 1, "id repo_id tag digest cause actor at"),
		table("trash", 1, "id repo_id digest media_type tags cause actor deleted_at until"),
		table("uploads", 1, "id repo size state hash content intent updated_at owner until"),
		table("gc_queue", 3, "kind repo_id blob_id due_at"),
		table("queue", 1, "id name payload"),
		table("settings", 1, "name value"),
		table("gear_packs", 1, "id digest size bytes dense state live_files live_bytes created_at due_at"),
		table("gear_files", 1, "id name size pack_id off stored encoding live"),
		table("gear_layers", 1, "id digest blob_id index_name files bytes diff_id embedded created_at"),
		table("gear_layer_files", 2, "file_id layer_id"),
		table("gear_grants", 2, "layer_id repo_id"),
		table("gear_recipes", 1, "layer_id digest recipe_name size recipe_size state due_at rate reason changed_at"),
		table("gear_pack_checks", 1, "pack_id checked_at damage"),
		table("gear_parity_groups", 1, "id broken checked_at"),
		table("gear_parity_files", 2, "group_id pos digest size"),
		table("gear_parity_packs", 2, "group_id pos pack_id"),
		table("gear_staged", 2, "file_id repo_id expires_at"),
		table("gear_intents", 2, "pack writer created_at"),
		table("gear_jobs", 1, "id digest due_at attempts failure"),
		table("gear_profiles", 1, "digest data updated_at"),
		table("gear_donors", 2, "repo_id digest kind data updated_at"),
		table("api_tokens", 1, "token_id robot hash rights creator created_at expires_at used_at"),
		table("webhooks", 1, "webhook_id name spec paused creator created_at"),
		table("warm_orders", 1, "order_id spec cancelled created_at expires_at"),
		table("warm_progress", 2, "order_id node state seen_at"),
		table("volume_images", 1, "id repo manifest fs asked dropped due_at attempts failure place record referrer updated_at"),
		table("volumes", 1, "id place name parent state due_at"),
		table("volume_uses", 2, "volume_id image_id"),
	}
}

// notInBackups lists the tables whose rows are about running processes, or about objects
// that a backup does not copy.
var notInBackups = [...]string{"uploads", "leases", "writers", "warm_orders", "warm_progress", "gear_pack_checks", "gear_parity_groups", "gear_parity_files", "gear_parity_packs"}

// moveLimit is how long a move may take.
const moveLimit = 24 * time.Hour

// Moved says how far a move has come.
type Moved struct {
	// Table is the table that is being copied. If Checking is set, it is read again and
	// compared instead.
	Table    string
	Checking bool
	// Rows of it so far.
	Rows int64
}

// Move copies everything in a catalogue, as it is at one moment, into an empty catalogue:
// from SQLite to PostgreSQL or back. All rows keep their ids. The copy is one change. If
// it fails, it leaves nothing behind and can be started again. Before the commit, Move
// reads everything back and compares the row count and the SHA-256 of each table. Both
// catalogues may be read meanwhile. Nobody should change the old catalogue, because
// changes after the start are not moved. progress may be nil. It is called every 10,000
// rows and at the end of each table.
func Move(ctx context.Context, from, to *DB, progress func(Moved)) error {
	if progress == nil {
		progress = func(Moved) {}
	}
	return move(ctx, from, to, progress, nil)
}

func move(ctx context.Context, from, to *DB, progress func(Moved), without []string) error {
	conn, end, err := from.snapshot(ctx)
	if err != nil {
		return fmt.Errorf("read the catalogue to be moved: %w", err)
	}
	defer end()
	err = to.Write(within(ctx, moveLimit), func(t *Tx) error {
		m := mover{ctx: ctx, from: conn, t: t, progress: progress}
		for _, table := range storedTables() {
			if slices.Contains(without, table.name) {
				continue
			}
			if err := m.table(table); err != nil {
				return fmt.Errorf("move the table %s: %w", table.name, err)
			}
		}
		return nil
	})
	if errors.Is(err, errGivenUp) {
		err = fmt.Errorf("%w: %w", err, context.Cause(ctx))
	}
	return err
}

// errGivenUp ends a move whose context has ended. It is not the context's error, because
// an expired deadline would look like a server that does not answer in time.
var errGivenUp = errors.New("the move was given up")

// mover is one run of Move.
type mover struct {
	ctx      context.Context
	from     *sql.Conn
	t        *Tx
	progress func(Moved)
}

func (m *mover) table(table storedTable) error {
	where := ""
	if table.name == "settings" { // the schema's own
		where = ` WHERE name <> '` + MinReader + `'`
	}
	var some bool
	if err := m.t.Row(`SELECT EXISTS (SELECT 1 FROM `+table.name+where+`)`, nil, &some); err != nil {
		return err
	}
	if some {
		return errors.New("the catalogue to move to is not empty")
	}
	query := `SELECT ` + strings.Join(table.columns, ", ") + ` FROM ` + table.name + where + ` ORDER BY ` + strings.Join(table.columns[:table.keys], ", ")
	if m.ctx.Err() != nil {
		return errGivenUp
	}
	rows, err := m.from.QueryContext(m.ctx, query)
	if err != nil {
		return err
	}
	defer rows.Close()
	sent := newTally(len(table.columns))
	report := func(t *tally, checking bool) {
		if t.rows%10_000 == 0 {
			m.progress(Moved{table.name, checking, t.rows})
		}
	}
	err = m.t.fill(table.name, table.columns, func() ([]any, error) {
		if m.ctx.Err() != nil {
			return nil, errGivenUp
		}
		if !rows.Next() {
			if err := rows.Err(); err != nil {
				return nil, err
			}
			return nil, io.EOF
		}
		defer report(sent, false)
		return sent.scan(rows)
	})
	if err != nil {
		return err
	}
	m.progress(Moved{table.name, false, sent.rows})
	got := newTally(len(table.columns))
	err = m.t.Rows(query, nil, func(r *sql.Rows) error {
		defer report(got, true)
		if m.ctx.Err() != nil {
			return errGivenUp
		}
		_, err := got.scan(r)
		return err
	})
	if err != nil {
		return err
	}
	if got.rows != sent.rows || string(got.sum.Sum(nil)) != string(sent.sum.Sum(nil)) {
		return fmt.Errorf("of %d rows %d came back, or with other contents", sent.rows, got.rows)
	}
	m.progress(Moved{table.name, true, got.rows})
	return nil
}

// fill inserts rows into a table. next returns io.EOF after the last row.
func (t *Tx) fill(table string, columns []string, next func() ([]any, error)) error {
	t.dirty = true
	return t.db.fill(t, table, columns, next)
}

// tally counts and hashes rows.
type tally struct {
	rows  int64
	sum   hash.Hash
	dest  []any
	bytes []byte
}

func newTally(columns int) *tally {
	t := &tally{sum: sha256.New(), dest: make([]any, columns)}
	for i := range t.dest {
		t.dest[i] = new(any)
	}
	return t
}

// scan reads a row. The caller may keep the values.
func (t *tally) scan(r *sql.Rows) ([]any, error) {
	if err := r.Scan(t.dest...); err != nil {
		return nil, err
	}
	row := make([]any, len(t.dest))
	t.bytes = t.bytes[:0]
	put := func(kind byte, n uint64, b []byte) {
		t.bytes = append(binary.BigEndian.AppendUint64(append(t.bytes, kind), n), b...)
	}
	for i, d := range t.dest {
		v := *d.(*any)
		switch x := v.(type) {
		case nil:
			put(0, 0, nil)
		case int64:
			put(1, uint64(x), nil)
		case string:
			x = pg.Text(x)
			v = x
			put(2, uint64(len(x)), []byte(x))
		case []byte:
			if x == nil { // an empty value must not become NULL
				v = []byte{}
			}
			put(3, uint64(len(x)), x)
		default:
			return nil, fmt.Errorf("a value of type %T", v)
		}
		row[i] = v
	}
	t.sum.Write(t.bytes)
	t.rows++
	return row, nil
}

func (e *sqlite) snapshot(ctx context.Context) (*sql.Conn, func(), error) {
	return beginSnapshot(ctx, e.readers, "BEGIN", "SELECT COUNT(*) FROM sqlite_master")
}

func (p *postgres) snapshot(ctx context.Context) (*sql.Conn, func(), error) {
	return beginSnapshot(ctx, p.readers, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
		"SET LOCAL statement_timeout = 0", "SET LOCAL idle_in_transaction_session_timeout = 0", "SELECT 1")
}

// beginSnapshot begins a transaction. The last statement is the first read, which
// determines what the transaction sees.
func beginSnapshot(ctx context.Context, db *sql.DB, statements ...string) (*sql.Conn, func(), error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, nil, err
	}
	end := func() {
		_, err := conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
		_ = err // nothing was changed
		conn.Close()
	}
	for _, s := range statements {
		if _, err := conn.ExecContext(ctx, s); err != nil {
			end()
			return nil, nil, err
		}
	}
	return conn, end, nil
}

func (e *sqlite) fill(t *Tx, table string, columns []string, next func() ([]any, error)) error {
	insert := func(rows int, args []any) error {
		_, err := e.exec(t, `INSERT INTO `+table+` (`+strings.Join(columns, ", ")+`) VALUES `+
			Marks("("+Marks("?", len(columns))+")", rows), args)
		return err
	}
	const most = 32
	args := make([]any, 0, most*len(columns))
	for {
		row, err := next()
		if err != nil && err != io.EOF {
			return err
		}
		args = append(args, row...)
		if err == nil && len(args) < most*len(columns) {
			continue
		}
		if len(args) == most*len(columns) {
			if err := insert(most, args); err != nil {
				return err
			}
			args = args[:0]
		}
		if err == nil {
			continue
		}
		for ; len(args) > 0; args = args[len(columns):] {
			if err := insert(1, args[:len(columns)]); err != nil {
				return err
			}
		}
		return nil
	}
}

func (p *postgres) fill(t *Tx, table string, columns []string, next func() ([]any, error)) error {
	_, err := p.raw.CopyFrom(p.ctx, pgx.Identifier{table}, columns, pgx.CopyFromFunc(func() ([]any, error) {
		row, err := next()
		if err == io.EOF {
			return nil, nil
		}
		return row, err
	}))
	i := slices.IndexFunc(storedTables(), func(s storedTable) bool { return s.name == table })
	if err != nil || !storedTables()[i].numbered {
		return err
	}
	// The next id is one more than the largest.
	var none int64
	return t.Row(`SELECT setval(pg_get_serial_sequence('`+table+`', 'id'), COALESCE((SELECT MAX(id) FROM `+table+`), 0) + 1, false)`, nil, &none)
}

// backupPostgres makes a backup by moving everything into a new SQLite catalogue.
func (db *DB) backupPostgres(ctx context.Context, path string) (err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("copy the catalogue: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(path))
		}
	}()
	if err := f.Close(); err != nil {
		return fmt.Errorf("copy the catalogue: %w", err)
	}
	to, err := Open(ctx, path, &Options{Clock: db.opts.Clock, Readers: 1})
	if err != nil {
		return fmt.Errorf("copy the catalogue: %w", err)
	}
	if err := errors.Join(move(ctx, db, to, func(Moved) {}, notInBackups[:]), to.Close()); err != nil {
		return fmt.Errorf("copy the catalogue: %w", err)
	}
	plain := "file:" + (&url.URL{Path: path}).EscapedPath() + "?_pragma=journal_mode(DELETE)&_pragma=synchronous(FULL)"
	if err := execAlone(ctx, plain, `DELETE FROM writers`); err != nil {
		return fmt.Errorf("copy the catalogue: %w", err)
	}
	return syncFile(path)
}

func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("sync the copy of the catalogue: %w", err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("sync the copy of the catalogue: %w", err)
	}
	return nil
}
