package serve

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.org/slipway/catalog"
)

// MoveArgs of [Admin.MoveCatalog].
type MoveArgs struct {
	// To is the connection string of an empty PostgreSQL database.
	To string
}

// MoveReport is how far a move of the catalogue is.
type MoveReport struct {
	// Table that is being copied, or read back with Checking, and Rows of it so far.
	Table    string `json:"table"`
	Checking bool   `json:"checking"`
	Rows     int64  `json:"rows"`
	// Served tells that a server goes on, for reading only, until it is restarted.
	Served bool          `json:"served"`
	Took   time.Duration `json:"took"`
}

// MoveCatalog copies the catalogue into a PostgreSQL database. A server that uses the
// data root answers reads meanwhile and refuses writes; after a success it goes on so,
// since what it would change would be missing in the new catalogue.
func (a *Admin) MoveCatalog(ctx context.Context, args MoveArgs, progress func(MoveReport)) (MoveReport, error) {
	if a.local == nil {
		return askServer(ctx, a, "catalog-move", args, progress)
	}
	return moveCatalog(ctx, a.local, args, progress)
}

func moveCatalog(ctx context.Context, r *root, args MoveArgs, progress func(MoveReport)) (rep MoveReport, err error) {
	began := time.Now()
	if r.cat.Shared() {
		return rep, errors.New("the catalogue is in PostgreSQL already, where PostgreSQL's own tools move it")
	}
	to, err := catalog.OpenPostgres(ctx, args.To, nil)
	if err != nil {
		return rep, err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	err = catalog.Move(ctx, r.cat, to, func(m catalog.Moved) {
		rep.Table, rep.Checking, rep.Rows, rep.Took = m.Table, m.Checking, m.Rows, time.Since(began)
		if progress != nil {
			progress(rep)
		}
	})
	rep.Took = time.Since(began)
	return rep, err
}

// moveServed moves the catalogue of a server that goes on reading.
func (s *Server) moveServed(ctx context.Context, args MoveArgs, progress func(MoveReport)) (MoveReport, error) {
	if err := s.writes.stop(ctx); err != nil {
		return MoveReport{}, fmt.Errorf("wait for what is being written: %w", err)
	}
	s.log.Info("moving the catalogue; reads go on, writes are refused")
	rep, err := moveCatalog(ctx, s.root, args, progress)
	if err != nil {
		s.writes.resume()
		s.log.Warn("the catalogue was not moved; writes go on", "err", err)
		return rep, err
	}
	rep.Served = true
	s.log.Info("the catalogue is moved; writes are refused until this server is started with storage.catalog.postgres", "took", rep.Took)
	return rep, nil
}
