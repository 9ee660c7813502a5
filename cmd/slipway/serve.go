package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"example.org/slipway/config"
	"example.org/slipway/serve"
)

// builtin is the configuration of a server that was given none.
const builtin = `version: 0.1
storage: {filesystem: {rootdirectory: ./slipway-data}}
http: {addr: "127.0.0.1:5000", debug: {addr: "127.0.0.1:5001"}}
`

// configFlags are the flags of every command that needs the configuration.
type configFlags struct {
	file, root, addr, debugAddr string
}

func (f *configFlags) add(cmd *cobra.Command, listening bool) {
	cmd.Flags().StringVar(&f.file, "config", "", "configuration file (default: built-in, see slipway config example)")
	cmd.Flags().StringVar(&f.root, "root", "", "data directory (default ./slipway-data)")
	if listening {
		cmd.Flags().StringVar(&f.addr, "addr", "", "address to serve on (default 127.0.0.1:5000)")
		cmd.Flags().StringVar(&f.debugAddr, "debug-addr", "", "address of metrics and health (default 127.0.0.1:5001)")
	}
}

// load reads the configuration and logs its warnings.
func (f *configFlags) load() (*config.Config, error) {
	var over []config.Override
	set := func(key, value, flag string) {
		if value != "" {
			over = append(over, config.Override{Key: key, Value: value, Source: flag})
		}
	}
	set("storage.root", f.root, "--root")
	set("http.addr", f.addr, "--addr")
	set("http.debug.addr", f.debugAddr, "--debug-addr")
	var cfg *config.Config
	var warnings config.Warnings
	var err error
	if f.file == "" {
		cfg, warnings, err = config.Parse(strings.NewReader(builtin), &config.Options{Name: "built-in configuration", Env: os.Environ(), Overrides: over})
	} else {
		cfg, warnings, err = config.Load(f.file, os.Environ(), over)
	}
	for _, w := range warnings {
		slog.Warn("configuration", "warning", w.String())
	}
	return cfg, err
}

func serveCommand() *cobra.Command {
	var f configFlags
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the registry",
		Example: `  slipway serve
  slipway serve --root /var/lib/slipway --addr 127.0.0.1:5000
  slipway serve --config /etc/slipway/config.yml`,
		Long: `Run the registry. Without a configuration it keeps its data in ./slipway-data and
serves on 127.0.0.1:5000, to this machine only.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := f.load()
			if err != nil {
				return err
			}
			return runServer(cmd.Context(), cfg)
		},
	}
	f.add(cmd, true)
	return cmd
}

func runServer(ctx context.Context, cfg *config.Config) error {
	log := newLogger(cfg)
	slog.SetDefault(log)
	s, err := serve.New(ctx, cfg, &serve.Options{Logger: log, Version: version})
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

// newLogger makes the log the configuration asks for, on standard error.
func newLogger(cfg *config.Config) *slog.Logger {
	opts := &slog.HandlerOptions{Level: cfg.Log.SlogLevel()}
	var h slog.Handler = slog.NewTextHandler(os.Stderr, opts)
	if cfg.Log.Formatter != "text" {
		h = slog.NewJSONHandler(os.Stderr, opts)
	}
	log := slog.New(h)
	for k, v := range cfg.Log.Fields {
		log = log.With(k, v)
	}
	return log
}
