package engine

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"example.org/slipway/registry/catalog/engine/pg"
)

const (
	// oldestServer is PostgreSQL 13.
	oldestServer = 130000
	// defaultPatience is how long changes and reads wait for a server that does not
	// answer, before they fail.
	defaultPatience = 30 * time.Second
	// readLimit is how long a read may take, and changeLimit is how long the changes of a
	// batch may take. A read of whole tables has wholeLimit.
	readLimit, changeLimit = 10 * time.Second, 20 * time.Second
	// beginLimit is how long the beginning of a batch may take. The server stops waiting for
	// another writer earlier; see pg.Config.
	beginLimit = 5 * time.Second
	// serverMillis is an SQL expression for the server's time in milliseconds.
	serverMillis = `CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)`
)

// postgres is the engine of a catalogue in a PostgreSQL database, which other processes
// change too. Its writer takes a lock of the database for each batch, so that only one
// writer of all processes writes at a time.
type postgres struct {
	db    *DB
	clock func() int64 // Options.Clock, or nil
	// patience is defaultPatience, except in tests.
	patience time.Duration
	config   *pgx.ConnConfig
	readers  *sql.DB
	writers  *sql.DB
	rebound  pg.Rebinder

	// id names this process. It is replaced after a commit that may or may not have taken
	// effect; see doubt.
	id      atomic.Pointer[string]
	doubted atomic.Bool
	// warned is set when the server sends a warning to the writer. A commit gets a
	// warning if somebody ended its wait for the standby. Then the commit may not have
	// reached the standby.
	warned  atomic.Bool
	channel string // of its notifications
	beginAs [2]string
	// offset is how many milliseconds the server's clock was ahead of this machine's
	// clock.
	offset atomic.Int64

	// Only the writer uses the following fields, up to the mutex.

	conn    *sql.Conn // nil: not connected
	raw     *pgx.Conn // of conn
	backend backend   // the process at the other end of conn
	// ctx bounds the present transaction.
	ctx    context.Context
	cancel context.CancelFunc
	batch  int64
	// failing is the time since which no batch has succeeded. tried is when a connection
	// was last requested, and cause is why there was none.
	failing, tried time.Time
	cause          error

	mu sync.Mutex
	// syncs holds the calls of sync that wait for their notifications, by name.
	syncs map[string]chan struct{}
}

var _ engine = (*postgres)(nil)

// backend is a process of the server.
type backend struct {
	pid   uint32
	began time.Time
}

func openPostgres(ctx context.Context, dsn string, opts Options) (*DB, error) {
	config, err := pg.Config(dsn, beginLimit)
	if err != nil {
		return nil, err
	}
	p := &postgres{db: newDatabase(), patience: defaultPatience, config: config, syncs: map[string]chan struct{}{}}
	p.rename()
	if opts.Clock != nil {
		p.clock = systemMillis(opts.Clock)
	}
	p.db.engine, p.db.pg, p.db.opts = p, p, opts
	p.readers = stdlib.OpenDB(*config)
	p.readers.SetMaxOpenConns(opts.Readers)
	p.readers.SetMaxIdleConns(opts.Readers)
	p.readers.SetConnMaxIdleTime(5 * time.Minute)
	writing := config.Copy()
	writing.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if n.SeverityUnlocalized == "WARNING" {
			p.warned.Store(true)
		}
	}
	p.writers = stdlib.OpenDB(*writing)
	p.writers.SetMaxIdleConns(0)
	if err := p.open(ctx); err != nil {
		p.drop()
		return nil, errors.Join(err, p.readers.Close(), p.writers.Close())
	}
	go p.db.runWriter()
	return p.db, nil
}

// open connects, checks whether the database is suitable, and brings its schema up to
// date.
func (p *postgres) open(ctx context.Context) error {
	for begin := time.Now(); ; {
		err := p.connect(ctx)
		if err == nil {
			break
		}
		if pg.IsRefusal(err) || time.Since(begin) > p.patience || ctx.Err() != nil {
			return err
		}
		pause(ctx, 200*time.Millisecond)
	}
	var version int
	var now int64
	var name, encoding, sync string
	var schema sql.NullString
	err := p.conn.QueryRowContext(ctx, `SELECT current_setting('server_version_num')::int, current_setting('server_version'),
		current_setting('server_encoding'), current_setting('synchronous_commit'), current_schema(), `+serverMillis).
		Scan(&version, &name, &encoding, &sync, &schema, &now)
	switch {
	case err != nil:
		return err
	case version < oldestServer:
		return fmt.Errorf("the server is PostgreSQL %s; version 13 or later is needed", name)
	case encoding != "UTF8":
		return fmt.Errorf("the database has the encoding %s; it must be UTF8", encoding)
	case !schema.Valid:
		return errors.New("no schema of the search path is there")
	}
	p.offset.Store(now - time.Now().UnixMilli())
	h := fnv.New64a()
	h.Write([]byte("slipway catalogue " + schema.String))
	key := int64(h.Sum64())
	p.channel = fmt.Sprintf("slipway_%016x", h.Sum64())
	p.beginAs = beginStatements(key, sync)
	newest, err := isNewest(ctx, p.conn)
	if err == nil && !newest {
		err = migratePostgres(ctx, p.writers, key^1, p.db.opts.OnMigrate)
	}
	if err != nil {
		return fmt.Errorf("bring the schema up to date: %w", err)
	}
	// Processes that ended long ago have nothing to look up here.
	_, err = p.conn.ExecContext(ctx, `DELETE FROM writers WHERE updated_at < `+serverMillis+` - 7 * 86400000`)
	return err
}

// beginStatements returns two statements that begin a transaction. The first
// transaction's commit waits for the disk, and the second's does not. The lock ends with
// the transaction. A later transaction sees everything that was committed under the lock
// before, and has a later time.
func beginStatements(key int64, sync string) (s [2]string) {
	durable := ""
	if sync == "off" { // acknowledged changes must survive, whatever else uses the server
		durable = "SET LOCAL synchronous_commit = on; "
	}
	for i, how := range []string{durable, "SET LOCAL synchronous_commit = off; "} {
		s[i] = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; " + how +
			"SELECT pg_advisory_xact_lock(" + strconv.FormatInt(key, 10) + "); SELECT " + serverMillis
	}
	return s
}

func (p *postgres) close() error {
	p.drop()
	return errors.Join(p.readers.Close(), p.writers.Close())
}

func (p *postgres) end() {}

func (p *postgres) after() {}

func (p *postgres) explain(err error) error { return err }

func (p *postgres) now(t *Tx) int64 {
	switch {
	case p.clock != nil:
		return p.clock()
	case t != nil:
		return t.began
	}
	return time.Now().UnixMilli() + p.offset.Load()
}

func (p *postgres) begin(t *Tx, lazy bool) error {
	statement := p.beginAs[0]
	if lazy {
		statement = p.beginAs[1]
	}
	limit := max(t.limit, changeLimit)
	if t.limit > 0 {
		statement += fmt.Sprintf("; SET LOCAL statement_timeout = %d", limit.Milliseconds())
	}
	ctx, cancel := context.WithTimeout(context.Background(), beginLimit)
	defer cancel()
	results, err := p.raw.PgConn().Exec(ctx, statement).ReadAll()
	if err != nil {
		return err
	}
	p.ctx, p.cancel = context.WithTimeout(context.Background(), limit)
	for _, r := range results {
		if len(r.Rows) != 1 || len(r.Rows[0]) != 1 || len(r.Rows[0][0]) == 0 {
			continue // not the answer to a query, or the answer about the lock
		}
		if t.began, err = strconv.ParseInt(string(r.Rows[0][0]), 10, 64); err != nil {
			return fmt.Errorf("read the server's clock: %w", err)
		}
	}
	p.offset.Store(t.began - time.Now().UnixMilli())
	return nil
}

func (p *postgres) rollback(t *Tx) {
	p.finish()
	if p.conn == nil {
		return
	}
	if !p.raw.IsClosed() {
		ctx, cancel := context.WithTimeout(context.Background(), beginLimit)
		defer cancel()
		if _, err := p.raw.PgConn().Exec(ctx, "ROLLBACK").ReadAll(); err == nil {
			return
		}
	}
	p.drop()
}

func (p *postgres) finish() {
	if p.cancel != nil {
		p.cancel()
		p.cancel = nil
	}
}

// commit ends a transaction. Later, the row of the batch shows whether the commit took
// effect.
func (p *postgres) commit(t *Tx) error {
	defer p.finish()
	b := &pgx.Batch{}
	if t.wrote {
		p.batch++
		b.Queue(`INSERT INTO writers (id, batch, updated_at) VALUES ($1, $2, $3)
			ON CONFLICT (id) DO UPDATE SET batch = excluded.batch, updated_at = excluded.updated_at`, *p.id.Load(), p.batch, t.began)
		for _, payload := range encodeChanges(*p.id.Load(), t.changes) {
			b.Queue(`SELECT pg_notify($1, $2)`, p.channel, payload)
		}
	}
	b.Queue("COMMIT")
	p.warned.Store(false)
	res := p.raw.SendBatch(p.ctx, b)
	var err error
	var tag pgconn.CommandTag
	for range b.Len() {
		if tag, err = res.Exec(); err != nil {
			break
		}
	}
	err = errors.Join(err, res.Close())
	switch {
	case err == nil && tag.String() == "COMMIT" && !(t.wrote && p.warned.Load()):
		p.failing, p.cause = time.Time{}, nil
		return nil
	case err == nil && tag.String() == "COMMIT":
		err = errWarned
	case err == nil:
		return fmt.Errorf("the server answered COMMIT by %s", tag)
	case !t.wrote || !pg.IsLost(err):
		return err
	}
	if err = p.resolve(err); errors.As(err, new(*undecidedError)) && len(t.changes) > 0 {
		p.doubt()
	}
	return err
}

// rename gives this process a name that no process had before.
func (p *postgres) rename() {
	var id [16]byte
	rand.Read(id[:]) // never fails
	name := hex.EncodeToString(id[:])
	p.id.Store(&name)
}

// doubt makes this process treat the changes of its last batch as changes of another
// process. The callers of these changes got an error. But the changes took effect, or
// still will, so what this process read before may be out of date.
func (p *postgres) doubt() {
	p.rename()
	p.doubted.Store(true) // the notification may have arrived already
}

// errNotCommitted is the error of a commit that is known not to have taken effect.
var errNotCommitted = errors.New("the connection broke before the commit")

// errWarned is the error of a commit that the server has warned of.
var errWarned = errors.New("the server did not wait for its standby")

// resolve finds out whether a commit took effect if the server's answer did not arrive.
// Once this process has the writers' lock again, that transaction has ended in one way or
// the other.
func (p *postgres) resolve(cause error) error {
	before := p.backend
	p.drop()
	for {
		if err := p.ready(); err != nil {
			return &undecidedError{fmt.Errorf("%w; nor is it known whether the change took place: %w", err, cause)}
		}
		batch, err := p.lastBatch(before)
		switch {
		case err == nil && batch == p.batch:
			p.failing, p.cause = time.Time{}, nil
			return nil
		case err == nil:
			return errNotCommitted
		case pg.IsLost(err):
			p.drop()
		}
		if time.Since(p.failing) > p.patience {
			return &undecidedError{fmt.Errorf("%w; nor is it known whether the change took place: %w", ErrUnavailable, errors.Join(cause, err))}
		}
		pause(context.Background(), 100*time.Millisecond)
	}
}

// lastBatch returns the last committed batch of this process. A batch can be visible
// although a standby did not acknowledge it: its connection was closed, or somebody ended
// its wait for the standby. So lastBatch makes a later commit, which the standby must
// acknowledge.
func (p *postgres) lastBatch(before backend) (batch int64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), beginLimit)
	defer cancel()
	// The lock would become free without this too, but perhaps later.
	_, err = p.conn.ExecContext(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = $1 AND backend_start = $2`, before.pid, before.began)
	if pg.IsLost(err) {
		return 0, err
	}
	conn := p.raw.PgConn()
	if _, err := conn.Exec(ctx, p.beginAs[0]).ReadAll(); err != nil {
		return 0, errors.Join(err, conn.Exec(ctx, "ROLLBACK").Close())
	}
	err = p.conn.QueryRowContext(ctx, `UPDATE writers SET batch = batch WHERE id = $1 RETURNING batch`, *p.id.Load()).Scan(&batch)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		batch = -1
	case err != nil:
		return 0, errors.Join(err, conn.Exec(ctx, "ROLLBACK").Close())
	}
	p.warned.Store(false)
	if err := conn.Exec(ctx, "COMMIT").Close(); err != nil {
		return 0, err
	}
	if p.warned.Load() {
		return 0, errWarned
	}
	return batch, nil
}

// again reports whether to run a batch again, because its connection broke before the
// commit or because the lock was not available.
func (p *postgres) again(err error) (bool, error) {
	var undecided *undecidedError
	if errors.As(err, &undecided) {
		return false, err
	}
	if pg.IsLost(err) {
		p.drop()
	}
	if p.conn != nil && !errors.Is(err, errNotCommitted) && !pg.IsCrowded(err) {
		return false, err // a statement failed
	}
	if p.failing.IsZero() {
		p.failing = time.Now()
	}
	if time.Since(p.failing) > p.patience {
		return false, &undecidedError{fmt.Errorf("%w: %w", ErrUnavailable, err)}
	}
	pause(context.Background(), 10*time.Millisecond)
	return true, nil
}

// ready connects the writer. After the first failure it tries for as long as patience,
// and then once a second.
func (p *postgres) ready() error {
	if p.conn != nil {
		return nil
	}
	if p.failing.IsZero() {
		p.failing = time.Now()
	}
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		late := time.Since(p.failing) > p.patience
		if !late || p.cause == nil || time.Since(p.tried) > time.Second {
			p.tried = time.Now()
			if p.cause = p.connect(context.Background()); p.cause == nil {
				return nil
			}
		}
		closing := false
		select {
		case <-p.db.closing:
			closing = true
		default:
		}
		if late || closing {
			return fmt.Errorf("%w: %w", ErrUnavailable, p.cause)
		}
		pause(context.Background(), wait)
	}
}

// connect makes the writer's connection.
func (p *postgres) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, beginLimit)
	defer cancel()
	conn, err := p.writers.Conn(ctx)
	if err != nil {
		return err
	}
	p.conn = conn
	if err := conn.Raw(func(c any) error { p.raw = c.(*stdlib.Conn).Conn(); return nil }); err != nil {
		p.drop()
		return err
	}
	p.backend.pid = p.raw.PgConn().PID()
	err = conn.QueryRowContext(ctx, `SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()`).Scan(&p.backend.began)
	if err != nil {
		p.drop()
	}
	return err
}

// drop closes the writer's connection.
func (p *postgres) drop() {
	if p.conn == nil {
		return
	}
	_ = p.conn.Raw(func(any) error { return driver.ErrBadConn }) // so that the pool does not keep it
	_ = p.conn.Close()                                           // the connection is given up, whatever the result
	p.conn, p.raw = nil, nil
}

func (p *postgres) exec(_ *Tx, query string, args []any) (int64, error) {
	r, err := p.conn.ExecContext(p.ctx, p.rebound.Query(query), pg.Portable(args)...)
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

func (p *postgres) query(_ *Tx, query string, args []any) (*sql.Rows, error) {
	return p.conn.QueryContext(p.ctx, p.rebound.Query(query), pg.Portable(args)...)
}

// read repeats the query if the connection breaks before the first row.
func (p *postgres) read(ctx context.Context, query string, args []any, scan func(*sql.Rows) error) error {
	query, args = p.rebound.Query(query), pg.Portable(args)
	for begin, wait := time.Now(), 20*time.Millisecond; ; wait = min(2*wait, time.Second) {
		var scanned error
		some := false
		err := p.readOnce(ctx, query, args, func(r *sql.Rows) error {
			some = true
			scanned = scan(r)
			return scanned
		})
		if err == nil || scanned != nil || !pg.IsLost(err) || ctx.Err() != nil {
			return err
		}
		if some || time.Since(begin)+wait > p.patience {
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		pause(ctx, wait)
	}
}

func (p *postgres) readOnce(ctx context.Context, query string, args []any, scan func(*sql.Rows) error) error {
	ctx, cancel := context.WithTimeout(ctx, max(limitOf(ctx), readLimit))
	defer cancel()
	rows, err := p.readers.QueryContext(ctx, query, args...)
	return eachRow(rows, err, scan)
}

// Settled waits until the transaction under way has ended, by getting the lock itself. A
// transaction of this process whose commit was given up cannot take effect after that.
func (p *postgres) Settled(ctx context.Context) error {
	err := p.db.WriteLazy(ctx, func(*Tx) error { return nil })
	if err != nil {
		return fmt.Errorf("wait for the changes before: %w", err)
	}
	return nil
}

func (p *postgres) integrity(ctx context.Context, quick bool, n int) ([]string, error) {
	var may bool
	err := p.db.Row(ctx, `SELECT EXISTS (SELECT 1 FROM pg_proc WHERE proname = 'bt_index_check' AND has_function_privilege(oid, 'EXECUTE'))`, nil, &may)
	if err != nil || !may {
		return nil, err
	}
	type index struct {
		id   int64
		name string
	}
	var list []index
	err = p.db.Rows(ctx, `SELECT c.oid::bigint, c.relname FROM pg_class c JOIN pg_am a ON a.oid = c.relam AND a.amname = 'btree'
		WHERE c.relkind = 'i' AND c.relnamespace = current_schema()::regnamespace ORDER BY 2`, nil, func(r *sql.Rows) error {
		var i index
		err := r.Scan(&i.id, &i.name)
		list = append(list, i)
		return err
	})
	var complaints []string
	for _, i := range list {
		if err != nil || len(complaints) == n {
			break
		}
		var none string
		err = p.db.Row(ctx, `SELECT bt_index_check(?::bigint::oid::regclass, ?::int::boolean)::text`, []any{i.id, !quick}, &none)
		var answer *pgconn.PgError
		if errors.As(err, &answer) && !pg.IsLost(err) { // it reports a complaint as an error
			complaints, err = append(complaints, i.name+": "+answer.Message), nil
		}
	}
	return complaints, err
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
