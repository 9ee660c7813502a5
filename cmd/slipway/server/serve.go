package server

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/config"
	"example.org/slipway/internal/systemd"
	"example.org/slipway/serve"
)

func serveCommand() *cobra.Command {
	f := command.ServerFlags{Builtin: true}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the registry",
		Example: `  slipway serve
  slipway serve --root /var/lib/slipway --addr 127.0.0.1:5000
  slipway serve --config /etc/slipway/config.yml`,
		Long: `Run the registry. Without a configuration it keeps its data in ./slipway-data and
serves on 127.0.0.1:5000, to this machine only.

When the configuration file changes, or on SIGHUP, the server reads the access rules
(auth.access), the users and the rules of replication again; slipway config reload also says
what is wrong with them. Other changes take effect with a restart. On SIGHUP it also opens its
log files again.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := f.Load()
			if err != nil {
				return err
			}
			return runServer(cmd.Context(), cfg, f.Load, f.Path())
		},
	}
	f.Add(cmd, true)
	return cmd
}

func runServer(ctx context.Context, cfg *config.Config, reload func() (*config.Config, error), file string) error {
	log := newLogger(cfg)
	slog.SetDefault(log)
	defer systemd.FeedWatchdog(log)()
	s, err := serve.New(ctx, cfg, &serve.Options{Logger: log, Version: command.Version, Reload: reload, ConfigFile: file})
	if err != nil {
		return err
	}
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	reopened := make(chan struct{})
	go func() {
		defer close(reopened)
		for range hup {
			if err := s.ReopenLogs(); err != nil {
				log.Error("open the logs again after a rotation", "err", err)
			}
			_, _ = s.Reload() // it logs what is wrong
		}
	}()
	defer func() { signal.Stop(hup); close(hup); <-reopened }()
	err = s.Run(ctx)
	if closeErr := s.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

// newLogger creates the log that the configuration asks for, on standard error.
func newLogger(cfg *config.Config) *slog.Logger {
	log := slog.New(command.LogHandler(os.Stderr, cfg.Log.Formatter != "text", &slog.HandlerOptions{Level: cfg.Log.SlogLevel()}))
	for k, v := range cfg.Log.Fields {
		log = log.With(k, v)
	}
	return log
}
