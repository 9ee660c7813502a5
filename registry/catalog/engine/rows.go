package engine

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"
)

// MaxIDs is the maximum number of rows that one statement changes. MaxNames is the
// maximum number of rows that one statement reads by name. Statements take many rows
// because each statement has to begin a transaction.
const (
	MaxIDs   = 64
	MaxNames = 256
)

// Marks returns n placeholders, or n groups of placeholders.
func Marks(group string, n int) string {
	return strings.TrimSuffix(strings.Repeat(group+", ", n), ", ")
}

// InParts calls the function each for the elements of a list, at most MaxNames at a time.
// It repeats the last element of a part until the length is a power of two, so that there
// are few different statements.
func InParts[E any](list []E, each func(part []E) error) error {
	for len(list) > 0 {
		part := slices.Clone(list[:min(len(list), MaxNames)])
		list = list[len(part):]
		n := 1
		for n < len(part) {
			n *= 2
		}
		for len(part) < n {
			part = append(part, part[len(part)-1])
		}
		if err := each(part); err != nil {
			return err
		}
	}
	return nil
}

// ByIDs runs a change for ids, at most MaxIDs at a time.
func (t *Tx) ByIDs(query string, before []any, ids []int64) error {
	for len(ids) > 0 {
		n := min(len(ids), MaxIDs)
		if n < MaxIDs {
			n = 1
		}
		args := append(make([]any, 0, len(before)+n), before...)
		for _, id := range ids[:n] {
			args = append(args, id)
		}
		ids = ids[n:]
		if _, err := t.Exec(fmt.Sprintf(query, Marks("?", n)), args...); err != nil {
			return err
		}
	}
	return nil
}

// IDs reads a column of ids.
func (t *Tx) IDs(query string, args ...any) ([]int64, error) {
	var out []int64
	err := t.Rows(query, args, func(r *sql.Rows) error {
		var id int64
		err := r.Scan(&id)
		out = append(out, id)
		return err
	})
	return out, err
}

// Names reads a column of names.
func (db *DB) Names(ctx context.Context, query string, args ...any) ([]string, error) {
	var names []string
	err := db.Rows(ctx, query, args, func(r *sql.Rows) error {
		var s string
		err := r.Scan(&s)
		names = append(names, s)
		return err
	})
	return names, err
}

// FromMillis returns the time for a number of milliseconds in the database. 0 is the zero
// time.
func FromMillis(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

// ToMillis is the inverse of FromMillis.
func ToMillis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// Rower reads rows, in a change or outside of one.
type Rower interface {
	// Rows reads rows and calls scan for each of them. If scan returns ErrEnough, Rows
	// stops and returns nil.
	Rows(query string, args []any, scan func(*sql.Rows) error) error
}

var _ = []Rower{(*Tx)(nil), reader{}}

// Reader returns a Rower that reads outside of changes. ctx bounds all its reads.
func (db *DB) Reader(ctx context.Context) Rower { return reader{ctx, db} }

type reader struct {
	ctx context.Context // the context of Reader; the reader does not outlive it
	db  *DB
}

func (r reader) Rows(query string, args []any, scan func(*sql.Rows) error) error {
	return r.db.Rows(r.ctx, query, args, scan)
}

// Row reads one row. It returns ErrNotFound if there is none.
func Row(r Rower, query string, args []any, dest ...any) error {
	one := firstRow{dest: dest}
	return one.result(r.Rows(query, args, one.scan))
}
