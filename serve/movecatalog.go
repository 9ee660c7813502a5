package serve

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"example.org/slipway/internal/durable"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/engine"
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
		err = a.local.markMoved()
	}
	return rep, err
}

// movedMarker is a file in a data root which says that the catalogue there was moved
// elsewhere.
const movedMarker = registry.CatalogFile + ".moved"

// markMoved keeps servers from writing to the old catalogue by mistake, for example after
// a restart with the old configuration. Such changes would be missing in the new
// catalogue.
func (r *root) markMoved() error {
	err := durable.WriteFile(filepath.Join(r.dir, movedMarker), []byte(time.Now().UTC().Format(time.RFC3339)+"\n"))
	if err != nil {
		return fmt.Errorf("the catalogue is moved, but the old one could not be marked; start no server with it: %w", err)
	}
	return nil
}

// checkMoved returns an error if the catalogue was moved elsewhere.
func (r *root) checkMoved() error {
	path := filepath.Join(r.dir, movedMarker)
	if _, err := os.Stat(path); err != nil {
		return nil
	}
	return fmt.Errorf("the catalogue in %s was moved to PostgreSQL: set storage.catalog.postgres, or remove %s to go back to what it was at the move", r.dir, path)
}

func moveCatalog(ctx context.Context, r *root, args MoveArgs, progress func(MoveReport)) (rep MoveReport, err error) {
	began := time.Now()
	if r.cat.DB.Shared() {
		return rep, errors.New("the catalogue is in PostgreSQL already, where PostgreSQL's own tools move it")
	}
	to, err := catalog.OpenPostgres(ctx, args.To, nil)
	if err != nil {
		return rep, err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	err = engine.Move(ctx, r.cat.DB, to.DB, func(m engine.Moved) {
		rep.Table, rep.Checking, rep.Rows, rep.Took = m.Table, m.Checking, m.Rows, time.Since(began)
		if progress != nil {
			progress(rep)
		}
	})
	rep.Took = time.Since(began)
	return rep, err
}

// moveServed moves the catalogue of a server, which continues to serve reads.
func (s *Server) moveServed(ctx context.Context, args MoveArgs, progress func(MoveReport)) (MoveReport, error) {
	if err := s.writes.Stop(ctx); err != nil {
		return MoveReport{}, fmt.Errorf("wait for what is being written: %w", err)
	}
	s.log.Info("moving the catalogue; reads go on, writes are refused")
	rep, err := moveCatalog(ctx, s.root, args, progress)
	if err != nil {
		s.writes.Resume()
		s.log.Warn("the catalogue was not moved; writes go on", "err", err)
		return rep, err
	}
	rep.Served = true
	if err := s.root.markMoved(); err != nil {
		s.log.Error("mark the old catalogue", "err", err)
	}
	s.log.Info("the catalogue is moved; writes are refused until this server is started with storage.catalog.postgres", "took", rep.Took)
	return rep, nil
}
