package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/engine"
	"example.org/slipway/serve/dataroot"
)

// MoveArgs are the arguments of [Admin.MoveCatalog].
type MoveArgs struct {
	// To is the connection string of an empty PostgreSQL database.
	To string
}

// MoveReport is the progress of moving the catalogue.
type MoveReport struct {
	// Table is the table that is being copied or, if Checking is set, read back. Rows is
	// how many of its rows are done.
	Table    string `json:"table"`
	Checking bool   `json:"checking"`
	Rows     int64  `json:"rows"`
	// Served reports that a server keeps running, read-only, until it is restarted.
	Served bool          `json:"served"`
	Took   time.Duration `json:"took"`
}

// MoveCatalog copies the catalogue into a PostgreSQL database. A server that uses the
// data root answers reads meanwhile and refuses writes. It stays read-only after a
// success, because its changes would be missing in the new catalogue.
func (a *Admin) MoveCatalog(ctx context.Context, args MoveArgs, progress func(MoveReport)) (MoveReport, error) {
	if a.local == nil {
		return askServer(ctx, a, "catalog-move", args, progress)
	}
	rep, err := moveCatalog(ctx, a.local, args, progress)
	if err == nil {
		err = a.local.MarkMoved()
	}
	return rep, err
}

func moveCatalog(ctx context.Context, r *dataroot.Root, args MoveArgs, progress func(MoveReport)) (rep MoveReport, err error) {
	began := time.Now()
	if r.Catalog.DB.Shared() {
		return rep, errors.New("the catalogue is in PostgreSQL already, where PostgreSQL's own tools move it")
	}
	to, err := catalog.OpenPostgres(ctx, args.To, nil)
	if err != nil {
		return rep, err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	err = engine.Move(ctx, r.Catalog.DB, to.DB, func(m engine.Moved) {
		rep.Table, rep.Checking, rep.Rows, rep.Took = m.Table, m.Checking, m.Rows, time.Since(began)
		if progress != nil {
			progress(rep)
		}
	})
	rep.Took = time.Since(began)
	return rep, err
}

// moveServed moves the catalogue of a server, which continues to serve reads.
func (s *tasks) moveServed(ctx context.Context, args MoveArgs, progress func(MoveReport)) (MoveReport, error) {
	if err := s.writes.Stop(ctx); err != nil {
		return MoveReport{}, fmt.Errorf("wait for what is being written: %w", err)
	}
	s.o.Log.Info("moving the catalogue; reads go on, writes are refused")
	rep, err := moveCatalog(ctx, s.root, args, progress)
	if err != nil {
		s.writes.Resume()
		s.o.Log.Warn("the catalogue was not moved; writes go on", "err", err)
		return rep, err
	}
	rep.Served = true
	if err := s.root.MarkMoved(); err != nil {
		s.o.Log.Error("mark the old catalogue", "err", err)
	}
	s.o.Log.Info("the catalogue is moved; writes are refused until this server is started with storage.catalog.postgres", "took", rep.Took)
	return rep, nil
}
