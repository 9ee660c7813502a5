package engine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"

	driver "modernc.org/sqlite" // also registers "sqlite"
)

// logLimit sets the size in bytes to which the log's file is truncated when the log
// begins anew. A smaller file stays, because overwriting is cheaper than growing.
const logLimit = "journal_size_limit(16777216)"

// sqlite is the engine of a catalogue in a file. It has one connection that writes and a
// pool of readers.
type sqlite struct {
	db      *DB
	clock   func() int64
	readers *sql.DB
	writer  *sql.DB // one connection
	conn    *sql.Conn

	reading statements // on readers
	writing statements // on conn

	// file is the catalogue's file. It must not be closed before SQLite's own descriptors
	// of it, because that would release their locks.
	file *os.File
	log  string // path of the write-ahead log
	mark *logMark
	// torn says that a commit or checkpoint failed, so that the log on the disk may have
	// gaps. fileTorn says the same of the catalogue's file; see mend.
	torn, fileTorn bool
	// broken is the error of a failed mend when the writer ended.
	broken  error
	batches int // since the size of the log was last checked after a sync
	// syncNext says that the next batch must be synced even if it is lazy; see
	// checkpoint.
	syncNext bool
	// lazy is the present mode of the connection; see sync.
	lazy bool
	// doubt is set from a failed commit until the next synced commit. Meanwhile the
	// failed commit may still be found in the log; see Settled.
	doubt atomic.Bool
	// reserve is nil if there is none.
	reserve *reserve
}

var _ engine = (*sqlite)(nil)

func openSQLite(ctx context.Context, path string, opts Options) (*DB, error) {
	// The file holds manifests of private repositories, so only its owner may read it.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open catalogue: %w", err)
	}
	// SQLite puts the log beside the file itself, even if path is a link to it. That also
	// applies to a file that was just created.
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	db := newDatabase()
	e := &sqlite{db: db, clock: systemMillis(opts.Clock), file: f, log: path + "-wal"}
	if opts.Reserve {
		e.reserve = newReserve(path)
	}
	db.engine, db.lite, db.opts = e, e, opts
	err = checkLog(path)
	if err == nil && empty(f, e.log) {
		err = execAlone(ctx, freshDSN(path), `PRAGMA user_version = 1`)
	}
	if err == nil {
		err = e.openReserved(ctx, path, opts.Readers)
	}
	if err != nil {
		return nil, errors.Join(e.impaired(err), f.Close())
	}
	go db.runWriter()
	return db, nil
}

// open opens the connections.
func (e *sqlite) open(ctx context.Context, path string, readers int) error {
	// A negative cache_size is in KiB. The writer's cache covers the hot pages of a push.
	// Readers hardly ever read, because the registry keeps hot rows in RAM itself. The
	// caches take twice that memory, because the allocator rounds a page of 4 KiB and its
	// header up to 8 KiB. Pages that are not found here are in the system's page cache.
	w, err := sql.Open("sqlite", dsn(path, "cache_size(-512)", "wal_autocheckpoint(0)", logLimit))
	if err != nil {
		return fmt.Errorf("open catalogue %s: %w", path, err)
	}
	w.SetMaxOpenConns(1)
	e.writer = w
	if err := mendBeforeUse(ctx, w, e.log); err != nil {
		w.Close()
		return fmt.Errorf("make the log of catalogue %s durable: %w", path, err)
	}
	if err := migrateSQLite(ctx, w, path, e.db.opts.OnMigrate); err != nil {
		w.Close()
		return fmt.Errorf("bring catalogue %s up to date: %w", path, err)
	}
	if e.mark, err = startMark(path); err != nil {
		w.Close()
		return fmt.Errorf("mark how much of the log of catalogue %s is synced: %w", path, err)
	}
	if e.conn, err = w.Conn(ctx); err != nil {
		err = errors.Join(err, w.Close(), e.mark.close())
		return fmt.Errorf("open catalogue %s: %w", path, err)
	}
	if err := e.keepLog(); err != nil {
		return errors.Join(err, e.conn.Close(), w.Close(), e.mark.close())
	}
	e.writing.prepare = e.conn.PrepareContext
	if e.readers, err = sql.Open("sqlite", dsn(path, "cache_size(-128)", "query_only(1)")); err != nil {
		err = errors.Join(err, e.conn.Close(), w.Close(), e.mark.close())
		return fmt.Errorf("open catalogue %s: %w", path, err)
	}
	e.readers.SetMaxOpenConns(readers)
	e.readers.SetMaxIdleConns(readers)
	e.reading.prepare = e.readers.PrepareContext
	return nil
}

// keepLog keeps the log's files, emptied, after the end of the process if there is a
// reserve. On a disk without free inodes the next start could not create them again.
func (e *sqlite) keepLog() error {
	if e.reserve == nil {
		return nil
	}
	return e.conn.Raw(func(c any) error {
		if _, err := c.(driver.FileControl).FileControlPersistWAL("main", 1); err != nil {
			return fmt.Errorf("keep the log's files: %w", err)
		}
		return nil
	})
}

// dsn returns the data source name. synchronous=FULL makes a commit in the write-ahead
// log durable.
func dsn(path string, extra ...string) string {
	q := url.Values{"_pragma": append([]string{"busy_timeout(15000)", "journal_mode(WAL)", "synchronous(FULL)", "temp_store(MEMORY)"}, extra...)}
	return fileURI(path) + "?" + q.Encode()
}

func fileURI(path string) string { return "file:" + (&url.URL{Path: path}).EscapedPath() }

func (e *sqlite) close() error {
	e.reading.close()
	if e.broken != nil {
		// Closing the last connection would copy the log into the file and remove the
		// log. Without that, the next process finds the log, as after a crash.
		return errors.Join(e.broken, e.readers.Close())
	}
	err := errors.Join(e.readers.Close(), e.conn.Close(), e.writer.Close(), e.mark.close(), e.file.Close())
	if e.reserve != nil { // the space of the log is free now
		e.reserve.keep()
		e.reserve.fill()
	}
	return err
}

func (e *sqlite) end() {
	e.broken = errors.Join(e.mend(), e.mendFile())
	e.writing.close()
}

func (e *sqlite) now(*Tx) int64 { return e.clock() }

func (e *sqlite) ready() error { return e.mend() }

func (e *sqlite) after() {
	e.checkpoint()
	if e.reserve != nil && e.reserve.low() {
		e.reserve.refill()
	}
}

// again gives up a part of the reserve for a batch that failed because the disk was full.
func (e *sqlite) again(err error) (bool, error) { return e.makeRoom(err), err }

// makeRoom reports whether the disk was full when a statement failed, and a part of the
// reserve was given up.
func (e *sqlite) makeRoom(err error) bool {
	return e.reserve != nil && e.reserve.lacksRoom(err) && e.reserve.release(false)
}

func (e *sqlite) begin(t *Tx, lazy bool) error {
	if err := e.sync(lazy && !e.syncNext); err != nil {
		return err
	}
	if err := e.do("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	if e.syncNext {
		return e.touch(t) // an empty commit is not synced
	}
	return nil
}

// sync makes the commit of a batch wait for the disk unless the whole batch is lazy. With
// synchronous=NORMAL, SQLite writes to the log but does not sync it. The next commit with
// FULL syncs all of it.
func (e *sqlite) sync(lazy bool) error {
	if lazy == e.lazy {
		return nil
	}
	mode := "PRAGMA synchronous = FULL"
	if lazy {
		mode = "PRAGMA synchronous = NORMAL"
	}
	if _, err := e.conn.ExecContext(context.Background(), mode); err != nil {
		return fmt.Errorf("set how commits are synced: %w", err)
	}
	e.lazy = lazy
	return nil
}

func (e *sqlite) commit(*Tx) error {
	err := e.do("COMMIT")
	switch {
	case isIOError(err):
		e.torn = true
		e.doubt.Store(true)
	case err == nil && !e.lazy:
		e.doubt.Store(false)
		e.syncNext = false
	}
	if err == nil {
		e.mark.committed(!e.lazy)
	}
	return err
}

// rollback ignores its error. After a failed commit SQLite may have rolled back by
// itself, and then reports that there is no transaction.
func (e *sqlite) rollback(*Tx) { _ = e.do("ROLLBACK") }

func (e *sqlite) do(statement string) error {
	_, err := e.exec(nil, statement, nil)
	return err
}

func (e *sqlite) exec(_ *Tx, query string, args []any) (int64, error) {
	s, err := e.writing.get(context.Background(), query)
	if err != nil {
		return 0, err
	}
	r, err := s.ExecContext(context.Background(), args...)
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

func (e *sqlite) query(_ *Tx, query string, args []any) (*sql.Rows, error) {
	s, err := e.writing.get(context.Background(), query)
	if err != nil {
		return nil, err
	}
	return s.QueryContext(context.Background(), args...)
}

func (e *sqlite) read(ctx context.Context, query string, args []any, scan func(*sql.Rows) error) error {
	s, err := e.reading.get(ctx, query)
	if err != nil {
		return e.impaired(err)
	}
	rows, err := s.QueryContext(ctx, args...)
	return e.impaired(eachRow(rows, err, scan))
}

func (e *sqlite) integrity(ctx context.Context, quick bool, n int) ([]string, error) {
	pragma := "integrity_check"
	if quick {
		pragma = "quick_check"
	}
	// A pragma takes no parameters, and a prepared statement is not worth it.
	rows, err := e.readers.QueryContext(ctx, fmt.Sprintf("PRAGMA %s(%d)", pragma, n))
	var complaints []string
	err = eachRow(rows, err, func(r *sql.Rows) error {
		var s string
		err := r.Scan(&s)
		if s != "ok" {
			complaints = append(complaints, s)
		}
		return err
	})
	return complaints, err
}

// isDamaged reports whether err is SQLite's SQLITE_CORRUPT or SQLITE_NOTADB.
func isDamaged(err error) bool {
	var coded interface{ Code() int }
	const corrupt, notADatabase = 11, 26
	return errors.As(err, &coded) && (coded.Code()&0xff == corrupt || coded.Code()&0xff == notADatabase)
}
