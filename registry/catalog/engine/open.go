package engine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// ErrUnavailable: the database does not answer. What was to be changed is
// most probably not changed, but may be.
var ErrUnavailable = errors.New("the catalogue's database does not answer")

// Options of Open. The zero value works.
type Options struct {
	// Clock tells the time; default time.Now, and with PostgreSQL the clock of
	// its server, so that all who share it have the same.
	Clock func() time.Time
	// Readers is how many connections read at once; default 2, and 8 with
	// PostgreSQL. Hot rows are in RAM above the catalogue, and each costs about
	// 0.7 MB.
	Readers int
	// Grace is how long something unreferenced is kept at least, counted from
	// the change that made it so; default 1 h.
	Grace time.Duration
	// Reserve keeps a part of the disk for deleting and collecting; see [DB.Room].
	// Only with SQLite. Default: none is kept.
	Reserve bool
}

func (o *Options) withDefaults() Options {
	var v Options
	if o != nil {
		v = *o
	}
	if v.Grace <= 0 {
		v.Grace = time.Hour
	}
	return v
}

// Open opens the SQLite database at path and brings its schema up to date. An absent file
// is created.
func Open(ctx context.Context, path string, o *Options) (*DB, error) {
	opts := o.withDefaults()
	if opts.Clock == nil {
		opts.Clock = time.Now
	}
	if opts.Readers <= 0 {
		opts.Readers = 2
	}
	db, err := openSQLite(ctx, path, opts)
	if isDamaged(err) {
		err = fmt.Errorf("the catalogue %s is damaged; restore a backup (slipway restore): %w", path, err)
	}
	return db, err
}

// OpenPostgres opens a PostgreSQL database, version 13 or later
// with the encoding UTF8, which many processes may share, and brings its schema up
// to date. dsn is a connection string of PostgreSQL, as a URL or as keywords; the
// schema used is the first of the search path. Of several hosts the one that
// accepts changes is taken. A pool between has to keep sessions together.
func OpenPostgres(ctx context.Context, dsn string, o *Options) (*DB, error) {
	opts := o.withDefaults()
	if opts.Readers <= 0 {
		opts.Readers = 8
	}
	db, err := openPostgres(ctx, dsn, opts)
	if err != nil {
		return nil, fmt.Errorf("open catalogue on PostgreSQL: %w", err)
	}
	return db, nil
}

// OpenFile returns a database that only reads, on connections to a file that nobody else
// changes. It ends with CloseFile.
func OpenFile(readers *sql.DB) *DB {
	e := &sqlite{readers: readers}
	e.reading.prepare = readers.PrepareContext
	return &DB{engine: e, lite: e}
}

// CloseFile closes a database of OpenFile, and the connections.
func (db *DB) CloseFile() error {
	db.lite.reading.close()
	return db.lite.readers.Close()
}

// Millis is the database's clock outside of changes, as well as it is known, in
// milliseconds. It asks nobody.
func (db *DB) Millis() int64 { return db.now(nil) }

// Integrity asks the database whether its files are sound and returns at most n
// complaints, none when they are. quick leaves out the comparison of tables with
// their indexes. It reads everything and holds up nobody. PostgreSQL can tell only
// where its extension amcheck is installed and the user may use it; otherwise that
// is left to whoever runs the server, and there are no complaints.
func (db *DB) Integrity(ctx context.Context, quick bool, n int) ([]string, error) {
	return db.integrity(Whole(ctx), quick, n)
}

// Shared reports whether other processes may change the database too.
func (db *DB) Shared() bool { return db.pg != nil }

// Now tells the time by the clock that all times in the catalogue are of:
// Options.Clock if that is set, else the clock of the PostgreSQL server, or of
// this machine.
func (db *DB) Now(ctx context.Context) (time.Time, error) {
	if db.opts.Clock != nil {
		return FromMillis(db.Millis()), nil
	}
	var ms int64
	err := db.Row(ctx, `SELECT `+serverMillis, nil, &ms)
	return FromMillis(ms), err
}

// Watch tells w what other processes change, until ctx ends: then it returns its
// error. It does not tell what was changed through db, unless that failed with
// ErrUnavailable and may have been changed all the same. It begins with Lost, and
// calls Again when it is connected. A catalogue that is not Shared has nothing to tell.
//
// While Lost has not been called, a change that was committed by another process
// is told within milliseconds, and Lost is called within 4 s of a fault.
func (db *DB) Watch(ctx context.Context, w Watcher) error {
	if db.pg == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	return db.pg.watch(ctx, w)
}

// Sync returns when Watch has told its watcher every change that anybody
// committed before the call. It waits while nobody watches, or while Watch has
// lost its connection.
func (db *DB) Sync(ctx context.Context) error {
	if db.pg == nil {
		return nil
	}
	return db.pg.sync(ctx)
}
