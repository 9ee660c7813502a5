package volumeworker

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"example.org/slipway/config"
	"example.org/slipway/volume/volfs"
)

// Run serves the file system of volumes whose descriptor is dev, and the calls of a
// Storage on l, until ctx ends. state is the file that records for the next worker what
// is mapped. Requests that still wait are left to the next worker, too.
func Run(ctx context.Context, cfg *config.AgentVolumes, dev *os.File, l net.Listener, state string, log *slog.Logger) (err error) {
	all := newStores(cfg, log)
	defer func() { err = errors.Join(err, all.close()) }()
	s, err := volfs.New(dev, all.volume, &volfs.Options{State: state, Bound: cfg.Outage, Log: log})
	if err != nil {
		return errors.Join(err, l.Close())
	}
	calls := &http.Server{Handler: handler(s, all), ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- calls.Serve(l) }()
	log.Info("volume worker is ready", "outage", cfg.Outage)
	err = s.Serve(ctx)
	if ctx.Err() != nil {
		err = nil
	}
	err = errors.Join(err, calls.Close())
	if cerr := <-ended; !errors.Is(cerr, http.ErrServerClosed) {
		err = errors.Join(err, cerr)
	}
	return errors.Join(err, s.Close())
}
