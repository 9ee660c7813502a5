package store

import (
	"context"
	"errors"
	"fmt"
	"io"

	"example.org/slipway/workload/trace"
)

// Records calls fn for the requests of one zone in order of time, as records in the
// ten-field form with all that the store has of them. It is much slower than
// [Store.Scan]. It ignores the columns of the query. The record is valid until fn
// returns. Records ends when ctx is done or at the first error of fn, which it returns
// unchanged.
func (s *Store) Records(ctx context.Context, q Query, fn func(*trace.Record) error) error {
	z, err := s.zone(q.Zone)
	if err != nil {
		return err
	}
	from, to := q.bounds()
	for i := range z.days {
		d := &z.days[i]
		if d.day+microDay <= from || d.day >= to {
			continue
		}
		if err := d.records(ctx, from, to, fn); err != nil {
			return err
		}
	}
	return nil
}

func (d *dayFile) records(ctx context.Context, from, to int64, fn func(*trace.Record) error) (err error) {
	src, err := openSource(d.path, dayBuffers)
	if err != nil {
		return fmt.Errorf("read store: %w", err)
	}
	defer func() { err = errors.Join(err, src.close()) }()
	if from > d.day { // begin at the row group that has it
		var skip int64
		for _, h := range d.hours {
			if h.Last >= from {
				break
			}
			skip += h.Rows
		}
		if err := src.seek(skip); err != nil {
			return fmt.Errorf("read store: %w", err)
		}
	}
	var rec trace.Record
	for n := 0; ; n++ {
		if n%1024 == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		r, err := src.next()
		if errors.Is(err, io.EOF) || err == nil && r.Time >= to {
			return nil
		}
		if err != nil {
			return err
		}
		if r.Time < from {
			continue
		}
		r.record(&rec)
		if err := fn(&rec); err != nil {
			return err
		}
	}
}

// seek goes to the first row of a row group.
func (s *fileSource) seek(rowIndex int64) (err error) {
	defer damaged(&err, s.path)
	if err := s.r.SeekToRow(rowIndex); err != nil {
		return err
	}
	s.at = rowIndex
	for ; s.sound < rowIndex; s.checked++ { // the rows before are not read
		s.sound += s.pf.Metadata().RowGroups[s.checked].NumRows
	}
	return nil
}
