package catalog

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"sync"
	"sync/atomic"

	"github.com/pressly/goose/v3"
	_ "modernc.org/sqlite" // the driver "sqlite"
)

//go:embed migrations/sqlite/*.sql
var migrations embed.FS

// maxBatch is how many changes share a commit at most. The wait of the first
// one is bounded by the work of the others, about 50 us each.
const maxBatch = 256

// logLimit, in bytes, is what the log's file is cut to when it begins anew. What
// is below stays, as writing over it is cheaper than growing.
const logLimit = "journal_size_limit(16777216)"

// database is one writer connection with group commit and a pool of readers.
type database struct {
	readers *sql.DB
	writer  *sql.DB // one connection
	conn    *sql.Conn

	mu    sync.Mutex
	stmts map[string]*sql.Stmt // on readers, by query

	writes chan *change
	done   chan struct{} // closed when the writer has ended
	// file is the catalogue's file. It must not be closed before SQLite's own
	// descriptors of it: that would end their locks.
	file *os.File
	log  string // path of the write-ahead log
	// torn is why mending failed when the writer ended.
	torn error
	// doubt is set from a commit that failed to one that was synced: the failed
	// one may still be found in the log. See settled.
	doubt atomic.Bool

	closeOnce sync.Once
	closing   chan struct{}
}

// change is one caller's part of a group commit.
type change struct {
	fn func(*tx) error
	// lazy says that the change need not survive a power cut, only the end of
	// this process.
	lazy   bool
	err    error
	result chan struct{}
}

// tx is what a change sees of the transaction it shares with others.
type tx struct {
	ctx   context.Context
	conn  *sql.Conn
	stmts map[string]*sql.Stmt
	file  *os.File     // the catalogue's
	log   string       // path of the write-ahead log
	doubt *atomic.Bool // of the database
	// torn tells that a commit or checkpoint failed, so that the log on the disk
	// may have gaps, and fileTorn that the catalogue's file may too; see mend.
	torn, fileTorn bool
	batches        int // since the last look at the size of the log after a sync
	// syncNext tells that the next batch is to be synced, lazy or not; see checkpoint.
	syncNext bool
	// lazy is the mode the connection is in; see sync.
	lazy bool
	// dirty tells that the present change has written something, so that its
	// failure must undo the whole batch.
	dirty bool
}

func openSQLite(ctx context.Context, path string, readers int) (*database, error) {
	// The file holds manifests of private repositories: nobody else reads it.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open catalogue: %w", err)
	}
	db := &database{
		file: f, log: path + "-wal", stmts: map[string]*sql.Stmt{},
		writes: make(chan *change, maxBatch), done: make(chan struct{}), closing: make(chan struct{}),
	}
	if err := db.open(ctx, path, readers); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	go db.runWriter()
	return db, nil
}

// open opens the connections.
func (db *database) open(ctx context.Context, path string, readers int) error {
	// cache_size is in KiB when negative: the writer's covers the hot pages of
	// a push, readers hardly ever read because hot rows are in RAM above us. The
	// memory is twice that: the allocator gives a page of 4 KiB and its header
	// 8 KiB. Pages not found here are in the system's page cache.
	w, err := sql.Open("sqlite", dsn(path, "cache_size(-512)", "wal_autocheckpoint(0)", logLimit))
	if err != nil {
		return fmt.Errorf("open catalogue %s: %w", path, err)
	}
	w.SetMaxOpenConns(1)
	db.writer = w
	if err := mendBeforeUse(ctx, w, db.log); err != nil {
		w.Close()
		return fmt.Errorf("make the log of catalogue %s durable: %w", path, err)
	}
	if err := migrate(ctx, w); err != nil {
		w.Close()
		return fmt.Errorf("bring catalogue %s up to date: %w", path, err)
	}
	if db.conn, err = w.Conn(ctx); err != nil {
		w.Close()
		return fmt.Errorf("open catalogue %s: %w", path, err)
	}
	if db.readers, err = sql.Open("sqlite", dsn(path, "cache_size(-128)", "query_only(1)")); err != nil {
		w.Close()
		return fmt.Errorf("open catalogue %s: %w", path, err)
	}
	db.readers.SetMaxOpenConns(readers)
	db.readers.SetMaxIdleConns(readers)
	return nil
}

// dsn makes the data source name. synchronous=FULL is what makes a commit in
// the write-ahead log durable.
func dsn(path string, extra ...string) string {
	q := url.Values{"_pragma": append([]string{"busy_timeout(15000)", "journal_mode(WAL)", "synchronous(FULL)", "temp_store(MEMORY)"}, extra...)}
	return "file:" + (&url.URL{Path: path}).EscapedPath() + "?" + q.Encode()
}

func migrate(ctx context.Context, db *sql.DB) error {
	sub, err := fs.Sub(migrations, "migrations/sqlite")
	if err != nil {
		return err
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, db, sub)
	if err != nil {
		return err
	}
	have, err := p.GetDBVersion(ctx)
	if err != nil {
		return err
	}
	if sources := p.ListSources(); have > sources[len(sources)-1].Version {
		return fmt.Errorf("its schema is version %d, made by a newer slipway; this one knows version %d: use the newer one, or restore a backup",
			have, sources[len(sources)-1].Version)
	}
	_, err = p.Up(ctx)
	return err
}

func (db *database) close() error {
	var err error
	db.closeOnce.Do(func() {
		close(db.closing)
		<-db.done
		db.mu.Lock()
		for _, s := range db.stmts {
			s.Close()
		}
		db.mu.Unlock()
		if db.torn != nil {
			// Closing the last connection would copy the log into the file and
			// remove it. As after a crash, the next process finds it instead.
			err = errors.Join(db.torn, db.readers.Close())
			return
		}
		err = errors.Join(db.readers.Close(), db.conn.Close(), db.writer.Close(), db.file.Close())
	})
	return err
}

// errClosed is returned for a change that comes when the catalogue is closed.
var errClosed = errors.New("the catalogue is closed")

// write runs fn inside a transaction shared with other callers and returns when
// it is durable. fn may run twice and must not have effects outside tx. An error
// of fn undoes what it wrote and nothing else.
func (db *database) write(ctx context.Context, fn func(*tx) error) error {
	return db.submit(ctx, &change{fn: fn, result: make(chan struct{})})
}

// writeLazy is write for changes that need not survive a power cut: it returns
// when they would survive the end of this process. A later write makes them
// durable too.
func (db *database) writeLazy(ctx context.Context, fn func(*tx) error) error {
	return db.submit(ctx, &change{fn: fn, lazy: true, result: make(chan struct{})})
}

func (db *database) submit(ctx context.Context, ch *change) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case db.writes <- ch:
	case <-db.closing:
		return errClosed
	}
	select {
	case <-ch.result:
		return ch.err
	case <-db.done:
		select {
		case <-ch.result: // it was the last batch
			return ch.err
		default:
			return errClosed
		}
	}
}

// runWriter is the only goroutine that writes.
func (db *database) runWriter() {
	defer close(db.done)
	t := &tx{ctx: context.Background(), conn: db.conn, stmts: map[string]*sql.Stmt{}, file: db.file, log: db.log, doubt: &db.doubt}
	defer func() {
		db.torn = errors.Join(t.mend(), t.mendFile())
		for _, s := range t.stmts {
			s.Close()
		}
	}()
	batch := make([]*change, 0, maxBatch)
	for {
		batch = batch[:0]
		select {
		case ch := <-db.writes:
			batch = append(batch, ch)
		case <-db.closing:
			select {
			case ch := <-db.writes: // accepted before the close
				batch = append(batch, ch)
			default:
				return
			}
		}
	more:
		for len(batch) < maxBatch {
			select {
			case ch := <-db.writes:
				batch = append(batch, ch)
			default:
				break more
			}
		}
		t.runBatch(batch)
		for _, ch := range batch {
			close(ch.result)
		}
		t.checkpoint()
	}
}

// runBatch commits all changes together. If one of them fails after it wrote,
// or the commit itself fails, all are undone and run again one by one, so that
// each is judged by its own outcome.
func (t *tx) runBatch(batch []*change) {
	if err := t.mend(); err != nil {
		fail(batch, err)
		return
	}
	err := t.sync(batch)
	if err == nil {
		err = t.begin()
	}
	if err == nil && t.syncNext {
		err = t.touch() // a commit of nothing is not synced
	}
	for _, ch := range batch {
		if err != nil {
			break
		}
		t.dirty = false
		if ch.err = ch.fn(t); ch.err != nil && (t.dirty || !isVerdict(ch.err)) {
			err = ch.err
		}
	}
	if err == nil {
		if err = t.commit(); err == nil {
			return
		}
	}
	t.rollback()
	if len(batch) == 1 {
		batch[0].err = t.explain(err)
		return
	}
	for i, ch := range batch {
		if err := t.mend(); err != nil { // once for all that are left
			fail(batch[i:], err)
			return
		}
		t.runBatch([]*change{ch})
	}
}

func fail(batch []*change, err error) {
	for _, ch := range batch {
		ch.err = err
	}
}

// isVerdict tells an answer of this package from a failure to get one. After a
// failure SQLite may have ended the transaction by itself, and what the others
// would do then would no longer be undone together.
func isVerdict(err error) bool {
	var missing *MissingError
	var immutable *ImmutableError
	for _, v := range []error{ErrNotFound, ErrNoRepository, ErrReferenced, ErrNotStored} {
		if errors.Is(err, v) {
			return true
		}
	}
	return errors.As(err, &missing) || errors.As(err, &immutable)
}

// sync makes the commit of a batch wait for the disk unless all of it is lazy.
// Under synchronous=NORMAL SQLite writes to the log and does not sync it; the
// next commit under FULL syncs all of it.
func (t *tx) sync(batch []*change) error {
	lazy := !t.syncNext
	for _, ch := range batch {
		lazy = lazy && ch.lazy
	}
	if lazy == t.lazy {
		return nil
	}
	mode := "PRAGMA synchronous = FULL"
	if lazy {
		mode = "PRAGMA synchronous = NORMAL"
	}
	if _, err := t.conn.ExecContext(t.ctx, mode); err != nil {
		return fmt.Errorf("set how commits are synced: %w", err)
	}
	t.lazy = lazy
	return nil
}

func (t *tx) begin() error {
	_, err := t.stmtExec("BEGIN IMMEDIATE")
	return err
}

func (t *tx) commit() error {
	_, err := t.stmtExec("COMMIT")
	switch {
	case isIOError(err):
		t.torn = true
		t.doubt.Store(true)
	case err == nil && !t.lazy:
		t.doubt.Store(false)
		t.syncNext = false
	}
	return err
}

// rollback ignores its error: after a failed commit SQLite may have rolled back
// by itself, and then says that there is no transaction.
func (t *tx) rollback() { _, _ = t.stmtExec("ROLLBACK") }

func (t *tx) prepare(query string) (*sql.Stmt, error) {
	if s := t.stmts[query]; s != nil {
		return s, nil
	}
	s, err := t.conn.PrepareContext(t.ctx, query)
	if err != nil {
		return nil, fmt.Errorf("prepare %q: %w", query, err)
	}
	t.stmts[query] = s
	return s, nil
}

func (t *tx) stmtExec(query string, args ...any) (sql.Result, error) {
	s, err := t.prepare(query)
	if err != nil {
		return nil, err
	}
	return s.ExecContext(t.ctx, args...)
}

// exec changes something and tells how many rows.
func (t *tx) exec(query string, args ...any) (int64, error) {
	t.dirty = true
	r, err := t.stmtExec(query, args...)
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

// row reads one row, or ErrNotFound.
func (t *tx) row(query string, args []any, dest ...any) error {
	s, err := t.prepare(query)
	if err != nil {
		return err
	}
	return notFound(s.QueryRowContext(t.ctx, args...).Scan(dest...))
}

// insert runs an INSERT … RETURNING id.
func (t *tx) insert(query string, args ...any) (id int64, err error) {
	t.dirty = true
	return id, t.row(query, args, &id)
}

// rows reads rows and calls scan for each.
func (t *tx) rows(query string, args []any, scan func(*sql.Rows) error) error {
	s, err := t.prepare(query)
	if err != nil {
		return err
	}
	rows, err := s.QueryContext(t.ctx, args...)
	return eachRow(rows, err, scan)
}

func eachRow(rows *sql.Rows, err error, scan func(*sql.Rows) error) error {
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

func notFound(err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return ErrNotFound
	}
	return err
}

// reader returns the prepared statement for a query outside a change.
func (db *database) reader(ctx context.Context, query string) (*sql.Stmt, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	if s := db.stmts[query]; s != nil {
		return s, nil
	}
	s, err := db.readers.PrepareContext(ctx, query)
	if err != nil {
		return nil, fmt.Errorf("prepare %q: %w", query, err)
	}
	db.stmts[query] = s
	return s, nil
}

func (db *database) row(ctx context.Context, query string, args []any, dest ...any) error {
	s, err := db.reader(ctx, query)
	if err != nil {
		return err
	}
	return notFound(s.QueryRowContext(ctx, args...).Scan(dest...))
}

func (db *database) rows(ctx context.Context, query string, args []any, scan func(*sql.Rows) error) error {
	s, err := db.reader(ctx, query)
	if err != nil {
		return err
	}
	rows, err := s.QueryContext(ctx, args...)
	return eachRow(rows, err, scan)
}
