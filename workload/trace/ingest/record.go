package ingest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/logs"
	"example.org/slipway/workload/trace/store"
)

// RecordOptions say how a log is recorded. The zero value works.
type RecordOptions struct {
	// Zone is the zone of the records; "" is "default".
	Zone string
	// Every is the interval at which new records are published; 0 means ten minutes. Each
	// time the whole file is written again. A crash loses what has arrived since.
	Every time.Duration
	// Progress, if not nil, is called after each record with the number of records.
	Progress func(records int64)
}

// Record reads a stream, such as a [logs.Follower], into a store until the stream ends, and closes
// w. The end of ctx does not end it: the owner of the stream stops that. It returns [ErrNothing] if
// the stream had lines but no request.
func Record(in *logs.Input, r io.Reader, name string, w *store.Writer, o *RecordOptions) (int64, error) {
	if o == nil {
		o = &RecordOptions{}
	}
	zone, every := o.Zone, o.Every
	if zone == "" {
		zone = defaultZone
	}
	if every <= 0 {
		every = 10 * time.Minute
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	records, ended := make(chan trace.Record, importBatch), make(chan error, 1)
	go func() {
		defer close(records)
		ended <- in.Follow(r, name, func(src logs.Source, rec *trace.Record) error {
			if !store.Storable(rec.Time) {
				in.Skip(trace.BadTime, src.File, src.Record, fmt.Sprintf("%v: %v", store.ErrTime, rec.Time))
				return nil
			}
			select {
			case records <- *rec:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	}()
	tick := time.NewTicker(every)
	defer tick.Stop()
	var n int64
	var err error
	for open := true; open && err == nil; {
		var rec trace.Record
		select {
		case rec, open = <-records:
			if !open {
				continue
			}
			n++
			err = w.Add(zone, &rec)
			if o.Progress != nil {
				o.Progress(n)
			}
		case <-tick.C:
			err = w.Flush()
		}
	}
	cancel(err)
	if err == nil {
		err = <-ended
	}
	if n == 0 && err == nil && len(in.Skipped()) > 0 {
		err = ErrNothing
	}
	return n, errors.Join(err, w.Close())
}
