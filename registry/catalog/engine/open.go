package engine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// ErrUnavailable says that the database does not answer. The change has most probably not
// taken effect, but it may have.
var ErrUnavailable = errors.New("the catalogue's database does not answer")

// Options are the options of Open and OpenPostgres. The zero value works.
type Options struct {
	// Clock returns the time. The default is time.Now. With PostgreSQL it is the clock of
	// the server, so that all processes that share the database have the same time.
	Clock func() time.Time
	// Readers is the number of connections that read at the same time; default 2, and 8
	// with PostgreSQL. Few are needed because the registry keeps hot rows in RAM and
	// seldom reads them here. Each connection takes about 0.7 MB.
	Readers int
	// Grace is how long something unreferenced is kept, at least, after the change that
	// made it unreferenced; default 1 h.
	Grace time.Duration
	// Reserve keeps a part of the disk for deleting and collecting; see [DB.Room]. It
	// works only with SQLite. By default there is no reserve.
	Reserve bool
	// OnMigrate is called when the schema has been brought up to date. Then Open first
	// copies an SQLite file, to the same path with the suffix OldSuffix and the version.
	// By default nothing is copied.
	OnMigrate func(Migration)
}

// OldSuffix follows the name of a catalogue's file in the name of the file's copy. The
// version of the copy's schema follows OldSuffix.
const OldSuffix = ".schema-"

// Migration is the outcome of a migration of the schema from one version to another.
type Migration struct {
	From, To int64
	// Copy is the path of the copy of the catalogue as it was before the migration, or ""
	// if there is no copy. Err says why there is none, although there should be one.
	Copy string
	Err  error
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

// Open opens the SQLite database at path and brings its schema up to date. It creates a
// missing file.
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

// OpenPostgres opens a PostgreSQL database, which many processes may share, and brings
// its schema up to date. The server must have version 13 or later, and the database must
// have the encoding UTF8. dsn is a connection string of PostgreSQL, as a URL or as
// keywords. The first schema of the search path is used. If dsn names several hosts,
// OpenPostgres uses the one that accepts changes. A connection pool in between must keep
// sessions together.
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

// OpenFile returns a read-only database on connections to a file that nobody else
// changes. CloseFile closes it.
func OpenFile(readers *sql.DB) *DB {
	e := &sqlite{readers: readers}
	e.reading.prepare = readers.PrepareContext
	return &DB{engine: e, lite: e}
}

// CloseFile closes a database that OpenFile returned, and its connections.
func (db *DB) CloseFile() error {
	db.lite.reading.close()
	return db.lite.readers.Close()
}

// Millis returns the database's time outside of changes, in milliseconds. It does not ask
// the server, and so returns the best known estimate.
func (db *DB) Millis() int64 { return db.now(nil) }

// Integrity asks the database whether its files are sound. It returns at most n
// complaints, and none if they are sound. quick omits the comparison of tables with their
// indexes. Integrity reads everything and blocks nobody. PostgreSQL can answer only if
// its extension amcheck is installed and the user may use it. Otherwise there are no
// complaints, and the administrator of the server must check it.
func (db *DB) Integrity(ctx context.Context, quick bool, n int) ([]string, error) {
	return db.integrity(Whole(ctx), quick, n)
}

// Shared reports whether other processes may change the database too.
func (db *DB) Shared() bool { return db.pg != nil }

// Now returns the time by the clock of all times in the catalogue: Options.Clock if it is
// set, and otherwise the clock of the PostgreSQL server or of this machine.
func (db *DB) Now(ctx context.Context) (time.Time, error) {
	if db.opts.Clock != nil {
		return FromMillis(db.Millis()), nil
	}
	var ms int64
	err := db.Row(ctx, `SELECT `+serverMillis, nil, &ms)
	return FromMillis(ms), err
}

// Watch reports to w what other processes change. It returns the error of ctx when ctx
// ends. It does not report changes through db, except a change that failed with
// ErrUnavailable but may have taken effect. It calls Lost first, and Again once it is
// connected. If the catalogue is not Shared, there is nothing to report.
//
// After Again and before Lost, w learns of another process's change within milliseconds
// of its commit. After a fault, Lost is called within 4 s.
func (db *DB) Watch(ctx context.Context, w Watcher) error {
	if db.pg == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	return db.pg.watch(ctx, w)
}

// Sync returns once Watch has reported every change that anybody committed before the
// call. It waits while nobody watches, and while Watch has no connection.
func (db *DB) Sync(ctx context.Context) error {
	if db.pg == nil {
		return nil
	}
	return db.pg.sync(ctx)
}
