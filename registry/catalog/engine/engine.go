// Package engine is the database of the catalogue: connections, group commit, migrations,
// and the copy of one database into another. It knows the tables only. The packages that
// store facts in the database know what the rows mean.
//
// SQLite is the default. It has a write-ahead log, synchronous=FULL, a few readers, and
// one writer that commits many callers' changes with one fsync (group commit). PostgreSQL
// is for several processes that share a catalogue; see [DB.Shared].
//
// All times are of one clock, see [DB.Now], and stored in milliseconds.
package engine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// maxBatch is the maximum number of changes that share a commit. So the first change
// waits at most for the work of the others, about 50 us each with SQLite.
const maxBatch = 256

// engine is the interface of the databases, which contains what differs between them.
// read and Settled may be called at any time. The other methods may be called only by the
// writer, or while there is no writer.
type engine interface {
	// ready does what must be done before the next batch. While it fails, all changes
	// fail.
	ready() error
	// begin begins the transaction of a batch, and rollback undoes it. If the whole batch
	// is lazy, the commit need not wait for the disk.
	begin(t *Tx, lazy bool) error
	rollback(t *Tx)
	// commit ends the transaction. After an error nothing of the transaction is there,
	// unless the error is an [*undecidedError].
	commit(t *Tx) error
	// again reports whether to run a failed batch once more without a change. If not, it
	// returns the error of the batch.
	again(err error) (bool, error)
	// explain returns the error of a change whose transaction failed with err.
	explain(err error) error
	// after is called between batches, and end when the writer ends.
	after()
	end()
	// exec and query run a statement of a change.
	exec(t *Tx, query string, args []any) (int64, error)
	query(t *Tx, query string, args []any) (*sql.Rows, error)
	// read runs a query outside of changes, and calls scan for each row.
	read(ctx context.Context, query string, args []any, scan func(*sql.Rows) error) error
	// Settled returns nil once no commit that was refused can take effect any more. Call it
	// before you delete an object because the catalogue does not name it.
	Settled(ctx context.Context) error
	// integrity is like Integrity, but sets no time limit.
	integrity(ctx context.Context, quick bool, n int) ([]string, error)
	// now returns the catalogue's time in milliseconds. In a change it is the time of the
	// transaction.
	now(t *Tx) int64
	// snapshot returns a connection that sees the catalogue as it is now, whatever
	// changes meanwhile, until the caller calls end.
	snapshot(ctx context.Context) (conn *sql.Conn, end func(), err error)
	// fill inserts rows into a table, in a change.
	fill(t *Tx, table string, columns []string, next func() ([]any, error)) error
	// close closes what is left after the writer has ended.
	close() error
}

// undecidedError is the error of a commit that may or may not have taken effect. It is
// also any other failure that no single change caused, so that running the changes again
// one by one would not help.
type undecidedError struct{ error }

func (e *undecidedError) Unwrap() error { return e.error }

// DB is an open database: an engine with one writer and its group commit. All methods may
// run concurrently.
type DB struct {
	engine
	opts Options
	// Exactly one of these is the engine.
	lite *sqlite
	pg   *postgres

	writes chan *change
	done   chan struct{} // closed when the writer has ended

	closeOnce sync.Once
	closing   chan struct{}
}

// change is one caller's part of a group commit.
type change struct {
	fn func(*Tx) error
	// lazy says that the change need not survive a power cut, but only the end of this
	// process.
	lazy bool
	// limit is how long the change may take, or 0 for the default of some seconds; see
	// Whole.
	limit  time.Duration
	err    error
	result chan struct{}
}

// Tx is a change's view of the transaction that it shares with other changes.
type Tx struct {
	db *DB
	// dirty says that the present change has written something, so that its failure must
	// undo the whole batch. wrote says that some change of the batch has.
	dirty, wrote bool
	// Repositories holds ids that changes of the batch have looked up, by name. Whoever
	// deletes a repository must clear it.
	Repositories map[string]int64
	// changes holds the changes of the batch that other processes must learn of.
	changes []Change
	// limit is the longest limit of the changes of the batch.
	limit time.Duration
	// began is when the transaction began, by the database's clock if it has one.
	began int64
}

// newDatabase returns a database whose writer is not started yet.
func newDatabase() *DB {
	return &DB{writes: make(chan *change, maxBatch), done: make(chan struct{}), closing: make(chan struct{})}
}

// Close waits for changes under way and closes the database. Every Watch must have ended.
func (db *DB) Close() error {
	var err error
	db.closeOnce.Do(func() {
		close(db.closing)
		<-db.done
		err = db.engine.close()
	})
	return err
}

// errClosed is returned for a change that begins after the catalogue is closed.
var errClosed = errors.New("the catalogue is closed")

// Write runs fn inside a transaction that it shares with other callers, and returns when
// the change is durable. fn may run several times, and must not have effects outside its
// Tx. If fn returns an error, only what fn wrote is undone.
func (db *DB) Write(ctx context.Context, fn func(*Tx) error) error {
	return db.submit(ctx, &change{fn: fn})
}

// WriteLazy is like Write, for a change that need not survive a power cut. It returns when the
// change would survive the end of this process. A later Write makes the change durable too.
func (db *DB) WriteLazy(ctx context.Context, fn func(*Tx) error) error {
	return db.submit(ctx, &change{fn: fn, lazy: true})
}

func (db *DB) submit(ctx context.Context, ch *change) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ch.limit, ch.result = limitOf(ctx), make(chan struct{})
	select {
	case db.writes <- ch:
	case <-ctx.Done():
		return ctx.Err()
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
func (db *DB) runWriter() {
	defer close(db.done)
	t := &Tx{db: db}
	defer db.end()
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
		db.after()
	}
}

// runBatch commits all changes together. All of them are undone if a change fails after
// it wrote, or with an error that is not a verdict. Then the changes before it share one
// commit, the failed change runs alone, and the changes after it share another commit. So
// a batch costs two more commits for each such change, and no change runs more than
// twice. If the commit itself fails, each change runs alone and has its own result.
func (t *Tx) runBatch(batch []*change) {
	culprit, err := t.attempt(batch)
	for again := true; err != nil; culprit, err = t.attempt(batch) {
		if again, err = t.db.again(err); !again {
			break
		}
	}
	var undecided *undecidedError
	switch {
	case err == nil:
	case errors.As(err, &undecided):
		for _, ch := range batch {
			ch.err = undecided.error
		}
	case len(batch) == 1:
		batch[0].err = t.db.explain(err)
	default:
		rest := batch
		for _, part := range apart(batch, culprit) {
			t.runBatch(part)
			rest = rest[len(part):]
			// If ready fails, it fails for all changes that are left.
			if err := t.db.ready(); err != nil {
				for _, ch := range rest {
					ch.err = err
				}
				return
			}
		}
	}
}

// apart splits a failed batch around its culprit. It splits the batch into single changes
// if there is no culprit.
func apart(batch []*change, culprit int) [][]*change {
	if culprit < 0 {
		return slices.Collect(slices.Chunk(batch, 1))
	}
	parts := [][]*change{batch[:culprit], batch[culprit : culprit+1], batch[culprit+1:]}
	return slices.DeleteFunc(parts, func(part []*change) bool { return len(part) == 0 })
}

// attempt runs a batch in one transaction. If it returns no error, each change has its
// own result. Otherwise culprit is the index of the change that failed, or -1 if the
// transaction failed.
func (t *Tx) attempt(batch []*change) (culprit int, err error) {
	if err := t.db.ready(); err != nil {
		return -1, &undecidedError{err}
	}
	lazy := true
	t.limit = 0
	for _, ch := range batch {
		lazy = lazy && ch.lazy
		t.limit = max(t.limit, ch.limit)
	}
	t.wrote, t.changes = false, t.changes[:0]
	clear(t.Repositories)
	err, culprit = t.db.begin(t, lazy), -1
	for i, ch := range batch {
		if err != nil {
			break
		}
		told := len(t.changes)
		t.dirty = false
		ch.err = ch.fn(t)
		t.wrote = t.wrote || t.dirty
		if ch.err == nil {
			continue
		}
		t.changes = t.changes[:told]
		if t.dirty || !isVerdict(ch.err) {
			err, culprit = ch.err, i
		}
	}
	if err == nil {
		err = t.db.commit(t)
	}
	if err != nil {
		t.db.rollback(t)
	}
	return culprit, err
}

// Verdict is the type of an error by which a change says that the request cannot be met.
// The transaction continues, because the database did what it should. After any other
// error the database may have ended the transaction by itself. Then the writes of the
// other changes would no longer be undone together.
type Verdict interface {
	error
	// Verdict does nothing.
	Verdict()
}

// isVerdict reports whether err is, or wraps, a verdict.
func isVerdict(err error) bool {
	var v Verdict
	return errors.As(err, &v)
}

// sentinel is a Verdict without details. Compare it with errors.Is.
type sentinel struct{ text string }

var _ Verdict = (*sentinel)(nil)

// NewVerdict returns a new verdict, which differs from all others.
func NewVerdict(text string) error { return &sentinel{text} }

// Error implements error.
func (s *sentinel) Error() string { return s.text }

// Verdict implements Verdict.
func (s *sentinel) Verdict() {}

// ErrNotFound says that there is no such row.
var ErrNotFound = NewVerdict("not in the catalogue")

// Now returns the time of the change in milliseconds.
func (t *Tx) Now() int64 { return t.db.now(t) }

// Due returns when the collector may remove what the change makes unneeded: a grace
// period after Now.
func (t *Tx) Due() int64 { return t.Now() + t.Grace() }

// Grace returns the grace period of Options in milliseconds.
func (t *Tx) Grace() int64 { return t.db.opts.Grace.Milliseconds() }

// Shared reports whether other processes may change the database too.
func (t *Tx) Shared() bool { return t.db.Shared() }

// MarkDirty says that the change writes by other means than Exec and Insert.
func (t *Tx) MarkDirty() { t.dirty = true }

// Changed notes a change. Other processes learn of it when it is committed.
func (t *Tx) Changed(kind ChangeKind, repo, ref string) {
	if repo != "" && ref != "" {
		t.changes = append(t.changes, Change{kind, repo, ref})
	}
}

// Exec runs a statement that changes something, and returns the number of changed rows.
func (t *Tx) Exec(query string, args ...any) (int64, error) {
	t.dirty = true
	return t.db.exec(t, query, args)
}

// Row reads one row. It returns ErrNotFound if there is none.
func (t *Tx) Row(query string, args []any, dest ...any) error {
	return Row(t, query, args, dest...)
}

// Insert runs an INSERT … RETURNING id.
func (t *Tx) Insert(query string, args ...any) (id int64, err error) {
	t.dirty = true
	return id, t.Row(query, args, &id)
}

// Rows reads rows and calls scan for each of them. If scan returns ErrEnough, Rows stops
// and returns nil.
func (t *Tx) Rows(query string, args []any, scan func(*sql.Rows) error) error {
	rows, err := t.db.query(t, query, args)
	return eachRow(rows, err, scan)
}

// Row reads one row outside of changes. It returns ErrNotFound if there is none.
func (db *DB) Row(ctx context.Context, query string, args []any, dest ...any) error {
	return Row(db.Reader(ctx), query, args, dest...)
}

// Rows reads rows outside of changes and calls scan for each of them. If scan returns
// ErrEnough, Rows stops and returns nil.
func (db *DB) Rows(ctx context.Context, query string, args []any, scan func(*sql.Rows) error) error {
	return db.read(ctx, query, args, scan)
}

// ErrEnough is returned by a scan function to end the reading of rows.
var ErrEnough = errors.New("no more rows are needed")

func eachRow(rows *sql.Rows, err error, scan func(*sql.Rows) error) error {
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err == ErrEnough {
			return nil
		} else if err != nil {
			return err
		}
	}
	return rows.Err()
}

// firstRow scans one row.
type firstRow struct {
	dest  []any
	found bool
}

func (f *firstRow) scan(r *sql.Rows) error {
	f.found = true
	if err := r.Scan(f.dest...); err != nil {
		return err
	}
	return ErrEnough
}

func (f *firstRow) result(err error) error {
	if err == nil && !f.found {
		return ErrNotFound
	}
	return err
}

// limitKey is the context key of the time that a read or a change may take.
type limitKey struct{}

// wholeLimit is how long a read of whole tables may take.
const wholeLimit = 10 * time.Minute

// Whole returns a context that allows a read or a change minutes instead of seconds.
func Whole(ctx context.Context) context.Context { return within(ctx, wholeLimit) }

func within(ctx context.Context, d time.Duration) context.Context {
	return context.WithValue(ctx, limitKey{}, d)
}

// limitOf returns the time that a read or a change may take, or 0 for the default.
func limitOf(ctx context.Context) time.Duration {
	d, _ := ctx.Value(limitKey{}).(time.Duration)
	return d
}

// statements holds the prepared statements of one connection or pool. Each query is
// prepared once.
type statements struct {
	prepare func(context.Context, string) (*sql.Stmt, error)
	mu      sync.Mutex
	byQuery map[string]*sql.Stmt
	// preparing holds the queries that are being prepared. Each channel is closed when
	// the preparation ends.
	preparing map[string]chan struct{}
}

// get returns the statement of a query. On a pool, preparing a statement waits for a
// connection. Callers that need another statement, which is prepared already, do not wait
// for that.
func (s *statements) get(ctx context.Context, query string) (*sql.Stmt, error) {
	for {
		s.mu.Lock()
		st, others := s.byQuery[query], s.preparing[query]
		if st == nil && others == nil {
			if s.preparing == nil {
				s.preparing = map[string]chan struct{}{}
			}
			s.preparing[query] = make(chan struct{})
		}
		s.mu.Unlock()
		if st != nil {
			return st, nil
		}
		if others == nil {
			return s.add(ctx, query)
		}
		select {
		case <-others: // the others may have failed or given up
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// add prepares a query whose entry in preparing exists.
func (s *statements) add(ctx context.Context, query string) (*sql.Stmt, error) {
	st, err := s.prepare(ctx, query)
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.preparing[query])
	delete(s.preparing, query)
	if err != nil {
		return nil, fmt.Errorf("prepare %q: %w", query, err)
	}
	if s.byQuery == nil {
		s.byQuery = map[string]*sql.Stmt{}
	}
	s.byQuery[query] = st
	return st, nil
}

func (s *statements) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.byQuery {
		st.Close()
	}
	clear(s.byQuery)
}

// systemMillis returns a clock in milliseconds.
func systemMillis(clock func() time.Time) func() int64 {
	return func() int64 { return clock().UnixMilli() }
}
