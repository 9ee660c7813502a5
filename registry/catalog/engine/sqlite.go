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

// logLimit, in bytes, is what the log's file is cut to when it begins anew. What
// is below stays, as writing over it is cheaper than growing.
const logLimit = "journal_size_limit(16777216)"

// sqlite is the engine of a catalogue in a file: one connection that writes, and
// a pool of readers.
type sqlite struct {
	db      *DB
	clock   func() int64
	readers *sql.DB
	writer  *sql.DB // one connection
	conn    *sql.Conn

	reading statements // on readers
	writing statements // on conn

	// file is the catalogue's file. It must not be closed before SQLite's own
	// descriptors of it: that would end their locks.
	file *os.File
	log  string // path of the write-ahead log
	mark *logMark
	// torn tells that a commit or checkpoint failed, so that the log on the disk
	// may have gaps, and fileTorn that the catalogue's file may too; see mend.
	torn, fileTorn bool
	// broken is why mending failed when the writer ended.
	broken  error
	batches int // since the last look at the size of the log after a sync
	// syncNext tells that the next batch is to be synced, lazy or not; see checkpoint.
	syncNext bool
	// lazy is the mode the connection is in; see sync.
	lazy bool
	// doubt is set from a commit that failed to one that was synced: the failed
	// one may still be found in the log. See settled.
	doubt atomic.Bool
	// reserve is nil where none is kept.
	reserve *reserve
}

var _ engine = (*sqlite)(nil)

func openSQLite(ctx context.Context, path string, opts Options) (*DB, error) {
	// The file holds manifests of private repositories: nobody else reads it.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open catalogue: %w", err)
	}
	// SQLite puts the log beside the file itself, wherever a link to it lies; so it does
	// where the file was made just now.
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
	// cache_size is in KiB when negative: the writer's covers the hot pages of
	// a push, readers hardly ever read because hot rows are in RAM above us. The
	// memory is twice that: the allocator gives a page of 4 KiB and its header
	// 8 KiB. Pages not found here are in the system's page cache.
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
	if err := migrateSQLite(ctx, w); err != nil {
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

// keepLog has the log's files, emptied, outlive the process where a reserve is kept:
// on a disk without inodes the next start could not make them again.
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

// dsn makes the data source name. synchronous=FULL is what makes a commit in
// the write-ahead log durable.
func dsn(path string, extra ...string) string {
	q := url.Values{"_pragma": append([]string{"busy_timeout(15000)", "journal_mode(WAL)", "synchronous(FULL)", "temp_store(MEMORY)"}, extra...)}
	return fileURI(path) + "?" + q.Encode()
}

func fileURI(path string) string { return "file:" + (&url.URL{Path: path}).EscapedPath() }

func (e *sqlite) close() error {
	e.reading.close()
	if e.broken != nil {
		// Closing the last connection would copy the log into the file and
		// remove it. As after a crash, the next process finds it instead.
		return errors.Join(e.broken, e.readers.Close())
	}
	err := errors.Join(e.readers.Close(), e.conn.Close(), e.writer.Close(), e.mark.close(), e.file.Close())
	if e.reserve != nil { // what the log took is free
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

// again gives a batch that the disk had no room for the reserve.
func (e *sqlite) again(err error) (bool, error) { return e.makeRoom(err), err }

// makeRoom reports whether a failure was one of a full disk, and the reserve was given
// up for it.
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
		return e.touch(t) // a commit of nothing is not synced
	}
	return nil
}

// sync makes the commit of a batch wait for the disk unless all of it is lazy.
// Under synchronous=NORMAL SQLite writes to the log and does not sync it; the
// next commit under FULL syncs all of it.
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

// rollback ignores its error: after a failed commit SQLite may have rolled back
// by itself, and then says that there is no transaction.
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
	// A pragma takes no parameters, and is not worth a prepared statement.
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

// isDamaged recognises SQLite's SQLITE_CORRUPT and SQLITE_NOTADB.
func isDamaged(err error) bool {
	var coded interface{ Code() int }
	const corrupt, notADatabase = 11, 26
	return errors.As(err, &coded) && (coded.Code()&0xff == corrupt || coded.Code()&0xff == notADatabase)
}
